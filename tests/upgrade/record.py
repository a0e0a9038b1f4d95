"""Record the data of this version: `python -m tests.upgrade.record`, for each released version.

Runs the operator and the API against a control plane, a development Qdrant and an S3 server; takes half a minute. The
result is kept permanently: `test_recorded.py` runs the present version on it.
"""

import base64
import json
import os
import pathlib
import tempfile
from typing import Any

import httpx

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.rollout import CURRENT, rollout
from tests.support.cluster.workspace import PLURALS, Workspace
from tests.support.engine.agents import vector_of
from tests.support.patience import wait_until
from tests.support.programs import find_built, running, start_qdrant
from tests.support.web.http_server import check_success
from tests.support.web.s3_server import BUCKET, S3Server, serve_s3
from tests.upgrade.recorded import API, KINDS, NAMESPACE, QDRANT, S3_SECRET, STORAGE, Json, Recording, ask

OPEN = {"scoreThreshold": -1, "minSimilarity": -1}
AGENTS: dict[str, Json] = {
    "brain": {"preset": "brain", "scoring": OPEN},
    "unnamed": {"scoring": OPEN},
    "keyed": {"preset": "keyed", "scoring": OPEN},
    "cognitive": {"preset": "cognitive", "scoring": {"minSimilarity": -1}},
    "importance": {"preset": "importance", "scoring": {"minSimilarity": -1}},
    "none": {"preset": "none", "index": {"keyword": {"enabled": True}, "quantization": {"type": "Scalar"}}},
}
TYPES = {"brain": "fact", "unnamed": "fact", "keyed": None, "cognitive": "semantic", "importance": None, "none": "note"}
KEPT = ("name", "namespace", "annotations", "finalizers")
LINES = ("lives in Oslo", "likes quiet trains", "works at the harbour", "plays the piano", "reads in winter")


class Story:
    """Stores the recorded memories of an agent, and records requests with their responses."""

    def __init__(self, api: httpx.Client, agent: str) -> None:
        self._api, self._path, self._agent = api, f"/v1/agents/{agent}", agent
        self.asked: list[Json] = []
        self._ids: list[str] = []

    def store_all(self) -> None:
        """Store memories, a chain and an item; delete one memory, and forget one user."""
        for line in LINES:
            self._store(line, tags=["told"], metadata={"line": len(line)})
        changed = self._store("lives in Rome", supersedes=self._ids[0])
        deleted = self._store("owns a bicycle")
        place = {"namespace": ["memories", "ada", "notes"], "key": "list"}
        item = {"content": "milk and bread", "vector": vector_of("milk and bread")}
        check_success(self._api.put(f"{self._path}/items", params=place, json=item))
        check_success(self._api.delete(f"{self._path}/memories/{deleted}", params={"user_id": "ada"}))
        self._store("is somebody else", user="bob")
        check_success(self._api.post(f"{self._path}/forget", json={"user_id": "bob", "everything": True}))
        for memory in (self._ids[0], self._ids[1], changed, deleted):
            self._ask("GET", f"/memories/{memory}", params={"user_id": "ada"})
        self._ask("GET", f"/memories/{changed}/history", params={"user_id": "ada"})
        self._ask("GET", "/memories", params={"user_id": "ada", "limit": 100})
        self._ask("GET", "/memories", params={"user_id": "ada", "include_superseded": True, "limit": 100})
        self._ask("GET", "/memories", params={"user_id": "bob"})
        self._ask("GET", "/items", params=place)
        for line in ("lives in Rome", "likes quiet trains"):
            body = {"user_id": "ada", "vector": vector_of(line), "top_k": 50}
            self._ask("POST", "/search", json=body)

    def _store(self, content: str, *, user: str = "ada", **more: Any) -> str:
        body = {"user_id": user, "content": content, "vector": vector_of(content)} | more
        body |= {"type": TYPES[self._agent]} if TYPES[self._agent] else {}
        body |= {"domain": "life"} if self._agent == "cognitive" else {}
        memory = str(check_success(self._api.post(f"{self._path}/memories", json=body)).json()["id"])
        self._ids.append(memory)
        return memory

    def _ask(self, method: str, path: str, **request: Any) -> None:
        sent = {"method": method, "url": self._path + path, **request}
        self.asked.append(sent | {"said": ask(self._api, sent)})


