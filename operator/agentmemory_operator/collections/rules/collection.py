"""The collection as a value: the same type for what is desired and what is observed.

Of its limits, those of strict mode: a PATCH merges and cannot unset one, so one that is no longer asked for is set to a
value that allows everything.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from pydantic.alias_generators import to_camel

from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord
from agentmemory_operator.collections.rules.replicas import Placement
from agentmemory_operator.spec.effective.embedding import EmbeddingSource, Prefixes
from agentmemory_operator.spec.kinds.spec_index import StrictModeSpec
from agentmemory_operator.spec.naming import PLACEHOLDER_KEY
from agentmemory_operator.spec.presets.table import Hnsw, Optimizers, Quantization

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
Limits = tuple[tuple[str, Limit], ...]

UNLIMITED = 4_294_967_295
LIFTED: dict[str, Limit] = {
    "max_query_limit": UNLIMITED,
    "search_max_hnsw_ef": UNLIMITED,
    "search_max_oversampling": 1_000_000.0,
    "upsert_max_batchsize": UNLIMITED,
    "search_max_batchsize": UNLIMITED,
    "max_points_count": UNLIMITED,
    "max_payload_index_count": UNLIMITED,
}

DEFAULT_LANGUAGE = "english"
WINDOW = 2
"""Memories of the session before a memory whose text belongs to its keyword text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeywordSource:
    """What the keyword vectors of one collection were made of, as its metadata says.

    Attributes:
        language: whose stop words and stemmer the engine uses.
        window: memories of the session before a memory whose text belongs to its keyword text.
    """

    language: str
    window: int


Owner = tuple[str, str, str]
"""Cluster, namespace and name of the object that a collection belongs to; empty where a marker does not say it."""


def is_owner(named: Owner, ours: Owner) -> bool:
    """Whether a marker names an object: the one rule by which API and operator call a collection theirs.

    What leaves out cluster, namespace or name names nobody, and two that leave out the same are not the same.
    """
    return all(named) and named == ours


def owner_in(metadata: Mapping[str, Any] | None) -> Owner:
    """The owner that the marker in a collection's metadata names, whatever was written there."""
    marker = (metadata or {}).get(METADATA_KEY)
    return _owner_from(marker) if isinstance(marker, Mapping) else ("", "", "")


