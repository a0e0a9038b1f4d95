"""Data of released versions works with the present one: objects, collections, responses, backups and exports."""

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
class RecordedData:
    """Recorded data of a version, with the present version running on it."""

    recording: Recording
    workspace: Workspace
    storage: S3Server
    installed: Rollout

    @property
    def agents(self) -> list[str]:
        return [found["metadata"]["name"] for found in self.recording.objects if found["kind"] == "AgentMemory"]


@pytest.fixture(scope="module", params=versions())
def data(
    request: pytest.FixtureRequest, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RecordedData]:
    recording, folder = load(request.param), tmp_path_factory.mktemp(request.param)
    qdrant, url = start_qdrant(folder / "qdrant")
    with running(qdrant), serve_s3(folder / "s3") as storage, rollout(control_plane, folder) as installed:
        workspace = Workspace(control_plane, NAMESPACE, url)
        recording.put_backup(storage.folder)
        recording.put_collections(workspace.qdrant)
        recording.put_objects(control_plane, qdrant=url, storage=storage.url)
        installed.install(CURRENT, AGENTMEMORY_CLUSTER_ID=recording.cluster)
        yield RecordedData(recording, workspace, storage, installed)
        workspace.clean()


@pytest.fixture
def api(data: RecordedData) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=data.installed.service.url, timeout=30) as client:
        for agent in data.agents:
            wait_until(lambda agent=agent: client.get(f"/v1/agents/{agent}").is_success, seconds=30, what=agent)
        yield client


def test_every_released_version_is_recorded() -> None:
    assert versions() == ["0.1.0"]


def test_agents_serve_their_collections(data: RecordedData) -> None:
    before = {name: {point["id"] for point in kept["points"]} for name, kept in data.recording.collections.items()}
    for agent in data.agents:
        data.workspace.wait_condition("Ready", "True/Serving", name=agent, seconds=30)

    for name, ids in before.items():
        body = {"limit": 1000, "with_payload": False}
        found = check_success(data.workspace.qdrant.post(f"/collections/{name}/points/scroll", json=body)).json()[
            "result"
        ]
        assert {point["id"] for point in found["points"]} >= ids, name
    made = data.workspace.qdrant.get("/collections").json()["result"]["collections"]
    assert {item["name"] for item in made} >= set(before)
    assert not [item["name"] for item in made if item["name"].endswith("__2")], "nothing was rebuilt"


def test_responses_are_unchanged(data: RecordedData, api: httpx.Client) -> None:
    wrong = [request for request in data.recording.asked if ask(api, request) != request["said"]]

    assert wrong == []
    assert len(data.recording.asked) > 60


def test_memories_can_be_extended(data: RecordedData, api: httpx.Client) -> None:
    """A chain gets another version, which is then deleted."""
    for agent in data.agents:
        path = f"/v1/agents/{agent}"
        known = check_success(api.get(f"{path}/memories", params={"user_id": "ada", "limit": 100})).json()["results"]
        head = next(one for one in known if one["content"] == "lives in Rome")
        body = {"user_id": "ada", "content": "lives in Bergen", "vector": [1.0] * 8, "supersedes": head["id"]}
        body |= {field: head[field] for field in ("type", "domain") if head[field]}
        made = check_success(api.post(f"{path}/memories", json=body)).json()
        chain = check_success(api.get(f"{path}/memories/{made['id']}/history", params={"user_id": "ada"})).json()[
            "results"
        ]
        counts = [one["content"] for one in chain]
        assert counts == ["lives in Oslo", "lives in Rome", "lives in Bergen"], agent
        check_success(api.delete(f"{path}/memories/{made['id']}", params={"user_id": "ada"}))


def test_backup_is_restored(data: RecordedData, api: httpx.Client) -> None:
    """Restores by the MemorySnapshot, whose file is only in object storage, and by the key of the object."""
    kept = data.recording.collections["agent_memory_brain__1"]["points"]
    key = next(name for name in data.recording.backup if name.endswith(".snapshot")).removeprefix(f"{BUCKET}/")
    place = {"endpoint": data.storage.url, "bucket": BUCKET, "key": key, "secretRef": {"name": "s3"}}
    for name, source in (("by-object", {"snapshotRef": {"name": "copied"}}), ("by-key", {"s3": place})):
        data.workspace.create_restore(name, source, into="brain")
        data.workspace.wait_condition("Succeeded", "True/Restored", name=name, of="MemoryRestore", seconds=90)

        assert len(kept) == stored(data.workspace, "brain")


def stored(workspace: Workspace, agent: str) -> int:
    """Return the exact number of points behind an agent's alias."""
    answer = workspace.qdrant.post(f"/collections/agent_memory_{agent}/points/count", json={"exact": True})
    return int(check_success(answer).json()["result"]["count"])


def test_export_is_imported(data: RecordedData, api: httpx.Client) -> None:
    lines = [line for line in data.recording.exported.splitlines() if line and "content" in json.loads(line)]
    body = "".join(f"{line}\n" for line in lines)
    target = {"connectionRef": {"name": "main"}, "preset": "brain", "embedding": {"provider": "none", "dimensions": 8}}
    document = {"apiVersion": "agentmemory.dev/v1alpha1", "kind": "AgentMemory", "metadata": {"name": "imported"}}
    made = data.workspace.control_plane.http.post(data.workspace.path("AgentMemory"), json=document | {"spec": target})
    check_success(made)
    wait_until(lambda: api.get("/v1/agents/imported").is_success, seconds=30, what="the agent")

    answer = api.post(
        "/v1/agents/imported/import",
        params={"user_id": "ada"},
        content=body,
        headers={"content-type": "application/x-ndjson"},
    )

    counts = json.loads(check_success(answer).text.splitlines()[-1])
    assert counts["counts"] == {"lines": len(lines), "imported": len(lines), "present": 0, "failed": 0}
    found = check_success(
        api.get("/v1/agents/imported/memories", params={"user_id": "ada", "include_superseded": True, "limit": 100})
    )
    contents = {row["content"] for row in found.json()["results"]}
    assert contents >= {json.loads(line)["content"] for line in lines if json.loads(line).get("type") != "item"}