def read_collections(qdrant: httpx.Client) -> dict[str, Json]:
    """Return all collections of Qdrant with their aliases and up to 1,000 points each."""
    aliases = qdrant.get("/aliases").json()["result"]["aliases"]
    alias_of = {item["collection_name"]: item["alias_name"] for item in aliases}
    kept = {}
    for item in qdrant.get("/collections").json()["result"]["collections"]:
        name = item["name"]
        found = check_success(qdrant.get(f"/collections/{name}")).json()["result"]
        body = {"limit": 1000, "with_payload": True, "with_vector": True}
        points = check_success(qdrant.post(f"/collections/{name}/points/scroll", json=body)).json()["result"]["points"]
        kept[name] = {
            "config": found["config"],
            "payload_schema": found["payload_schema"],
            "points": [{key: point[key] for key in ("id", "payload", "vector")} for point in points],
            "alias": alias_of.get(name),
        }
    return kept


def read_objects(control_plane: ControlPlane, servers: dict[str, str]) -> list[Json]:
    """Return the objects of the API server, without generated metadata and with names for the servers' addresses."""
    found = []
    for kind in KINDS:
        items = check_success(control_plane.http.get(f"{API}/namespaces/{NAMESPACE}/{PLURALS[kind]}")).json()["items"]
        for item in items:
            metadata = {key: item["metadata"][key] for key in KEPT if key in item["metadata"]}
            text = json.dumps(item | {"kind": kind, "apiVersion": "agentmemory.dev/v1alpha1", "metadata": metadata})
            for real, name in servers.items():
                text = text.replace(real, name)
            found.append(json.loads(text))
    return found


def read_backup(storage: S3Server) -> dict[str, Json]:
    """Return the contents of the bucket by path, folders before their files."""
    kept: dict[str, Json] = {}
    for path in sorted((storage.folder / BUCKET).rglob("*")):
        attributes = {name: os.getxattr(path, name) for name in os.listxattr(path) if name.startswith("user.")}
        kept[str(path.relative_to(storage.folder))] = {
            "bytes": base64.b64encode(path.read_bytes()).decode() if path.is_file() else None,
            "attributes": {name: base64.b64encode(value).decode() for name, value in attributes.items()},
        }
    return kept


def record(folder: pathlib.Path) -> Recording:
    """Run this version, and return its recording."""
    qdrant, qdrant_url = start_qdrant(folder / "qdrant")
    with (
        running(qdrant),
        serve_s3(folder / "s3") as storage,
        ControlPlane(find_built()) as control_plane,
        rollout(control_plane, folder) as installed,
    ):
        installed.install(CURRENT)
        control_plane.http.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}})
        workspace = Workspace(control_plane, NAMESPACE, qdrant_url)
        workspace.create_secret("s3", **S3_SECRET)
        workspace.connect()
        copies = {"storage": {"s3": {"endpoint": storage.url, "bucket": BUCKET, "secretRef": {"name": "s3"}}}}
        asked: list[Json] = []
        with httpx.Client(base_url=installed.service.url, timeout=30) as api:
            for agent, spec in AGENTS.items():
                document = {"connectionRef": {"name": "main"}, "embedding": {"provider": "none", "dimensions": 8}}
                document |= spec | ({"snapshots": copies} if agent == "brain" else {})
                body = {"apiVersion": "agentmemory.dev/v1alpha1", "kind": "AgentMemory", "metadata": {"name": agent}}
                check_success(control_plane.http.post(workspace.path("AgentMemory"), json=body | {"spec": document}))
                workspace.wait_condition("Ready", "True/Serving", name=agent, seconds=20)
                wait_until(lambda agent=agent: api.get(f"/v1/agents/{agent}").is_success, seconds=20, what=agent)
                story = Story(api, agent)
                story.store_all()
                asked += story.asked
            exported = check_success(
                api.get("/v1/agents/brain/export", params={"user_id": "ada", "vectors": True})
            ).text
            workspace.create_snapshot("copied", of="brain")
            workspace.wait_condition("Succeeded", "True/SnapshotTaken", name="copied", of="MemorySnapshot", seconds=60)
        cluster = check_success(control_plane.http.get("/api/v1/namespaces/kube-system")).json()["metadata"]["uid"]
        collections = read_collections(workspace.qdrant)
        objects = read_objects(control_plane, {qdrant_url: QDRANT, storage.url: STORAGE})
        backup = read_backup(storage)
    return Recording(CURRENT.name, cluster, objects, collections, asked, backup, exported)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        record(pathlib.Path(work)).save()
