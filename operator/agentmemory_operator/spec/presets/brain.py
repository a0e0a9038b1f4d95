"""R2: a brain that several authors share; what is known by key or subject is kept current, confidence fades unused."""

from agentmemory_operator.spec.expression.models import Confidence
from agentmemory_operator.spec.memory_types import MemoryType, Ttl
from agentmemory_operator.spec.presets.table import RETRIEVAL_INDEXES, ConsolidationTerms, Fusion, Lifecycle, Preset

# What 0.98 a day halves in, should a model that goes by half-lives rank.
_HALF_LIFE_DAYS = 34.31

BRAIN = Preset(
    name="brain",
    summary="knowledge that several authors maintain, by key and subject",
    revision=1,
    types=(
        MemoryType(
            "event",
            half_life_days=None,
            # What is of high importance stays.
            ttl=Ttl("SoftUnlessUsed", days=30, keep_importance=0.75),
            confidence=1.0,
            immutable=True,
            meaning="something that happened; never replaced, only added to",
        ),
        MemoryType(
            "fact",
            half_life_days=_HALF_LIFE_DAYS,
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
            half_life_days=_HALF_LIFE_DAYS,
            supersede_by="subject",
            confidence=1.0,
            meaning="how something stands now; give its subject, so that a newer one replaces it",
        ),
    ),
    # The design's boost has no bound; the largest one is this product's.
    model=Confidence(daily_factor=0.98, access_boost=0.3, max_boost=2.5),
    # The design's .3 is for the path by meaning: fused ranks say nothing of how much alike two texts are.
    score_threshold=0.0,
    min_similarity=0.3,
    has_keyword=True,
    has_entities=True,
    knowledge_category="general",
    fusion=Fusion(method="RRF", keyword_weight=0.5, k=60),
    # `at_time` is a plain question here.
    payload_indexes=(*RETRIEVAL_INDEXES, ("validFrom", "integer"), ("validTo", "integer")),
    lifecycle=Lifecycle(schedule="0 */6 * * *", deduplicate=True),
    consolidation=ConsolidationTerms(schedule="0 */6 * * *"),
)
