"""The collection as a value: the same type for what is desired and what is observed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

METADATA_KEY = "agentmemory"
"""The one key of the collection's metadata that holds the marker; a PATCH merges metadata key by key."""


@dataclass(frozen=True, slots=True)
class ScalarQuantization:
    """int8 copies of the vectors. The engine replaces quantization as a whole."""

    quantile: float | None
    always_ram: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSource:
    """The embedding in force for the vectors of one collection, as its metadata says; names, never secrets."""

    provider: str
    model: str | None
    dimensions: int
    base_url: str | None = None
    secret_name: str | None = None
    secret_key: str | None = None

    @property
    def identity(self) -> tuple[str, str | None, int]:
        """Two equal identities share a vector space."""
        return self.provider, self.model, self.dimensions


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Who owns a collection and what its vectors mean; lies in the collection's metadata.

    Attributes:
        generation, config_hash: of the object when its collection was last brought in line.
    """

    cluster_id: str
    namespace: str
    name: str
    uid: str
    generation: int
    config_hash: str
    preset_revision: int
    embedding: EmbeddingSource

    def is_same_object(self, other: "Marker") -> bool:
        """Tell whether both name the same object of the same cluster, whatever its uid."""
        return (self.cluster_id, self.namespace, self.name) == (other.cluster_id, other.namespace, other.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A collection's shape. None in a desired value means: not ours to decide.

    Attributes:
        indexes: (field, schema type), sorted by field.
    """

    size: int
    distance: str
    m: int | None = None
    ef_construct: int | None = None
    full_scan_threshold_kb: int | None = None
    default_segment_number: int | None = None
    indexing_threshold_kb: int | None = None
    quantization: ScalarQuantization | None = None
    indexes: tuple[tuple[str, str], ...] = ()
    marker: Marker | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the server answered about one alias.

    Attributes:
        physical: the collection's own name; equal to the alias for a plain collection of that name.
        points: approximate number of points, tombstones included.
        state: green, yellow, grey or red.
        is_busy: optimizations are queued or running.
    """

    physical: str
    is_aliased: bool
    collection: Collection
    points: int
    state: str
    is_busy: bool
    raw_metadata: Mapping[str, Any]
