"""R5: what is important stays found, and fades with age and with being idle."""

from agentmemory_operator.spec.expression.models import Importance
from agentmemory_operator.spec.memory_types import MemoryType, Ttl
from agentmemory_operator.spec.presets.table import RETRIEVAL_INDEXES, Hnsw, Lifecycle, Preset

# What a decay rate of .01 a day halves in, should a model that goes by half-lives rank.
_HALF_LIFE_DAYS = 69.31

IMPORTANCE = Preset(
    name="importance",
    summary="memories ranked by importance, which fades with age and idleness",
    revision=1,
    types=(
        MemoryType(
            "episodic",
            half_life_days=_HALF_LIFE_DAYS,
            ttl=Ttl("SoftUnlessUsed", days=90),
            meaning="something that happened",
        ),
        MemoryType("semantic", half_life_days=None, meaning="a fact or knowledge that lasts"),
        MemoryType("procedural", half_life_days=None, meaning="how something is done"),
        MemoryType(
            "working",
            half_life_days=_HALF_LIFE_DAYS,
            ttl=Ttl("Session"),
            meaning="the state of what is under way in this session",
        ),
    ),
    # Four times the rate halves an episode of low importance in 17 days instead of 69.
    model=Importance(daily_rate=0.01, idle_factor=0.1, unimportant_factor=4.0),
    score_threshold=0.0,
    min_similarity=0.7,
    has_weighted_words=True,
    hnsw=Hnsw(m=16, ef_construct=64, full_scan_threshold_kb=10_000),
    # A recall may be narrowed to what one author stored.
    payload_indexes=(*RETRIEVAL_INDEXES, ("author", "keyword")),
    lifecycle=Lifecycle(session_idle_hours=24, remove_hidden_days=90),
)
