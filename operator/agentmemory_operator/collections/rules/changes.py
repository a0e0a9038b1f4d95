"""The kinds of change to a collection, as values: what each costs, and what it does."""

from dataclasses import dataclass, field
from enum import StrEnum

from agentmemory_operator.collections.rules.collection import Collection, Limits, Marker
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord
from agentmemory_operator.collections.rules.replicas import CopyReplica, Move
from agentmemory_operator.spec.presets.table import Hnsw, Optimizers, Quantization


class ChangeClass(StrEnum):
    """What a change costs."""

    IN_PLACE = "InPlace"
    REINDEX = "Reindex"
    REBUILD = "Rebuild"


@dataclass(frozen=True, slots=True)
class CreateCollection:
    """Create the physical collection with everything the engine takes in one body.

    Attributes:
        record: of the rebuild whose target it is.
    """

    physical: str
    collection: Collection
    record: RebuildRecord | None = None


@dataclass(frozen=True, slots=True)
class SetAlias:
    """Point the alias at the physical collection."""

    alias: str
    physical: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateHnsw(Hnsw):
    """Change the graph's parameters; None keeps."""


@dataclass(frozen=True, slots=True)
class UpdateQuantization:
    """Replace quantization; None turns it off."""

    quantization: Quantization | None


@dataclass(frozen=True, slots=True)
class UpdateVectors:
    """Move the vectors to another memory tier: Cached or Cold."""

    memory: str


@dataclass(frozen=True, slots=True)
class UpdatePayload:
    """Keep what memories hold beside their vectors on disk alone, or in RAM too."""

    payload_on_disk: bool


@dataclass(frozen=True, slots=True)
class UpdateKeyword:
    """Add the sparse vector for keywords, empty for every point, or drop it from all."""

    has_keyword: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOptimizers(Optimizers):
    """Change the optimizers' parameters; None keeps."""


@dataclass(frozen=True, slots=True)
class UpdateReplication:
    """Change the number of copies that each shard is to have.

    Attributes:
        moves: of replicas, which follow one by one; of a server that is alone there are none.
        bytes_each: about what each copy of a shard takes.
    """

    replication_factor: int
    moves: tuple[Move, ...] = field(default=(), compare=False)
    bytes_each: int = field(default=0, compare=False)

    @property
    def copies(self) -> tuple[CopyReplica, ...]:
        """Those of the moves that copy a shard."""
        return tuple(move for move in self.moves if isinstance(move, CopyReplica))


@dataclass(frozen=True, slots=True)
class UpdateStrictMode:
    """Set limits of the strict mode: (limit, value) under the engine's names; the rest stays."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class WakeOptimizers:
    """Let a grey collection go on with what it had pending when Qdrant was restarted."""


@dataclass(frozen=True, slots=True)
class CreateIndexes:
    """Create, or replace, payload indexes: (field, schema type)."""

    indexes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class WriteMarker:
    """Write the ownership marker into the collection's metadata."""

    marker: Marker


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A difference that only a new collection can carry out."""

    field: str
    observed: str
    desired: str


BEHIND_ALIAS = Rebuild("collection", "plain", "behind the alias")
"""Of a collection that bears the alias's own name: another one takes its place, which the alias leads to."""

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
"""Changes of figures, carried out by one call each."""

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
"""Changes after which the engine looks at its segments again."""


def class_of(change: Change) -> ChangeClass:
    """What the change costs."""
    match change:
        case Rebuild():
            return ChangeClass.REBUILD
        case UpdateHnsw() | UpdateQuantization() | UpdateVectors() | UpdatePayload() | UpdateKeyword(has_keyword=True):
            return ChangeClass.REINDEX
        case UpdateReplication() if change.copies:
            return ChangeClass.REINDEX
        case _:
            return ChangeClass.IN_PLACE
