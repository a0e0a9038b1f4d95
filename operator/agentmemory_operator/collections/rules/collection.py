"""A collection as a value: the same type for the desired and the observed state.

In Qdrant, a PATCH merges the limits of strict mode and cannot unset one. So a limit that is no longer configured is set
to a value that permits everything.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from pydantic.alias_generators import to_camel

from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord
from agentmemory_operator.collections.rules.replicas import Placement
from agentmemory_operator.errors import CollectionUnavailable
from agentmemory_operator.spec.effective.embedding import EmbeddingSource, Prefixes
from agentmemory_operator.spec.kinds.spec_index import StrictModeSpec
from agentmemory_operator.spec.naming import PLACEHOLDER_KEY
from agentmemory_operator.spec.presets.table import Hnsw, Optimizers, Quantization

T = TypeVar("T")

KEYWORD_VECTOR = "agentmemory_keyword"
"""Name of the sparse vector, in addition to the unnamed dense one. Unique to this product, because the vector may be
dropped."""

METADATA_KEY = "agentmemory"
"""Metadata key of the marker. A PATCH merges metadata key by key."""

ORIGIN_KEY = "agentmemoryOrigin"
"""Metadata key of a clone: the slug of the agent that the memories were first stored for."""

PREVIOUS_KEY = "agentmemoryPrevious"
"""Metadata key of a replaced collection: {"since", "keepUntil"} in RFC 3339, and "restore" (the object) or
"rebuild" (its target collection), which replaced it."""

GREEN, GREY, RED = "green", "grey", "red"
"""The states of a collection in Qdrant that decisions depend on."""

Limit = bool | int | float
Limits = tuple[tuple[str, Limit], ...]

UNLIMITED = 4_294_967_295
LIFTED_LIMITS: dict[str, Limit] = {
    "max_query_limit": UNLIMITED,
    "search_max_hnsw_ef": UNLIMITED,
    "search_max_oversampling": 1_000_000.0,
    "upsert_max_batchsize": UNLIMITED,
    "search_max_batchsize": UNLIMITED,
    "max_points_count": UNLIMITED,
    "max_payload_index_count": UNLIMITED,
}

DEFAULT_LANGUAGE = "english"
AUTO_LANGUAGE = "auto"
KEYWORD_WINDOW = 2
"""Number of preceding memories of the session whose text is part of a memory's keyword text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeywordSource:
    """Source of a collection's keyword vectors, from its metadata.

    Attributes:
        language: Language of the stop words and the stemmer.
        window: Number of preceding memories of the session whose text is part of a memory's keyword text.
    """

    language: str
    window: int


Owner = tuple[str, str, str]
"""Cluster, namespace and name of the object that owns a collection; "" for each that a marker leaves out."""


def is_owner(owner: Owner, own: Owner) -> bool:
    """Return whether a marker names an object. API and operator use this rule for ownership.

    A marker that leaves out cluster, namespace or name matches no object, not even one that leaves out the same.
    """
    return all(owner) and owner == own


def read_owner(metadata: Mapping[str, Any] | None) -> Owner:
    """Return the owner in the marker of a collection's metadata; empty strings if it is missing or malformed."""
    marker = (metadata or {}).get(METADATA_KEY)
    return _owner_from(marker) if isinstance(marker, Mapping) else ("", "", "")


