"""Detect rankings that lose good matches: limits that exclude them, and decay that ranks old ones behind poor matches.

Measured on conversations of years ago (bench/README.md): the limits cost preset `cortex` 12 to 19 points of R@10. Decay
costs the models Confidence and Importance 50 % or more of all memories found.
"""

from agentmemory_operator.search.rules.score import compute_score
from agentmemory_operator.search.rules.score_trees import EXCLUDED_SCORE
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.variables import DAY_MS, ScoreInput

GOOD_MATCH = 0.5
"""Similarity of a good match. On the public data set, 50 % of the best matches have .54 to .68 (bench/README.md)."""

POOR_MATCH = 0.3
HORIZON_DAYS, AGE_DIFFERENCE_DAYS = 365, 100

DECAY_FIELDS = {
    "Weighted": "weights.recency",
    "Confidence": "confidence.dailyFactor",
    "Priority": "priority.recency",
    "Importance": "importance.dailyRate",
    "Expression": "expression",
}
"""Field of each model that determines the influence of age."""


def find_strict_gate(ranking: Ranking) -> str | None:
    """Return the limit that excludes new memories of every type even at `GOOD_MATCH`, or None.

    It is `minSimilarity` or `scoreThreshold`.
    """
    if ranking.min_similarity > GOOD_MATCH:
        return "minSimilarity"
    names = [type_.name for type_ in ranking.types] or [ranking.default_type]
    return None if any(_is_found(ranking, name, days=0) for name in names) else "scoreThreshold"


def find_cut_off_days(ranking: Ranking) -> dict[str, int]:
    """Return the types whose memories the threshold or the model excludes within a year, and after how many days.

    The test memory is a good match of default importance that was never accessed. Types are omitted if even new
    memories are excluded.
    """
    days = {type_.name: _first_day_below(ranking, type_.name) for type_ in ranking.types}
    return {name: day for name, day in days.items() if day is not None}


def find_outranked_types(ranking: Ranking) -> tuple[str, ...]:
    """Return the types whose good matches rank behind poor ones that are 100 days newer and a year old."""
    return tuple(
        type_.name
        for type_ in ranking.types
        if _score(ranking, type_.name, GOOD_MATCH, days=HORIZON_DAYS + AGE_DIFFERENCE_DAYS)
        < _score(ranking, type_.name, POOR_MATCH, days=HORIZON_DAYS)
    )


def _first_day_below(ranking: Ranking, type_name: str) -> int | None:
    below, above = HORIZON_DAYS, 0
    if not _is_found(ranking, type_name, days=above) or _is_found(ranking, type_name, days=below):
        return None
    while below - above > 1:
        middle = (below + above) // 2
        if _is_found(ranking, type_name, days=middle):
            above = middle
        else:
            below = middle
    return below


def _is_found(ranking: Ranking, type_name: str, *, days: int) -> bool:
    score = _score(ranking, type_name, GOOD_MATCH, days=days)
    return score > EXCLUDED_SCORE and score >= ranking.threshold


def _score(ranking: Ranking, type_name: str, match: float, *, days: int) -> float:
    memory = ScoreInput(type=type_name, similarity=match, keyword=match, created_at=-days * DAY_MS)
    return compute_score(memory, ranking, now_ms=0).score
