"""What the operator reports of an AgentMemory."""

from typing import Annotated

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.base import GENERATION, Condition, StatusModel, WholeStatus, types_of
from agentmemory_operator.spec.kinds.lifecycle import CleanupStatus
from agentmemory_operator.spec.kinds.rebuild import RebuildStatus
from agentmemory_operator.spec.kinds.schema import keyed_by
from agentmemory_operator.spec.kinds.status_consolidation import ConsolidationStatus
from agentmemory_operator.spec.kinds.status_plan import PlanStatus


class ReplicasStatus(StatusModel):
    """The replicas of the collection's shards in a cluster."""

    peers: int = Field(description="Servers of the cluster.")
    shards: int = Field(description="Parts of the collection.")
    wanted: int | None = Field(default=None, description="Replicas that all shards should have together.")
    active: int = Field(description="Replicas that are Active.")
    inactive: str | None = Field(default=None, description="Which are not, in Qdrant's word for their state.")
    copying: str | None = Field(default=None, description="What is on its way from peer to peer.")


class CollectionStatus(StatusModel):
    """The collection as last seen."""

    alias: str | None = Field(default=None, description="The stable name that clients use.")
    physical: str | None = Field(default=None, description="The collection behind the alias.")
    points: int | None = Field(default=None, description="Points, approximately, tombstones included.")
    indexed: int | None = Field(default=None, description="Vectors in the graph, approximately.")
    state: str | None = Field(default=None, description="Qdrant's own word: green, yellow, grey or red.")
    config_hash: str | None = Field(default=None, description="Digest of the shape that was last brought about.")
    rebuilt_time: str | None = Field(
        default=None,
        description="When a rebuild, or its rollback, moved the alias to it; absent of any other.",
        json_schema_extra={"format": "date-time"},
    )
    woken_at: str | None = Field(
        default=None,
        description="When the operator last woke its optimizers after a restart of Qdrant; gone once it is green.",
        json_schema_extra={"format": "date-time"},
    )
    replicas: ReplicasStatus | None = Field(
        default=None, description="Replicas of its shards; absent of a server that is alone."
    )


class EmbeddingStatus(StatusModel):
    """The embedding in force."""

    provider: str | None = Field(default=None, description="Who embeds.")
    model: str | None = Field(default=None, description="Model of the provider.")
    dimensions: int | None = Field(default=None, description="Numbers in a vector.")
    secret: str | None = Field(default=None, description="Name of the Secret, and the key in it, as openai/api-key.")


class HnswStatus(StatusModel):
    """The figures of the graph in force."""

    m: int | None = Field(default=None, description="Edges per node.")
    ef_construct: int | None = Field(default=None, description="Neighbours considered while building.")
    full_scan_threshold_kb: int | None = Field(
        default=None, alias="fullScanThresholdKB", description="Kilobytes up to which a full scan is preferred."
    )


class QuantizationStatus(StatusModel):
    """The compressed copies in force."""

    type: str | None = Field(default=None, description="None, Scalar, Product, Binary or Turbo.")
    quantile: float | None = Field(default=None, description="Share of the values that the byte range covers.")
    always_ram: bool | None = Field(default=None, description="Whether they are kept in RAM.")
    compression: str | None = Field(default=None, description="How many times smaller the copies are.")
    encoding: str | None = Field(default=None, description="Bits kept of each number.")
    query_encoding: str | None = Field(default=None, description="What is kept of the query's numbers.")
    bits: str | None = Field(default=None, description="Bits kept of each number of the rotated vector.")
    rescore: bool | None = Field(default=None, description="Whether candidates are compared by the vectors themselves.")
    oversampling: float | None = Field(default=None, description="Candidates rescored for each one wanted.")


class VectorsStatus(StatusModel):
    """The vectors themselves."""

    datatype: str | None = Field(default=None, description="How each number is stored.")
    memory: str | None = Field(default=None, description="Cached or Cold: where they lie.")


class ShardingStatus(StatusModel):
    """The collection's spread over servers."""

    shard_number: int | None = Field(default=None, description="Parts of the collection.")
    replication_factor: int | None = Field(default=None, description="Copies that each part is to have.")