def _owner_from(document: Mapping[str, Any]) -> Owner:
    cluster_id, namespace, name = (
        value if isinstance(value := document.get(key), str) else "" for key in ("clusterId", "namespace", "name")
    )
    return cluster_id, namespace, name


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Ownership marker in a collection's metadata: its owner, and the meaning of its vectors.

    Attributes:
        generation, config_hash: Those of the object when its configuration was last applied to the collection.
        keyword: Source of the keyword vectors. None if the collection has none.
        connection: NAMESPACE/NAME of the object's QdrantConnection, whose owner decides about takeovers. None if the
            marker leaves it out.
        preset: Preset of the object. None if the marker leaves it out, which means `cortex`.
        agent: Slug of the object, from which ids are derived. None if the marker leaves it out. A marker is never
            written only to add it.
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
        """Owner that the marker names."""
        return self.cluster_id, self.namespace, self.name

    def is_same_object(self, other: "Marker") -> bool:
        """Return whether both markers name the same object of the same cluster, regardless of its UID."""
        return is_owner(self.owner, other.owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """Configuration of a collection. None in a desired value leaves the field as it is, but turns quantization off.

    Attributes:
        datatype: Datatype of stored vectors: Float32, Float16 or Uint8.
        memory: Memory tier of the vectors, Cached or Cold, by effect: Qdrant has several settings for it.
        payload_on_disk: True if payloads are on disk only. False keeps them in RAM too.
        strict_mode: (limit, value) with Qdrant's names, sorted; `enabled` is one of them.
        has_keyword: True if it has a sparse vector for keywords with IDF weights.
        indexes: (field, schema type), sorted by field.
        marker: Ownership marker. None if the observed collection has none.
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
class Observation:
    """Observed state of the collection behind an alias.

    Attributes:
        physical: Physical name. Equal to the alias for a plain collection of that name.
        points: Approximate number of points, tombstones included.
        indexed: Approximate number of indexed vectors.
        state: green, yellow, grey or red.
        is_busy: True if the state is not green, updates are queued, or shards are being copied between peers.
        fault: Qdrant's error message if the optimizers have stopped, otherwise "".
        record: Record of the rebuild that created it. None otherwise.
        must_clients_wait: True if the collection is closed, or a move of its alias is announced or final; see
            `announcement.must_clients_wait`.
        placement: Placement of its replicas. None for a single server, or if the server does not report it.
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
    must_clients_wait: bool = False

    @property
    def is_plain(self) -> bool:
        """True if the collection has the alias's own name: without `__N`, as no slug contains two underscores."""
        return not self.is_aliased and "__" not in self.physical

    placement: Placement | None = None


def settings_by_name(collection: Collection) -> dict[str, Any]:
    """Return the fields of a collection by name.

    Settings of HNSW and optimizers are separate entries, as in digests.
    """
    found = {attribute.name: getattr(collection, attribute.name) for attribute in fields(collection)}
    hnsw, optimizers = found.pop("hnsw"), found.pop("optimizers")
    return found | asdict(hnsw) | asdict(optimizers)


def has_same_vectors(live: Collection, desired: Collection) -> bool:
    """Return whether both collections have the same vector space. If either has no marker, only sizes are compared."""
    if live.marker is None or desired.marker is None:
        return live.size == desired.size
    return live.marker.embedding.identity == desired.marker.embedding.identity


def with_owner(marker: Marker, own: Marker) -> Marker:
    """Return `marker` with owner, UID, connection and slug of `own`. Its configuration and embedding stay."""
    return replace(
        marker,
        cluster_id=own.cluster_id,
        namespace=own.namespace,
        name=own.name,
        uid=own.uid,
        connection=own.connection,
        agent=own.agent,
    )


def marker_to_json(marker: Marker) -> dict[str, Any]:
    """Render a marker for metadata: camelCase keys, None left out."""
    return _camel_keys(asdict(marker))


def marker_from_json(document: Mapping[str, Any]) -> Marker:
    """Parse a marker from metadata. Missing numbers become 0, missing texts "" or None; unknown keys are ignored.

    Raises:
        CollectionUnavailable: If it is malformed. The message names the field.
    """
    document = _parse(dict, document)
    cluster_id, namespace, name = _owner_from(document)
    return Marker(
        cluster_id=cluster_id,
        namespace=namespace,
        name=name,
        uid=str(document.get("uid", "")),
        generation=_parse(int, document.get("generation", 0), "generation"),
        config_hash=str(document.get("configHash", "")),
        preset_revision=_parse(int, document.get("presetRevision", 0), "presetRevision"),
        embedding=embedding_from_json(document.get("embedding") or {}),
        keyword=keyword_from_json(document.get("keyword")),
        connection=document.get("connection"),
        preset=preset if isinstance(preset := document.get("preset"), str) else None,
        agent=document.get("agent"),
    )


def is_placeholder(metadata: Mapping[str, Any] | None) -> bool:
    """Return whether a collection is a placeholder, which only keeps the snapshots of its name available."""
    entry = (metadata or {}).get(METADATA_KEY)
    return isinstance(entry, Mapping) and bool(entry.get(PLACEHOLDER_KEY))


@dataclass(frozen=True, slots=True)
class Tenant:
    """A namespace of a cluster, which owns a collection or placeholder."""

    cluster_id: str
    namespace: str


def placeholder_metadata(owner: Tenant | None) -> dict[str, Any]:
    """Build the metadata of a placeholder.

    Args:
        owner: None writes no owner, as in a placeholder that is deleted within the same call.
    """
    owner_fields = {"clusterId": owner.cluster_id, "namespace": owner.namespace} if owner else {}
    return {METADATA_KEY: {PLACEHOLDER_KEY: True, **owner_fields}}


def read_tenant(metadata: Mapping[str, Any] | None) -> Tenant | None:
    """Return the tenant that a collection's metadata names, or None if cluster or namespace is missing."""
    cluster_id, namespace, _ = read_owner(metadata)
    return Tenant(cluster_id, namespace) if cluster_id and namespace else None


def is_unowned(metadata: Mapping[str, Any] | None) -> bool:
    """Return whether a collection's metadata names no owner: no marker, or a placeholder's marker without an owner."""
    entry = (metadata or {}).get(METADATA_KEY)
    if is_placeholder(metadata):
        return "clusterId" not in (entry or {}) and "namespace" not in (entry or {})
    return not entry


def embedding_from_json(document: Mapping[str, Any]) -> EmbeddingSource:
    """Parse the embedding in a marker. A missing provider becomes "none", missing dimensions become 0.

    Raises:
        CollectionUnavailable: If it is malformed. The message names the field.
    """
    fields_ = _parse(dict, document, "embedding")
    model, base_url, secret_name, secret_key = (
        _parse(_optional_text, fields_.get(key), f"embedding.{key}")
        for key in ("model", "baseUrl", "secretName", "secretKey")
    )
    return EmbeddingSource(
        provider=str(fields_.get("provider", "none")),
        model=model,
        dimensions=_parse(int, fields_.get("dimensions", 0), "embedding.dimensions"),
        base_url=base_url,
        secret_name=secret_name,
        secret_key=secret_key,
        prefixes=_prefixes_from_json(_parse(dict, fields_.get("prefixes") or {}, "embedding.prefixes")),
    )


def _prefixes_from_json(document: Mapping[str, Any]) -> Prefixes | None:
    if not document:
        return None
    return Prefixes(query=str(document.get("query", "")), passage=str(document.get("passage", "")))


def _parse(parse: Callable[[Any], T], value: Any, name: str = "") -> T:
    """Convert a value from a collection's metadata, which everybody with Qdrant's key can write."""
    try:
        return parse(value)
    except (TypeError, ValueError) as error:
        path = f"{METADATA_KEY}.{name}".rstrip(".")
        raise CollectionUnavailable(f"the collection's metadata is malformed: {path} has no valid value") from error


def _optional_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise TypeError(value)


def embedding_to_json(source: EmbeddingSource) -> dict[str, Any]:
    """Render an embedding for metadata: camelCase keys, None left out."""
    return _camel_keys(asdict(source))


def keyword_from_json(document: Mapping[str, Any] | None) -> KeywordSource | None:
    """Parse the keyword source in a marker, or None without one.

    Raises:
        CollectionUnavailable: If it is malformed. The message names the field.
    """
    if not document:
        return None
    fields_ = _parse(dict, document, "keyword")
    window = _parse(int, fields_.get("window", 0), "keyword.window")
    return KeywordSource(language=str(fields_.get("language", "")), window=window)


def _camel_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    present = ((key, value) for key, value in values.items() if value is not None)
    return {to_camel(key): _camel_keys(value) if isinstance(value, dict) else value for key, value in present}


def build_limits(spec: StrictModeSpec | None) -> Limits | None:
    """Return the limits that the spec configures, or None without `strictMode`: then the existing ones stay."""
    if spec is None:
        return None
    configured: dict[str, Limit] = spec.model_dump(exclude_none=True)
    return tuple(sorted(({"enabled": True} | configured).items()))


def diff_limits(desired: Limits | None, live: Limits | None) -> Limits:
    """Return the limits for a PATCH: those that differ, and values that lift limits that are no longer configured.

    Empty if nothing is desired. Limits that the spec does not offer stay unchanged. If strict mode is turned off, no
    limit is lifted.
    """
    if not desired:
        return ()
    required, existing = dict(desired), dict(live or ())
    if required["enabled"]:
        required |= {name: LIFTED_LIMITS[name] for name in existing.keys() & LIFTED_LIMITS.keys() - required.keys()}
    return tuple(sorted((name, value) for name, value in required.items() if existing.get(name) != value))


def effective_limits(live: Limits | None) -> dict[str, Limit]:
    """Return the limits that restrict something; empty if strict mode is off."""
    existing = dict(live or ())
    if not existing.get("enabled"):
        return {}
    return {name: value for name, value in existing.items() if LIFTED_LIMITS.get(name) != value}
