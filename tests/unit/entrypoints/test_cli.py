"""The command line as it is typed: what prints, what checks, and with which exit status."""

import ast
import contextlib
import json
import os
import pathlib
import pty
import re
import subprocess
import sys

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from agentmemory_operator.entrypoints.cli import commands
from agentmemory_operator.entrypoints.cli.commands import COMMANDS
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from tests.support.command_line import command_line
from tests.support.programs import clean_environment
from tests.support.spec.golden import ManifestCase, load_cases

RUNNER = CliRunner()


def run(*arguments: str) -> tuple[int, str]:
    done = RUNNER.invoke(command_line(), list(arguments))
    return done.exit_code, done.output


def validated_together(folder: pathlib.Path, cases: list[ManifestCase]) -> tuple[int, dict[str, str]]:
    """Return the exit status for a folder of manifests, and what is said of each by the case's name."""
    names = {folder / f"{number:03}.yaml": case.name for number, case in enumerate(cases)}
    for path, case in zip(names, cases, strict=True):
        path.write_text(yaml.safe_dump(case.document))
    status, told = run("validate", "-f", str(folder))
    said = dict.fromkeys(names.values(), "")
    for path, finding in re.findall(rf"^({re.escape(str(folder))}/\d+\.yaml):\d+ (.*)$", told, re.M):
        said[names[pathlib.Path(path)]] += f"{finding}\n"
    return status, said


def test_validate_refuses_what_the_api_server_refuses_in_the_same_words(tmp_path: pathlib.Path) -> None:
    cases = load_cases("bad.yaml")

    status, said = validated_together(tmp_path, cases)

    assert status == 1
    assert [case.name for case in cases if not said[case.name]] == []
    missing = {case.name: [word for word in case.words if word not in said[case.name]] for case in cases}
    assert {name: (words, said[name]) for name, words in missing.items() if words} == {}


def test_validate_takes_what_the_api_server_takes(tmp_path: pathlib.Path) -> None:
    status, said = validated_together(tmp_path, load_cases("good.yaml"))

    assert status == 0
    assert [name for name, found in said.items() if found] == []


def test_schema_prints_json() -> None:
    status, told = run("schema")

    assert status == 0
    assert json.loads(told)["$schema"].startswith("https://json-schema.org/")


BIN = pathlib.Path(sys.executable).parent
CLI = pathlib.Path(commands.__file__).parent
SPEC = {"connectionRef": {"name": "main"}, "embedding": {"provider": "none", "dimensions": 8}}


@pytest.mark.parametrize(
    ("shell", "typed", "found"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "agentmemory sea"}, '"search":"'),
        ("fish", {"_TYPER_COMPLETE_ARGS": "agentmemory sea", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "search\t"),
    ],
)
def test_other_shells_are_told_what_a_verb_does(shell: str, typed: dict[str, str], found: str) -> None:
    asked = {"_AGENTMEMORY_COMPLETE": f"complete_{shell}"} | typed
    done = subprocess.run(
        [str(BIN / "kubectl-agentmemory")],
        capture_output=True,
        text=True,
        env=clean_environment() | asked,
        timeout=60,
    )

    assert f"{found}Search a user's memories".replace("'", "''" if shell == "zsh" else "'") in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sna"], ["snapshot\tCreate, list", ":4"]),
        (["status", "it's; rm", ""], [":0"]),
    ],
)
def test_kubectl_is_told_what_may_follow_the_plugin_s_words(words: list[str], told: list[str]) -> None:
    done = subprocess.run(
        [str(BIN / "kubectl_complete-agentmemory"), *words],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=60,
    )

    lines = done.stdout.splitlines()
    assert [line.startswith(start) for line, start in zip(lines, told, strict=True)] == [True] * len(told), lines


@pytest.mark.parametrize("program", ["kubectl-agentmemory"])
def test_a_hint_names_the_command_which_was_typed(program: str, tmp_path: pathlib.Path) -> None:
    manifest = {"apiVersion": API_VERSION, "kind": "AgentMemory", "metadata": {"name": "bot"}, "spec": SPEC}
    (tmp_path / "bot.yaml").write_text(yaml.safe_dump(manifest))
    done = subprocess.run(
        [str(BIN / program), "snapshot", "list", "bot", "--manifests", str(tmp_path)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=60,
    )

    assert f"`{program.replace('-', ' ')} snapshot create NAME` takes one." in done.stdout, done.stderr


def test_no_hint_names_the_program_itself() -> None:
    """But for what only one who has it installed so starts: `agentmemory dev`, and the script of a shell."""
    hint = re.compile(rf"(?<!_)agentmemory ({'|'.join(COMMANDS.keys() - {'dev', 'completion'})})\b")
    found = [
        path.name
        for path in CLI.rglob("*.py")
        for tree in [ast.parse(path.read_text())]
        for node in strings_in(tree)
        if hint.search(node.value)
    ]

    assert found == ["crds.py"]


def strings_in(tree: ast.Module) -> list[ast.Constant]:
    """Return the texts of a module that are no docstrings."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node for node in strings if id(node) not in docs]


@pytest.mark.parametrize("verb", COMMANDS)
def test_what_is_listed_of_a_verb_is_what_it_says_of_itself(verb: str) -> None:
    command = get_command(command_line()).commands[verb]  # type: ignore[attr-defined]

    assert command.help.split("\n\n")[0].replace("\n", " ") == COMMANDS[verb].help


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        (["statsu", "bot"], "Did you mean 'status'?"),
        (["status", "bot", "--ful"], "--full"),
        (["operator", "--namspace", "a"], "--namespace"),
        (["api", "--prot", "1"], "--port"),
        (["snapshot", "lst", "bot"], "Did you mean 'list'?"),
        (["schema", "--wriet"], "No such option: --wriet"),
    ],
)
def test_a_slip_in_a_verb_or_an_option_is_refused_with_the_nearest(typed: list[str], near: str) -> None:
    status, told = run(*typed)

    assert status == 2
    assert near in " ".join(told.split())


def test_colours_are_for_terminals_that_want_them() -> None:
    def shown(**environment: str) -> str:
        typed, terminal = pty.openpty()
        command = [str(BIN / "agentmemory"), "preset", "list"]
        done = subprocess.Popen(command, stdout=terminal, env=clean_environment() | {"TERM": "xterm"} | environment)
        os.close(terminal)
        told = b""
        # Linux ends what a terminal's other end has closed with an error.
        with contextlib.suppress(OSError):
            while part := os.read(typed, 4096):
                told += part
        os.close(typed)
        done.wait(60)
        return told.decode()

    assert "\x1b[1m" in shown()
    assert "\x1b[3" not in shown(NO_COLOR="1")
    assert "\x1b" not in run("preset", "list")[1]


def test_the_version_is_told_by_an_option_too() -> None:
    assert run("--version") == run("version")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_verb_says_what_it_does(option: str) -> None:
    status, told = run(option)

    assert status == 0
    for verb in ("plan", "status", "orphans", "validate", "crds", "schema", "completion", "version"):
        assert re.search(rf"\b{verb}\b +[A-Z]", told), told
