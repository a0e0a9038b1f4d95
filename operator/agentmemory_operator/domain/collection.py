"""The collection as a value: the same type for what is desired and what is observed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from agentmemory_operator.domain.naming import PLACEHOLDER_KEY
from agentmemory_operator.domain.rebuilding import Record
from agentmemory_operator.domain.replicas import Placement

KEYWORD_VECTOR = "agentmemory_keyword"
"""Name of the sparse vector beside the nameless dense one; a name that is ours alone, as the vector may be dropped."""

METADATA_KEY = "agentmemory"
"""The one key of the collection's metadata that holds the marker; a PATCH merges metadata key by key."""

ORIGIN_KEY = "agentmemoryOrigin"
"""The key that names the agent whose memories they were first, in a copy that became another agent's."""

PREVIOUS_KEY = "agentmemoryPrevious"
"""The key that says, of a collection that was replaced, since when, until when it is kept, and why."""

GREEN, GREY, RED = "green", "grey", "red"
"""Of Qdrant's words for a collection's state, those that decide something here."""


Limit = bool | int | float


@dataclass(frozen=True, slots=True)
class ScalarQuantization:
    """int8 copies of the vectors. The engine replaces quantization as a whole."""

    quantile: float | None
    always_ram: bool


@dataclass(frozen=True, slots=True)
class ProductQuantization:
    """Chunks of the vectors as numbers of centroids: X4..X64 smaller."""

    compression: str
    always_ram: bool


@dataclass(frozen=True, slots=True)
class BinaryQuantization:
    """One to two bits for each number; the query may keep more."""

    encoding: str
    query_encoding: str
    always_ram: bool


@dataclass(frozen=True, slots=True)
class TurboQuantization:
    """Bits1..Bits4 for each number of the rotated vector."""

    bits: str
    always_ram: bool


Quantization = ScalarQuantization | ProductQuantization | BinaryQuantization | TurboQuantization


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
class KeywordSource:
    """What the keyword vectors of one collection were made of, as its metadata says.

    Attributes:
        language: whose stop words and stemmer the engine uses.
        window: memories of the session before a memory whose text belongs to its keyword text.
    """

    language: str
    window: int


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
    keyword: KeywordSource | None = None

    def is_same_object(self, other: "Marker") -> bool:
        """Tell whether both name the same object of the same cluster, whatever its uid."""
        return (self.cluster_id, self.namespace, self.name) == (other.cluster_id, other.namespace, other.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A collection's shape. None in a desired value means: not ours to decide.

    Attributes:
        datatype: Float32, Float16 or Uint8: how the vectors are stored.
        memory: Cached or Cold: where the vectors lie, by effect, whatever the name that the server was told.
        strict_mode: (limit, value) under the engine's names, sorted; `enabled` is one of them.
        has_keyword: there is a sparse vector for keywords, weighted by how rare a word is.
        indexes: (field, schema type), sorted by field.
    """

    size: int
    distance: str
    m: int | None = None
    ef_construct: int | None = None
    full_scan_threshold_kb: int | None = None
    default_segment_number: int | None = None
    indexing_threshold_kb: int | None = None
    quantization: Quantization | None = None
    datatype: str | None = None
    memory: str | None = None
    shard_number: int | None = None
    replication_factor: int | None = None
    strict_mode: tuple[tuple[str, Limit], ...] | None = None
    indexes: tuple[tuple[str, str], ...] = ()
    has_keyword: bool = False
    marker: Marker | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the server answered about one alias.

    Attributes:
        physical: the collection's own name; equal to the alias for a plain collection of that name.
        points: approximate number of points, tombstones included.
        state: green, yellow, grey or red.
        is_busy: optimizations are queued or running, or shards are copied from peer to peer.
        fault: the engine's words for what stopped its optimizers; empty when nothing did.
        record: of the rebuild that made it.
        placement: where its replicas are; None of a server that is alone, or does not tell.
    """

    physical: str
    is_aliased: bool
    collection: Collection
    points: int
    indexed: int
    state: str
    is_busy: bool
    fault: str = ""
    record: Record | None = None

    @property
    def is_plain(self) -> bool:
        """Tell whether it bears the alias's name itself; no slug has two underscores."""
        return not self.is_aliased and "__" not in self.physical

    placement: Placement | None = None


def has_same_vectors(live: Collection, desired: Collection) -> bool:
    """Tell whether the vectors of both are of one space; those of an adopted collection are what its object says."""
    if live.marker is None or desired.marker is None:
        return live.size == desired.size
    return live.marker.embedding.identity == desired.marker.embedding.identity


def marker_to_json(marker: Marker) -> dict[str, Any]:
    """Return the marker as it lies in the collection's metadata: camelCase, without what is None."""
    return _camel_keys(asdict(marker))


def marker_from_json(document: Mapping[str, Any]) -> Marker:
    """Return the marker that a collection's metadata holds; keys of a newer version are dropped."""
    return Marker(
        cluster_id=str(document.get("clusterId", "")),
        namespace=str(document.get("namespace", "")),
        name=str(document.get("name", "")),
        uid=str(document.get("uid", "")),
        generation=int(document.get("generation", 0)),
        config_hash=str(document.get("configHash", "")),
        preset_revision=int(document.get("presetRevision", 0)),
        embedding=embedding_from_json(document.get("embedding") or {}),
        keyword=keyword_from_json(document.get("keyword")),
    )


def is_placeholder(metadata: Mapping[str, Any] | None) -> bool:
    """Tell whether a collection's metadata says that it only keeps the snapshots of its name in reach."""
    ours = (metadata or {}).get(METADATA_KEY)
    return isinstance(ours, Mapping) and bool(ours.get(PLACEHOLDER_KEY))


def embedding_from_json(document: Mapping[str, Any]) -> EmbeddingSource:
    """Return the embedding that a marker names."""
    return EmbeddingSource(
        provider=str(document.get("provider", "none")),
        model=document.get("model"),
        dimensions=int(document.get("dimensions", 0)),
        base_url=document.get("baseUrl"),
        secret_name=document.get("secretName"),
        secret_key=document.get("secretKey"),
    )


def embedding_to_json(source: EmbeddingSource) -> dict[str, Any]:
    """Return the embedding as it lies in metadata."""
    return _camel_keys(asdict(source))


def keyword_from_json(document: Mapping[str, Any] | None) -> KeywordSource | None:
    """Return the keyword text that a marker names, None where there is none."""
    if not document:
        return None
    return KeywordSource(language=str(document.get("language", "")), window=int(document.get("window", 0)))


def _camel_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    kept = ((key, value) for key, value in values.items() if value is not None)
    return {_camel(key): _camel_keys(value) if isinstance(value, dict) else value for key, value in kept}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
