"""Clients of the API while an agent's memories are swapped beneath them: nobody sees an error."""

import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.support.controlplane import ControlPlane
from tests.support.operator import running, start_api, wait_until
from tests.support.workspace import SIZE, Workspace

pytestmark = pytest.mark.usefixtures("operator")
VECTOR = [1.0] * SIZE


@pytest.fixture
def client(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of `agentmemory api` on the cluster."""
    program, url = start_api(control_plane, tmp_path_factory.mktemp("api"))
    with running(program), httpx.Client(base_url=url, timeout=30) as made:
        yield made


class Asking:
    """Searches and stores, one after the other, until it is told to stop."""

    def __init__(self, client: httpx.Client, slug: str) -> None:
        self._client, self._path = client, f"/v1/agents/{slug}"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.asked, self.faults = 0, list[str]()

    def store(self, content: str) -> httpx.Response:
        memory = {"user_id": "u", "content": content, "vector": VECTOR}
        return self._client.post(f"{self._path}/memories", json=memory)

    def search(self) -> httpx.Response:
        return self._client.post(f"{self._path}/search", json={"user_id": "u", "vector": VECTOR})

    def _run(self) -> None:
        while not self._ended.is_set():
            self.asked += 1
            for answer in (self.search(), self.store(f"written meanwhile, number {self.asked}")):
                if answer.status_code not in (200, 201):
                    self.faults.append(answer.text)

    def __enter__(self) -> "Asking":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def test_no_search_and_no_write_fails_during_a_swap_and_its_way_back(
    workspace: Workspace, client: httpx.Client
) -> None:
    workspace.create_ready()
    asking = Asking(client, workspace.slug)
    wait_until(lambda: asking.store("before").status_code == 201, seconds=15, what="the agent in the API")
    workspace.create_snapshot("before", verify="None")
    workspace.wait_condition("Succeeded", "True/SnapshotTaken", name="before", of="MemorySnapshot", seconds=20)

    with asking:
        workspace.create_restore("undo", {"snapshotRef": {"name": "before"}})
        workspace.wait_condition("Succeeded", "True/Restored", name="undo", of="MemoryRestore", seconds=30)
        workspace.annotate("undo", of="MemoryRestore", rollback="yes")
        workspace.wait_condition("RolledBack", "True/RolledBack", name="undo", of="MemoryRestore", seconds=30)

    assert asking.faults == []
    assert asking.asked > 10
    assert workspace.aliases() == {workspace.alias: workspace.physical}