class StrictModeStatus(StatusModel):
    """The limits that the server holds callers to; those that the operator does not offer are not shown."""

    model_config = ConfigDict(extra="ignore")

    enabled: bool | None = Field(default=None, description="Whether the limits hold.")
    max_query_limit: int | None = Field(default=None, description="Largest number of results of one request.")
    search_max_hnsw_ef: int | None = Field(default=None, description="Largest hnsw_ef of a search.")
    search_max_oversampling: float | None = Field(default=None, description="Largest oversampling of a search.")
    upsert_max_batchsize: int | None = Field(default=None, description="Most points in one write.")
    search_max_batchsize: int | None = Field(default=None, description="Most searches in one request.")
    max_points_count: int | None = Field(default=None, description="Most points in the collection.")
    max_payload_index_count: int | None = Field(default=None, description="Most payload indexes.")


class OptimizersStatus(StatusModel):
    """The optimizer figures in force."""

    default_segment_number: int | None = Field(default=None, description="Segments the engine aims at.")
    indexing_threshold_kb: int | None = Field(
        default=None, alias="indexingThresholdKB", description="Kilobytes from which a segment gets its graph."
    )


class WeightsStatus(StatusModel):
    """The shares of the combined score in force."""

    similarity: float | None = Field(default=None, description="Share of the similarity.")
    recency: float | None = Field(default=None, description="Share of the recency.")
    utility: float | None = Field(default=None, description="Share of the utility.")


class ConfidenceStatus(StatusModel):
    """The figures of the model Confidence in force."""

    daily_factor: float | None = Field(default=None, description="What is left of the confidence after an idle day.")
    access_boost: float | None = Field(default=None, description="Added for each doubling of the accesses.")
    max_boost: float | None = Field(default=None, description="The largest boost.")


class PriorityStatus(StatusModel):
    """The figures of the model Priority in force."""

    recency: float | None = Field(default=None, description="Share of the recency.")
    frequency: float | None = Field(default=None, description="Share of the frequency.")
    importance: float | None = Field(default=None, description="Share of the importance.")
    half_life_days: float | None = Field(default=None, description="Days after which the recency has halved.")
    max_accesses: int | None = Field(default=None, description="Accesses from which the frequency is 1.")
    similarity_share: float | None = Field(default=None, description="Share of the similarity in the score.")
    min_priority: float | None = Field(default=None, description="Priority below which memories are left out.")


class HorizonsStatus(StatusModel):
    """The weights by age in force."""

    hourly: float | None = Field(default=None, description="Up to an hour.")
    daily: float | None = Field(default=None, description="Up to a day.")
    weekly: float | None = Field(default=None, description="Up to 7 days.")
    monthly: float | None = Field(default=None, description="Up to 30 days.")
    yearly: float | None = Field(default=None, description="Beyond 30 days.")
    knowledge_bank: float | None = Field(default=None, description="Of the type semantic.")


class ImportanceStatus(StatusModel):
    """The figures of the model Importance in force."""

    daily_rate: float | None = Field(default=None, description="Decay rate of memories without one of their own.")
    idle_factor: float | None = Field(default=None, description="What an idle day adds to the divisor.")


class RankingStatus(StatusModel):
    """The ranking in force: what a rejected expression falls back to."""

    model: str | None = Field(default=None, description="The scoring model.")
    weights: WeightsStatus | None = Field(default=None, description="Shares of the combined score.")
    utility_norm: float | None = Field(default=None, description="Divisor of the utility.")
    confidence_share: float | None = Field(default=None, description="How much confidence counts; absent: not at all.")
    confidence: ConfidenceStatus | None = Field(default=None, description="Figures of the model Confidence.")
    priority: PriorityStatus | None = Field(default=None, description="Figures of the model Priority.")
    horizons: HorizonsStatus | None = Field(default=None, description="Weights by age of the model Priority.")
    importance: ImportanceStatus | None = Field(default=None, description="Figures of the model Importance.")
    expression: str | None = Field(default=None, description="The score of the model Expression.")
    limit: int | None = Field(default=None, description="Memories returned without a top_k.")
    score_threshold: float | None = Field(default=None, description="Combined score below which nothing is returned.")
    min_similarity: float | None = Field(default=None, description="Similarity below which nothing is considered.")


class KeywordStatus(StatusModel):
    """What the keyword vectors are made of."""

    language: str | None = Field(default=None, description="Whose stop words and word stems.")
    window: int | None = Field(
        default=None, ge=0, description="Memories of the session before a memory whose words it is found by too."
    )


