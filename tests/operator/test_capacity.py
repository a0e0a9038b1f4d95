"""How full a server is, on a real API server: told, quiet, and new agents refused before it ends."""

import json
import pathlib
from collections.abc import Iterator

import httpx
import pytest

from qdrant_devserver.injected_faults import FAULTS
from tests.support.cluster.workspace import CONNECTION, Workspace
from tests.support.patience import wait_until
from tests.support.web.api_stack import dev_qdrant

PERIODS = {"stalled_s": 0.5, "probe_s": 0.3, "capacity_s": 0.5}

pytestmark = pytest.mark.usefixtures("quick_operator")


class Server:
    """A development Qdrant server that says of its process what a test wants."""

    def __init__(self, url: str, data_dir: pathlib.Path) -> None:
        self.url = url
        self._faults = data_dir / FAULTS

    def says(self, used: int, limit: int) -> None:
        """Have it say how many memory maps it has, and may have."""
        self._say(f"process_open_mmaps={used},system_max_mmaps={limit}")

    def tells_nobody(self) -> None:
        """Have it refuse to say."""
        self._say("refused")

    def has(self, alias: str) -> bool:
        """Tell whether it has a collection behind an alias."""
        return httpx.get(f"{self.url}/collections/{alias}").is_success

    def _say(self, process: str) -> None:
        # Whole, or not at all: the server reads it at each request.
        fresh = self._faults.with_suffix(".new")
        fresh.write_text(json.dumps({"process": process}))
        fresh.replace(self._faults)


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[Server]:
    """A server that nobody else uses."""
    data_dir = tmp_path / "qdrant"
    with dev_qdrant(data_dir) as url:
        yield Server(url, data_dir)


def wait_near(workspace: Workspace, wanted: str) -> str:
    """Return the message of NearCapacity once it is that."""
    told: str = workspace.wait_condition("NearCapacity", wanted, name=CONNECTION, of="QdrantConnection")["message"]
    return told


def wait_used(workspace: Workspace, maps: int) -> None:
    """Wait until status says that the server uses so many memory maps."""

    def is_told() -> bool:
        return bool(workspace.status(CONNECTION, "QdrantConnection")["capacity"]["memoryMaps"]["used"] == maps)

    wait_until(is_told, seconds=5, what=f"{maps} memory maps in status")


def create(workspace: Workspace, name: str, **spec: object) -> None:
    """Create an agent of that name, beside others of the namespace."""
    workspace.create(name, agent=f"{workspace.slug}-{name}", **spec)


def test_a_server_that_fills_up_is_told_before_new_agents_are_refused(workspace: Workspace, server: Server) -> None:
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


def test_creating_and_deleting_in_a_loop_comes_to_an_end(workspace: Workspace, server: Server) -> None:
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
    # One that comes back to what it left makes none.
    create(workspace, "loop1", deletionPolicy="Retain")
    workspace.wait_ready("loop1")
    workspace.patch(CONNECTION, kind="QdrantConnection", capacity={"maxCollectionsPerNamespace": 4})
    workspace.wait_ready("loop3")


def test_a_full_server_restores_what_it_has_and_no_new_agent(workspace: Workspace, server: Server) -> None:
    workspace.connect(url=server.url)
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
    told = workspace.wait_condition("Progressing", "True/Retrying", name="again", of="MemoryRestore", seconds=20)
    assert "95%" in told["message"]
