"""The status of an AgentMemory."""

from typing import Annotated

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.lifecycle import CleanupStatus
from agentmemory_operator.spec.kinds.model_base import GENERATION, Condition, KindStatus, StatusModel, describe_types
from agentmemory_operator.spec.kinds.schema import list_map_keys
from agentmemory_operator.spec.kinds.spec_rebuild import RebuildStatus
from agentmemory_operator.spec.kinds.spec_zones import ZonesStatus
from agentmemory_operator.spec.kinds.status_consolidation import ConsolidationStatus
from agentmemory_operator.spec.kinds.status_plan import PlanStatus
from agentmemory_operator.spec.kinds.status_ranking import RankingStatus


class ReplicasStatus(StatusModel):
    """Shard replicas in a cluster."""

    peers: int = Field(description="Nodes of the cluster.")
    shards: int = Field(description="Shards of the collection.")
    wanted: int | None = Field(default=None, description="Desired total number of shard replicas.")
    active: int = Field(description="Replicas that are Active.")
    inactive: str | None = Field(
        default=None, description="Replicas in other states, with Qdrant's names of the states."
    )
    copying: str | None = Field(default=None, description="Replicas being copied between peers.")


class CollectionStatus(StatusModel):
    """Last observed state of the collection."""

    alias: str | None = Field(default=None, description="Stable name that clients use.")
    physical: str | None = Field(default=None, description="Collection that the alias points to.")
    memories: int | None = Field(
        default=None,
        description="Number of memories at the last pass, superseded and expired ones included; absent if Qdrant"
        " refuses to count them.",
    )
    points: int | None = Field(default=None, description="Approximate number of points, tombstones included.")
    indexed: int | None = Field(default=None, description="Approximate number of vectors in the graph.")
    state: str | None = Field(
        default=None, description="State of the collection in Qdrant: green, yellow, grey or red."
    )
    config_hash: str | None = Field(default=None, description="Digest of the last applied configuration.")
    rebuilt_time: str | None = Field(
        default=None,
        description="Time when a rebuild, or its rollback, moved the alias to this collection; absent otherwise.",
        json_schema_extra={"format": "date-time"},
    )
    woken_at: str | None = Field(
        default=None,
        description="Time when the operator last triggered the collection's optimizers after a restart of Qdrant;"
        " absent once the collection is green.",
        json_schema_extra={"format": "date-time"},
    )
    replicas: ReplicasStatus | None = Field(default=None, description="Shard replicas; absent for a single server.")


class EmbeddingStatus(StatusModel):
    """Embedding in force."""

    provider: str | None = Field(default=None, description="Embedding provider.")
    model: str | None = Field(default=None, description="Model of the provider.")
    dimensions: int | None = Field(default=None, description="Vector size.")
    secret: str | None = Field(
        default=None, description="Name of the Secret and the key in it, for example openai/api-key."
    )


class HnswStatus(StatusModel):
    """HNSW figures in force."""

    m: int | None = Field(default=None, description="Edges per node.")
    ef_construct: int | None = Field(default=None, description="Neighbours considered while building.")
    full_scan_threshold_kb: int | None = Field(
        default=None, description="Kilobytes of vectors up to which a full scan is preferred."
    )


class QuantizationStatus(StatusModel):
    """Quantization in force."""

    type: str | None = Field(default=None, description="None, Scalar, Product, Binary or Turbo.")
    quantile: float | None = Field(default=None, description="Share of the values within the byte range.")
    always_ram: bool | None = Field(default=None, description="Whether compressed vectors stay in RAM.")
    compression: str | None = Field(default=None, description="Compression ratio.")
    encoding: str | None = Field(default=None, description="Bits per number.")
    query_encoding: str | None = Field(default=None, description="Encoding of the query.")
    bits: str | None = Field(default=None, description="Bits per number of the rotated vector.")
    rescore: bool | None = Field(default=None, description="Whether candidates are rescored with the original vectors.")
    oversampling: float | None = Field(default=None, description="Candidates to rescore per requested result.")


class VectorsStatus(StatusModel):
    """Storage of the vectors in force."""

    datatype: str | None = Field(default=None, description="Number format.")
    memory: str | None = Field(default=None, description="Storage of the vectors: Cached (RAM) or Cold (disk).")


class ShardingStatus(StatusModel):
    """Distribution of the collection in a cluster."""

    shard_number: int | None = Field(default=None, description="Number of shards.")
    replication_factor: int | None = Field(default=None, description="Desired replicas per shard.")