def _owner_from(document: Mapping[str, Any]) -> Owner:
    cluster_id, namespace, name = (
        value if isinstance(value := document.get(key), str) else "" for key in ("clusterId", "namespace", "name")
    )
    return cluster_id, namespace, name


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Who owns a collection and what its vectors mean; lies in the collection's metadata.

    Attributes:
        generation, config_hash: of the object when its collection was last brought in line.
        connection: NAMESPACE/NAME of the object's QdrantConnection, whose owner decides who may take the collection
            over; None where the marker leaves it out.
        preset: the object's; None where the marker leaves it out, which means `cortex`.
        agent: the object's slug, which ids are made with; None where the marker leaves it out. No marker is
            written for it alone.
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
    connection: str | None = None
    preset: str | None = None
    agent: str | None = field(default=None, compare=False)

    @property
    def owner(self) -> Owner:
        """Whom it names."""
        return self.cluster_id, self.namespace, self.name

    def is_same_object(self, other: "Marker") -> bool:
        """Whether both name the same object of the same cluster, whatever its uid."""
        return is_owner(self.owner, other.owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A collection's shape. None in a desired value means: not ours to decide.

    Attributes:
        datatype: Float32, Float16 or Uint8: how the vectors are stored.
        memory: Cached or Cold: where the vectors lie, by effect, whatever the name that the server was told.
        payload_on_disk: where contents and other fields of memories are read from; False keeps them in RAM too.
        strict_mode: (limit, value) under the engine's names, sorted; `enabled` is one of them.
        has_keyword: there is a sparse vector for keywords, weighted by how rare a word is.
        indexes: (field, schema type), sorted by field.
    """

    size: int
    distance: str
    hnsw: Hnsw = field(default_factory=Hnsw)
    optimizers: Optimizers = field(default_factory=Optimizers)
    quantization: Quantization | None = None
    datatype: str | None = None
    memory: str | None = None
    payload_on_disk: bool | None = None
    shard_number: int | None = None
    replication_factor: int | None = None
    strict_mode: Limits | None = None
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
        is_held: its writers, or all of its clients, are held, or are about to be.
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
    record: RebuildRecord | None = None
    is_held: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it bears the alias's name itself; no slug has two underscores."""
        return not self.is_aliased and "__" not in self.physical

    placement: Placement | None = None


def figures_in(collection: Collection) -> dict[str, Any]:
    """The fields of a collection by name, with the figures of graph and optimizers one by one, as digests have them."""
    found = {each.name: getattr(collection, each.name) for each in fields(collection)}
    hnsw, optimizers = found.pop("hnsw"), found.pop("optimizers")
    return found | asdict(hnsw) | asdict(optimizers)


def has_same_vectors(live: Collection, desired: Collection) -> bool:
    """Whether the vectors of both are of one space; those of an adopted collection are what its object says."""
    if live.marker is None or desired.marker is None:
        return live.size == desired.size
    return live.marker.embedding.identity == desired.marker.embedding.identity


def handed_over(found: Marker, ours: Marker) -> Marker:
    """A marker that says the same of the vectors, and that they are ours."""
    return replace(
        found,
        cluster_id=ours.cluster_id,
        namespace=ours.namespace,
        name=ours.name,
        uid=ours.uid,
        connection=ours.connection,
        agent=ours.agent,
    )


def marker_to_json(marker: Marker) -> dict[str, Any]:
    """The marker as it lies in the collection's metadata: camelCase, without what is None."""
    return _camel_keys(asdict(marker))


def marker_from_json(document: Mapping[str, Any]) -> Marker:
    """The marker that a collection's metadata holds; keys of a newer version are dropped."""
    cluster_id, namespace, name = _owner_from(document)
    return Marker(
        cluster_id=cluster_id,
        namespace=namespace,
        name=name,
        uid=str(document.get("uid", "")),
        generation=int(document.get("generation", 0)),
        config_hash=str(document.get("configHash", "")),
        preset_revision=int(document.get("presetRevision", 0)),
        embedding=embedding_from_json(document.get("embedding") or {}),
        keyword=keyword_from_json(document.get("keyword")),
        connection=document.get("connection"),
        preset=preset if isinstance(preset := document.get("preset"), str) else None,
        agent=document.get("agent"),
    )


def is_placeholder(metadata: Mapping[str, Any] | None) -> bool:
    """Whether a collection's metadata says that it only keeps the snapshots of its name in reach."""
    ours = (metadata or {}).get(METADATA_KEY)
    return isinstance(ours, Mapping) and bool(ours.get(PLACEHOLDER_KEY))


@dataclass(frozen=True, slots=True)
class Tenant:
    """The tenant that a collection or a placeholder is of: a namespace of a cluster."""

    cluster_id: str
    namespace: str


def placeholder_metadata(owner: Tenant | None) -> dict[str, Any]:
    """The metadata of a placeholder.

    Args:
        owner: None of one that is gone before its call ends.
    """
    named = {"clusterId": owner.cluster_id, "namespace": owner.namespace} if owner else {}
    return {METADATA_KEY: {PLACEHOLDER_KEY: True, **named}}


def tenant_in(metadata: Mapping[str, Any] | None) -> Tenant | None:
    """Whose a collection's metadata says that it is, None where it does not say so whole."""
    cluster_id, namespace, _ = owner_in(metadata)
    return Tenant(cluster_id, namespace) if cluster_id and namespace else None


def is_unowned(metadata: Mapping[str, Any] | None) -> bool:
    """Whether a collection's metadata names nobody: it is unmarked, or a placeholder without an owner."""
    ours = (metadata or {}).get(METADATA_KEY)
    if is_placeholder(metadata):
        return "clusterId" not in (ours or {}) and "namespace" not in (ours or {})
    return not ours


def embedding_from_json(document: Mapping[str, Any]) -> EmbeddingSource:
    """The embedding that a marker names."""
    return EmbeddingSource(
        provider=str(document.get("provider", "none")),
        model=document.get("model"),
        dimensions=int(document.get("dimensions", 0)),
        base_url=document.get("baseUrl"),
        secret_name=document.get("secretName"),
        secret_key=document.get("secretKey"),
        prefixes=_prefixes_from_json(document.get("prefixes")),
    )


def _prefixes_from_json(document: Mapping[str, Any] | None) -> Prefixes | None:
    if not document:
        return None
    return Prefixes(query=str(document.get("query", "")), passage=str(document.get("passage", "")))


def embedding_to_json(source: EmbeddingSource) -> dict[str, Any]:
    """The embedding as it lies in metadata."""
    return _camel_keys(asdict(source))


def keyword_from_json(document: Mapping[str, Any] | None) -> KeywordSource | None:
    """The keyword text that a marker names, None where there is none."""
    if not document:
        return None
    return KeywordSource(
        language=str(document.get("language", "")),
        window=int(document.get("window", 0)),
    )


def _camel_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    kept = ((key, value) for key, value in values.items() if value is not None)
    return {to_camel(key): _camel_keys(value) if isinstance(value, dict) else value for key, value in kept}


def desired_limits(spec: StrictModeSpec | None) -> Limits | None:
    """What the block asks for, None without one: then the limits are not ours."""
    if spec is None:
        return None
    given: dict[str, Limit] = spec.model_dump(exclude_none=True)
    return tuple(sorted(({"enabled": True} | given).items()))


def limits_to_set(desired: Limits | None, live: Limits | None) -> Limits:
    """What a PATCH must say; limits that this operator does not offer stay as they are."""
    if not desired:
        return ()
    wanted, has = dict(desired), dict(live or ())
    if wanted["enabled"]:
        wanted |= {name: LIFTED[name] for name in has.keys() & LIFTED.keys() - wanted.keys()}
    return tuple(sorted((name, value) for name, value in wanted.items() if has.get(name) != value))


def limits_in_force(live: Limits | None) -> dict[str, Limit]:
    """The limits without those that allow everything; empty while strict mode is off."""
    has = dict(live or ())
    if not has.get("enabled"):
        return {}
    return {name: value for name, value in has.items() if LIFTED.get(name) != value}
