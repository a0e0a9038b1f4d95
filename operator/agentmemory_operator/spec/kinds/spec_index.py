"""`spec.index` of an AgentMemory: how its collection is laid out and indexed."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.base import Model
from agentmemory_operator.spec.kinds.cel import index as rules
from agentmemory_operator.spec.kinds.schema import keyed_by, validated

KeywordLanguage = Literal[
    "arabic",
    "danish",
    "dutch",
    "english",
    "finnish",
    "french",
    "german",
    "greek",
    "hungarian",
    "italian",
    "norwegian",
    "portuguese",
    "romanian",
    "russian",
    "spanish",
    "swedish",
    "turkish",
]
"""Languages that the engine has both stop words and a stemmer for."""


class HnswSpec(Model):
    """The HNSW graph of the collection."""

    m: int | None = Field(
        default=None,
        ge=4,
        le=64,
        description="Edges per node, 4..64. More finds more and takes more memory. Default: the profile's or preset's."
        " A change re-indexes in the background.",
    )
    ef_construct: int | None = Field(
        default=None,
        ge=4,
        le=1000,
        description="Neighbours considered while building, 4..1000, at least m. More builds slower and finds more."
        " Default: the profile's or preset's. A change re-indexes in the background.",
    )
    full_scan_threshold_kb: int | None = Field(
        default=None,
        alias="fullScanThresholdKB",
        ge=10,
        le=1_000_000_000,
        description="Kilobytes of vectors up to which a full scan is preferred to the graph, 10..1000000000."
        " Default: the profile's or preset's.",
    )
    search_ef: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Neighbours considered by a search, 1..10000. More finds more and takes longer."
        " Default: the engine's own, which is efConstruct. Acts on the next search.",
    )


class QuantizationSpec(Model):
    """Compressed copies of the vectors that the graph is searched with; a block replaces another whole."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.QUANTIZATION))

    type: Literal["None", "Scalar", "Product", "Binary", "Turbo"] = Field(
        description="Scalar keeps a byte of each number, Turbo 1 to 4 bits of the rotated vector, Binary 1 to 2 bits,"
        " Product a sixteenth or less; None keeps no compressed copy. A change re-indexes in the background."
    )
    quantile: float | None = Field(
        default=None,
        ge=0.5,
        le=1,
        allow_inf_nan=False,
        description="Share of the values that the byte range covers, 0.5..1; the rest is cut off. Only with Scalar."
        " Default: the profile's or preset's.",
    )
    always_ram: bool | None = Field(
        default=None,
        description="Keep the compressed vectors in RAM wherever the originals lie. Not with None. Default: true.",
    )
    compression: Literal["X4", "X8", "X16", "X32", "X64"] | None = Field(
        default=None, description="How many times smaller the copies are. Only with Product. Default: X16."
    )
    encoding: Literal["OneBit", "OneAndHalfBits", "TwoBits"] | None = Field(
        default=None, description="Bits kept of each number. Only with Binary. Default: OneBit."
    )
    query_encoding: Literal["Default", "Binary", "Scalar4Bits", "Scalar8Bits"] | None = Field(
        default=None, description="What is kept of the query's numbers; Default is as of the vectors. Only with Binary."
    )
    bits: Literal["Bits1", "Bits1_5", "Bits2", "Bits4"] | None = Field(
        default=None, description="Bits kept of each number. Only with Turbo. Default: Bits4."
    )
    rescore: bool | None = Field(
        default=None,
        description="Compare the candidates of a search by the vectors themselves; false trusts the compressed copies."
        " Not with None. Default: true. Acts on the next search.",
    )
    oversampling: float | None = Field(
        default=None,
        ge=1,
        le=16,
        allow_inf_nan=False,
        description="How many times more candidates are rescored than wanted, 1..16. Not with None or rescore: false."
        " Default: by type, 1 for Scalar and Turbo Bits4, 2 to 4 for fewer bits. Acts on the next search.",
    )


class OptimizersSpec(Model):
    """When and how the engine merges and indexes its segments."""

    default_segment_number: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="Segments the engine aims at, 0..256; 0 is one per CPU. Fewer answer more requests a second, more"
        " answer each one sooner. Default: the profile's or preset's.",
    )
    indexing_threshold_kb: int | None = Field(
        default=None,
        alias="indexingThresholdKB",
        ge=0,
        le=1_000_000_000,
        description="Kilobytes of vectors from which a segment gets its graph, 0..1000000000; 0 never builds one."
        " Default: the profile's or preset's.",
    )


class VectorsSpec(Model):
    """How and where the vectors themselves are kept."""

    datatype: Literal["Float32", "Float16"] | None = Field(
        default=None,
        description="Float16 halves the vectors for a difference in the third digit. Default: the preset's. A change"
        " is a Rebuild.",
    )
    memory: Literal["Cached", "Cold"] | None = Field(
        default=None,
        description="Cached keeps the vectors in RAM, Cold on disk, where rescoring reads them. Default: the profile's"
        " or preset's. A change rewrites them in the background.",
    )


class PayloadSpec(Model):
    """Where what memories hold beside their vectors is kept: contents, metadata and all other fields."""

    on_disk: bool = Field(
        description="true: read from disk when needed. false: kept in RAM too, 32 MiB a segment at least, also of an"
        " empty agent. A change rewrites the segments in the background. Default: true for new collections; those that"
        " exist stay as they are while this is not given."
    )


