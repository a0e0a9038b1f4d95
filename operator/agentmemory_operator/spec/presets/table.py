"""Data types of a preset. Figures that a design does not give are Qdrant's or this product's defaults.

`Hnsw` and `Optimizers` are also used for a profile, the tuning in force, a collection and a plan. A figure has the same
name in `spec.index`, here, in the status (`spec/kinds/model_base.py: manifest_name`) and in Qdrant, which omits the
unit. "Your first change" in CONTRIBUTING.md lists what a new figure needs.
"""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Literal, TypeVar

from agentmemory_operator.spec.cron import NEVER
from agentmemory_operator.spec.expression.scoring_parameters import Confidence, Importance, Priority
from agentmemory_operator.spec.expression.variables import EVIDENCE
from agentmemory_operator.spec.memory_types import MemoryType


@dataclass(frozen=True, slots=True)
class ScalarQuantization:
    """int8 copies of the vectors. Qdrant accepts a change of quantization only as a whole, not of single fields.

    Attributes:
        quantile: Share of the values within the int8 range. None uses Qdrant's default.
        always_ram: True to keep the compressed vectors in RAM even if the originals are only on disk.
    """

    quantile: float | None
    always_ram: bool


@dataclass(frozen=True, slots=True)
class ProductQuantization:
    """Chunks of the vectors stored as centroid numbers: 4 to 64 times smaller (X4..X64)."""

    compression: str
    always_ram: bool


@dataclass(frozen=True, slots=True)
class BinaryQuantization:
    """1, 1.5 or 2 bits for each number of a vector.

    Attributes:
        encoding: OneBit, OneAndHalfBits or TwoBits.
        query_encoding: Encoding of the query: Binary, Scalar4Bits or Scalar8Bits. Default is that of the vectors.
    """

    encoding: str
    query_encoding: str
    always_ram: bool


@dataclass(frozen=True, slots=True)
class TurboQuantization:
    """1, 1.5, 2 or 4 bits (Bits1 to Bits4) for each number of the rotated vector."""

    bits: str
    always_ram: bool


Quantization = ScalarQuantization | ProductQuantization | BinaryQuantization | TurboQuantization


@dataclass(frozen=True, slots=True, kw_only=True)
class Hnsw:
    """Figures of the HNSW graph. None leaves a figure unset.

    Attributes:
        m: Edges per node.
        ef_construct: Neighbours considered while the graph is built.
        full_scan_threshold_kb: Kilobytes of vectors up to which a full scan is preferred to the graph.
    """

    m: int | None = None
    ef_construct: int | None = None
    full_scan_threshold_kb: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizers:
    """Figures of the segments. None leaves a figure unset.

    Attributes:
        default_segment_number: Number of segments. 0 is one for each CPU.
        indexing_threshold_kb: Kilobytes of vectors from which a segment gets a graph. 0 never builds one.
    """

    default_segment_number: int | None = None
    indexing_threshold_kb: int | None = None


FiguresT = TypeVar("FiguresT", bound=Hnsw | Optimizers)


def with_overrides(base: FiguresT, source: object) -> FiguresT:
    """Return `base` with the figures that `source` has under the same names and that are not None."""
    overrides = {figure.name: getattr(source, figure.name, None) for figure in fields(base)}
    return replace(base, **{name: value for name, value in overrides.items() if value is not None})


