"""An adopted plain collection is moved behind its alias: requested, approved, moved and rolled back."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import start_api
from tests.support.cluster.workspace import AGENT, SIZE, Workspace
from tests.support.patience import wait_until
from tests.support.programs import running

pytestmark = pytest.mark.usefixtures("operator")

Json = dict[str, Any]
POINTS = 5
MOVED_WITHIN_S = 60
UUID = "3f0e1f6a-6a0e-4b8e-9a39-0b8ad63f0c11"
FOREIGN = [
    *({"id": number, "vector": [1.0] * SIZE, "payload": {"n": number}} for number in range(1, POINTS)),
    {"id": UUID, "vector": [0.5] * SIZE, "payload": {"nested": {"a": [1, None, "x"]}, "note": "somebody else's"}},
]


@pytest.fixture(scope="module")
def api_url(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`agentmemory api` on the cluster."""
    program, url = start_api(control_plane, tmp_path_factory.mktemp("api"))
    with running(program):
        yield url


def adopt(workspace: Workspace) -> None:
    """Adopt a manually created collection with points."""
    plain = {"vectors": {"size": SIZE, "distance": "Cosine"}}
    workspace.qdrant.put(f"/collections/{workspace.alias}", json=plain).raise_for_status()
    path = f"/collections/{workspace.alias}/points"
    workspace.qdrant.put(path, params={"wait": "true"}, json={"points": FOREIGN}).raise_for_status()
    workspace.create_ready(timeout_s=2)


def ask(workspace: Workspace) -> str:
    """Request the alias; return the digest of the held plan."""
    workspace.annotate(move_to_alias="true")
    held = workspace.wait_condition("InSync", "False/AwaitingApproval")
    print(held["message"])
    planned = [change["change"] for change in workspace.status()["plan"]["changes"]]
    assert planned == ["rebuild for collection plain -> behind the alias"]
    return str(workspace.status()["plan"]["digest"])


def contents(workspace: Workspace, collection: str) -> Json:
    """Return payload and vector of every point, by id."""
    body = {"limit": 1000, "with_payload": True, "with_vector": True}
    answer = workspace.qdrant.post(f"/collections/{collection}/points/scroll", json=body).raise_for_status().json()
    return {point["id"]: (point["payload"], point["vector"]) for point in answer["result"]["points"]}


class Reader(threading.Thread):
    """Client that searches continuously and records each status."""

    def __init__(self, url: str, slug: str) -> None:
        super().__init__(daemon=True)
        self._url = f"{url}/v1/agents/{slug}/search"
        self._is_done = threading.Event()
        self.answers: list[tuple[float, int, bool]] = []

    def run(self) -> None:
        with httpx.Client(timeout=30) as client:
            while not self._is_done.wait(0.005):
                answer = client.post(self._url, json={"user_id": "u", "vector": [1.0] * SIZE})
                self.answers.append((time.monotonic(), answer.status_code, "retry-after" in answer.headers))

    def stop(self) -> None:
        self._is_done.set()
        self.join()


def wait_moved(workspace: Workspace) -> Json:
    """Return the status of the rebuild once it is done."""

    def is_done() -> bool:
        return bool((workspace.status().get("rebuild") or {}).get("state") == "Done")

    wait_until(is_done, seconds=MOVED_WITHIN_S, what="the move")
    rebuild: Json = workspace.status()["rebuild"]
    return rebuild


def test_adopted_collection_is_moved_and_rolled_back(workspace: Workspace, api_url: str) -> None:
    adopt(workspace)
    before = contents(workspace, workspace.alias)
    digest = ask(workspace)
    reader = Reader(api_url, workspace.slug)
    wait_until(
        lambda: httpx.get(f"{api_url}/v1/agents/{workspace.slug}").status_code == 200, seconds=10, what="the agent"
    )
    reader.start()

    workspace.annotate(approve_plan=digest)
    rebuild = wait_moved(workspace)
    reader.stop()

    live = workspace.aliases()[workspace.alias]
    assert workspace.physicals() == sorted([live, rebuild["source"]])
    assert contents(workspace, live) == contents(workspace, rebuild["source"]) == before
    refused = [(at, has_time) for at, status, has_time in reader.answers if status != 200]
    assert {status for _, status, _ in reader.answers} <= {200, 503}
    assert all(has_time for _, has_time in refused)
    if refused:
        assert refused[-1][0] - refused[0][0] < rebuild["pauseMs"] / 1000 + 1
    assert (
        f"the collection was unavailable for {rebuild['pauseMs']} ms"
        in workspace.events(AGENT, kind="Normal")["Rebuilt"]
    )
    assert "plan" not in workspace.wait_ready()["status"]

    workspace.annotate(rollback_rebuild=live)
    wait_until(
        lambda: workspace.aliases()[workspace.alias] == rebuild["source"], seconds=MOVED_WITHIN_S, what="the way back"
    )
    assert contents(workspace, workspace.alias) == before


def test_restore_into_plain_collection_names_remedy(workspace: Workspace) -> None:
    adopt(workspace)
    workspace.create_snapshot("one", verify="None")
    workspace.wait_condition("Succeeded", "True/SnapshotTaken", name="one", of="MemorySnapshot", seconds=20)

    workspace.create_restore("back", {"snapshotRef": {"name": "one"}})

    rebuild = workspace.wait_condition("Succeeded", "False/NoAlias", name="back", of="MemoryRestore", seconds=20)
    assert "agentmemory.dev/move-to-alias=true" in rebuild["message"]
