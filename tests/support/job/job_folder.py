"""A folder of manifests with one agent. Commands run on it, and a test plays the operator."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from click.testing import Result
from typer.testing import CliRunner

from agentmemory_operator.adapters.folder.manifest_files import ManifestFiles
from agentmemory_operator.adapters.folder.manifest_folder import ManifestFolder
from agentmemory_operator.entrypoints.cli.composition import QdrantAccess
from agentmemory_operator.main.stores import open_jobs
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, Metadata
from tests.support.command_line import command_line

NAMESPACE = "agents"


class JobFolder:
    """A folder that `agentmemory dev` would watch.

    Args:
        agents: Names of the AgentMemories in it.
    """

    def __init__(self, path: Path, *, agents: tuple[str, ...] = ("bot",)) -> None:
        self.path = path
        (path / ".status").mkdir()
        for name in agents:
            self.declare("AgentMemory", name, {"connectionRef": {"name": "main"}})
        self.stack = ManifestFolder(path)

    def declare(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        """Write a manifest, like a user."""
        metadata = {"name": name, "namespace": NAMESPACE}
        document = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
        (self.path / f"{kind}-{name}.yaml").write_text(yaml.safe_dump(document))

    def run(self, *arguments: str) -> Result:
        """Run a command on the folder."""
        inspection = QdrantAccess(None, None, open_jobs, None, None)  # type: ignore[arg-type]
        return CliRunner().invoke(command_line(inspection, open_jobs), [*arguments, "--manifests", str(self.path)])

    def report(self, kind: str, name: str, **status: Any) -> None:
        """Scan the folder, and write the status of an object."""
        asyncio.run(self._report(kind, name, status))

    async def _report(self, kind: str, name: str, status: dict[str, Any]) -> None:
        document = await self.stack.read_object(kind, NAMESPACE, name)
        await self.stack.write_status(kind, Metadata.model_validate(document["metadata"]), status)

    def label(self, kind: str, name: str, **labels: str) -> None:
        """Set the labels of an object that a command has written, like the operator does for its own objects."""
        path = self.path / f"{NAMESPACE}.{name}.{kind.lower()}.yaml"
        document = yaml.safe_load(path.read_text())
        document["metadata"]["labels"] = labels
        path.write_text(yaml.safe_dump(document))
        self.stack.scan()

    def read_written(self, kind: str) -> dict[str, Any]:
        """Return the only object of a kind that a command has written."""
        (path,) = self.path.glob(f"*.{kind.lower()}.yaml")
        found: dict[str, Any] = yaml.safe_load(path.read_text())
        return found

    @contextmanager
    def report_statuses(self, kind: str, *statuses: dict[str, Any]) -> Iterator[None]:
        """Inside the context, write these statuses one after another to the object of a kind that a command creates.

        Each is followed by the next one after the command has read it twice: the first read may have begun before.
        """
        ended, reads = threading.Event(), list[str]()
        read_object = ManifestFiles.read_object

        async def counted(*arguments: Any) -> Any:
            document = await read_object(*arguments)
            reads.append(document["kind"])
            return document

        def play() -> None:
            while not ended.is_set() and not (found := list(self.path.glob(f"*.{kind.lower()}.yaml"))):
                time.sleep(0.01)
            name = found[0].name.split(".")[1]
            for status in statuses:
                self.report(kind, name, **status)
                before = reads.count(kind)
                while not ended.is_set() and reads.count(kind) < before + 2:
                    time.sleep(0.005)

        player = threading.Thread(target=play)
        player.start()
        try:
            with patch.object(ManifestFiles, "read_object", counted):
                yield
        finally:
            ended.set()
            player.join()


def condition(kind: str, status: str, reason: str = "Because", message: str = "told") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}
