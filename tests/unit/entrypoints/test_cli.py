"""The command line as typed: output, checks, exit status."""

import ast
import contextlib
import json
import os
import pathlib
import pty
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from agentmemory_operator.adapters.folder.manifest_files import ManifestFiles
from agentmemory_operator.entrypoints.cli import commands
from agentmemory_operator.entrypoints.cli.commands import COMMANDS
from agentmemory_operator.errors import TransientError
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, CONSOLIDATION_REQUESTED
from tests.support.command_line import command_line
from tests.support.job.job_folder import JobFolder
from tests.support.programs import clean_environment
from tests.support.spec.golden import ManifestCase, load_cases

RUNNER = CliRunner()


def run(*arguments: str) -> tuple[int, str]:
    result = RUNNER.invoke(command_line(), list(arguments))
    return result.exit_code, result.output


def validated_together(folder: pathlib.Path, cases: list[ManifestCase]) -> tuple[int, dict[str, str]]:
    """Return the exit status for a folder of manifests, and the findings by case name."""
    names = {folder / f"{number:03}.yaml": case.name for number, case in enumerate(cases)}
    for path, case in zip(names, cases, strict=True):
        path.write_text(yaml.safe_dump(case.document))
    status, output = run("validate", "-f", str(folder))
    findings = dict.fromkeys(names.values(), "")
    for path, finding in re.findall(rf"^({re.escape(str(folder))}/\d+\.yaml):\d+ (.*)$", output, re.M):
        findings[names[pathlib.Path(path)]] += f"{finding}\n"
    return status, findings


def test_validate_matches_the_errors_of_the_api_server(tmp_path: pathlib.Path) -> None:
    cases = load_cases("bad.yaml")

    status, findings = validated_together(tmp_path, cases)

    assert status == 1
    assert [case.name for case in cases if not findings[case.name]] == []
    missing = {case.name: [word for word in case.words if word not in findings[case.name]] for case in cases}
    assert {name: (words, findings[name]) for name, words in missing.items() if words} == {}


def test_validate_accepts_what_the_api_server_accepts(tmp_path: pathlib.Path) -> None:
    status, findings = validated_together(tmp_path, load_cases("good.yaml"))

    assert status == 0
    assert [name for name, found in findings.items() if found] == []


def test_schema_prints_json() -> None:
    status, output = run("schema")

    assert status == 0
    assert json.loads(output)["$schema"].startswith("https://json-schema.org/")


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
def test_zsh_and_fish_show_the_help_of_a_verb(shell: str, typed: dict[str, str], found: str) -> None:
    variables = {"_AGENTMEMORY_COMPLETE": f"complete_{shell}"} | typed
    result = subprocess.run(
        [str(BIN / "kubectl-agentmemory")],
        capture_output=True,
        text=True,
        env=clean_environment() | variables,
        timeout=60,
    )

    assert f"{found}Search a user's memories".replace("'", "''" if shell == "zsh" else "'") in result.stdout


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        (["sna"], ["snapshot\tCreate, list", ":4"]),
        (["status", "it's; rm", ""], [":0"]),
    ],
)
def test_kubectl_completes_verbs_of_the_plugin(words: list[str], starts: list[str]) -> None:
    result = subprocess.run(
        [str(BIN / "kubectl_complete-agentmemory"), *words],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=60,
    )

    lines = result.stdout.splitlines()
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * len(starts), lines


