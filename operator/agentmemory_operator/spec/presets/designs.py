"""The presets: one table for each reference design (R1 to R5), and two that follow no design."""

from agentmemory_operator.spec.expression.scoring_parameters import Confidence, Horizons, Importance, Priority
from agentmemory_operator.spec.memory_types import MemoryType, Ttl
from agentmemory_operator.spec.presets.table import (
    NEEDED_INDEXES,
    RETRIEVAL_INDEXES,
    ConsolidationTerms,
    EvidenceWeights,
    Fusion,
    Hnsw,
    Lifecycle,
    Optimizers,
    Preset,
    PruneCriteria,
    ScalarQuantization,
    Weights,
)

# The similarities of two texts range only between .3 and .7 with bge, and between .7 and .85 with E5. So that words and
# evidence do not outweigh these small differences, their weights are lower with these models (docs/embeddings.md).
_E5_WEIGHTS = (("keyword_weight", 0.25), ("terse", 0.1), ("author", 0.03), ("time", 0.05))
_MODEL_WEIGHTS = (
    ("BAAI/bge-small-en-v1.5", (("keyword_weight", 0.4), ("terse", 0.1))),
    ("intfloat/multilingual-e5-small", _E5_WEIGHTS),
)

# The default: any type, found by meaning, words and evidence. Nothing fades, nothing is filtered out.
STANDARD = Preset(
    name="standard",
    summary="any type of memory, ranked by meaning, keywords and evidence; nothing fades",
    revision=1,
    types=(),
    weights=Weights(similarity=1.0, recency=0.0, utility=0.0),
    has_keyword=True,
    # Source of the figures: docs/adr/0029, and docs/adr/0044 for `date`.
    fusion=Fusion(keyword_weight=0.65),
    model_weights=_MODEL_WEIGHTS,
    evidence=EvidenceWeights(terse=0.25, author=0.05, time=0.1, date=0.05),
    hnsw=Hnsw(m=16, ef_construct=128, full_scan_threshold_kb=10_000),
    quantization=ScalarQuantization(0.99, always_ram=True),
    # One segment, and no indexes on importance, accesses, type and tags: keyword search and deduplication add four
    # indexes (docs/adr/0030).
    optimizers=Optimizers(default_segment_number=1, indexing_threshold_kb=20_000),
    payload_indexes=NEEDED_INDEXES,
    lifecycle=Lifecycle(deduplicate=True),
)

# R1: one collection per agent, eight typed half-lives, a weighted score.
CORTEX = Preset(
    name="cortex",
    summary="an assistant that forgets: half-lives by type; similarity, recency and utility",
    revision=1,
    types=(
        MemoryType(
            "fact",
            half_life_days=365,
            meaning="something that is so, of the user or their work: they use X, their Y is Z",
        ),
        MemoryType(
            "preference",
            half_life_days=180,
            meaning="how the user likes things done: they prefer, always want or never want X",
        ),
        MemoryType(
            "person", half_life_days=365, meaning="who somebody is, their role and what they have to do with the user"
        ),
        MemoryType("project", half_life_days=90, meaning="what is being built: its parts, its state, its deadline"),
        MemoryType(
            "task", half_life_days=30, meaning="work that is to be done, under way or done: deployed X, fixed Y, owes Z"
        ),
        MemoryType("episodic", half_life_days=14, meaning="what happened at a time: in a session, in an incident"),
        MemoryType("decision", half_life_days=180, meaning="a choice that was made, and why: we chose X because of Y"),
        MemoryType("correction", half_life_days=365, meaning="what the agent got wrong, and what is right instead"),
    ),
    weights=Weights(similarity=0.5, recency=0.3, utility=0.2),
    # The constant in the design's code, because the examples in its prose fit no single norm.
    utility_norm=3.0,
    limit=10,
    score_threshold=0.3,
    min_similarity=0.1,
    hnsw=Hnsw(m=16, ef_construct=128, full_scan_threshold_kb=10_000),
    optimizers=Optimizers(default_segment_number=2, indexing_threshold_kb=20_000),
    quantization=ScalarQuantization(0.99, always_ram=True),
    # As in the design, vectors, graph and quantized vectors are in RAM.
    memory="Cached",
    lifecycle=Lifecycle(schedule="0 3 * * *", decay_floor=0.01, max_chain_length=5),
)

# R2: memory that several authors share. Memories with a key or subject are kept current; confidence fades if unused.

# Half-life of the factor 0.98 a day, for a scoring model that uses half-lives.
_BRAIN_HALF_LIFE_DAYS = 34.31

BRAIN = Preset(
    name="brain",
    summary="knowledge that several authors maintain, by key and subject",
    revision=1,
    types=(
        MemoryType(
            "event",
            half_life_days=None,
            # Memories of high importance stay.
            ttl=Ttl("SoftUnlessUsed", days=30, keep_importance=0.75),
            confidence=1.0,
            immutable=True,
            meaning="something that happened; never replaced, only added to",
        ),
        MemoryType(
            "fact",
            half_life_days=_BRAIN_HALF_LIFE_DAYS,
            supersede_by="key",
            confidence=1.0,
            meaning="lasting knowledge that may change; give it a key, so that a newer one replaces it",
        ),
        MemoryType(
            "decision",
            half_life_days=None,
            confidence=1.0,
            immutable=True,
            meaning="a choice and its reasons, kept as they were",
        ),
        MemoryType(
            "status",
            half_life_days=_BRAIN_HALF_LIFE_DAYS,
            supersede_by="subject",
            confidence=1.0,
            meaning="how something stands now; give its subject, so that a newer one replaces it",
        ),
    ),
    # The maximum of the boost is chosen here, because the design sets no bound.
    model=Confidence(daily_factor=0.98, access_boost=0.3, max_boost=2.5),
    # Apply the design's 0.3 to the similarity only, because fused ranks do not measure the similarity of two texts.
    score_threshold=0.0,
    min_similarity=0.3,
    has_keyword=True,
    has_entities=True,
    knowledge_category="general",
    fusion=Fusion(method="RRF", keyword_weight=0.5, k=60),
    # Index validity for `at_time`, a common query here, which would be a slow filter without an index.
    payload_indexes=(*RETRIEVAL_INDEXES, ("validFrom", "integer"), ("validTo", "integer")),
    lifecycle=Lifecycle(schedule="0 */6 * * *", deduplicate=True),
    consolidation=ConsolidationTerms(schedule="0 */6 * * *"),
)

