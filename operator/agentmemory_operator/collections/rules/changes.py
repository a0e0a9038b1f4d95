"""Changes to a collection, as values, and the cost class of each."""

from dataclasses import dataclass, field
from enum import StrEnum

from agentmemory_operator.collections.rules.collection import Collection, Limits, Marker
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord
from agentmemory_operator.collections.rules.replicas import CopyReplica, Move
from agentmemory_operator.spec.presets.table import Hnsw, Optimizers, Quantization


class ChangeClass(StrEnum):
    """Cost of a change: a call, a background reindex, or a new collection."""

    IN_PLACE = "InPlace"
    REINDEX = "Reindex"
    REBUILD = "Rebuild"


@dataclass(frozen=True, slots=True)
class CreateCollection:
    """Create the physical collection with everything that Qdrant accepts in one request.

    Attributes:
        record: Record of the rebuild that the collection is the target of. None if it is no rebuild's target.
    """

    physical: str
    collection: Collection
    record: RebuildRecord | None = None


@dataclass(frozen=True, slots=True)
class SetAlias:
    """Point the alias to the physical collection."""

    alias: str
    physical: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateHnsw(Hnsw):
    """Change parameters of the HNSW graph; None keeps a parameter."""


@dataclass(frozen=True, slots=True)
class UpdateQuantization:
    """Replace the quantization; None turns it off."""

    quantization: Quantization | None


@dataclass(frozen=True, slots=True)
class UpdateVectors:
    """Move the vectors to another memory tier: Cached or Cold."""

    memory: str


@dataclass(frozen=True, slots=True)
class UpdatePayload:
    """Keep payloads on disk only, or also in RAM."""

    payload_on_disk: bool


@dataclass(frozen=True, slots=True)
class UpdateKeyword:
    """Add the sparse vector for keywords, empty for every point, or drop it from all points."""

    has_keyword: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOptimizers(Optimizers):
    """Change parameters of the optimizers; None keeps a parameter."""


@dataclass(frozen=True, slots=True)
class UpdateReplication:
    """Change the number of replicas of each shard.

    Attributes:
        moves: Moves of replicas that follow, one in each pass. Empty if none are needed, or for a single server.
        bytes_each: Estimated bytes of one copy of a shard; 0 for a single server.
    """

    replication_factor: int
    moves: tuple[Move, ...] = field(default=(), compare=False)
    bytes_each: int = field(default=0, compare=False)

    @property
    def copies(self) -> tuple[CopyReplica, ...]:
        """Moves that copy a shard. The other moves drop a replica."""
        return tuple(move for move in self.moves if isinstance(move, CopyReplica))


@dataclass(frozen=True, slots=True)
class UpdateStrictMode:
    """Set limits of strict mode, as (limit, value) with Qdrant's names; other limits stay."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class WakeOptimizers:
    """Resume the pending optimizations of a grey collection after a restart of Qdrant."""


@dataclass(frozen=True, slots=True)
class CreateIndexes:
    """Create or replace payload indexes, as (field, schema type)."""

    indexes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class WriteMarker:
    """Write the ownership marker into the collection's metadata, replacing any earlier marker."""

    marker: Marker


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A difference that only a new collection can remove.

    Attributes:
        field: Field of the spec, for example `embedding.model`, or another property of the collection.
        observed, desired: Values as text.
    """

    field: str
    observed: str
    desired: str


BEHIND_ALIAS = Rebuild("collection", "plain", "behind the alias")
"""Rebuild of a plain collection, which has the alias's own name: a new collection behind the alias replaces it."""

Tuned = (
    UpdateHnsw
    | UpdateQuantization
    | UpdateVectors
    | UpdatePayload
    | UpdateOptimizers
    | UpdateReplication
    | UpdateStrictMode
    | UpdateKeyword
)
"""Changes of settings, each applied by one call."""

Change = Tuned | CreateCollection | SetAlias | WakeOptimizers | CreateIndexes | WriteMarker | Rebuild

WAKING = (
    CreateCollection,
    UpdateHnsw,
    UpdateQuantization,
    UpdateVectors,
    UpdatePayload,
    UpdateOptimizers,
    UpdateReplication,
    UpdateKeyword,
    WakeOptimizers,
)
"""Changes after which Qdrant runs the optimizers."""


def class_of(change: Change) -> ChangeClass:
    """Return the cost class of a change.

    A change of replicas is a Reindex only if shards are copied. Dropping the keyword vector is InPlace.
    """
    match change:
        case Rebuild():
            return ChangeClass.REBUILD
        case UpdateHnsw() | UpdateQuantization() | UpdateVectors() | UpdatePayload() | UpdateKeyword(has_keyword=True):
            return ChangeClass.REINDEX
        case UpdateReplication() if change.copies:
            return ChangeClass.REINDEX
        case _:
            return ChangeClass.IN_PLACE
