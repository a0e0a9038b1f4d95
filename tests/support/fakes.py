"""Fakes behind our own ports: an engine in memory that really changes, a cluster and Secrets that remember."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import assert_never

from agentmemory_operator.domain.capabilities import Server
from agentmemory_operator.domain.changes import (
    WAKING,
    Change,
    CreateCollection,
    CreateIndexes,
    Rebuild,
    SetAlias,
    UpdateHnsw,
    UpdateKeyword,
    UpdateOptimizers,
    UpdateQuantization,
    UpdateReplication,
    UpdateStrictMode,
    UpdateVectors,
    WakeOptimizers,
    WriteMarker,
)
from agentmemory_operator.domain.collection import Collection, Observed
from agentmemory_operator.domain.handover import HandedOver
from agentmemory_operator.domain.rebuilding import Record
from agentmemory_operator.domain.replicas import Move, Placement
from agentmemory_operator.domain.resources import Metadata
from agentmemory_operator.errors import AgentMemoryError, NotFound, SecretMissing
from agentmemory_operator.ports import Event, Json
from tests.support.placements import moved


def observed_of(
    collection: Collection,
    *,
    physical: str = "agent_memory_probe__1",
    is_aliased: bool = True,
    points: int = 0,
    is_busy: bool = False,
    state: str | None = None,
    fault: str = "",
    record: Record | None = None,
) -> Observed:
    """Return what a server with this collection answers; another state than green is busy."""
    state = state or ("yellow" if is_busy else "green")
    return Observed(
        physical=physical,
        is_aliased=is_aliased,
        collection=collection,
        points=points,
        indexed=points,
        state=state,
        is_busy=state != "green",
        fault=fault,
        record=record,
    )


def apply_change(live: Collection, change: Change) -> Collection:
    """Return the collection after a change, as the engine would carry it out."""
    match change:
        case CreateCollection(_, collection):
            return collection
        case CreateIndexes(indexes):
            return replace(live, indexes=tuple(sorted((dict(live.indexes) | dict(indexes)).items())))
        case UpdateHnsw() | UpdateVectors() | UpdateKeyword() | UpdateOptimizers() | UpdateReplication():
            figures = {figure.name: getattr(change, figure.name) for figure in fields(change) if figure.compare}
            return replace(live, **{name: value for name, value in figures.items() if value is not None})
        case UpdateQuantization(quantization):
            return replace(live, quantization=quantization)
        case UpdateStrictMode(limits):
            return replace(live, strict_mode=tuple(sorted((dict(live.strict_mode or ()) | dict(limits)).items())))
        case WriteMarker(marker):
            return replace(live, marker=marker)
        case SetAlias() | WakeOptimizers() | Rebuild():
            return live
        case _:
            assert_never(change)


def apply_changes(observed: Observed | None, changes: Iterable[Change]) -> Observed | None:
    """Return what a server answers after the changes; purely."""
    for change in changes:
        match change:
            case CreateCollection(physical, collection):
                observed = observed_of(collection, physical=physical, is_aliased=False)
            case SetAlias() if observed is not None:
                observed = replace(observed, is_aliased=True)
            case _ if observed is not None:
                state = "yellow" if observed.state == "grey" and isinstance(change, WAKING) else observed.state
                observed = replace(observed, collection=apply_change(observed.collection, change), state=state)
    return observed


@dataclass(slots=True)
class FakeCollectionStore:
    """Implements ports.CollectionStore in memory.

    Attributes:
        collections: by physical name.
        aliases: alias -> physical name.
        points: exact numbers by physical name.
        types: numbers of memories by type by physical name.
        records: of rebuilds, by the physical name of their targets.
        lengths: characters of the contents by physical name.
        states: by physical name; a collection that is not named is green, or yellow where everything `is_busy`.
        error: raised by every call while it is set.
        fails_after: number of changes after which every further one raises `error_on_change`.
        ignored: types of changes that are accepted and not carried out.
        calls: what was asked, as (method, detail).
        placements: by physical name; a collection that is not named is of a server that is alone.
        has_replica_calls: whether replicas can be moved, which is done at once.
        moves: of replicas, in order.
    """

    collections: dict[str, Collection] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    points: dict[str, int] = field(default_factory=dict)
    types: dict[str, dict[str, int]] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    lengths: dict[str, list[int]] = field(default_factory=dict)
    server_version: str = "1.18.3"
    is_busy: bool = False
    states: dict[str, str] = field(default_factory=dict)
    error: AgentMemoryError | None = None
    fails_after: int | None = None
    error_on_change: AgentMemoryError = field(default_factory=lambda: AgentMemoryError("set error_on_change"))
    ignored: tuple[type, ...] = ()
    calls: list[tuple[str, str]] = field(default_factory=list)
    is_closed: bool = False
    placements: dict[str, Placement] = field(default_factory=dict)
    has_replica_calls: bool = True
    moves: list[Move] = field(default_factory=list)

    async def close(self) -> None:
        self.is_closed = True

    async def server(self) -> Server:
        self._called("server", "")
        return Server(self.server_version, 1, False)

    async def observe(self, alias: str, likely: str, *, is_linked: bool = False) -> Observed | None:
        self._called("observe", alias)
        physical = self.aliases.get(alias, alias if alias in self.collections else likely)
        if physical not in self.collections:
            return None
        seen = observed_of(
            self.collections[physical],
            physical=physical,
            is_aliased=alias in self.aliases,
            points=self.points.get(physical, 0),
            is_busy=self.is_busy,
            state=self.states.get(physical),
            record=self.records.get(physical),
        )
        return replace(seen, placement=self.placements.get(physical))

    async def names(self) -> list[str]:
        self._called("names", "")
        return sorted(self.collections)

    async def apply(self, physical: str, change: Change) -> None:
        if self.fails_after is not None and len(self.changes) >= self.fails_after:
            raise self.error_on_change
        self._called("apply", type(change).__name__)
        match change:
            case _ if isinstance(change, self.ignored):
                pass
            case CreateCollection(_, collection):
                self.collections.setdefault(physical, collection)
            case SetAlias(alias, _):
                self.aliases[alias] = physical
            case _:
                self.collections[physical] = apply_change(self.collections[physical], change)
                if self.states.get(physical) == "grey" and isinstance(change, WAKING):
                    self.states[physical] = "yellow"

    async def drop_index(self, physical: str, field: str) -> None:
        self._called("drop_index", field)
        live = self.collections[physical]
        self.collections[physical] = replace(live, indexes=tuple(one for one in live.indexes if one[0] != field))

    async def placement(self, physical: str) -> Placement | None:
        return self.placements.get(physical)

    async def peers(self) -> int:
        return max((len(placement.peers) for placement in self.placements.values()), default=1)

    async def move_replica(self, physical: str, move: Move) -> bool:
        self._called("move_replica", str(move))
        placement = self.placements[physical]
        if self.has_replica_calls:
            self.moves.append(move)
            self.placements[physical] = moved(placement, move)
        else:
            self.placements[physical] = replace(placement, can_move=False)
        return self.has_replica_calls

    async def count(self, physical: str) -> int:
        self._called("count", physical)
        return self.points.get(physical, 0)

    async def count_unlisted(self, physical: str, types: Sequence[str]) -> Mapping[str, int]:
        self._called("count_unlisted", physical)
        return {name: count for name, count in self.types.get(physical, {}).items() if name not in types}

    async def content_lengths(self, physical: str, limit: int) -> Sequence[int]:
        self._called("content_lengths", physical)
        return self.lengths.get(physical, [])[:limit]

    async def delete(self, physical: str) -> None:
        self._called("delete", physical)
        self.collections.pop(physical, None)
        self.points.pop(physical, None)
        self.aliases = {alias: target for alias, target in self.aliases.items() if target != physical}

    @property
    def changes(self) -> list[str]:
        """Names of the changes carried out, in order."""
        return [detail for method, detail in self.calls if method == "apply"]

    def _called(self, method: str, detail: str) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append((method, detail))


@dataclass(slots=True)
class FakeCluster:
    """Implements ports.Cluster: remembers every write.

    Attributes:
        namespaces: labels by namespace.
        label_reads: how often labels were read.
        error: raised by every write while it is set.
    """

    identity: str = "cluster-1"
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    label_reads: int = 0
    statuses: list[tuple[str, str, Json]] = field(default_factory=list)
    finalizers: list[tuple[str, list[str]]] = field(default_factory=list)
    created: dict[tuple[str, str], Json] = field(default_factory=dict)
    deleted: list[tuple[str, str]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    error: AgentMemoryError | None = None

    async def cluster_id(self) -> str:
        return self.identity

    async def labels(self, namespace: str) -> Mapping[str, str]:
        self.label_reads += 1
        self._check()
        return self.namespaces.get(namespace, {})

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        self._check()
        if (kind, name) not in self.created:
            raise NotFound(f"there is no {kind} {namespace}/{name}")
        return self.created[kind, name]

    async def write_status(self, kind: str, metadata: Metadata, status: Json) -> None:
        self._check()
        self.statuses.append((kind, metadata.name, status))

    async def write_finalizers(self, kind: str, metadata: Metadata, finalizers: Sequence[str]) -> None:
        self._check()
        self.finalizers.append((metadata.name, list(finalizers)))

    async def create_object(self, document: Json) -> bool:
        self._check()
        name = document["kind"], document["metadata"]["name"]
        is_new = name not in self.created
        self.created.setdefault(name, document)
        return is_new

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        self._check()
        self.deleted.append((kind, metadata.name))
        self.created.pop((kind, metadata.name), None)

    async def post_event(self, kind: str, metadata: Metadata, event: Event) -> None:
        self.events.append(event)

    @property
    def writes(self) -> int:
        """How often anything was written."""
        return len(self.statuses) + len(self.finalizers) + len(self.events)

    def _check(self) -> None:
        if self.error is not None:
            raise self.error


@dataclass(slots=True)
class FakeSecrets:
    """Implements ports.Secrets on a mapping of (namespace, name, key)."""

    values: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    reads: int = 0

    async def read(self, namespace: str, name: str, key: str) -> str:
        self.reads += 1
        if (namespace, name, key) not in self.values:
            raise SecretMissing(namespace, name, key)
        return self.values[namespace, name, key]


@dataclass(slots=True)
class FakeHandoverStore:
    """Implements ports.HandoverStore in memory; the version of what it has rises with every write."""

    given: dict[str, HandedOver] = field(default_factory=dict)
    writes: int = 0
    reads: int = 0

    async def read(self, slug: str) -> HandedOver | None:
        self.reads += 1
        return self.given.get(slug)

    async def write(self, handed: HandedOver) -> None:
        before = self.given.get(handed.slug)
        assert handed.version == (before.version if before else "")
        self.writes += 1
        self.given[handed.slug] = replace(handed, version=str(self.writes))

    async def delete(self, handed: HandedOver) -> None:
        if (before := self.given.get(handed.slug)) and before.version == handed.version:
            del self.given[handed.slug]

    async def list_all(self) -> list[HandedOver]:
        return list(self.given.values())


def memory_document(name: str = "probe", *, metadata: Json | None = None, **spec: object) -> Json:
    """Return an AgentMemory as a source gives it; `metadata` and `spec` are put over the smallest one."""
    base = {"name": name, "namespace": "agents", "uid": f"uid-{name}", "generation": 1}
    base |= {"creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "7"}
    return {
        "apiVersion": "agentmemory.dev/v1alpha1",
        "kind": "AgentMemory",
        "metadata": base | (metadata or {}),
        "spec": {"connectionRef": {"name": "main"}} | spec,
    }


def connection_document(name: str = "main", *, namespace: str = "agents", **spec: object) -> Json:
    """Return a QdrantConnection as a source gives it."""
    return {
        "apiVersion": "agentmemory.dev/v1alpha1",
        "kind": "QdrantConnection",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "generation": 1},
        "spec": {"url": "http://qdrant:6333"} | spec,
    }


@dataclass(slots=True)
class FakeReranker:
    """Implements ports.Reranker: the later in the alphabet, the better; remembers what it read.

    Attributes:
        error: raised instead.
    """

    read: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    error: AgentMemoryError | None = None

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        self.read.append((model, query, tuple(texts)))
        if self.error:
            raise self.error
        return [float(ord(text[0])) for text in texts]