# R3: items by namespace and key. The last write of a key wins.
KEYED = Preset(
    name="keyed",
    summary="items with a namespace and a key; the last write wins",
    revision=1,
    types=(),
    weights=Weights(similarity=1.0, recency=0.0, utility=0.0),
    limit=20,
    score_threshold=0.7,
    embedding_models=(("fastembed", "sentence-transformers/all-MiniLM-L6-v2"),),
    embedding_cache_entries=100,
    max_content_tokens=2_048,
    # Do not scrub secrets, because an item is stored exactly as it was put.
    lifecycle=Lifecycle(scrub_secrets=False, session_idle_hours=24),
    payload_indexes=(*RETRIEVAL_INDEXES, ("namespacePaths", "keyword"), ("itemNamespace", "keyword")),
)

# R4: episodic, semantic and working memory, ranked by recency, frequency and importance, by meaning and by words.
_COGNITIVE_HALF_LIFE_DAYS = 30

COGNITIVE = Preset(
    name="cognitive",
    summary="episodes, knowledge and working memory, by recency, frequency and importance",
    revision=1,
    types=(
        MemoryType(
            "episodic",
            half_life_days=_COGNITIVE_HALF_LIFE_DAYS,
            event_types=("user_interaction", "tool_execution", "error_event", "system_event", "agent_decision"),
            required=("event_type",),
            meaning="what happened, by event type and context",
        ),
        MemoryType(
            "semantic",
            half_life_days=_COGNITIVE_HALF_LIFE_DAYS,
            confidence=0.5,
            required=("domain",),
            meaning="knowledge of a domain, with how sure it is and what it was learned from",
        ),
        MemoryType(
            "working",
            half_life_days=_COGNITIVE_HALF_LIFE_DAYS,
            ttl=Ttl("Session"),
            meaning="what matters for this session only",
        ),
    ),
    model=Priority(
        recency=0.3,
        frequency=0.2,
        importance=0.5,
        half_life_days=_COGNITIVE_HALF_LIFE_DAYS,
        max_accesses=100,
        # Equal shares are chosen here, because the design does not cover retrieval.
        similarity_share=0.5,
        min_priority=0.0,
        horizons=Horizons(hourly=0.1, daily=0.3, weekly=0.2, monthly=0.1, yearly=0.05, knowledge_bank=0.25),
    ),
    has_keyword=True,
    datatype="Float16",
    hnsw=Hnsw(m=32, ef_construct=400, full_scan_threshold_kb=10_000),
    quantization=ScalarQuantization(0.99, always_ram=True),
    payload_indexes=(*RETRIEVAL_INDEXES, ("parentId", "keyword")),
    lifecycle=Lifecycle(
        working_memory_slots=4,
        session_idle_hours=24,
        prune=PruneCriteria(older_than_days=365, priority_below=0.2, confidence_below=0.3),
    ),
    consolidation=ConsolidationTerms(schedule="0 2 * * *", older_than_days=7, min_memories=5, types=("episodic",)),
)

# R5: important memories stay findable. Importance fades with age and idle time.

# Half-life of a decay rate of 0.01 a day, for a scoring model that uses half-lives.
_IMPORTANCE_HALF_LIFE_DAYS = 69.31

IMPORTANCE = Preset(
    name="importance",
    summary="memories ranked by importance, which fades with age and idleness",
    revision=1,
    types=(
        MemoryType(
            "episodic",
            half_life_days=_IMPORTANCE_HALF_LIFE_DAYS,
            ttl=Ttl("SoftUnlessUsed", days=90),
            meaning="something that happened",
        ),
        MemoryType("semantic", half_life_days=None, meaning="a fact or knowledge that lasts"),
        MemoryType("procedural", half_life_days=None, meaning="how something is done"),
        MemoryType(
            "working",
            half_life_days=_IMPORTANCE_HALF_LIFE_DAYS,
            ttl=Ttl("Session"),
            meaning="the state of what is under way in this session",
        ),
    ),
    # Four times the rate halves an episode of low importance in 17 days instead of 69.
    model=Importance(daily_rate=0.01, idle_factor=0.1, unimportant_factor=4.0),
    score_threshold=0.0,
    min_similarity=0.7,
    hnsw=Hnsw(m=16, ef_construct=64, full_scan_threshold_kb=10_000),
    # Index the author, because a search may be restricted to the memories of one author.
    payload_indexes=(*RETRIEVAL_INDEXES, ("author", "keyword")),
    lifecycle=Lifecycle(session_idle_hours=24, remove_hidden_days=90),
)

# No design: any type, scored by similarity (with keywords, the fused score). Nothing fades or is filtered out, except
# the working memories of idle sessions.
NONE = Preset(
    name="none",
    summary="any type of memory, ranked by similarity only",
    revision=1,
    types=(),
    weights=Weights(similarity=1.0, recency=0.0, utility=0.0),
    lifecycle=Lifecycle(scrub_secrets=False, session_idle_hours=24),
)
