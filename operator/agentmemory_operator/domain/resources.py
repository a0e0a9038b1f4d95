"""The kinds of `agentmemory.dev/v1alpha1`: the one source of `crds/*.yaml` and of every check on a manifest.

A field stands here only when something acts on it. A field that a preset decides has no default here: a persisted
default would override the preset.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

GROUP = "agentmemory.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
CONFIRM_DELETE = f"{GROUP}/confirm-delete"
RECONCILE_REQUESTED_AT = f"{GROUP}/reconcile-requested-at"

SLUG_PATTERN = r"^[a-z0-9]+(-[a-z0-9]+)*$"
SLUG_MAX_LENGTH = 48


class Model(BaseModel):
    """Strict, frozen, camelCase outside and snake_case inside."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True)


class SecretKeyRef(Model):
    """A key of a Secret in the object's own namespace."""

    name: str
    key: str


class ConnectionRef(Model):
    """A QdrantConnection in the object's own namespace."""

    name: str


class Embedding(Model):
    """What turns text into vectors."""

    provider: Literal["openai", "wordllama", "none"]
    model: str | None = None
    dimensions: int | None = None
    base_url: str | None = Field(default=None, alias="baseURL")
    secret_ref: SecretKeyRef | None = None
    batch_size: int | None = None
    timeout_seconds: int | None = None
    cache_entries: int | None = None


class HnswSpec(Model):
    """The HNSW graph of the collection."""

    m: int | None = None
    ef_construct: int | None = None
    full_scan_threshold_kb: int | None = Field(default=None, alias="fullScanThresholdKB")
    search_ef: int | None = None


class QuantizationSpec(Model):
    """Compressed copies of the vectors that the graph is searched with."""

    type: Literal["None", "Scalar"]
    quantile: float | None = None
    always_ram: bool | None = None


class OptimizersSpec(Model):
    """When and how the engine merges and indexes its segments."""

    default_segment_number: int | None = None
    indexing_threshold_kb: int | None = Field(default=None, alias="indexingThresholdKB")


class Index(Model):
    """How the collection is laid out and indexed."""

    distance: Literal["Cosine", "Dot", "Euclid"] | None = None
    hnsw: HnswSpec | None = None
    quantization: QuantizationSpec | None = None
    optimizers: OptimizersSpec | None = None


class TypeSpec(Model):
    """One type of memory."""

    name: str
    half_life_days: float | None = None
    decay: bool | None = None
    boost: float | None = None


class WeightsSpec(Model):
    """The shares of the combined score; each 0..1, together 1."""

    similarity: float
    recency: float
    utility: float


class Scoring(Model):
    """How search ranks; every figure acts on the next request."""

    weights: WeightsSpec | None = None
    utility_norm: float | None = None
    limit: int | None = None
    score_threshold: float | None = None
    min_similarity: float | None = None
    candidates: Literal["Auto"] | Annotated[int, Field(ge=1, le=10_000)] | None = None


class AgentMemorySpec(Model):
    """One agent's long-term memory."""

    agent: str | None = None
    connection_ref: ConnectionRef
    preset: Literal["cortex"] | None = None
    embedding: Embedding | None = None
    index: Index | None = None
    types: tuple[TypeSpec, ...] | None = None
    scoring: Scoring | None = None
    deletion_policy: Literal["Retain", "Delete"] | None = None


class QdrantConnectionSpec(Model):
    """A Qdrant server or cluster."""

    url: str
    api_key_secret_ref: SecretKeyRef | None = None
    timeout_seconds: int | None = None


class Metadata(BaseModel):
    """The part of an object's metadata that decisions use."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 1
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)
    resource_version: str = ""


class AgentMemory(BaseModel):
    """A parsed AgentMemory; `status` is what the last pass wrote, as it came."""

    model_config = ConfigDict(frozen=True)

    metadata: Metadata
    spec: AgentMemorySpec
    status: dict[str, Any] = Field(default_factory=dict)

    @property
    def slug(self) -> str:
        """The agent's name in the installation: `spec.agent`, else the object's name."""
        return self.spec.agent or self.metadata.name


class QdrantConnection(BaseModel):
    """A parsed QdrantConnection."""

    model_config = ConfigDict(frozen=True)

    metadata: Metadata
    spec: QdrantConnectionSpec
    status: dict[str, Any] = Field(default_factory=dict)
