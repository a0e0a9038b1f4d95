"""The `index` block of an AgentMemory: layout and tuning of its collection."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.cel import index as rules
from agentmemory_operator.spec.kinds.model_base import Model
from agentmemory_operator.spec.kinds.schema import list_map_keys, validation_rules

KeywordLanguage = Literal[
    "arabic",
    "armenian",
    "auto",
    "azerbaijani",
    "basque",
    "bengali",
    "catalan",
    "chinese",
    "danish",
    "dutch",
    "english",
    "finnish",
    "french",
    "german",
    "greek",
    "hebrew",
    "hinglish",
    "hungarian",
    "indonesian",
    "italian",
    "japanese",
    "kazakh",
    "korean",
    "nepali",
    "none",
    "norwegian",
    "portuguese",
    "romanian",
    "russian",
    "slovene",
    "spanish",
    "swedish",
    "tajik",
    "tamil",
    "thai",
    "turkish",
]
"""Languages with stop words, a stemmer or bigram search in Qdrant; `auto` for texts in any language or several; and
`none`, without stop words and stems."""


class HnswSpec(Model):
    """HNSW graph of the collection."""

    m: int | None = Field(
        default=None,
        ge=4,
        le=64,
        description="Edges per node, 4..64. More improves recall and takes more memory. Default: the profile's or"
        " preset's. Changes reindex in the background.",
    )
    ef_construct: int | None = Field(
        default=None,
        ge=4,
        le=1000,
        description="Neighbours considered while building, 4..1000, at least m. More improves recall and builds"
        " more slowly. Default: the profile's or preset's. Changes reindex in the background.",
    )
    full_scan_threshold_kb: int | None = Field(
        default=None,
        ge=10,
        le=1_000_000_000,
        description="Kilobytes of vectors up to which a full scan is preferred to the graph, 10..1000000000."
        " Default: the profile's or preset's.",
    )
    search_ef: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Neighbours considered by a search, 1..10000. More improves recall and takes longer. Default:"
        " Qdrant's own, efConstruct. Applies to the next search.",
    )


class QuantizationSpec(Model):
    """Compressed vectors for search in the graph. A given block replaces that of the profile or preset.

    If the replaced block has the same type, unset fields of Scalar and the unset bits of Turbo come from it.
    """

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.QUANTIZATION))

    type: Literal["None", "Scalar", "Product", "Binary", "Turbo"] = Field(
        description="Compression method: Scalar keeps one byte per number, Turbo 1 to 4 bits of the rotated vector,"
        " Binary 1 to 2 bits, Product as set by compression; None keeps no compressed vectors. Changes reindex in"
        " the background."
    )
    quantile: float | None = Field(
        default=None,
        ge=0.5,
        le=1,
        description="Share of the values within the range of a byte, 0.5..1; values outside are clipped. Only with"
        " Scalar. Default: the profile's or preset's if it has type Scalar, else 0.99.",
    )
    always_ram: bool | None = Field(
        default=None,
        description="Whether compressed vectors stay in RAM even if vectors.memory is Cold; with Cached they always do."
        " Not with None. Default: with Scalar the profile's or preset's if that has type Scalar, else true.",
    )
    compression: Literal["X4", "X8", "X16", "X32", "X64"] | None = Field(
        default=None, description="Compression ratio. Only with Product. Default: X16."
    )
    encoding: Literal["OneBit", "OneAndHalfBits", "TwoBits"] | None = Field(
        default=None, description="Bits per number. Only with Binary. Default: OneBit."
    )
    query_encoding: Literal["Default", "Binary", "Scalar4Bits", "Scalar8Bits"] | None = Field(
        default=None,
        description="Encoding of the query vector; Default is that of the vectors. Only with Binary. Default: Default.",
    )
    bits: Literal["Bits1", "Bits1_5", "Bits2", "Bits4"] | None = Field(
        default=None,
        description="Bits per number. Only with Turbo. Default: the profile's or preset's if it has type Turbo, else"
        " Bits4.",
    )
    rescore: bool | None = Field(
        default=None,
        description="Whether candidates are rescored with the original vectors; false trusts the compressed ones."
        " Not with None. Default: true. Applies to the next search.",
    )
    oversampling: float | None = Field(
        default=None,
        ge=1,
        le=16,
        description="Candidates to rescore per requested result, 1..16. Not with None or rescore: false. Default: 2"
        " with profile HighRecall, else by type: 1 for Scalar and Turbo Bits4, 2 for Product, 2 to 4 for fewer bits."
        " Applies to the next search.",
    )


class OptimizersSpec(Model):
    """Merging and indexing of segments."""

    default_segment_number: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="Target number of segments, 0..256; 0 is one per CPU. Fewer increase throughput, more reduce"
        " latency. Default: the profile's or preset's.",
    )
    indexing_threshold_kb: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000_000,
        description="Kilobytes of vectors from which a segment gets its graph, 0..1000000000; 0 never builds one."
        " Default: the profile's or preset's.",
    )


class VectorsSpec(Model):
    """Storage of the vectors."""

    datatype: Literal["Float32", "Float16"] | None = Field(
        default=None,
        description="Number format of the vectors. Float16 halves their size for a difference in the third digit."
        " Default: the preset's. Changing it requires a Rebuild.",
    )
    memory: Literal["Cached", "Cold"] | None = Field(
        default=None,
        description="Storage of the vectors: Cached in RAM, Cold only on disk, from which rescoring reads them."
        " Default: the profile's or preset's. Changes rewrite the vectors in the background.",
    )


class PayloadSpec(Model):
    """Storage of contents, metadata and all other fields of memories."""

    on_disk: bool = Field(
        description="true: Qdrant reads it from disk when needed. false: Qdrant also keeps it in RAM, at least 32 MiB"
        " per segment, even for an empty agent. Changes rewrite the segments in the background. Default: true for new"
        " collections; an existing collection stays as it is until this is set."
    )


class ShardingSpec(Model):
    """Distribution of the collection in a Qdrant cluster."""

    shard_number: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Number of shards, 1..1024. Default: the server's, left unchanged. Changing it requires a Rebuild.",
    )
    replication_factor: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Desired replicas per shard, 1..64. Default: the server's, left unchanged. In a cluster,"
        " replicas are added or removed one at a time; more than there are peers are refused.",
    )


class StrictModeSpec(Model):
    """Limits that the server enforces for every caller of the collection. The API stays within them.

    Their lower bounds leave room for the API's own requests: lists and batches of 1,000, 16 concurrent searches, and
    its indexes.
    """

    enabled: bool | None = Field(
        default=None, description="Whether Qdrant enforces the limits; false keeps their values. Default: true."
    )
    max_query_limit: int | None = Field(
        default=None,
        ge=1000,
        le=4_294_967_294,
        description="Maximum results per request, 1000..4294967294; also bounds the candidates of a search.",
    )
    search_max_hnsw_ef: int | None = Field(
        default=None,
        ge=1,
        le=4_294_967_294,
        description="Maximum hnsw_ef of a search, 1..4294967294, at least hnsw.searchEf.",
    )
    search_max_oversampling: float | None = Field(
        default=None,
        ge=4,
        le=1000,
        description="Maximum oversampling of a search, 4..1000, at least quantization.oversampling.",
    )
    upsert_max_batchsize: int | None = Field(
        default=None, ge=1000, le=4_294_967_294, description="Maximum points per write, 1000..4294967294."
    )
    search_max_batchsize: int | None = Field(
        default=None, ge=16, le=4_294_967_294, description="Maximum searches per request, 16..4294967294."
    )
    max_points_count: int | None = Field(
        default=None,
        ge=1,
        le=4_294_967_294,
        description="Maximum points in the collection, tombstones included, 1..4294967294; beyond it, Qdrant"
        " refuses writes.",
    )
    max_payload_index_count: int | None = Field(
        default=None, ge=64, le=4_294_967_294, description="Maximum payload indexes, 64..4294967294."
    )


class PayloadIndexSpec(Model):
    """An index on a field of memories."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.PAYLOAD_INDEX))

    field: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")] = Field(
        description="Path of the field, for example metadata.ticket."
    )
    type: Literal["keyword", "integer", "float", "bool", "datetime", "geo", "text", "uuid"] = Field(
        description="Type of the field's values. Changing it replaces the index."
    )


