"""An in-memory collection store that applies changes, and a compact notation for replicas.

In `placed(3, "12", "2-3")` shard 1 is active on peer 2 and dead on peer 3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentmemory_operator.collections.rules.capacity import Process
from agentmemory_operator.collections.rules.changes import (
    WAKING,
    Change,
    CreateCollection,
    Rebuild,
    SetAlias,
)
from agentmemory_operator.collections.rules.collection import Collection, Observation, Tenant
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord
from agentmemory_operator.collections.rules.replicas import ACTIVE, DEAD, CopyReplica, Move, Placement
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities
from agentmemory_operator.controllers.rules.orphans import CollectionSummary
from agentmemory_operator.errors import AgentMemoryError, StoreRejected, StoreUnavailable
from tests.support.fault_injection import Plantable, record_effect
from tests.support.spec.plans import apply_change, observed_of


@dataclass(slots=True)
class FakeCollectionStore(Plantable):
    """Implements ports.CollectionStore in memory.

    Attributes:
        collections: Collections by physical name.
        aliases: alias -> physical name.
        points: Exact numbers of points by physical name.
        types: Numbers of memories by type, by physical name.
        records: Rebuild records by the physical name of the target.
        lengths: Characters of contents by physical name.
        states: Colours by physical name. The default is green, or yellow if `is_busy`.
        error: Raised by every call; None for none.
        fails_after: Number of changes after which further ones raise `error_on_change`; None for never.
        ignored: Types of changes that are accepted but not applied.
        calls: Received calls as (method, detail).
        placements: Replicas by physical name. A collection without an entry is on a single server.
        has_replica_calls: True if replicas can be moved; moves complete at once.
        moves: Moves of replicas, in order.
        process_figures: Process that the server reports.
        tenants: Owners by physical name, for collections without an owner in the marker.
    """

    PLANTABLE = ("error", "fails_after", "ignored")

    collections: dict[str, Collection] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    points: dict[str, int] = field(default_factory=dict)
    types: dict[str, dict[str, int]] = field(default_factory=dict)
    records: dict[str, RebuildRecord] = field(default_factory=dict)
    lengths: dict[str, list[int]] = field(default_factory=dict)
    server_version: str = "1.18.3"
    is_busy: bool = False
    states: dict[str, str] = field(default_factory=dict)
    keys_made: dict[str, list[int]] = field(default_factory=dict)
    error: AgentMemoryError | None = None
    fails_after: int | None = None
    error_on_change: AgentMemoryError = field(default_factory=lambda: AgentMemoryError("set error_on_change"))
    ignored: tuple[type, ...] = ()
    calls: list[tuple[str, str]] = field(default_factory=list)
    is_closed: bool = False
    placements: dict[str, Placement] = field(default_factory=dict)
    has_replica_calls: bool = True
    moves: list[Move] = field(default_factory=list)
    process_figures: Process = field(default_factory=Process)
    tenants: dict[str, Tenant] = field(default_factory=dict)

    async def close(self) -> None:
        self.is_closed = True

    async def server(self) -> ServerCapabilities:
        self._called("server", "")
        return ServerCapabilities(self.server_version, 1, False)

    async def observe(self, alias: str, likely_physical: str, *, is_linked: bool = False) -> Observation | None:
        self._called("observe", alias)
        physical = self.aliases.get(alias, alias if alias in self.collections else likely_physical)
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

    async def target(self, name: str) -> str:
        self._called("target", name)
        return self.aliases.get(name, name)

    async def names(self) -> list[str]:
        self._called("names", "")
        return sorted(self.collections)

    async def list_agent_collections(self) -> list[CollectionSummary]:
        self._called("list_agent_collections", "")
        return [
            CollectionSummary(
                physical=physical,
                aliases=tuple(sorted(alias for alias, target in self.aliases.items() if target == physical)),
                points=self.points.get(physical, 0),
                size=collection.size,
                distance=collection.distance,
                marker=collection.marker,
            )
            for physical, collection in sorted(self.collections.items())
        ]

    async def apply(self, physical: str, change: Change) -> None:
        if self.fails_after is not None and len(self.changes) >= self.fails_after:
            record_effect(self, "fails_after")
            raise self.error_on_change
        self._called("apply", type(change).__name__)
        match change:
            case _ if isinstance(change, self.ignored):
                record_effect(self, "ignored")
            case CreateCollection(_, collection):
                self._create(physical, collection)
            case SetAlias(alias, _):
                self._must_be_there(physical)
                if alias in self.collections:
                    raise StoreRejected(409, f"there is a collection {alias}")
                self.aliases[alias] = physical
            case Rebuild():
                raise StoreRejected(400, f"{change.field} cannot change in place")
            case _:
                self._must_be_there(physical)
                self.collections[physical] = apply_change(self.collections[physical], change)
                if self.states.get(physical) == "grey" and isinstance(change, WAKING):
                    self.states[physical] = "yellow"

    def _create(self, physical: str, collection: Collection) -> None:
        if physical in self.aliases:
            raise StoreRejected(400, f"there is an alias {physical}")
        known = self.collections.setdefault(physical, collection)
        ours, theirs = collection.marker, known.marker
        # Not an error if an earlier attempt created it and its response was lost.
        if known is not collection and (ours is None or theirs is None or not theirs.is_same_object(ours)):
            raise StoreRejected(409, f"there is a collection {physical}")

    def _must_be_there(self, physical: str) -> None:
        if physical not in self.collections:
            raise StoreUnavailable(f"{physical} disappeared during the call")

    async def drop_index(self, physical: str, field: str) -> None:
        self._called("drop_index", field)
        self._must_be_there(physical)
        live = self.collections[physical]
        self.collections[physical] = replace(live, indexes=tuple(one for one in live.indexes if one[0] != field))

    async def process(self) -> Process:
        self._called("process", "")
        return self.process_figures

    async def read_owner(self, physical: str) -> Tenant | None:
        self._called("read_owner", physical)
        marker = self.collections[physical].marker if physical in self.collections else None
        return self.tenants.get(physical) or (Tenant(marker.cluster_id, marker.namespace) if marker else None)

    async def placement(self, physical: str) -> Placement | None:
        return self.placements.get(physical)

    async def peers(self) -> int:
        return max((len(placement.peers) for placement in self.placements.values()), default=1)

    async def move_replica(self, physical: str, move: Move) -> bool:
        self._called("move_replica", str(move))
        placement = self.placements[physical]
        if self.has_replica_calls:
            self.moves.append(move)
            self.placements[physical] = apply_move(placement, move)
        else:
            self.placements[physical] = replace(placement, can_move=False)
        return self.has_replica_calls

    async def count(self, physical: str) -> int:
        self._called("count", physical)
        return self.points.get(physical, 0)

    async def count_memories(self, physical: str, *, exact: bool = True) -> int:
        self._called("count_memories", "exact" if exact else "estimated")
        return self.points.get(physical, 0)

    async def count_unlisted(self, physical: str, types: Sequence[str]) -> Mapping[str, int]:
        self._called("count_unlisted", physical)
        return {name: count for name, count in self.types.get(physical, {}).items() if name not in types}

    async def count_sealed_before(self, physical: str, created_ms: int) -> int:
        self._called("count_sealed_before", physical)
        return sum(made < created_ms for made in self.keys_made.get(physical, []))

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
        """Types of the applied changes, in order."""
        return [detail for method, detail in self.calls if method == "apply"]

    def _called(self, method: str, detail: str) -> None:
        if self.error is not None:
            record_effect(self, "error")
            raise self.error
        self.calls.append((method, detail))


def build_placement(peers: int, *shards: str) -> Placement:
    """Build a placement of shards on `peers` peers.

    Each digit is a peer with an active replica; a preceding dash means dead.
    """
    return Placement(peers=tuple(range(1, peers + 1)), shards=dict(enumerate(map(_states, shards))))


def format_placement(placement: Placement) -> tuple[str, ...]:
    """Return the shards in compact notation."""
    return tuple(
        "".join(f"{'' if state == ACTIVE else '-'}{peer}" for peer, state in sorted(states.items()))
        for _, states in sorted(placement.shards.items())
    )


def apply_move(placement: Placement, move: Move, *, state: str = ACTIVE) -> Placement:
    """Return the placement after a move; a new replica has the given state."""
    states = dict(placement.shards[move.shard])
    if isinstance(move, CopyReplica):
        states[move.target] = state
    else:
        del states[move.peer]
    return replace(placement, shards={**placement.shards, move.shard: states})


def _states(shard: str) -> dict[int, str]:
    states: dict[int, str] = {}
    for number, sign in enumerate(shard):
        if sign != "-":
            states[int(sign)] = DEAD if shard[number - 1 : number] == "-" else ACTIVE
    return states
