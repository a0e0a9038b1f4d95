"""Clients of the API while an agent's memories are swapped beneath them: no search fails, and every answer is true."""

import threading

import httpx
import pytest

from tests.support.cluster.workspace import SIZE, Workspace
from tests.support.patience import wait_until

pytestmark = pytest.mark.usefixtures("operator")
VECTOR = [1.0] * SIZE


class Asking:
    """Searches and stores, one after the other, until it is told to stop."""

    def __init__(self, client: httpx.Client, slug: str) -> None:
        self._client, self._path = client, f"/v1/agents/{slug}"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.asked, self.unknown, self.faults = 0, 0, list[str]()

    def store(self, content: str) -> httpx.Response:
        memory = {"user_id": "u", "content": content, "vector": VECTOR}
        return self._client.post(f"{self._path}/memories", json=memory)

    def search(self) -> httpx.Response:
        return self._client.post(f"{self._path}/search", json={"user_id": "u", "vector": VECTOR})

    def _run(self) -> None:
        while not self._ended.is_set():
            self.asked += 1
            for answer in (self.search(), self.store(f"written meanwhile, number {self.asked}")):
                if answer.status_code == 504:
                    self.unknown += 1
                elif answer.status_code not in (200, 201):
                    self.faults.append(answer.text)

    def __enter__(self) -> "Asking":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def test_no_search_fails_and_only_writes_on_their_way_during_a_swap_and_its_way_back(
    workspace: Workspace, api: httpx.Client
) -> None:
    workspace.create_ready()
    asking = Asking(api, workspace.slug)
    wait_until(lambda: asking.store("before").status_code == 201, seconds=15, what="the agent in the API")
    workspace.create_snapshot("before", verify="None")
    workspace.wait_condition("Succeeded", "True/SnapshotTaken", name="before", of="MemorySnapshot", seconds=20)

    with asking:
        workspace.create_restore("undo", {"snapshotRef": {"name": "before"}})
        workspace.wait_condition("Succeeded", "True/Restored", name="undo", of="MemoryRestore", seconds=30)
        workspace.annotate("undo", of="MemoryRestore", rollback="yes")
        workspace.wait_condition("RolledBack", "True/RolledBack", name="undo", of="MemoryRestore", seconds=30)

    assert asking.faults == []
    assert asking.unknown <= 2, "one at each move, where it was on its way"
    assert asking.asked > 10
    assert workspace.aliases() == {workspace.alias: workspace.physical}
