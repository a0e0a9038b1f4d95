"""R4: episodic, semantic and working memory, ranked by recency, frequency and importance, by meaning and by words."""

from agentmemory_operator.spec.expression.models import Horizons, Priority
from agentmemory_operator.spec.memory_types import MemoryType, Ttl
from agentmemory_operator.spec.presets.table import (
    RETRIEVAL_INDEXES,
    ConsolidationTerms,
    Hnsw,
    Lifecycle,
    Preset,
    Prune,
    ScalarQuantization,
)

_HALF_LIFE_DAYS = 30

COGNITIVE = Preset(
    name="cognitive",
    summary="episodes, knowledge and working memory, by recency, frequency and importance",
    revision=1,
    types=(
        MemoryType(
            "episodic",
            half_life_days=_HALF_LIFE_DAYS,
            event_types=("user_interaction", "tool_execution", "error_event", "system_event", "agent_decision"),
            required=("event_type",),
            meaning="what happened, by event type and context",
        ),
        MemoryType(
            "semantic",
            half_life_days=_HALF_LIFE_DAYS,
            confidence=0.5,
            required=("domain",),
            meaning="knowledge of a domain, with how sure it is and what it was learned from",
        ),
        MemoryType(
            "working",
            half_life_days=_HALF_LIFE_DAYS,
            ttl=Ttl("Session"),
            meaning="what matters for this session only",
        ),
    ),
    model=Priority(
        recency=0.3,
        frequency=0.2,
        importance=0.5,
        half_life_days=_HALF_LIFE_DAYS,
        max_accesses=100,
        # The design ends before retrieval: half and half is this product's.
        similarity_share=0.5,
        min_priority=0.0,
        horizons=Horizons(hourly=0.1, daily=0.3, weekly=0.2, monthly=0.1, yearly=0.05, knowledge_bank=0.25),
    ),
    has_keyword=True,
    has_weighted_words=True,
    datatype="Float16",
    hnsw=Hnsw(m=32, ef_construct=400, full_scan_threshold_kb=10_000),
    quantization=ScalarQuantization(0.99, always_ram=True),
    payload_indexes=(*RETRIEVAL_INDEXES, ("parentId", "keyword")),
    lifecycle=Lifecycle(
        working_memory_slots=4,
        session_idle_hours=24,
        prune=Prune(older_than_days=365, priority_below=0.2, confidence_below=0.3),
    ),
    consolidation=ConsolidationTerms(schedule="0 2 * * *", older_than_days=7, least=5, types=("episodic",)),
)
