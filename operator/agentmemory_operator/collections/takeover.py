"""Takeovers: what allows one, which objects ask for one, and how people allow them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentmemory_operator.collections.rules.takeovers import TakeoverRequest, TakeoverTerms, shown, takeover_terms
from agentmemory_operator.connections.resolve import connection_of
from agentmemory_operator.errors import NotOwned, SpecInvalid
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import AgentMemories
from agentmemory_operator.runtime.cache import (
    AGENT_MEMORY,
    Key,
    ObjectTable,
    connection_key,
    slug_of,
)
from agentmemory_operator.spec.kinds.agent_memory import TAKEOVER, AgentMemory, Metadata
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.parse import parse_connection
from agentmemory_operator.spec.naming import alias_of


def terms_for(memory: AgentMemory, table: ObjectTable, annotations: Mapping[str, str] | None = None) -> TakeoverTerms:
    """What allows an AgentMemory to take over another's memories.

    Args:
        annotations: of the snapshot or restore that asks for it; None are the AgentMemory's own.
    """
    document = table.get(connection_of(memory)) or {}
    connection = None
    if (document.get("spec") or {}).get("takeovers"):
        try:
            connection = parse_connection(document)
        except SpecInvalid:
            # What cannot be read grants nothing.
            connection = None
    return takeover_terms(memory.slug, memory.metadata.annotations if annotations is None else annotations, connection)


@dataclass(slots=True)
class TakeoverRequests:
    """The objects that are refused what another one left, by connection, for its owner to see."""

    table: ObjectTable
    _requests: dict[Key, tuple[Key, TakeoverRequest]] = field(default_factory=dict)

    def note(self, key: Key, agent: str, refusal: NotOwned, *, now: str) -> Key | None:
        """Note a refusal; return the connection whose owner may allow it, None where no owner could."""
        connection = self._connection_for(key, refusal)
        if connection is None or refusal.owner is None or refusal.is_same_tenant:
            self.settle(key)
            return None
        known = self._requests.get(key)
        request = TakeoverRequest(
            since=known[1].since if known else now,
            kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            agent=agent,
            owner=tuple(sorted((field, value) for field, value in refusal.owner.items() if field != "connection")),
        )
        self._requests[key] = connection, request
        return connection

    def note_job(self, key: Key, refusal: NotOwned, *, now: str) -> Key | None:
        """Note a refusal of a snapshot or restore; as `note`."""
        memory = self.table.memory_of(key)
        document = self.table.get(memory) if memory else None
        return self.note(key, slug_of(document), refusal, now=now) if document else None

    def settle(self, key: Key) -> None:
        """Forget what an object asked for: it got it, or asks for it no more."""
        self._requests.pop(key, None)

    def of_connection(self, connection: Key) -> list[Json]:
        """What a connection's status says of them."""
        for key in [key for key in self._requests if self.table.get(key) is None]:
            self.settle(key)
        asked = [request for place, request in self._requests.values() if place == connection]
        return [request.to_json() for request in shown(asked)]

    def _connection_for(self, key: Key, refusal: NotOwned) -> Key | None:
        named, own = (refusal.owner or {}).get("connection"), self.table.connection_of(key)
        if refusal.reason == Reason.SLUG_TAKEN:
            own = connection_key(named) if named else None
        elif own is not None and named not in (None, f"{own.namespace}/{own.name}"):
            # Only an entry on the connection that the marker names would count, and this object does not use it.
            return None
        return own if own is not None and self.table.get(own) is not None else None


@dataclass(frozen=True, slots=True)
class Refused:
    """An AgentMemory that is refused its collection, and whose that is.

    Attributes:
        connection: whose owner allows it; None where the AgentMemory's own author does, by annotation.
    """

    namespace: str
    name: str
    agent: str
    owner: Mapping[str, str]
    metadata: Metadata | None = None
    connection: Metadata | None = None

    @property
    def alias(self) -> str:
        """The collection that it is refused."""
        return alias_of(self.agent)

    @property
    def is_same_name(self) -> bool:
        """Whether the owner is the same object of another cluster."""
        return (self.owner.get("namespace"), self.owner.get("name")) == (self.namespace, self.name)


def refused_in(memories: Sequence[Json], connections: Sequence[Json]) -> Iterator[Refused]:
    """Yield the AgentMemories that are refused their collection, as statuses say.

    Args:
        memories: they say which are refused what another object of their namespace left.
        connections: they say the rest.
    """
    for document in memories:
        status = document.get("status") or {}
        owner = status.get("foreignOwner")
        reasons = {entry["reason"] for entry in status.get("conditions") or [] if entry["type"] == "Stalled"}
        if owner and owner.get("uid") and Reason.COLLECTION_NOT_OWNED in reasons:
            metadata = Metadata.model_validate(document["metadata"])
            place = metadata.namespace, metadata.name
            yield Refused(*place, agent=slug_of(document), owner=owner, metadata=metadata)
    for document in connections:
        metadata = Metadata.model_validate(document["metadata"])
        for asked in (document.get("status") or {}).get("takeoverRequests") or ():
            if asked["kind"] == AGENT_MEMORY:
                place = asked["namespace"], asked["name"]
                yield Refused(*place, agent=asked["agent"], owner=asked.get("owner") or {}, connection=metadata)


def of_rebuilt_cluster(refused: Sequence[Refused], cluster_id: str) -> list[Refused]:
    """The objects whose collection is that of the same namespace and name in the cluster that was."""
    return [one for one in refused if one.owner.get("clusterId") == cluster_id and one.is_same_name]


async def allow_takeover(refused: Sequence[Refused], objects: AgentMemories, *, cluster_id: str | None = None) -> None:
    """Allow each: by annotation within a namespace, else in the spec of the connection; the operator does the rest.

    Args:
        cluster_id: all that this cluster left is allowed at once, in one entry for each connection.
    """
    entries: dict[tuple[str, str], list[Json]] = {}
    for one in refused:
        if one.connection is None:
            assert one.metadata is not None
            await objects.annotate(AGENT_MEMORY, one.metadata, {TAKEOVER: one.owner["uid"]})
            continue
        entry = _entry_for(one, cluster_id)
        wanted = entries.setdefault((one.connection.namespace, one.connection.name), [])
        if entry not in wanted:
            wanted.append(entry)
    for (namespace, name), wanted in entries.items():
        await objects.add_takeovers(namespace, name, wanted)


def _entry_for(refused: Refused, cluster_id: str | None) -> Json:
    if cluster_id is not None and refused.is_same_name:
        return {"fromClusterId": cluster_id}
    return {"agent": refused.agent, "fromUid": refused.owner["uid"], "toNamespace": refused.namespace}
