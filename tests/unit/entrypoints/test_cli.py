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

from agentmemory_operator.entrypoints.cli import Shell
from tests.support.command_line import command_line
from tests.support.manifests import ManifestCase, load_cases
from tests.support.operator import clean_environment

RUNNER = CliRunner()


def run(*arguments: str) -> tuple[int, str]:
    done = RUNNER.invoke(command_line(), list(arguments))
    return done.exit_code, done.output


def validated(tmp_path: pathlib.Path, document: dict[str, Any]) -> tuple[int, str]:
    file = tmp_path / "manifest.yaml"
    file.write_text(yaml.safe_dump(document))
    return run("validate", "-f", str(file))


@pytest.mark.parametrize("case", load_cases("bad.yaml"), ids=lambda case: case.name)
def test_validate_refuses_what_the_api_server_refuses_in_the_same_words(
    tmp_path: pathlib.Path, case: ManifestCase
) -> None:
    status, told = validated(tmp_path, case.document)

    assert status == 1, told
    assert re.match(rf"{re.escape(str(tmp_path))}/manifest\.yaml:\d+ ", told)
    assert [word for word in case.words if word not in told] == [], told


@pytest.mark.parametrize("case", load_cases("good.yaml"), ids=lambda case: case.name)
def test_validate_takes_what_the_api_server_takes(tmp_path: pathlib.Path, case: ManifestCase) -> None:
    status, told = validated(tmp_path, case.document)

    assert status == 0
    assert [line for line in told.splitlines() if not line.startswith("warning: ")] == []


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


def test_every_verb_says_what_it_does() -> None:
    status, told = run("--help")

    assert status == 0
    for verb in ("plan", "status", "orphans", "validate", "crds", "schema", "completion", "version"):
        assert re.search(rf"\b{verb}\b +[A-Z]", told), told
