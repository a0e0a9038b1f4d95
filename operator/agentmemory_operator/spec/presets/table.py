"""What a preset's table holds. A figure that a design does not give is the engine's own or this product's default.

`Hnsw` and `Optimizers` are the same values in a preset, a profile, the tuning in force, a collection and a plan. A
figure has the same name in `spec.index`, here, in the status (`spec/kinds/base.py: manifest_name`) and in Qdrant, which
leaves out the unit. A new figure is a field here, in `spec_index.py` and in `status_agent_memory.py`.
"""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import TypeVar

from agentmemory_operator.spec.expression.models import Confidence, Importance, Priority
from agentmemory_operator.spec.expression.variables import EVIDENCE
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.schedule import NEVER


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
class Hnsw:
    """Figures of the graph. None: not decided here."""

    m: int | None = None
    ef_construct: int | None = None
    full_scan_threshold_kb: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizers:
    """Figures of the segments. None: not decided here.

    Attributes:
        default_segment_number: 0 is one for each CPU.
        indexing_threshold_kb: 0 never builds a graph.
    """

    default_segment_number: int | None = None
    indexing_threshold_kb: int | None = None


FiguresT = TypeVar("FiguresT", bound=Hnsw | Optimizers)


def with_given(base: FiguresT, given: object) -> FiguresT:
    """The figures with those that `given` has under the same names and that are not None."""
    named = {figure.name: getattr(given, figure.name, None) for figure in fields(base)}
    return replace(base, **{name: value for name, value in named.items() if value is not None})