class EffectiveStatus(StatusModel):
    """The figures in force: the object's over its preset's."""

    preset: str | None = Field(default=None, description="The preset in force.")
    preset_revision: int | None = Field(default=None, description="Revision of the preset's figures.")
    profile: str | None = Field(default=None, description="The profile that the object names.")
    embedding: EmbeddingStatus | None = Field(default=None, description="What turns text into vectors.")
    hnsw: HnswStatus | None = Field(default=None, description="The graph.")
    distance: str | None = Field(default=None, description="How vectors are compared.")
    quantization: QuantizationStatus | None = Field(default=None, description="Compressed copies of the vectors.")
    strict_mode: StrictModeStatus | None = Field(default=None, description="The server's limits for callers.")
    sharding: ShardingStatus | None = Field(default=None, description="Spread over a cluster of servers.")
    vectors: VectorsStatus | None = Field(default=None, description="The vectors themselves.")
    optimizers: OptimizersStatus | None = Field(default=None, description="Merging and indexing of segments.")
    keyword: KeywordStatus | None = Field(default=None, description="The keyword vectors; absent where there are none.")
    scoring: RankingStatus | None = Field(default=None, description="How search ranks.")


class ScoringStatus(StatusModel):
    """The ranking that searches use."""

    generation: int | None = Field(
        default=None,
        description="metadata.generation whose scoring model ranks; an older one while the newest expression cannot be"
        " used, none while the preset's ranks for want of one.",
    )


class AccessStatus(StatusModel):
    """Who gets at the memories."""

    readers: int | None = Field(
        default=None, description="Subjects that may read; 0 is nobody, where the API checks ServiceAccounts."
    )
    writers: int | None = Field(default=None, description="Subjects that may write.")
    qdrant: str | None = Field(
        default=None,
        description="What the retrieval API was given for Qdrant: Token (for the points of this collection alone) or"
        " Key (the connection's, which opens every collection). Absent without a key.",
    )


class OwnerStatus(StatusModel):
    """Whose a collection is."""

    cluster_id: str | None = Field(default=None, description="uid of kube-system in the owner's cluster.")
    namespace: str | None = Field(default=None, description="The owner's namespace.")
    name: str | None = Field(default=None, description="The owner's name.")
    uid: str | None = Field(default=None, description="The owner's uid, which a takeover names.")


class DriftStatus(StatusModel):
    """One difference that no spec asked for."""

    path: str = Field(description="The field of the spec that it is about.")
    desired: str | None = Field(default=None, description="What the object asks for.")
    observed: str | None = Field(default=None, description="What is in Qdrant.")
    since: str | None = Field(
        default=None, description="When it was first seen like this.", json_schema_extra={"format": "date-time"}
    )


class LastSnapshotStatus(StatusModel):
    """The newest snapshot that was made."""

    name: str | None = Field(default=None, description="Name of its MemorySnapshot.")
    time: str | None = Field(default=None, description="When it was begun.", json_schema_extra={"format": "date-time"})
    verified: bool | None = Field(default=None, description="Whether it was proven.")
    qdrant_version: str | None = Field(default=None, description="Version of the server that made it.")


class ClosedStatus(StatusModel):
    """Why the API answers 503 for a while."""

    restore: str | None = Field(default=None, description="The MemoryRestore that restores into the collection itself.")
    since: str | None = Field(default=None, description="Since when.", json_schema_extra={"format": "date-time"})


class WebhookStatus(StatusModel):
    """How far one webhook has come."""

    name: str = Field(description="Its name in the spec.")
    cursor: str | None = Field(default=None, max_length=512, description="Up to which change it was told.")
    cleanup: str | None = Field(
        default=None,
        description="The time of the last cleanup that it was told of.",
        json_schema_extra={"format": "date-time"},
    )
    delivered: int | None = Field(default=None, ge=0, description="Events that the URL took.")
    dropped: int | None = Field(default=None, ge=0, description="Events that became too old before the URL took them.")
    message: str | None = Field(
        default=None, max_length=1024, description="Why the last attempt failed; absent where it did not."
    )