class StrictModeStatus(StatusModel):
    """Limits that the server enforces for callers. Limits that the spec does not offer are omitted."""

    model_config = ConfigDict(extra="ignore")

    enabled: bool | None = Field(default=None, description="Whether the limits apply.")
    max_query_limit: int | None = Field(default=None, description="Maximum results per request.")
    search_max_hnsw_ef: int | None = Field(default=None, description="Maximum hnsw_ef of a search.")
    search_max_oversampling: float | None = Field(default=None, description="Maximum oversampling of a search.")
    upsert_max_batchsize: int | None = Field(default=None, description="Maximum points per write.")
    search_max_batchsize: int | None = Field(default=None, description="Maximum searches per request.")
    max_points_count: int | None = Field(default=None, description="Maximum points in the collection.")
    max_payload_index_count: int | None = Field(default=None, description="Maximum payload indexes.")


class OptimizersStatus(StatusModel):
    """Optimizer figures in force."""

    default_segment_number: int | None = Field(default=None, description="Target number of segments.")
    indexing_threshold_kb: int | None = Field(
        default=None, description="Kilobytes of vectors from which a segment gets its graph."
    )


class KeywordStatus(StatusModel):
    """Settings of the keyword vectors."""

    language: str | None = Field(default=None, description="Language of stop words and stemming.")
    window: int | None = Field(
        default=None,
        ge=0,
        description="Number of preceding memories of the session that add their words to a memory's keyword vector.",
    )


class EffectiveStatus(StatusModel):
    """Settings in force: the object's, otherwise the preset's."""

    preset: str | None = Field(default=None, description="Preset in force.")
    preset_revision: int | None = Field(default=None, description="Revision of the preset.")
    profile: str | None = Field(default=None, description="Profile that the object names.")
    embedding: EmbeddingStatus | None = Field(default=None, description="Conversion of texts to vectors.")
    hnsw: HnswStatus | None = Field(default=None, description="HNSW graph.")
    distance: str | None = Field(default=None, description="Distance metric.")
    quantization: QuantizationStatus | None = Field(default=None, description="Compressed vectors.")
    strict_mode: StrictModeStatus | None = Field(default=None, description="Limits for callers of the server.")
    sharding: ShardingStatus | None = Field(default=None, description="Distribution in a cluster.")
    vectors: VectorsStatus | None = Field(default=None, description="Storage of the vectors.")
    optimizers: OptimizersStatus | None = Field(default=None, description="Merging and indexing of segments.")
    keyword: KeywordStatus | None = Field(default=None, description="Keyword vectors; absent if there are none.")
    scoring: RankingStatus | None = Field(default=None, description="Ranking of search results.")


class ScoringStatus(StatusModel):
    """The ranking that searches use."""

    generation: int | None = Field(
        default=None,
        description="metadata.generation of the scoring model in use: an older one while the newest expression cannot"
        " be used; absent while the preset's model is used instead.",
    )


class AccessStatus(StatusModel):
    """Access to the memories."""

    readers: int | None = Field(
        default=None,
        description="Number of subjects that may read; with 0 nobody may, if the API checks ServiceAccounts.",
    )
    writers: int | None = Field(default=None, description="Number of subjects that may write.")
    qdrant: str | None = Field(
        default=None,
        description="Credential that the retrieval API sends to Qdrant: Token (valid for the points of this collection"
        " only) or Key (the connection's, valid for all collections). Absent if the connection has no key.",
    )


class OwnerStatus(StatusModel):
    """Owner of a collection."""

    cluster_id: str | None = Field(default=None, description="uid of the kube-system namespace in the owner's cluster.")
    namespace: str | None = Field(default=None, description="Namespace of the owner.")
    name: str | None = Field(default=None, description="Name of the owner.")
    uid: str | None = Field(default=None, description="uid of the owner, for a takeover.")


class DriftStatus(StatusModel):
    """A difference that no spec requested."""

    path: str = Field(description="Field of the spec.")
    desired: str | None = Field(default=None, description="Value in the object.")
    observed: str | None = Field(default=None, description="Value in Qdrant.")
    since: str | None = Field(
        default=None, description="Time when the operator first observed it.", json_schema_extra={"format": "date-time"}
    )


class LastSnapshotStatus(StatusModel):
    """The newest complete snapshot."""

    name: str | None = Field(default=None, description="Name of the MemorySnapshot.")
    time: str | None = Field(default=None, description="Start time.", json_schema_extra={"format": "date-time"})
    verified: bool | None = Field(default=None, description="Whether it is verified.")
    qdrant_version: str | None = Field(default=None, description="Version of the Qdrant server that created it.")