@pytest.mark.parametrize("program", ["kubectl-agentmemory"])
def test_hint_contains_the_typed_command(program: str, tmp_path: pathlib.Path) -> None:
    manifest = {"apiVersion": API_VERSION, "kind": "AgentMemory", "metadata": {"name": "bot"}, "spec": SPEC}
    (tmp_path / "bot.yaml").write_text(yaml.safe_dump(manifest))
    result = subprocess.run(
        [str(BIN / program), "snapshot", "list", "bot", "--manifests", str(tmp_path)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=60,
    )

    assert f"`{program.replace('-', ' ')} snapshot create NAME` takes one." in result.stdout, result.stderr


def test_no_hint_hardcodes_the_program_name() -> None:
    """Only `agentmemory dev` and the completion script are exempt, because they need the installed program."""
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
    """Return the string constants of a module except docstrings."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node for node in strings if id(node) not in docs]


@pytest.mark.parametrize("verb", COMMANDS)
def test_listed_help_equals_the_help_of_the_verb(verb: str) -> None:
    command = get_command(command_line()).commands[verb]  # type: ignore[attr-defined]

    assert command.help.split("\n\n")[0].replace("\n", " ") == COMMANDS[verb].help


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [
        (["statsu", "bot"], "Did you mean 'status'?"),
        (["status", "bot", "--ful"], "--full"),
        (["operator", "--namspace", "a"], "--namespace"),
        (["api", "--prot", "1"], "--port"),
        (["snapshot", "lst", "bot"], "Did you mean 'list'?"),
        (["schema", "--wriet"], "No such option: --wriet"),
    ],
)
def test_typo_is_rejected_with_a_suggestion(typed: list[str], suggestion: str) -> None:
    status, output = run(*typed)

    assert status == 2
    assert suggestion in " ".join(output.split())


def test_option_without_effect_is_rejected(tmp_path: pathlib.Path) -> None:
    for typed in (
        "api --source kubernetes",
        "api --source files --lease-namespace home",
        "consolidate bot --proposals --wait",
        "consolidate bot --yes --undo=",
        "orphans --connection main",
    ):
        status, output = run(*typed.split(), "--manifests", str(tmp_path))
        assert (status, output.count("Invalid value")) == (2, 1), output


def test_wait_for_a_consolidation_continues_after_an_outage(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, read, requested = JobFolder(tmp_path), ManifestFiles.read_object, []
    responses: list[Exception | None] = [None, TransientError("the API server is away"), None]

    async def read_object(*arguments: Any) -> Any:
        if error := responses.pop(0):
            raise error
        document = await read(*arguments)
        return document | {"status": {"lastConsolidation": {"requested": "".join(requested), "message": "12 merged"}}}

    async def annotate(_: Any, kind: str, metadata: Any, annotations: dict[str, Any]) -> None:
        requested.append(annotations[CONSOLIDATION_REQUESTED])

    monkeypatch.setattr(ManifestFiles, "annotate", annotate)
    monkeypatch.setattr(ManifestFiles, "read_object", read_object)
    result = folder.run("consolidate", "bot", "--undo", "0123456789ab", "--wait", "--yes")

    assert (result.exit_code, responses) == (0, []), result.output
    assert "the API server is away: waiting for at most 600 s" in result.output
    assert "12 merged" in result.output


def test_colours_need_a_terminal_without_no_color() -> None:
    def run_in_terminal(**environment: str) -> str:
        typed, terminal = pty.openpty()
        command = [str(BIN / "agentmemory"), "preset", "list"]
        result = subprocess.Popen(command, stdout=terminal, env=clean_environment() | {"TERM": "xterm"} | environment)
        os.close(terminal)
        output = b""
        # Linux raises OSError once the other end of the terminal is closed.
        with contextlib.suppress(OSError):
            while part := os.read(typed, 4096):
                output += part
        os.close(typed)
        result.wait(60)
        return output.decode()

    assert "\x1b[1m" in run_in_terminal()
    assert "\x1b[3" not in run_in_terminal(NO_COLOR="1")
    assert "\x1b" not in run("preset", "list")[1]


def test_version_option_equals_the_version_verb() -> None:
    assert run("--version") == run("version")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_describes_every_verb(option: str) -> None:
    status, output = run(option)

    assert status == 0
    for verb in ("plan", "status", "orphans", "validate", "crds", "schema", "completion", "version"):
        assert re.search(rf"\b{verb}\b +[A-Z]", output), output
