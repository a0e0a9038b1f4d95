"""Capacity of a server: reported in the status, and new agents rejected before it is full."""

import json
import pathlib
from collections.abc import Iterator

import httpx
import pytest

from qdrant_devserver.injected_faults import FAULTS
from tests.support.cluster.workspace import CONNECTION, Workspace
from tests.support.patience import wait_until
from tests.support.web.dev_qdrant import dev_qdrant

PERIODS = {"stalled_s": 0.5, "probe_s": 0.3, "capacity_s": 0.5}

pytestmark = pytest.mark.usefixtures("quick_operator")


class Server:
    """Development Qdrant server whose process metrics a test can set."""

    def __init__(self, url: str, data_dir: pathlib.Path) -> None:
        self.url = url
        self._faults = data_dir / FAULTS

    def says(self, used: int, limit: int) -> None:
        """Set the used and the maximum number of memory maps."""
        self._say(f"process_open_mmaps={used},system_max_mmaps={limit}")

    def tells_nobody(self) -> None:
        """Make the server refuse to report its process metrics."""
        self._say("refused")

    def has(self, alias: str) -> bool:
        """Return whether an alias exists."""
        return httpx.get(f"{self.url}/collections/{alias}").is_success

    def _say(self, process: str) -> None:
        # Replace the file atomically: the server reads it at each request.
        fresh = self._faults.with_suffix(".new")
        fresh.write_text(json.dumps({"process": process}))
        fresh.replace(self._faults)


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[Server]:
    """Server used by this test only."""
    data_dir = tmp_path / "qdrant"
    with dev_qdrant(data_dir) as url:
        yield Server(url, data_dir)


def wait_near(workspace: Workspace, expected: str) -> str:
    """Return the message of NearCapacity once the condition is `expected`."""
    message: str = workspace.wait_condition("NearCapacity", expected, name=CONNECTION, of="QdrantConnection")["message"]
    return message


def wait_used(workspace: Workspace, maps: int) -> None:
    """Wait until the status reports this number of used memory maps."""

    def is_reported() -> bool:
        return bool(workspace.status(CONNECTION, "QdrantConnection")["capacity"]["memoryMaps"]["used"] == maps)

    wait_until(is_reported, seconds=5, what=f"{maps} memory maps in status")


def create(workspace: Workspace, name: str, **spec: object) -> None:
    """Create an agent, in addition to others of the namespace."""
    workspace.create(name, agent=f"{workspace.slug}-{name}", **spec)


def test_full_server_warns_then_rejects_new_agents(workspace: Workspace, server: Server) -> None:
    server.says(7_200, 10_000)
    workspace.connect(url=server.url)
    assert "80%" in wait_near(workspace, "True/LittleRoomLeft")
    create(workspace, "first")
    workspace.wait_ready("first")

    server.says(7_900, 10_000)
    wait_used(workspace, 7_900)
    create(workspace, "second")

    refused = workspace.wait_condition("Stalled", "True/ServerFull", name="second")["message"]
    assert "vm.max_map_count" in refused
    assert "payload indexes" in refused
    assert not server.has(f"agent_memory_{workspace.slug}-second")
    workspace.patch("first", index={"hnsw": {"m": 24}})
    workspace.wait_ready("first")

    server.says(7_900, 100_000)

    workspace.wait_ready("second")
    assert "LittleRoomLeft" in workspace.events(CONNECTION)


def test_collections_per_namespace_are_limited(workspace: Workspace, server: Server) -> None:
    workspace.connect(url=server.url, capacity={"maxCollectionsPerNamespace": 3})
    for number in range(3):
        create(workspace, f"loop{number}", deletionPolicy="Retain")
        workspace.wait_ready(f"loop{number}")
        workspace.delete(f"loop{number}")
        workspace.wait_deleted(f"loop{number}")

    create(workspace, "loop3", deletionPolicy="Retain")

    refused = workspace.wait_condition("Stalled", "True/NamespaceFull", name="loop3")["message"]
    assert "maxCollectionsPerNamespace" in refused
    assert not server.has(f"agent_memory_{workspace.slug}-loop3")
    # An agent that returns to its retained collection creates none.
    create(workspace, "loop1", deletionPolicy="Retain")
    workspace.wait_ready("loop1")
    workspace.patch(CONNECTION, kind="QdrantConnection", capacity={"maxCollectionsPerNamespace": 4})
    workspace.wait_ready("loop3")


def test_full_server_restores_existing_agents_only(workspace: Workspace, server: Server) -> None:
    workspace.connect(url=server.url, timeoutSeconds=2)
    create(workspace, "first")
    workspace.wait_ready("first")
    workspace.create_snapshot("kept", of="first")
    workspace.wait_condition("Succeeded", "True/SnapshotTaken", name="kept", of="MemorySnapshot", seconds=30)
    server.says(8_500, 10_000)
    wait_used(workspace, 8_500)
    source = {"snapshotRef": {"name": "kept"}}

    create(workspace, "second", bootstrap={"fromSnapshot": {"name": "kept"}})
    workspace.create_restore("back", source, into="first")

    workspace.wait_condition("Succeeded", "True/Restored", name="back", of="MemoryRestore", seconds=30)
    refused = workspace.wait_condition("Stalled", "True/BootstrapFailed", name="second", seconds=20)["message"]
    assert "the limit for new agents" in refused
    server.says(9_400, 10_000)
    wait_used(workspace, 9_400)
    workspace.create_restore("again", source, into="first")
    message = workspace.wait_condition("Progressing", "True/Retrying", name="again", of="MemoryRestore", seconds=20)
    assert "95%" in message["message"]