def figures_to_set(desired: FiguresT, live: FiguresT) -> dict[str, int]:
    """Return the desired figures that differ from the live ones. A figure that is None in `desired` is not changed."""
    items = asdict(desired).items()
    return {name: value for name, value in items if value is not None and value != getattr(live, name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionFigures:
    """Figures of a collection that a preset or profile provides if the object gives none.

    Attributes:
        quantization: Method of the compressed vectors. None keeps none.
        memory: Storage of the vectors: Cached (in RAM) or Cold (on disk).
    """

    hnsw: Hnsw = Hnsw(m=16, ef_construct=100, full_scan_threshold_kb=10_000)
    optimizers: Optimizers = Optimizers(default_segment_number=2, indexing_threshold_kb=20_000)
    quantization: Quantization | None = None
    memory: str = "Cached"


Indexes = tuple[tuple[str, str], ...]
"""Payload indexes of a collection: pairs of point key and index type."""

# Fields that most scores read.
USE_INDEXES: Indexes = (("importance", "float"), ("accessCount", "integer"))

# Fields by which callers filter memories of different kinds.
KIND_INDEXES: Indexes = (("type", "keyword"), ("tags", "keyword"))

# Fields that searches, lists and the change log filter or order by, whatever the preset. Each index costs one call when
# a collection is created.
NEEDED_INDEXES: Indexes = (
    ("userId", "keyword"),
    ("supersededById", "keyword"),
    ("createdAt", "integer"),
    ("expiresAt", "integer"),
    ("deletedAt", "integer"),
    ("pending", "bool"),
    ("sessionId", "keyword"),
    # Order of the change log.
    ("loggedAt", "integer"),
)

# Indexes of a preset by default. An object adds those that only its own callers filter by: docs/adr/0011.
RETRIEVAL_INDEXES: Indexes = (*NEEDED_INDEXES, *KIND_INDEXES, *USE_INDEXES)

DEFAULT_METHOD = "Score"
DEFAULT_KEYWORD_WEIGHT = 0.7
DEFAULT_K = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """Combination of similarity and keywords in a search.

    Attributes:
        method: Score weighs both scores, RRF both ranks; None uses the similarity only.
        keyword_weight: Share of the keywords, 0..1; with RRF, 0 and 1 are excluded.
        k: Constant of RRF. A larger value reduces the lead of the first places.
    """

    method: str = DEFAULT_METHOD
    keyword_weight: float = DEFAULT_KEYWORD_WEIGHT
    k: int = DEFAULT_K


Effort = Literal["Fast", "Balanced", "Exact"]
"""How many memories a search scores; `search/rules/candidates.py` has the numbers."""

DEFAULT_EFFORT: Effort = "Balanced"

TERSE_PATH, MARKS_PATH = "evidence.says", "evidence.marks"
"""Paths of a memory's evidence in its payload: see `memories/rules/evidence.py`."""

# `sessionOrder` finds the neighbours of a memory in its session. The marks find the keyword texts that contain words of
# another memory and have to be rewritten. Texts left stale by a crash need no index: only the sweep looks for them, and
# it reads every memory anyway.
KEYWORD_INDEXES: Indexes = (("sessionOrder", "integer"), (MARKS_PATH, "keyword"))

# Evidence that a score reads, in addition to the marks. Without an index Qdrant reads the whole payload of every
# candidate.
TERSE_INDEXES: Indexes = ((TERSE_PATH, "float"),)

DEFAULT_ASSISTANT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceWeights:
    """Weights of evidence that a memory answers a question. Similarity and keyword together have the weight 1.

    `search/rules/query_features.py` defines the value of each kind of evidence.

    Attributes:
        terse: Weight of the amount of content in the memory.
        author: Weight if the question names the speaker of the memory, or has I or my and the user is the speaker.
        time: Weight if the question asks for a time, and the memory contains one.
        asked: Weight if the previous memory of the session has a question by another speaker or role.
        date: Weight if the memory is from a time that the question names, such as last week.
        assistant: Value of `terse`, 0..1, for messages of an assistant, which are long anyway.
    """

    terse: float = 0.0
    author: float = 0.0
    time: float = 0.0
    asked: float = 0.0
    date: float = 0.0
    assistant: float = DEFAULT_ASSISTANT

    @property
    def terms(self) -> dict[str, float]:
        """Weights that are not 0, by the name of their term."""
        weights = {name: getattr(self, name) for name in EVIDENCE}
        return {name: weight for name, weight in weights.items() if weight}


NO_EVIDENCE = EvidenceWeights()

ModelWeights = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]
"""Names of models, each with names and values of figures of `Fusion` and `EvidenceWeights`."""

NO_GATE = -1.0
"""Threshold or minimum similarity that filters nothing out."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the combined score, each 0..1. They must add up to 1."""

    similarity: float
    recency: float
    utility: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneCriteria:
    """Conditions to prune a memory: old, of low priority, and of low confidence. All must hold.

    Attributes:
        older_than_days: Minimum age in days, from createdAt.
        priority_below: Priority, 0..1, below which a memory is pruned. The model Priority computes it, whichever model
            ranks.
        confidence_below: Confidence, 0..1, below which a memory is pruned. If neither the memory nor its type has one,
            only age and priority count.
    """

    older_than_days: float
    priority_below: float
    confidence_below: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """Processing of memories when they are written, and their removal over time.

    Attributes:
        schedule: Cron expression of the cleanup, in `time_zone`. Never: only on request.
        decay_floor: Memories with a lower recency are cleaned up. None keeps them.
        max_chain_length: Maximum number of versions of a memory; longer chains are collapsed. None is no limit.
        max_memories_per_user: Above this number the least valuable memories are removed. None is no limit.
        max_removal_percent: Largest share of an agent's memories that one cleanup removes without an approval, but at
            least 10 memories. Memories past their own `expires_at` do not count.
        prune: Conditions of further memories to clean up. None cleans up none.
        scrub_secrets: True to remove text that looks like a credential before a memory is hashed and embedded.
        deduplicate: True to skip a memory if an active one of the same user and type has the same content.
        working_memory_slots: Maximum number of entries in a session's working memory.
        session_idle_hours: A session unused for this long is over. None ends sessions by request only.
        remove_hidden_days: Memories hidden by the time to live of their type are cleaned up this long after. None keeps
            them.
    """

    schedule: str = "0 3 * * *"
    time_zone: str = "Etc/UTC"
    decay_floor: float | None = None
    max_chain_length: int | None = None
    max_memories_per_user: int | None = None
    max_removal_percent: int = 20
    prune: PruneCriteria | None = None
    scrub_secrets: bool = True
    deduplicate: bool = False
    working_memory_slots: int = 4
    session_idle_hours: float | None = None
    remove_hidden_days: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationTerms:
    """Selection and schedule of consolidation: merging of memories by the language model that the object names.

    Attributes:
        schedule: Cron expression in UTC. Never: only on request.
        older_than_days: Minimum age of a memory in days.
        min_memories: Minimum number of memories of a user or shared scope. Fewer wait for a later run.
        types: Types to consolidate. Empty is all.
        duplicate_similarity: A merged fact at least this similar to a stored memory counts as a duplicate of it.
    """

    schedule: str = NEVER
    older_than_days: float = 0.0
    min_memories: int = 2
    types: tuple[str, ...] = ()
    duplicate_similarity: float = 0.92


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset(CollectionFigures):
    """Set of default figures, of one reference design or of none.

    Attributes:
        summary: Purpose in one line.
        revision: Number of this table. Each change of a released table gets a higher one.
        types: Memory types; a memory stored without a type gets the first. Empty allows any type, without decay.
        model: Scoring model. None is the weighted sum.
        weights, utility_norm: Figures of the weighted sum. They also apply if an object selects the sum under a preset
            with another model.
        limit: Number of results of a search without top_k.
        score_threshold: Minimum combined score.
        min_similarity: Minimum similarity, -1..1. In a search by words too, it applies to the path by meaning only.
        has_keyword: Default for finding memories by words too. The object may override it.
        has_entities: Default for detecting names in memories as they are stored. The object may override it.
        fusion: Combination of similarity and keywords.
        evidence: Weights of evidence in addition to similarity and keywords, in searches that fuse both.
        model_weights: Figures of `fusion` and `evidence` that replace these with an embedding model, by its name.
        embedding_models: Pairs of a provider and its default model in this design.
        embedding_cache_entries: Maximum number of texts with cached vectors. The object may override it.
        knowledge_category: Knowledge category of a memory stored without one. None stores none.
        max_content_tokens: Maximum content of a memory, in tokens of 4 characters. None is the limit of the API.
        datatype: Datatype of the vectors, Float32 or Float16.
        payload_indexes: Payload indexes of each of its collections. Settings of an object can require more.
    """

    name: str
    summary: str
    revision: int
    types: tuple[MemoryType, ...]
    model: Confidence | Priority | Importance | None = None
    weights: Weights = Weights(similarity=0.5, recency=0.3, utility=0.2)
    utility_norm: float = 3.0
    limit: int = 10
    score_threshold: float = NO_GATE
    min_similarity: float = NO_GATE
    has_keyword: bool = False
    has_entities: bool = False
    fusion: Fusion = field(default_factory=Fusion)
    evidence: EvidenceWeights = NO_EVIDENCE
    model_weights: ModelWeights = ()
    embedding_models: tuple[tuple[str, str], ...] = ()
    embedding_cache_entries: int = 10_000
    knowledge_category: str | None = None
    max_content_tokens: int | None = None
    distance: str = "Cosine"
    datatype: str = "Float32"
    payload_indexes: Indexes = RETRIEVAL_INDEXES
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    consolidation: ConsolidationTerms = field(default_factory=ConsolidationTerms)


DEFAULT_CANDIDATES = 30
MAX_CANDIDATES = 200
DEFAULT_RERANK_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranking:
    """A cross-encoder and the number of results that it reorders.

    Attributes:
        model: Name of the cross-encoder.
        candidates: Number of best results by the combined score that it reorders, 1..200.
        url: Address of the service that runs it. None runs it in the API's process.
        secret: Name of the Secret with the service's key, and the key in it. None sends no key.
        timeout_ms: Time limit of the service in milliseconds, including the reading of its key.
    """

    model: str
    candidates: int = DEFAULT_CANDIDATES
    url: str | None = None
    secret: tuple[str, str] | None = None
    timeout_ms: int = DEFAULT_RERANK_MS

    @property
    def provider(self) -> str:
        """Provider as in the object: fastembed or http."""
        return "http" if self.url else "fastembed"
