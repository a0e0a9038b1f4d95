"""Takeovers of another object's collection or slug: pending requests, and the ways to allow them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentmemory_operator.collections.rules.takeovers import TakeoverRequest, TakeoverTerms, build_terms, limit_requests
from agentmemory_operator.connections.resolve import connection_of
from agentmemory_operator.errors import NotOwned, SpecInvalid
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import AgentMemories
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, Key, ObjectTable, connection_key, slug_of
from agentmemory_operator.spec.kinds.agent_memory import TAKEOVER, AgentMemory, Metadata
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.parse import parse_connection
from agentmemory_operator.spec.naming import alias_of


def terms_for(memory: AgentMemory, table: ObjectTable, annotations: Mapping[str, str] | None = None) -> TakeoverTerms:
    """Return the takeovers that an AgentMemory's connection and annotations permit.

    Args:
        annotations: Annotations of the snapshot or restore that requests it. None uses those of the AgentMemory.
    """
    document = table.get(connection_of(memory)) or {}
    connection = None
    if (document.get("spec") or {}).get("takeovers"):
        try:
            connection = parse_connection(document)
        except SpecInvalid:
            # Ignore an invalid connection, which grants nothing.
            connection = None
    return build_terms(memory.slug, memory.metadata.annotations if annotations is None else annotations, connection)


@dataclass(slots=True)
class TakeoverRequests:
    """Pending requests of all connections. `status.takeoverRequests` shows them to the owner of each connection.

    A request is recorded for an object that was refused a collection or slug of another namespace or cluster.
    """

    table: ObjectTable
    _requests: dict[Key, tuple[Key, TakeoverRequest]] = field(default_factory=dict)

    def record(self, key: Key, agent: str, refusal: NotOwned, *, now: str) -> Key | None:
        """Record a refusal. Return the connection whose owner may allow the takeover.

        Return None, and forget the object's request, if no connection's owner decides about the takeover. The current
        owner is then unknown or in the same namespace, the connection is missing, or the owner's marker names another
        connection than the object's.

        Args:
            key: The object that was refused.
            agent: Slug of the object.
            now: Time of the refusal, RFC 3339. An existing request of the object keeps its first time.
        """
        connection = self._connection_for(key, refusal)
        if connection is None or refusal.owner is None or refusal.is_same_tenant:
            self.forget(key)
            return None
        existing = self._requests.get(key)
        request = TakeoverRequest(
            since=existing[1].since if existing else now,
            kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            agent=agent,
            owner=tuple(sorted((field, value) for field, value in refusal.owner.items() if field != "connection")),
        )
        self._requests[key] = connection, request
        return connection

    def record_job(self, key: Key, refusal: NotOwned, *, now: str) -> Key | None:
        """Record a refusal of a snapshot or restore as `record` does. Ignore it if its AgentMemory does not exist."""
        memory = self.table.find_memory(key)
        document = self.table.get(memory) if memory else None
        return self.record(key, slug_of(document), refusal, now=now) if document else None

    def forget(self, key: Key) -> None:
        """Remove an object's request. Call this when the takeover was granted, or the object no longer requests it."""
        self._requests.pop(key, None)

    def list_for(self, connection: Key) -> list[Json]:
        """Return the requests for a connection's status, as `limit_requests` does. Forget those of deleted objects."""
        for key in [key for key in self._requests if self.table.get(key) is None]:
            self.forget(key)
        requests = [request for recipient, request in self._requests.values() if recipient == connection]
        return [request.to_json() for request in limit_requests(requests)]

    def _connection_for(self, key: Key, refusal: NotOwned) -> Key | None:
        owner_connection, connection = (refusal.owner or {}).get("connection"), self.table.find_connection(key)
        if refusal.reason == Reason.SLUG_TAKEN:
            connection = connection_key(owner_connection) if owner_connection else None
        elif connection is not None and owner_connection not in (None, f"{connection.namespace}/{connection.name}"):
            # Request nothing: only the connection in the marker could permit it, and this object uses another.
            return None
        return connection if connection is not None and self.table.get(connection) is not None else None