class ClosedStatus(StatusModel):
    """A restore into the existing collection, during which the API responds with 503."""

    restore: str | None = Field(default=None, description="Name of the MemoryRestore.")
    since: str | None = Field(default=None, description="Start time.", json_schema_extra={"format": "date-time"})


class WebhookStatus(StatusModel):
    """Delivery status of a webhook."""

    name: str = Field(description="Name of the webhook.")
    cursor: str | None = Field(default=None, max_length=512, description="Position up to which changes are delivered.")
    cleanup: str | None = Field(
        default=None,
        description="Time of the last cleanup that was delivered.",
        json_schema_extra={"format": "date-time"},
    )
    delivered: int | None = Field(default=None, ge=0, description="Events that the URL accepted.")
    dropped: int | None = Field(
        default=None, ge=0, description="Events that became too old before the URL accepted them."
    )
    message: str | None = Field(
        default=None, max_length=1024, description="Reason why the last attempt failed; absent if it succeeded."
    )


MAX_DRIFT = 64
Drift = Annotated[tuple[DriftStatus, ...], Field(max_length=MAX_DRIFT, json_schema_extra=list_map_keys("path"))]


class AgentMemoryCondition(Condition):
    """One condition, as the Kubernetes API conventions describe it."""

    type: Annotated[str, Field(max_length=316)] = Field(description=describe_types("AgentMemory"))


AgentMemoryConditions = Annotated[
    tuple[AgentMemoryCondition, ...], Field(max_length=16, json_schema_extra=list_map_keys("type"))
]
CONDITIONS = "Conditions by type; Ready is always present, Reconciling and Stalled only while True."


class AgentMemoryStatus(KindStatus):
    """Observed state; written by the operator only."""

    observed_generation: int | None = Field(default=None, description=GENERATION)
    agent: str | None = Field(default=None, description="Name of the agent in the API.")
    conditions: AgentMemoryConditions | None = Field(default=None, description=CONDITIONS)
    collection: CollectionStatus | None = Field(default=None, description="Last observed state of the collection.")
    effective: EffectiveStatus | None = Field(default=None, description="Settings in force.")
    scoring: ScoringStatus | None = Field(default=None, description="Ranking in use.")
    access: AccessStatus | None = Field(default=None, description="Who has access to the memories.")
    plan: PlanStatus | None = Field(default=None, description="Changes that are not applied yet.")
    last_cleanup: CleanupStatus | None = Field(default=None, description="The last cleanup.")
    next_cleanup_time: str | None = Field(
        default=None,
        description="Time of the next cleanup; absent if none is due.",
        json_schema_extra={"format": "date-time"},
    )
    last_consolidation: ConsolidationStatus | None = Field(
        default=None, description="The last consolidation; only with spec.consolidation.model."
    )
    next_consolidation_time: str | None = Field(
        default=None,
        description="Time of the next consolidation; absent if none is due.",
        json_schema_extra={"format": "date-time"},
    )
    last_snapshot: LastSnapshotStatus | None = Field(default=None, description="The newest snapshot.")
    last_snapshot_slot: str | None = Field(
        default=None,
        description="Scheduled time for which a snapshot was last requested; each time is requested once.",
        json_schema_extra={"format": "date-time"},
    )
    next_snapshot_time: str | None = Field(
        default=None,
        description="Time of the next scheduled snapshot; absent if none is due.",
        json_schema_extra={"format": "date-time"},
    )
    webhooks: tuple[WebhookStatus, ...] | None = Field(
        default=None,
        max_length=8,
        description="Delivery status of the webhooks.",
        json_schema_extra=list_map_keys("name"),
    )
    zones: ZonesStatus | None = Field(default=None, description="Data keys of privacy zones; only with spec.zones.")
    closed: ClosedStatus | None = Field(
        default=None,
        description="Restore into the existing collection, during which the API responds with 503; absent otherwise.",
    )
    rebuild: RebuildStatus | None = Field(default=None, description="Current or last move to another collection.")
    drift: Drift | None = Field(
        default=None, description="Changes made directly in Qdrant that the operator has not reverted."
    )
    drift_count: int | None = Field(default=None, description="Number of differences.")
    reindex_since: str | None = Field(
        default=None,
        description="Start time of the current Reindex; other collections of the connection wait for its end.",
        json_schema_extra={"format": "date-time"},
    )
    foreign_owner: OwnerStatus | None = Field(
        default=None, description="Object in this namespace that owns the collection, while this one is refused."
    )
    last_handled_reconcile_at: str | None = Field(
        default=None,
        max_length=128,
        description="Last handled value of agentmemory.dev/reconcile-requested-at (first 128 characters), set at"
        " the end of a pass that saw it.",
    )
