"""What a released version left goes on working: objects, collections, answers, backups of every format, exports."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.rollout import CURRENT, Rollout, rollout
from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until
from tests.support.programs import running, start_qdrant
from tests.support.web.http_server import check_success
from tests.support.web.s3_server import BUCKET, S3Server, serve_s3
from tests.upgrade.recorded import NAMESPACE, Recording, ask, load, versions


@dataclass(frozen=True, slots=True)
class Left:
    """What a version left, with the present one running over it."""

    recording: Recording
    workspace: Workspace
    storage: S3Server
    installed: Rollout

    @property
    def agents(self) -> list[str]:
        return [found["metadata"]["name"] for found in self.recording.objects if found["kind"] == "AgentMemory"]


@pytest.fixture(scope="module", params=versions())
def left(
    request: pytest.FixtureRequest, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Left]:
    recording, folder = load(request.param), tmp_path_factory.mktemp(request.param)
    qdrant, url = start_qdrant(folder / "qdrant")
    with running(qdrant), serve_s3(folder / "s3") as storage, rollout(control_plane, folder) as installed:
        workspace = Workspace(control_plane, NAMESPACE, url)
        recording.put_backup(storage.folder)
        recording.put_collections(workspace.qdrant)
        recording.put_objects(control_plane, qdrant=url, storage=storage.url)
        installed.install(CURRENT, AGENTMEMORY_CLUSTER_ID=recording.cluster)
        yield Left(recording, workspace, storage, installed)
        workspace.clean()


@pytest.fixture
def api(left: Left) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=left.installed.service.url, timeout=30) as client:
        for agent in left.agents:
            wait_until(lambda agent=agent: client.get(f"/v1/agents/{agent}").is_success, seconds=30, what=agent)
        yield client


def test_every_version_that_was_released_is_recorded() -> None:
    assert versions() == ["0.1.0"]


def test_every_agent_serves_from_the_collection_that_it_had(left: Left) -> None:
    before = {name: {point["id"] for point in kept["points"]} for name, kept in left.recording.collections.items()}
    for agent in left.agents:
        left.workspace.wait_condition("Ready", "True/Serving", name=agent, seconds=30)

    for name, ids in before.items():
        body = {"limit": 1000, "with_payload": False}
        found = check_success(left.workspace.qdrant.post(f"/collections/{name}/points/scroll", json=body)).json()[
            "result"
        ]
        assert {point["id"] for point in found["points"]} >= ids, name
    made = left.workspace.qdrant.get("/collections").json()["result"]["collections"]
    assert {item["name"] for item in made} >= set(before)
    assert not [item["name"] for item in made if item["name"].endswith("__2")], "nothing was rebuilt"


def test_every_request_is_answered_as_it_was(left: Left, api: httpx.Client) -> None:
    wrong = [request for request in left.recording.asked if ask(api, request) != request["said"]]

    assert wrong == []
    assert len(left.recording.asked) > 60


def test_memories_go_on_with_those_of_before(left: Left, api: httpx.Client) -> None:
    """A chain gets another version, an item another content, and a user is forgotten with all of it."""
    for agent in left.agents:
        path = f"/v1/agents/{agent}"
        known = check_success(api.get(f"{path}/memories", params={"user_id": "ada", "limit": 100})).json()["results"]
        head = next(one for one in known if one["content"] == "lives in Rome")
        body = {"user_id": "ada", "content": "lives in Bergen", "vector": [1.0] * 8, "supersedes": head["id"]}
        body |= {field: head[field] for field in ("type", "domain") if head[field]}
        made = check_success(api.post(f"{path}/memories", json=body)).json()
        chain = check_success(api.get(f"{path}/memories/{made['id']}/history", params={"user_id": "ada"})).json()[
            "results"
        ]
        told = [one["content"] for one in chain]
        assert told == ["lives in Oslo", "lives in Rome", "lives in Bergen"], agent
        check_success(api.delete(f"{path}/memories/{made['id']}", params={"user_id": "ada"}))


def test_a_backup_of_before_is_restored(left: Left, api: httpx.Client) -> None:
    """From the MemorySnapshot, whose file is in object storage alone; and by the key of the object."""
    kept = left.recording.collections["agent_memory_brain__1"]["points"]
    key = next(name for name in left.recording.backup if name.endswith(".snapshot")).removeprefix(f"{BUCKET}/")
    place = {"endpoint": left.storage.url, "bucket": BUCKET, "key": key, "secretRef": {"name": "s3"}}
    for name, source in (("by-object", {"snapshotRef": {"name": "copied"}}), ("by-key", {"s3": place})):
        left.workspace.create_restore(name, source, into="brain")
        left.workspace.wait_condition("Succeeded", "True/Restored", name=name, of="MemoryRestore", seconds=90)

        assert len(kept) == stored(left.workspace, "brain")


def stored(workspace: Workspace, agent: str) -> int:
    """Return the exact number of points behind an agent's alias."""
    answer = workspace.qdrant.post(f"/collections/agent_memory_{agent}/points/count", json={"exact": True})
    return int(check_success(answer).json()["result"]["count"])


def test_an_export_of_before_is_imported(left: Left, api: httpx.Client) -> None:
    lines = [line for line in left.recording.exported.splitlines() if line and "content" in json.loads(line)]
    body = "".join(f"{line}\n" for line in lines)
    target = {"connectionRef": {"name": "main"}, "preset": "brain", "embedding": {"provider": "none", "dimensions": 8}}
    document = {"apiVersion": "agentmemory.dev/v1alpha1", "kind": "AgentMemory", "metadata": {"name": "imported"}}
    made = left.workspace.control_plane.http.post(left.workspace.path("AgentMemory"), json=document | {"spec": target})
    check_success(made)
    wait_until(lambda: api.get("/v1/agents/imported").is_success, seconds=30, what="the agent")

    answer = api.post(
        "/v1/agents/imported/import",
        params={"user_id": "ada"},
        content=body,
        headers={"content-type": "application/x-ndjson"},
    )

    told = json.loads(check_success(answer).text.splitlines()[-1])
    assert told["counts"] == {"lines": len(lines), "imported": len(lines), "present": 0, "failed": 0}
    found = check_success(
        api.get("/v1/agents/imported/memories", params={"user_id": "ada", "include_superseded": True, "limit": 100})
    )
    contents = {row["content"] for row in found.json()["results"]}
    assert contents >= {json.loads(line)["content"] for line in lines if json.loads(line).get("type") != "item"}
