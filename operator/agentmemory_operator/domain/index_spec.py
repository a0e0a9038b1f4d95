"""`spec.index` of an AgentMemory: how its collection is laid out and indexed."""

from typing import Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.domain import rules
from agentmemory_operator.domain.model import Model
from agentmemory_operator.domain.schema import validated


class HnswSpec(Model):
    """The HNSW graph of the collection."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.HNSW))

    m: int | None = Field(
        default=None,
        ge=4,
        le=64,
        description="Edges per node, 4..64. More finds more and takes more memory. Default: the preset's."
        " A change re-indexes in the background.",
    )
    ef_construct: int | None = Field(
        default=None,
        ge=4,
        le=1000,
        description="Neighbours considered while building, 4..1000, at least m. More builds slower and finds more."
        " Default: the preset's. A change re-indexes in the background.",
    )
    full_scan_threshold_kb: int | None = Field(
        default=None,
        alias="fullScanThresholdKB",
        ge=10,
        le=1_000_000_000,
        description="Kilobytes of vectors up to which a full scan is preferred to the graph, 10..1000000000."
        " Default: the preset's.",
    )
    search_ef: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Neighbours considered by a search, 1..10000. More finds more and takes longer."
        " Default: the engine's own, which is efConstruct. Acts on the next search.",
    )


class QuantizationSpec(Model):
    """Compressed copies of the vectors that the graph is searched with."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.QUANTIZATION))

    type: Literal["None", "Scalar"] = Field(
        description="Scalar keeps one byte per number, None keeps no compressed copy. A change re-indexes in the"
        " background."
    )
    quantile: float | None = Field(
        default=None,
        ge=0.5,
        le=1,
        allow_inf_nan=False,
        description="Share of the values that the byte range covers, 0.5..1; the rest is cut off. Only with Scalar."
        " Default: the preset's.",
    )
    always_ram: bool | None = Field(
        default=None,
        description="Keep the compressed vectors in RAM wherever the originals lie. Only with Scalar."
        " Default: the preset's.",
    )


class OptimizersSpec(Model):
    """When and how the engine merges and indexes its segments."""

    default_segment_number: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="Segments the engine aims at, 0..256; 0 is one per CPU. Fewer answer more requests a second, more"
        " answer each one sooner. Default: the preset's.",
    )
    indexing_threshold_kb: int | None = Field(
        default=None,
        alias="indexingThresholdKB",
        ge=0,
        le=1_000_000_000,
        description="Kilobytes of vectors from which a segment gets its graph, 0..1000000000; 0 never builds one."
        " Default: the preset's.",
    )


class Index(Model):
    """How the collection is laid out and indexed."""

    distance: Literal["Cosine", "Dot", "Euclid"] | None = Field(
        default=None, description="How vectors are compared. Default: the preset's. A change is a Rebuild."
    )
    hnsw: HnswSpec | None = Field(default=None, description="The HNSW graph. Default: the preset's figures.")
    quantization: QuantizationSpec | None = Field(
        default=None, description="Compressed copies of the vectors for searching. Default: the preset's."
    )
    optimizers: OptimizersSpec | None = Field(
        default=None, description="Merging and indexing of segments. Default: the preset's figures."
    )