@dataclass(frozen=True, slots=True)
class RefusedAgent:
    """An AgentMemory that was refused its collection.

    Attributes:
        owner: Marker fields of the collection's owner.
        metadata: Metadata of the AgentMemory; None if it was read from the connection's status.
        connection: Connection whose owner can allow the takeover. None if the AgentMemory's author can, by annotation.
    """

    namespace: str
    name: str
    agent: str
    owner: Mapping[str, str]
    metadata: Metadata | None = None
    connection: Metadata | None = None

    @property
    def alias(self) -> str:
        """Alias of the refused collection."""
        return alias_of(self.agent)

    @property
    def is_same_name(self) -> bool:
        """True if the owner has the same namespace and name, as after the whole cluster was created again."""
        return (self.owner.get("namespace"), self.owner.get("name")) == (self.namespace, self.name)


def find_refused(memories: Sequence[Json], connections: Sequence[Json]) -> Iterator[RefusedAgent]:
    """Yield the AgentMemories that were refused their collection, according to statuses.

    Args:
        memories: AgentMemories. Their statuses list refusals within a namespace.
        connections: QdrantConnections. Their statuses list all other refusals.
    """
    for document in memories:
        status = document.get("status") or {}
        owner = status.get("foreignOwner")
        reasons = {entry["reason"] for entry in status.get("conditions") or [] if entry["type"] == "Stalled"}
        if owner and owner.get("uid") and Reason.COLLECTION_NOT_OWNED in reasons:
            metadata = Metadata.model_validate(document["metadata"])
            namespaced_name = metadata.namespace, metadata.name
            yield RefusedAgent(*namespaced_name, agent=slug_of(document), owner=owner, metadata=metadata)
    for document in connections:
        metadata = Metadata.model_validate(document["metadata"])
        for request in (document.get("status") or {}).get("takeoverRequests") or ():
            if request["kind"] == AGENT_MEMORY:
                namespaced_name = request["namespace"], request["name"]
                yield RefusedAgent(
                    *namespaced_name, agent=request["agent"], owner=request.get("owner") or {}, connection=metadata
                )


def filter_rebuilt_cluster(refused: Sequence[RefusedAgent], cluster_id: str) -> list[RefusedAgent]:
    """Return the refused objects whose collection belongs to the same namespace and name in an earlier cluster.

    Args:
        cluster_id: ID of the earlier cluster.
    """
    return [entry for entry in refused if entry.owner.get("clusterId") == cluster_id and entry.is_same_name]


async def allow_takeover(
    refused: Sequence[RefusedAgent], objects: AgentMemories, *, cluster_id: str | None = None
) -> None:
    """Allow takeovers: by annotation within a namespace, otherwise by entries in the connection's spec.

    The operator carries them out in its next passes.

    Args:
        cluster_id: ID of an earlier cluster. Objects with the namespace and name of their owner share one entry in
            their connection. It allows all such takeovers from that cluster. None adds one entry for each object.
    """
    entries: dict[tuple[str, str], list[Json]] = {}
    for request in refused:
        if request.connection is None:
            assert request.metadata is not None
            await objects.annotate(AGENT_MEMORY, request.metadata, {TAKEOVER: request.owner["uid"]})
            continue
        entry = _entry_for(request, cluster_id)
        new_entries = entries.setdefault((request.connection.namespace, request.connection.name), [])
        if entry not in new_entries:
            new_entries.append(entry)
    for (namespace, name), new_entries in entries.items():
        await objects.add_takeovers(namespace, name, new_entries)


def _entry_for(refused: RefusedAgent, cluster_id: str | None) -> Json:
    if cluster_id is not None and refused.is_same_name:
        return {"fromClusterId": cluster_id}
    return {"agent": refused.agent, "fromUid": refused.owner["uid"], "toNamespace": refused.namespace}
