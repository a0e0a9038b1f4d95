"""`agentmemory uninstall`: its output, and the catalogue file."""

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
from agentmemory_operator.entrypoints.cli.install.uninstall import CatalogueFile, add_uninstall, installation_sections
from agentmemory_operator.spec.kinds.agent_memory import Metadata

SNAPSHOT = {
    "apiVersion": "agentmemory.dev/v1alpha1",
    "kind": "MemorySnapshot",
    "metadata": {"name": "one", "namespace": "a"},
    "spec": {},
    "status": {"conditions": [{"type": "Succeeded", "status": "True"}]},
}


class Untouched:
    """A cluster with one snapshot that rejects changes."""

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
    app = typer.Typer()

    @asynccontextmanager
    async def open_cluster(_: str | None) -> AsyncIterator[Untouched]:
        yield Untouched()

    add_uninstall(app, open_cluster)
    return app


def test_dry_run_only_writes_the_catalogue(cli: typer.Typer, tmp_path: pathlib.Path) -> None:
    result = CliRunner().invoke(cli, ["--dry-run"])

    assert result.exit_code == 0, result.output
    assert "1 definitions with 1 objects; no operator is running" in result.output
    assert "only the catalogue records where" in result.output
    (file,) = tmp_path.glob("agentmemory-catalogue-*.json")
    assert json.loads(file.read_text()) == {"apiVersion": "v1", "kind": "List", "items": [SNAPSHOT]}
    assert file.stat().st_mode & 0o077 == 0


def test_missing_confirmation_changes_nothing(cli: typer.Typer, tmp_path: pathlib.Path) -> None:
    result = CliRunner().invoke(cli, [])

    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])


@pytest.mark.parametrize("options", [["--yes"], ["--dry-run"]])
def test_existing_catalogue_is_not_overwritten(cli: typer.Typer, options: list[str]) -> None:
    pathlib.Path("kept.json").write_text("of the run before")

    result = CliRunner().invoke(cli, [*options, "--catalogue", "kept.json"])

    assert result.exit_code == 2
    assert "use another" in result.output
    assert pathlib.Path("kept.json").read_text() == "of the run before"


def test_failed_catalogue_prevents_deletion(cli: typer.Typer) -> None:
    result = CliRunner().invoke(cli, ["--yes", "--catalogue", "no/such/folder.json"])

    assert result.exit_code == 1
    assert "No such file or directory" in result.output


def test_catalogue_is_written_atomically(tmp_path: pathlib.Path) -> None:
    file = CatalogueFile(tmp_path / "kept.json")
    file.keep([SNAPSHOT])

    with pytest.raises(TypeError):
        file.keep([{"not": {"for", "JSON"}}])

    assert json.loads(file.path.read_text())["items"] == [SNAPSHOT]


def test_catalogue_is_private_despite_an_old_draft(tmp_path: pathlib.Path) -> None:
    file = CatalogueFile(tmp_path / "kept.json")
    (old_draft := tmp_path / "kept.json.part").touch()
    old_draft.chmod(0o644)

    file.keep([SNAPSHOT])

    assert file.path.stat().st_mode & 0o777 == 0o600


def test_running_operator_is_shown() -> None:
    held = SNAPSHOT | {"metadata": {"name": "one", "namespace": "a", "finalizers": ["agentmemory.dev/snapshot"]}}

    (section,) = installation_sections(Installation(("MemorySnapshot",), (held,), ("home",)), is_released=False)

    assert "an operator is running in home" in section.heading
    assert section.notes == ("1 objects wait for an operator before they are deleted",)
