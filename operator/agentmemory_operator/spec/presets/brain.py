"""R2: a brain that several authors share; what is known by key or subject is kept current, confidence fades unused."""

from dataclasses import replace

from agentmemory_operator.spec.expression.models import Confidence
from agentmemory_operator.spec.memory_types import MemoryType, Ttl
from agentmemory_operator.spec.presets.table import RETRIEVAL_INDEXES, ConsolidationTerms, Fusion, Lifecycle, Preset

# What 0.98 a day halves in, should a model that goes by half-lives rank.
_HALF_LIFE_DAYS = 34.31

_FIRST = Preset(
    name="brain",
    summary="knowledge that several authors maintain, by key and subject",
    revision=1,
    types=(
        MemoryType(
            "event",
            half_life_days=None,
            # What is of high importance stays.
            ttl=Ttl("SoftUnlessUsed", days=30, keep_importance=0.75),
            meaning="something that happened; never replaced, only added to",
        ),
        MemoryType(
            "fact",
            half_life_days=_HALF_LIFE_DAYS,
            supersede_by="key",
            meaning="lasting knowledge that may change; give it a key, so that a newer one replaces it",
        ),
        MemoryType(
            "decision", half_life_days=None, immutable=True, meaning="a choice and its reasons, kept as they were"
        ),
        MemoryType(
            "status",
            half_life_days=_HALF_LIFE_DAYS,
            supersede_by="subject",
            meaning="how something stands now; give its subject, so that a newer one replaces it",
        ),
    ),
    # The design's boost has no bound; the largest one is this product's.
    model=Confidence(daily_factor=0.98, access_boost=0.3, max_boost=2.5),
    # The design's .3 is for the path by meaning: fused ranks say nothing of how much alike two texts are.
    score_threshold=0.0,
    min_similarity=0.3,
    has_keyword=True,
    fusion=Fusion(method="RRF", keyword_weight=0.5, k=60),
    # `at_time` is a plain question here.
    payload_indexes=(*RETRIEVAL_INDEXES, ("validFrom", "integer"), ("validTo", "integer")),
    lifecycle=Lifecycle(schedule="0 */6 * * *", deduplicate=True),
    consolidation=ConsolidationTerms(schedule="0 */6 * * *"),
)

# The first revision kept old events for ever that no search returns.
_SECOND = replace(_FIRST, revision=2, lifecycle=replace(_FIRST.lifecycle, remove_hidden_days=90))

# The second left memories without a confidence and without what they are about; what is stored stays as it is.
_THIRD = replace(
    _SECOND,
    revision=3,
    types=tuple(replace(type_, confidence=1.0) for type_ in _SECOND.types),
    knowledge_category="general",
)

# The third found no names in memories; those stored before are read for them in the background.
_FOURTH = replace(_THIRD, revision=4, has_entities=True)

# The fourth let all words of a keyword text count alike.
_FIFTH = replace(_FOURTH, revision=5, has_weighted_words=True)

# The fifth let events be superseded and changed, and removed those hidden for 90 days: the design appends events, and
# hides them without removing one.
BRAIN = replace(
    _FIFTH,
    revision=6,
    types=tuple(replace(type_, immutable=type_.immutable or type_.name == "event") for type_ in _FIFTH.types),
    lifecycle=replace(_FIFTH.lifecycle, remove_hidden_days=None),
)

REVISIONS = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, BRAIN)
