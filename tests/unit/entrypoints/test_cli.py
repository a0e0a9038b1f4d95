"""The command line as it is typed: what prints, what checks, and with which exit status."""

import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from agentmemory_operator.entrypoints.cli.prints import Shell
from tests.support.command_line import command_line
from tests.support.programs import clean_environment
from tests.support.spec.golden import ManifestCase, load_cases

RUNNER = CliRunner()


def run(*arguments: str) -> tuple[int, str]:
    done = RUNNER.invoke(command_line(), list(arguments))
    return done.exit_code, done.output


def validated(tmp_path: pathlib.Path, document: dict[str, Any]) -> tuple[int, str]:
    file = tmp_path / "manifest.yaml"
    file.write_text(yaml.safe_dump(document))
    return run("validate", "-f", str(file))


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


def test_one_bad_manifest_alone_is_refused(tmp_path: pathlib.Path) -> None:
    assert validated(tmp_path, load_cases("bad.yaml")[0].document)[0] == 1


def test_validate_takes_what_the_api_server_takes(tmp_path: pathlib.Path) -> None:
    status, said = validated_together(tmp_path, load_cases("good.yaml"))

    assert status == 0
    assert [name for name, found in said.items() if found] == []


def test_schema_prints_json() -> None:
    status, told = run("schema")

    assert status == 0
    assert json.loads(told)["$schema"].startswith("https://json-schema.org/")


@pytest.mark.parametrize("shell", Shell)
def test_completion_prints_a_script_for_each_shell(shell: Shell) -> None:
    status, told = run("completion", shell)

    assert status == 0
    assert "agentmemory" in told
    assert "_AGENTMEMORY_COMPLETE" in told


def test_what_the_script_asks_is_answered() -> None:
    asked = {"_AGENTMEMORY_COMPLETE": "complete_bash", "COMP_WORDS": "agentmemory pl", "COMP_CWORD": "1"}
    done = subprocess.run(
        [str(pathlib.Path(sys.executable).parent / "agentmemory")],
        capture_output=True,
        text=True,
        env=clean_environment() | asked,
        timeout=60,
    )

    assert done.stdout.split() == ["plan"]


def test_the_version_is_told_by_an_option_too() -> None:
    assert run("--version") == run("version")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_verb_says_what_it_does(option: str) -> None:
    status, told = run(option)

    assert status == 0
    for verb in ("plan", "status", "orphans", "validate", "crds", "schema", "completion", "version"):
        assert re.search(rf"\b{verb}\b +[A-Z]", told), told
