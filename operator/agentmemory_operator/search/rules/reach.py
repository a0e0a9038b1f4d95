"""What a ranking makes of memories that match well: those that its gates hide, and those that age puts behind.

Measured on conversations of years ago (bench/README.md): the first costs preset `cortex` 12 to 19 points of R@10, the
second the models Confidence and Importance half and more of all that is found.
"""

from agentmemory_operator.search.rules.score import score
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.variables import DAY_MS, Scored

GOOD_MATCH = 0.5
"""Similarity of a good match; on the public set half of the best matches lie between .54 and .68 (bench/README.md)."""

POOR_MATCH = 0.3
WITHIN_DAYS, BEFORE_DAYS = 365, 100

DECAYS = {
    "Weighted": "weights.recency",
    "Confidence": "confidence.dailyFactor",
    "Priority": "priority.recency",
    "Importance": "importance.dailyRate",
    "Expression": "expression",
}
"""The figure of each model that says how much age counts."""


def strict_gate(ranking: Ranking) -> str | None:
    """The gate that leaves out good matches however new they are, by its field's name; None where none does."""
    if ranking.min_similarity > GOOD_MATCH:
        return "minSimilarity"
    names = [type_.name for type_ in ranking.types] or [ranking.default_type]
    return None if any(_is_found(ranking, name, days=0) for name in names) else "scoreThreshold"


def cut_off_days(ranking: Ranking) -> dict[str, int]:
    """The types whose memories a search finds no more within a year, and after how many days.

    What counts is a memory that matches well, of middling importance, never found before: a new one is found.
    """
    days = {type_.name: _first_day_below(ranking, type_.name) for type_ in ranking.types}
    return {name: day for name, day in days.items() if day is not None}


def outranked(ranking: Ranking) -> tuple[str, ...]:
    """The types whose good matches rank behind poor ones that are 100 days newer, though both are a year old."""
    return tuple(
        type_.name
        for type_ in ranking.types
        if _score(ranking, type_.name, GOOD_MATCH, days=WITHIN_DAYS + BEFORE_DAYS)
        < _score(ranking, type_.name, POOR_MATCH, days=WITHIN_DAYS)
    )


def _first_day_below(ranking: Ranking, type_name: str) -> int | None:
    below, above = WITHIN_DAYS, 0
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
    return _score(ranking, type_name, GOOD_MATCH, days=days) >= ranking.score_threshold


def _score(ranking: Ranking, type_name: str, match: float, *, days: int) -> float:
    memory = Scored(type=type_name, similarity=match, keyword=match, created_at=-days * DAY_MS)
    return score(memory, ranking, now_ms=0).score
