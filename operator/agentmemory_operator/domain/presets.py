"""The reference designs as data.

`cortex` is R1 (`docs/presets.md`): one collection per agent, eight typed half-lives, a weighted score. The figures are
the design's; where it contradicts itself the ruling stands beside the figure.
"""

from dataclasses import dataclass

from agentmemory_operator.domain.taxonomy import MemoryType


@dataclass(frozen=True, slots=True)
class Weights:
    """Shares of the combined score, together 1."""

    similarity: float
    recency: float
    utility: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The numbers of one reference design; sizes in kilobytes where the name says so."""

    name: str
    revision: int
    types: tuple[MemoryType, ...]
    weights: Weights
    utility_norm: float
    limit: int
    score_threshold: float
    min_similarity: float
    distance: str
    m: int
    ef_construct: int
    full_scan_threshold_kb: int
    default_segment_number: int
    indexing_threshold_kb: int
    quantile: float | None
    always_ram: bool
    memory: str
    payload_indexes: tuple[tuple[str, str], ...]


# What every search and list filters on, orders by or scores with, and their own fields; each index is one call when a
# collection is made. What only some callers filter on is theirs to index: docs/adr/0011.
RETRIEVAL_INDEXES = (
    ("userId", "keyword"),
    ("type", "keyword"),
    ("supersededById", "keyword"),
    ("tags", "keyword"),
    ("createdAt", "integer"),
    ("expiresAt", "integer"),
    ("importance", "float"),
    ("accessCount", "integer"),
    ("deletedAt", "integer"),
    ("pending", "bool"),
    ("sessionId", "keyword"),
)

# What finds the neighbours of a memory in its session, and those whose keyword text has to be written again.
KEYWORD_INDEXES = (
    ("sessionOrder", "integer"),
    ("windowIds", "keyword"),
    ("windowDue", "bool"),
)

CORTEX = Preset(
    name="cortex",
    revision=1,
    types=(
        MemoryType("fact", half_life_days=365),
        MemoryType("preference", half_life_days=180),
        MemoryType("person", half_life_days=365),
        MemoryType("project", half_life_days=90),
        MemoryType("task", half_life_days=30),
        MemoryType("episodic", half_life_days=14),
        MemoryType("decision", half_life_days=180),
        MemoryType("correction", half_life_days=365),
    ),
    weights=Weights(similarity=0.5, recency=0.3, utility=0.2),
    # 3.0 is the design's constant in code; its prose examples fit no single norm.
    utility_norm=3.0,
    limit=10,
    score_threshold=0.3,
    min_similarity=0.1,
    distance="Cosine",
    m=16,
    ef_construct=128,
    full_scan_threshold_kb=10_000,
    default_segment_number=2,
    indexing_threshold_kb=20_000,
    quantile=0.99,
    always_ram=True,
    # The design places vectors, graph and quantized vectors in RAM.
    memory="Cached",
    payload_indexes=RETRIEVAL_INDEXES,
)

PRESETS: dict[str, tuple[Preset, ...]] = {"cortex": (CORTEX,)}
"""Every revision, oldest first: collections stay with theirs, so a released one is never changed, but followed."""

DEFAULT_PRESET = "cortex"