class ZonesStatus(StatusModel):
    """The data keys of privacy zones."""

    keys: int | None = Field(default=None, ge=0, description="Data keys there are, as last counted.")
    shards: int | None = Field(default=None, ge=0, description="Most shards that held them; none goes while they last.")
    wrapping_key: str | None = Field(
        default=None,
        max_length=16,
        description="The wrapping key that they were last all under: the first 16 hexadecimal digits of its SHA-256.",
    )
    to_reseal: int | None = Field(
        default=None,
        ge=0,
        description="Memories under data keys made before spec.zones.rotateKeysBefore, locked ones among them, as the"
        " last pass counted; absent where no key is to be replaced.",
    )


MAX_DRIFT = 64
Drift = Annotated[tuple[DriftStatus, ...], Field(max_length=MAX_DRIFT, json_schema_extra=keyed_by("path"))]


class AgentMemoryCondition(Condition):
    """One condition, as the Kubernetes API conventions describe it."""

    type: Annotated[str, Field(max_length=316)] = Field(description=types_of("AgentMemory"))


AgentMemoryConditions = Annotated[
    tuple[AgentMemoryCondition, ...], Field(max_length=16, json_schema_extra=keyed_by("type"))
]
CONDITIONS = "State by type; Ready is always there, Reconciling and Stalled only while they hold."


class AgentMemoryStatus(WholeStatus):
    """What the operator last saw and did; written by the operator only."""

    observed_generation: int | None = Field(default=None, description=GENERATION)
    agent: str | None = Field(default=None, description="The agent's name in the API.")
    conditions: AgentMemoryConditions | None = Field(default=None, description=CONDITIONS)
    collection: CollectionStatus | None = Field(default=None, description="The collection as last seen.")
    effective: EffectiveStatus | None = Field(default=None, description="The figures in force.")
    scoring: ScoringStatus | None = Field(default=None, description="The ranking that searches use.")
    access: AccessStatus | None = Field(default=None, description="Who gets at the memories.")
    plan: PlanStatus | None = Field(default=None, description="What the object asks for and is not yet so.")
    last_cleanup: CleanupStatus | None = Field(default=None, description="The last cleanup.")
    next_cleanup_time: str | None = Field(
        default=None,
        description="When the next cleanup is due; absent where none is.",
        json_schema_extra={"format": "date-time"},
    )
    last_consolidation: ConsolidationStatus | None = Field(
        default=None, description="The last consolidation; with spec.consolidation.model."
    )
    next_consolidation_time: str | None = Field(
        default=None,
        description="When the next consolidation is due; absent where none is.",
        json_schema_extra={"format": "date-time"},
    )
    last_snapshot: LastSnapshotStatus | None = Field(default=None, description="The newest snapshot that was made.")
    last_snapshot_slot: str | None = Field(
        default=None,
        description="The time of the schedule that a snapshot was last asked for; no time is asked for twice.",
        json_schema_extra={"format": "date-time"},
    )
    next_snapshot_time: str | None = Field(
        default=None,
        description="When the next snapshot of the schedule is asked for; absent where none is.",
        json_schema_extra={"format": "date-time"},
    )
    webhooks: tuple[WebhookStatus, ...] | None = Field(
        default=None,
        max_length=8,
        description="How far each webhook has come.",
        json_schema_extra=keyed_by("name"),
    )
    zones: ZonesStatus | None = Field(default=None, description="The data keys of privacy zones; with spec.zones.")
    closed: ClosedStatus | None = Field(
        default=None, description="A snapshot is being restored into the collection itself: the API answers 503."
    )
    rebuild: RebuildStatus | None = Field(
        default=None, description="The move into another collection that runs, or the last one."
    )
    drift: Drift | None = Field(
        default=None, description="What was changed behind the operator's back and stays as it is."
    )
    drift_count: int | None = Field(default=None, description="How many differences there are.")
    reindex_since: str | None = Field(
        default=None,
        description="When the Reindex that runs was begun; meanwhile no other collection of the connection begins one.",
        json_schema_extra={"format": "date-time"},
    )
    foreign_owner: OwnerStatus | None = Field(
        default=None, description="Which object of this namespace has the collection, while this one is refused it."
    )
    last_handled_reconcile_at: str | None = Field(
        default=None,
        max_length=128,
        description="What agentmemory.dev/reconcile-requested-at said, its first 128 characters, once a pass that saw"
        " it has ended.",
    )
