"""Snapshots and restores on a real engine without Kubernetes. Objects are in a table, as after a watch."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.adapters.qdrant.shard_snapshots import QdrantShardSnapshots
from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots
from agentmemory_operator.collections.reconcile import reconcile
from agentmemory_operator.collections.rules.claims import ClaimSet, SlugClaim
from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.errors import AgentMemoryError, NotFound
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import Key, ObjectTable, key_of
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.naming import scratch_prefix
from tests.support.engine.fakes import FakeClock, FakeCluster, FakeSecrets
from tests.support.fault_injection import record_effect
from tests.support.spec.documents import connection_document, memory_document
from tests.support.web.http_server import check_success

T = TypeVar("T")

NAMESPACE = "agents"
SIZE = 4
EMBEDDING = {"provider": "none", "dimensions": SIZE}


@dataclass(slots=True)
class TableCluster(FakeCluster):
    """A cluster whose writes appear in the object table at once.

    Attributes:
        creation_error: Raised by every creation of an object; None for none.
        ahead: Objects in a state that the watch has not delivered yet; None for a deleted one.
    """

    PLANTABLE = (*FakeCluster.PLANTABLE, "creation_error")

    table: ObjectTable = field(default_factory=ObjectTable)
    creation_error: AgentMemoryError | None = None
    ahead: dict[Key, Json | None] = field(default_factory=dict)

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        key = Key(kind, namespace, name)
        document = self.ahead[key] if key in self.ahead else self.table.get(key)
        if document is None:
            raise NotFound(f"there is no {key}")
        return document

    async def write_status(self, kind: str, metadata: Metadata, status: Json) -> str:
        version = await FakeCluster.write_status(self, kind, metadata, status)
        if (document := self.table.get(Key(kind, metadata.namespace, metadata.name))) is not None:
            self.table.put(document | {"status": status})
        return version

    async def write_finalizers(self, kind: str, metadata: Metadata, finalizers: Sequence[str]) -> None:
        await FakeCluster.write_finalizers(self, kind, metadata, finalizers)
        key = Key(kind, metadata.namespace, metadata.name)
        if (document := self.table.get(key)) is None:
            return
        if document["metadata"].get("deletionTimestamp") and not finalizers:
            self.table.remove(key)
            return
        self.table.put(document | {"metadata": document["metadata"] | {"finalizers": list(finalizers)}})

    async def create_object(self, document: Json) -> bool:
        if self.creation_error is not None:
            record_effect(self, "creation_error")
            raise self.creation_error
        is_new = await FakeCluster.create_object(self, document)
        if is_new:
            metadata = document["metadata"]
            made = {"uid": f"uid-{metadata['name']}", "generation": 1, "resourceVersion": "1"}
            self.table.put(document | {"metadata": metadata | made})
        return is_new


class JobWorld:
    """One agent with its own collection on a server, and the dependencies of passes over jobs."""

    def __init__(self, url: str, *, nodes: Sequence[str] = ()) -> None:
        self.url, self.agent = url, f"j-{uuid.uuid4().hex[:10]}"
        self.alias = f"agent_memory_{self.agent}"
        self.physical = f"{self.alias}__1"
        self.table, self.clock = ObjectTable(), FakeClock()
        # The claim outlives the agent, like its snapshots.
        self.table.claims = ClaimSet(
            claims={self.agent: SlugClaim(namespace=NAMESPACE, uid=f"uid-{self.agent}")}, is_complete=True
        )
        # A separate cluster id: other tests share the server, and each removes leftovers with its own cluster id.
        self.cluster = TableCluster(table=self.table, identity=f"cluster-of-{self.agent}")
        self.http = httpx.Client(base_url=url, timeout=30)
        self.table.put(connection_document(url=url, **({"nodes": list(nodes)} if nodes else {})))
        self.secrets = FakeSecrets()
        self.servers = Servers(self.table, self.secrets, self.open_server, cluster_id=self.cluster.cluster_id)
        self.opened: list[Server] = []
        self.requested: list[Key] = []

    def reconnect(self, **spec: Any) -> None:
        """Override fields of the connection's spec."""
        document = self.table.documents("QdrantConnection")[0]
        self.table.put({**document, "spec": {**document["spec"], **spec}})

    def open_server(self, endpoint: Endpoint) -> Server:
        url, nodes = endpoint.url, endpoint.nodes
        snapshots = QdrantShardSnapshots(url, nodes, deadline_s=30) if nodes else QdrantSnapshots(url)
        self.opened.append(Server(endpoint, QdrantCollections(url), snapshots, QdrantPoints(url)))
        return self.opened[-1]

    @property
    def connection(self) -> Key:
        return Key("QdrantConnection", NAMESPACE, "main")

    async def with_server(self, work: Callable[[Server], Awaitable[T]]) -> T:
        """Run a test's own action on the server, without authorisation."""
        return await self.servers.survey(self.connection, work)

    async def create_agent(self, points: int = 10, **spec: Any) -> None:
        """Apply the AgentMemory, create its collection, and store points."""
        document = memory_document(self.agent, **({"embedding": EMBEDDING} | spec))
        desired = desired_collection(parse_agent_memory(document), cluster_id=self.cluster.identity)
        collections = QdrantCollections(self.url)
        await reconcile(self.alias, desired, store=collections, last_physical=None, last_points=0)
        await collections.close()
        collection = {"alias": self.alias, "physical": self.physical, "points": points}
        self.table.put(document | {"status": {"collection": collection}})
        self.store(points)

    def store(self, points: int, *, first: int = 0) -> None:
        body = [
            {"id": number, "vector": [1, 0, 0, number], "payload": {"userId": "u", "type": "fact", "rev": 1}}
            for number in range(first, first + points)
        ]
        if body:
            check_success(self.http.put(f"/collections/{self.alias}/points?wait=true", json={"points": body}))

    def apply(self, kind: str, name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> Key:
        metadata = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1"}
        metadata |= {"creationTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations or {}}
        document = {"apiVersion": "agentmemory.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
        self.table.put(document)
        return key_of(document)

    def delete(self, key: Key) -> None:
        """Delete an object like the API server does. One with finalizers only gets a deletion timestamp."""
        document = self.must_get(key)
        if not document["metadata"].get("finalizers"):
            self.table.remove(key)
            return
        stamp = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        self.table.put(document | {"metadata": document["metadata"] | stamp})

    def must_get(self, key: Key) -> Json:
        document = self.table.get(key)
        assert document is not None, f"{key} is gone"
        return document

    def status(self, key: Key) -> Json:
        return dict(self.must_get(key).get("status") or {})

    def condition(self, key: Key, kind: str) -> str:
        """Return a condition as STATUS/Reason, or '' if it does not exist."""
        found = [item for item in self.status(key).get("conditions") or [] if item["type"] == kind]
        return f"{found[0]['status']}/{found[0]['reason']}" if found else ""

    def collections(self) -> list[str]:
        """Return the agent's collections and all scratch collections of its cluster."""
        names = [item["name"] for item in self.http.get("/collections").json()["result"]["collections"]]
        scratch = scratch_prefix(self.cluster.identity)
        return sorted(name for name in names if self.agent in name or name.startswith(scratch))

    def files(self, physical: str | None = None) -> list[str]:
        answer = self.http.get(f"/collections/{physical or self.physical}/snapshots")
        return sorted(item["name"] for item in answer.json().get("result") or []) if answer.status_code == 200 else []

    def events(self) -> list[str]:
        return [event.reason for event in self.cluster.events]

    async def close(self) -> None:
        """Remove the agent's collections and their snapshots from the server, which other tests share."""
        for name in self.collections():
            for file in self.files(name):
                self.http.delete(f"/collections/{name}/snapshots/{file}")
            self.http.delete(f"/collections/{name}")
        self.http.close()
        await asyncio.gather(*(server.close() for server in self.opened))


@contextlib.asynccontextmanager
async def open_server(url: str, *, deadline_s: float = 30) -> AsyncIterator[Server]:
    """Open all clients of one server.

    Args:
        deadline_s: Timeout of snapshot calls in seconds.
    """
    snapshots = QdrantSnapshots(url, deadline_s=deadline_s)
    server = Server(Endpoint(url, None, 10), QdrantCollections(url), snapshots, QdrantPoints(url))
    try:
        yield server
    finally:
        await server.close()