def figures_to_set(desired: FiguresT, live: FiguresT) -> dict[str, int]:
    """The desired figures that differ from the live ones; None asks for nothing."""
    wanted = asdict(desired).items()
    return {name: value for name, value in wanted if value is not None and value != getattr(live, name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionFigures:
    """The figures that a preset or a profile gives where the object gives none.

    Attributes:
        memory: Cached or Cold.
    """

    hnsw: Hnsw = Hnsw(m=16, ef_construct=100, full_scan_threshold_kb=10_000)
    optimizers: Optimizers = Optimizers(default_segment_number=2, indexing_threshold_kb=20_000)
    quantization: Quantization | None = None
    memory: str = "Cached"


Indexes = tuple[tuple[str, str], ...]
"""Payload indexes that collections get, by key on the point."""

# What most scores read of how a memory is used.
USE_INDEXES: Indexes = (("importance", "float"), ("accessCount", "integer"))

# What callers narrow by who have kinds of memories.
KIND_INDEXES: Indexes = (("type", "keyword"), ("tags", "keyword"))

# What every search and list filters on or orders by; each index is one call when a collection is made.
NEEDED_INDEXES: Indexes = (
    ("userId", "keyword"),
    ("supersededById", "keyword"),
    ("createdAt", "integer"),
    ("expiresAt", "integer"),
    ("deletedAt", "integer"),
    ("pending", "bool"),
    ("sessionId", "keyword"),
    # The order of the change log.
    ("loggedAt", "integer"),
)

# Those of the designs. What only some callers filter on is theirs to index: docs/adr/0011.
RETRIEVAL_INDEXES: Indexes = (*NEEDED_INDEXES, *KIND_INDEXES, *USE_INDEXES)

DEFAULT_METHOD = "Score"
DEFAULT_KEYWORD_WEIGHT = 0.7
DEFAULT_K = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """How a search by meaning and words ranks.

    Attributes:
        method: Score, RRF or None.
        keyword_weight: share of the keyword term, 0..1; with RRF strictly between.
        k: of RRF: the larger, the less the first places stand out.
    """

    method: str = DEFAULT_METHOD
    keyword_weight: float = DEFAULT_KEYWORD_WEIGHT
    k: int = DEFAULT_K


SAYS_PATH, MARKS_PATH = "evidence.says", "evidence.marks"
"""Where the evidence of a memory lies: `memories/rules/evidence.py`."""

# What finds the neighbours of a memory in its session, and those whose keyword text has to be written again: the marks
# find who holds a memory's words too, and only the sweep looks for what a crash left, which reads every memory anyway.
KEYWORD_INDEXES: Indexes = (("sessionOrder", "integer"), (MARKS_PATH, "keyword"))

# What else of the evidence a score reads; the engine would read the whole payload of every candidate for it.
TERSE_INDEXES: Indexes = ((SAYS_PATH, "float"),)

DEFAULT_ASSISTANT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceWeights:
    """How much evidence beyond likeness counts beside similarity and keyword, which are 1 together.

    Attributes:
        terse: that a memory says much.
        author: that the question names who said it, or is of the user and the user said it.
        time: that the question asks when, and the memory holds a time.
        asked: that another one asked something right before.
        date: that the memory is of a date that the question names.
        assistant: what stands in the place of `terse` for what an assistant said, which is long anyway.
    """

    terse: float = 0.0
    author: float = 0.0
    time: float = 0.0
    asked: float = 0.0
    date: float = 0.0
    assistant: float = DEFAULT_ASSISTANT

    @property
    def terms(self) -> dict[str, float]:
        """The weight of each term that counts."""
        named = {name: getattr(self, name) for name in EVIDENCE}
        return {name: weight for name, weight in named.items() if weight}


NO_EVIDENCE = EvidenceWeights()

NO_GATE = -1.0
"""As a threshold or a least similarity: nothing is left out."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the combined score; they must add up to 1."""

    similarity: float
    recency: float
    utility: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    """Which memories are not worth keeping: old, and of little priority, and doubtful.

    Attributes:
        older_than_days: age from which one may be pruned.
        priority_below: 0..1, by the model Priority whatever ranks.
        confidence_below: 0..1; a memory without a confidence is judged by age and priority alone.
    """

    older_than_days: float
    priority_below: float
    confidence_below: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """What becomes of memories when they are written and with time.

    Attributes:
        schedule: of the cleanup, as a cron expression.
        time_zone: in which the schedule is read.
        decay_floor: memories whose recency is below are cleaned up; None keeps them.
        max_chain_length: longer chains of supersession are collapsed; None keeps them.
        max_memories_per_user: beyond, the least valuable go; None is any number.
        max_removal_percent: of an agent's memories one cleanup removes no larger share without an approval.
        prune: what else is cleaned up; None is nothing.
        scrub_secrets: what looks like a credential is taken out of a memory before it is hashed and embedded.
        deduplicate: a memory that says what an active one of its user and type says is not stored twice.
        working_memory_slots: entries of a session's working memory.
        session_idle_hours: a session that was not used for so long is over; None is only when somebody ends it.
        remove_hidden_days: what the time of its type hides is cleaned up so long after; None keeps it.
    """

    schedule: str = "0 3 * * *"
    time_zone: str = "Etc/UTC"
    decay_floor: float | None = None
    max_chain_length: int | None = None
    max_memories_per_user: int | None = None
    max_removal_percent: int = 20
    prune: Prune | None = None
    scrub_secrets: bool = True
    deduplicate: bool = False
    working_memory_slots: int = 4
    session_idle_hours: float | None = None
    remove_hidden_days: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationTerms:
    """Which memories are consolidated, and when, where the object names a model.

    Attributes:
        schedule: as a cron expression, read in UTC; Never: only when somebody asks.
        older_than_days: younger ones are left for another time.
        least: of a user or shared scope; fewer are left for another time.
        types: those that are looked at; none is all.
        duplicate_similarity: a merged fact as near as that to a stored memory says nothing new.
    """

    schedule: str = NEVER
    older_than_days: float = 0.0
    least: int = 2
    types: tuple[str, ...] = ()
    duplicate_similarity: float = 0.92


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset(CollectionFigures):
    """The numbers of one reference design.

    Attributes:
        summary: what it is for, in a line.
        revision: raised with every change of a released table.
        types: none is any type, each without decay; the first is that of a memory stored without one.
        model: what ranks; None is the weighted sum.
        weights, utility_norm: of the weighted sum, also where an object asks for it under a preset of another model.
        limit: results of a search that names no top_k.
        score_threshold: on the combined score.
        min_similarity: on the similarity, -1..1; where words are searched too, it holds for the path by meaning alone.
        has_keyword: memories are found by words too, unless the object says otherwise.
        has_entities: memories are searched for names as they are stored, unless the object says otherwise.
        fusion: how words and meaning become one number.
        evidence: what counts beside words and meaning, where there are weighted words.
        embedding_models: the model of a provider where the object names none, and the design does.
        embedding_cache_entries: texts whose vectors are kept in memory.
        knowledge_category: of a memory that is stored without one; None leaves it without.
        max_content_tokens: longest content; None is the API's own bound.
        datatype: of the vectors, Float32 or Float16.
        payload_indexes: what its own searches, identity lookups and chains filter on.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranking:
    """A cross-encoder and how much it reads.

    Attributes:
        model: its name.
        candidates: how many of the best by the combined score it orders anew, 1..200.
    """

    model: str
    candidates: int = DEFAULT_CANDIDATES