class ShardingSpec(Model):
    """How the collection is spread over the servers of a Qdrant cluster."""

    shard_number: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Parts of the collection that servers can hold apart, 1..1024. Default: the server's, left as it"
        " is. A change is a Rebuild.",
    )
    replication_factor: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Copies of each part that the collection is to have, 1..64. Default: the server's, and left as it"
        " is. In a cluster, shards are copied or dropped, one after another; more than it has peers is refused.",
    )


class StrictModeSpec(Model):
    """Limits that the server holds every caller of the collection to; the API keeps within them by itself.

    Bounds leave room for what the API itself asks: lists and batches of 1,000, 16 searches at once, its own indexes.
    """

    enabled: bool | None = Field(
        default=None, description="false switches all limits off and keeps their values. Default: true."
    )
    max_query_limit: int | None = Field(
        default=None,
        ge=1000,
        le=4_294_967_294,
        description="Largest number of results of one request, 1000..4294967294; searches score no more candidates.",
    )
    search_max_hnsw_ef: int | None = Field(
        default=None,
        ge=1,
        le=4_294_967_294,
        description="Largest hnsw_ef of a search, 1..4294967294, at least hnsw.searchEf.",
    )
    search_max_oversampling: float | None = Field(
        default=None,
        ge=4,
        le=1000,
        allow_inf_nan=False,
        description="Largest oversampling of a search, 4..1000, at least quantization.oversampling.",
    )
    upsert_max_batchsize: int | None = Field(
        default=None, ge=1000, le=4_294_967_294, description="Most points in one write, 1000..4294967294."
    )
    search_max_batchsize: int | None = Field(
        default=None, ge=16, le=4_294_967_294, description="Most searches in one request, 16..4294967294."
    )
    max_points_count: int | None = Field(
        default=None,
        ge=1,
        le=4_294_967_294,
        description="Most points in the collection, tombstones included, 1..4294967294. Beyond, writes are refused.",
    )
    max_payload_index_count: int | None = Field(
        default=None, ge=64, le=4_294_967_294, description="Most payload indexes, 64..4294967294."
    )


class PayloadIndexSpec(Model):
    """An index on a field of the memories."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.PAYLOAD_INDEX))

    field: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")] = Field(
        description="Path of the field, as metadata.ticket."
    )
    type: Literal["keyword", "integer", "float", "bool", "datetime", "geo", "text", "uuid"] = Field(
        description="What the field holds. Another type replaces the index."
    )


class KeywordSpec(Model):
    """Search by words (BM25) beside the search by meaning."""

    enabled: bool = Field(
        description="Keep a sparse vector of each memory's words, with those of the two memories before it in its"
        " session, and search by both. Switched on for a collection that holds memories, theirs are made in the"
        " background; switched off, all are dropped."
    )
    language: KeywordLanguage | None = Field(
        default=None,
        description="Language of the memories, for its stop words and word stems. Default: english. A change is a"
        " Rebuild.",
    )


class Index(Model):
    """How the collection is laid out and indexed."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.INDEX))

    profile: Literal["Balanced", "LowLatency", "LowMemory", "HighRecall", "Custom"] | None = Field(
        default=None,
        description="A purpose that decides every figure not given here, over the preset's; with expectedMemories and"
        " the dimensions: graph, full-scan threshold, segments, memory tier, quantization, rescoring. Custom is the"
        " server's own defaults. Default: none, the preset's figures.",
    )
    expected_memories: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="How many memories the agent is sized for, 1..1000000000. Decides under a named profile; else it"
        " changes nothing. Default: 100000.",
    )
    distance: Literal["Cosine", "Dot", "Euclid"] | None = Field(
        default=None, description="How vectors are compared. Default: the preset's. A change is a Rebuild."
    )
    hnsw: HnswSpec | None = Field(default=None, description="The HNSW graph. Default: the profile's or preset's.")
    quantization: QuantizationSpec | None = Field(
        default=None,
        description="Compressed copies of the vectors for searching. Default: the profile's or preset's.",
    )
    vectors: VectorsSpec | None = Field(
        default=None, description="The vectors themselves. Default: the profile's or preset's."
    )
    payload: PayloadSpec | None = Field(
        default=None, description="Contents and other fields of memories. Default: on disk."
    )
    keyword: KeywordSpec | None = Field(
        default=None, description="Search by words beside the search by meaning. Default: the preset's."
    )
    sharding: ShardingSpec | None = Field(
        default=None, description="Spread over a cluster of servers. Default: the server's."
    )
    strict_mode: StrictModeSpec | None = Field(
        default=None,
        description="Qdrant's strict mode. A limit that is taken out is lifted. Without this block the collection's is"
        " left as it is: to switch it off, enabled: false.",
    )
    payload_indexes: tuple[PayloadIndexSpec, ...] | None = Field(
        default=None,
        strict=False,
        max_length=32,
        description="Indexes beyond those that retrieval needs, at most 32, each field once; for filters on them. One"
        " that is taken out stays in the collection.",
        json_schema_extra=keyed_by("field"),
    )
    optimizers: OptimizersSpec | None = Field(
        default=None, description="Merging and indexing of segments. Default: the profile's or preset's."
    )