class KeywordSpec(Model):
    """Keyword search (BM25) in addition to vector search."""

    enabled: bool = Field(
        description="Whether to store a sparse vector for each memory and to search by both vectors. It contains the"
        " words of the memory and of the two memories before it in its session. If enabled later, the operator adds"
        " the sparse vectors of stored memories in the background; if disabled, it removes them all."
    )
    language: KeywordLanguage | None = Field(
        default=None,
        description="Language of the memories, for stop words and stemming; auto for any language and for several;"
        " none for exact words alone. Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese text is found with any"
        " setting. Default: english. Changing it requires a Rebuild.",
    )


class Index(Model):
    """Layout and tuning of the collection."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.INDEX))

    profile: Literal["Balanced", "LowLatency", "LowMemory", "HighRecall", "Custom"] | None = Field(
        default=None,
        description="Optimization goal. From it, expectedMemories and the dimensions, the operator derives the graph,"
        " full-scan threshold, segments, memory tier, quantization and rescoring. It overrides the preset; other fields"
        " of index override it. Custom uses the server's defaults. Default: none, the preset's settings.",
    )
    expected_memories: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="Number of memories that the profile sizes the collection for, 1..1000000000. Default: 100000.",
    )
    distance: Literal["Cosine", "Dot", "Euclid"] | None = Field(
        default=None,
        description="Distance metric of the vectors. Default: the preset's. Changing it requires a Rebuild.",
    )
    hnsw: HnswSpec | None = Field(default=None, description="HNSW graph. Default: the profile's or preset's.")
    quantization: QuantizationSpec | None = Field(
        default=None, description="Compressed vectors for search. Default: the profile's or preset's."
    )
    vectors: VectorsSpec | None = Field(
        default=None, description="Storage of the vectors. Default: the profile's or preset's."
    )
    payload: PayloadSpec | None = Field(
        default=None, description="Storage of contents and other fields. Default: on disk."
    )
    keyword: KeywordSpec | None = Field(
        default=None, description="Keyword search in addition to vector search. Default: the preset's."
    )
    sharding: ShardingSpec | None = Field(default=None, description="Distribution in a cluster. Default: the server's.")
    strict_mode: StrictModeSpec | None = Field(
        default=None,
        description="Qdrant's strict mode. If you remove a limit here, it no longer applies; if you remove the block,"
        " the collection keeps its limits. To switch strict mode off, set enabled: false.",
    )
    payload_indexes: tuple[PayloadIndexSpec, ...] | None = Field(
        default=None,
        strict=False,
        max_length=32,
        description="Payload indexes for filters, in addition to those for retrieval, at most 32, unique by field."
        " If an entry is removed, the index stays.",
        json_schema_extra=list_map_keys("field"),
    )
    optimizers: OptimizersSpec | None = Field(
        default=None, description="Merging and indexing of segments. Default: the profile's or preset's."
    )
