"""`agentmemory uninstall`: what it shows, and the file that it keeps."""

import json
import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from agentmemory_operator.controllers import uninstall as uninstalling
from agentmemory_operator.controllers.uninstall import Installation
from agentmemory_operator.entrypoints.cli.install.uninstall import CatalogueFile, add_uninstall, found_sections
from agentmemory_operator.spec.kinds.agent_memory import Metadata

SNAPSHOT = {
    "apiVersion": "agentmemory.dev/v1alpha1",
    "kind": "MemorySnapshot",
    "metadata": {"name": "one", "namespace": "a"},
    "spec": {},
    "status": {"conditions": [{"type": "Succeeded", "status": "True"}]},
}


class Untouched:
    """A cluster with one snapshot, and nobody may change it."""

    async def has_definition(self, kind: str) -> bool:
        return kind == "MemorySnapshot"

    async def list_in(self, kind: str, namespace: str) -> list[dict[str, Any]]:
        return [SNAPSHOT]

    async def read_lease_renewals(self) -> dict[str, str]:
        return {}

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        raise AssertionError("deleted")

    async def write_finalizers(self, *_: Any) -> None:
        raise AssertionError("changed")

    async def delete_definition(self, kind: str) -> None:
        raise AssertionError("deleted")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> typer.Typer:
    monkeypatch.setattr(uninstalling, "LEASE_CHECK_S", 0.01)
    monkeypatch.setattr(uninstalling, "POLL_S", 0.001)
    monkeypatch.chdir(tmp_path)
    made = typer.Typer()

    @asynccontextmanager
    async def opened(_: str | None) -> AsyncIterator[Untouched]:
        yield Untouched()

    add_uninstall(made, opened)
    return made


def test_a_dry_run_shows_what_ends_and_keeps_it_and_changes_nothing(cli: typer.Typer, tmp_path: pathlib.Path) -> None:
    done = CliRunner().invoke(cli, ["--dry-run"])

    assert done.exit_code == 0, done.output
    assert "1 definitions with 1 objects; no operator is running" in done.output
    assert "only the catalogue records where" in done.output
    (file,) = tmp_path.glob("agentmemory-catalogue-*.json")
    assert json.loads(file.read_text()) == {"apiVersion": "v1", "kind": "List", "items": [SNAPSHOT]}
    assert file.stat().st_mode & 0o077 == 0


def test_nobody_to_ask_is_nothing_done_and_no_file(cli: typer.Typer, tmp_path: pathlib.Path) -> None:
    done = CliRunner().invoke(cli, [])

    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])


@pytest.mark.parametrize("options", [["--yes"], ["--dry-run"]])
def test_a_catalogue_that_is_there_is_not_written_over(cli: typer.Typer, options: list[str]) -> None:
    pathlib.Path("kept.json").write_text("of the run before")

    done = CliRunner().invoke(cli, [*options, "--catalogue", "kept.json"])

    assert done.exit_code == 2
    assert "use another" in done.output
    assert pathlib.Path("kept.json").read_text() == "of the run before"


def test_where_the_catalogue_cannot_be_kept_nothing_is_deleted(cli: typer.Typer) -> None:
    done = CliRunner().invoke(cli, ["--yes", "--catalogue", "no/such/folder.json"])

    assert done.exit_code == 1
    assert "No such file or directory" in done.output


def test_a_file_is_whole_at_any_time(tmp_path: pathlib.Path) -> None:
    file = CatalogueFile(tmp_path / "kept.json")
    file.keep([SNAPSHOT])

    with pytest.raises(TypeError):
        file.keep([{"not": {"for", "JSON"}}])

    assert json.loads(file.path.read_text())["items"] == [SNAPSHOT]


def test_an_operator_that_works_and_what_waits_for_it_are_told() -> None:
    held = SNAPSHOT | {"metadata": {"name": "one", "namespace": "a", "finalizers": ["agentmemory.dev/snapshot"]}}

    (section,) = found_sections(Installation(("MemorySnapshot",), (held,), ("home",)), is_released=False)

    assert "an operator is running in home" in section.heading
    assert section.notes == ("1 objects wait for an operator before they are deleted",)
