"""API clients during the swap of an agent's collection: no search fails, and every response is correct."""

import threading

import httpx
import pytest

from tests.support.cluster.workspace import SIZE, Workspace
from tests.support.patience import wait_until

pytestmark = pytest.mark.usefixtures("operator")
VECTOR = [1.0] * SIZE


class Client:
    """Client that searches and stores in turn until it is stopped."""

    def __init__(self, client: httpx.Client, slug: str) -> None:
        self._client, self._path = client, f"/v1/agents/{slug}"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.requests, self.unknown, self.faults = 0, 0, list[str]()

    def store(self, content: str) -> httpx.Response:
        memory = {"user_id": "u", "content": content, "vector": VECTOR}
        return self._client.post(f"{self._path}/memories", json=memory)

    def search(self) -> httpx.Response:
        return self._client.post(f"{self._path}/search", json={"user_id": "u", "vector": VECTOR})

    def _run(self) -> None:
        while not self._ended.is_set():
            self.requests += 1
            for answer in (self.search(), self.store(f"written meanwhile, number {self.requests}")):
                if answer.status_code == 504:
                    self.unknown += 1
                elif answer.status_code not in (200, 201):
                    self.faults.append(answer.text)

    def __enter__(self) -> "Client":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def test_no_search_fails_during_swap_and_rollback(workspace: Workspace, api: httpx.Client) -> None:
    """Only writes in flight during a move have an unknown outcome."""
    workspace.create_ready(timeout_s=2)
    client = Client(api, workspace.slug)
    wait_until(lambda: client.store("before").status_code == 201, seconds=15, what="the agent in the API")
    workspace.create_snapshot("before", verify="None")
    workspace.wait_condition("Succeeded", "True/SnapshotTaken", name="before", of="MemorySnapshot", seconds=20)

    with client:
        workspace.create_restore("undo", {"snapshotRef": {"name": "before"}})
        workspace.wait_condition("Succeeded", "True/Restored", name="undo", of="MemoryRestore", seconds=30)
        workspace.annotate("undo", of="MemoryRestore", rollback="yes")
        workspace.wait_condition("RolledBack", "True/RolledBack", name="undo", of="MemoryRestore", seconds=30)

    assert client.faults == []
    assert client.unknown <= 2, "one at each move, where it was on its way"
    assert client.requests > 10
    assert workspace.aliases() == {workspace.alias: workspace.physical}
