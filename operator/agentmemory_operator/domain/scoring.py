"""The combined score of the weighted model.

score = boost * (wSimilarity * similarity + wRecency * recency + wUtility * utility), with

    recency = 0.5 ** (ageDays / halfLifeDays)                          age from createdAt, in the future counts as 0
    utility = min(importance * (1 + log10(1 + accessCount)) / norm, 1)

A type that does not decay has recency 1. A type that the object no longer lists goes on answering with a recency of
0.5: nobody says how fast it ages, so it ranks neither as new nor as forgotten.
"""

from collections import defaultdict
from dataclasses import dataclass

from agentmemory_operator.domain.effective import Ranking
from agentmemory_operator.domain.expressions import (
    AtLeastZero,
    AtMostOne,
    Const,
    Expression,
    Formula,
    Halving,
    Log10,
    Product,
    Quotient,
    Sum,
    TypeIn,
    TypeNotIn,
    Values,
    Var,
    split_constant,
)

DAY_MS = 86_400_000
UNLISTED_RECENCY = 0.5
DEFAULT_IMPORTANCE, DEFAULT_ACCESS_COUNT = 0.5, 0

SIMILARITY, AGE_DAYS, IMPORTANCE, ACCESS_COUNT = "similarity", "ageDays", "importance", "accessCount"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The parts of one score.

    Attributes:
        age_days: since createdAt, never negative.
        half_life_days: of the memory's type; None when it does not decay or is not in the object's list.
        boost: multiplies the weighted sum.
    """

    similarity: float
    recency: float
    utility: float
    age_days: float
    half_life_days: float | None
    boost: float
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What of a memory, and of its match with the query, the score depends on."""

    type: str
    similarity: float
    created_at: int
    importance: float = DEFAULT_IMPORTANCE
    access_count: int = DEFAULT_ACCESS_COUNT


def score(memory: Scored, ranking: Ranking, *, now_ms: int) -> Terms:
    """Return the score and its parts; the engine's score equals it within 1e-5."""
    age_days = max(0, now_ms - memory.created_at) / DAY_MS
    numbers = {
        SIMILARITY: memory.similarity,
        AGE_DAYS: age_days,
        IMPORTANCE: memory.importance,
        ACCESS_COUNT: memory.access_count,
    }
    values = Values(memory.type, numbers)
    listed = {type_.name: type_ for type_ in ranking.types}.get(memory.type)
    return Terms(
        similarity=memory.similarity,
        recency=recency_of(ranking).evaluate(values),
        utility=utility_of(ranking).evaluate(values),
        age_days=age_days,
        half_life_days=listed.half_life_days if listed else None,
        boost=boost_of(ranking).evaluate(values),
        score=combined(ranking).evaluate(values),
    )


def score_query(ranking: Ranking, *, now_ms: int, similarity: Formula = "$score") -> Formula:
    """Return the engine's query that scores prefetched points by the ranking.

    Args:
        similarity: the formula that gives the similarity from the prefetch's score.
    """
    age_ms = {"sum": [split_constant(now_ms), {"neg": "createdAt"}]}
    variables = {
        SIMILARITY: similarity,
        # The day is a constant that float32 holds exactly.
        AGE_DAYS: {"div": {"left": age_ms, "right": float(DAY_MS)}},
        IMPORTANCE: "importance",
        ACCESS_COUNT: "accessCount",
    }
    # A variable that a point lacks fails the whole query unless it has a default.
    defaults = {"importance": DEFAULT_IMPORTANCE, "accessCount": DEFAULT_ACCESS_COUNT}
    return {"formula": combined(ranking).compile(variables), "defaults": defaults}


def combined(ranking: Ranking) -> Expression:
    """Return the whole score."""
    weights = ranking.weights
    weighted = Sum(
        (
            Product((Const(weights.similarity), Var(SIMILARITY))),
            Product((Const(weights.recency), recency_of(ranking))),
            Product((Const(weights.utility), utility_of(ranking))),
        )
    )
    boost = boost_of(ranking)
    return weighted if boost == Const(1.0) else Product((boost, weighted))


def recency_of(ranking: Ranking) -> Expression:
    """Return the recency; types of equal half-life share a term."""
    names_by_half_life: dict[float | None, list[str]] = defaultdict(list)
    for type_ in ranking.types:
        names_by_half_life[type_.half_life_days].append(type_.name)
    age = AtLeastZero(Var(AGE_DAYS))
    terms = [
        Product((TypeIn(tuple(names)), Const(1.0) if half_life is None else Halving(age, half_life)))
        for half_life, names in names_by_half_life.items()
    ]
    listed = tuple(type_.name for type_ in ranking.types)
    return Sum((*terms, Product((TypeNotIn(listed), Const(UNLISTED_RECENCY)))))


def utility_of(ranking: Ranking) -> Expression:
    """Return the utility."""
    frequency = Sum((Const(1.0), Log10(Sum((Const(1.0), Var(ACCESS_COUNT))))))
    return AtMostOne(Quotient(Product((Var(IMPORTANCE), frequency)), Const(ranking.utility_norm)))


def boost_of(ranking: Ranking) -> Expression:
    """Return the factor of the memory's type; 1 for most."""
    names_by_boost: dict[float, list[str]] = defaultdict(list)
    for type_ in ranking.types:
        if type_.boost != 1:
            names_by_boost[type_.boost].append(type_.name)
    surplus = [Product((TypeIn(tuple(names)), Const(boost - 1))) for boost, names in names_by_boost.items()]
    return Sum((Const(1.0), *surplus)) if surplus else Const(1.0)
