"""The scoring models as expression trees: their named terms, and the score that combines them.

The boost of the memory's type multiplies the score in every model. Only the model Priority excludes memories: it then
replaces the score by `EXCLUDED_SCORE`.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import astuple
from functools import lru_cache

from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.choices import Compare, If, Minimum
from agentmemory_operator.spec.expression.scoring_parameters import (
    UNIMPORTANT,
    Confidence,
    Horizons,
    Importance,
    Priority,
)
from agentmemory_operator.spec.expression.tree import (
    ByType,
    Case,
    Const,
    Decay,
    Expression,
    Function,
    Power,
    Product,
    Quotient,
    Sum,
    Var,
)
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.expression.variables import (
    ACCESS_COUNT,
    AGE_DAYS,
    CONFIDENCE,
    IDLE_DAYS,
    IMPORTANCE,
    SIMILARITY,
    by_fading,
    decay_rate_of,
    recency_of,
)
from agentmemory_operator.spec.memory_types import MemoryType

# Score of memories that are excluded from results. It is below the score of every expression.
EXCLUDED_SCORE = -1e6
KNOWLEDGE_TYPE = "semantic"
EFFECTIVE_CONFIDENCE = "effective_confidence"
CONFIDENCE_FACTOR = "confidence_factor"
_ONE = Const(1.0)
_ACCESSES_AND_ONE = Sum((_ONE, Var(ACCESS_COUNT)))


def build_score_tree(ranking: Ranking) -> Expression:
    """Return the expression of the complete score: the boost of the memory's type, times the score of the model."""
    boost = build_boost(ranking)
    factors = () if boost == _ONE else (boost,)
    match ranking.model:
        case None:
            confidence = (_confidence_factor(ranking),) if ranking.confidence_share else ()
            return _product(*factors, *confidence, _weighted(ranking))
        case Confidence():
            return _product(*factors, Var(SIMILARITY), *build_terms(ranking).values())
        case Importance():
            return _product(*factors, Var(SIMILARITY), *build_terms(ranking).values())
        case Priority() as model:
            return _priority_score(model, factors)
        case CheckedExpression() as scoring:
            return _product(*factors, scoring.root)


def build_terms(ranking: Ranking) -> Mapping[str, Expression]:
    """Return the model's own terms by the names that `explain` shows."""
    match ranking.model:
        case None:
            factor = {CONFIDENCE_FACTOR: _confidence_factor(ranking)} if ranking.confidence_share else {}
            frequency = Sum((_ONE, Function("log10", _ACCESSES_AND_ONE)))
            return {
                "recency": recency_of(ranking.types, Var(AGE_DAYS)),
                "utility": Minimum(
                    (Quotient(Product((Var(IMPORTANCE), frequency)), Const(ranking.utility_norm)), _ONE)
                ),
            } | factor
        case Confidence() as model:
            return _confidence_terms(model, ranking.types)
        case Priority() as model:
            return _priority_terms(model)
        case Importance() as model:
            return {"relevance": _relevance(model, ranking.types)}
        case CheckedExpression(terms=terms):
            values_by_text: dict[str, list[Expression]] = defaultdict(list)
            for term in terms:
                values_by_text[term.text].append(term.value)
            return {text: Sum(tuple(values)) for text, values in values_by_text.items()}


def build_boost(ranking: Ranking) -> Expression:
    """Return the factor of the memory's type as an expression. It is 1 for types without a boost."""
    names_by_boost: dict[float, list[str]] = defaultdict(list)
    for type_ in ranking.types:
        if type_.boost != 1:
            names_by_boost[type_.boost].append(type_.name)
    cases = tuple(Case(tuple(names), Const(boost)) for boost, names in names_by_boost.items())
    return ByType(cases, _ONE) if cases else _ONE


def _weighted(ranking: Ranking) -> Expression:
    weights, terms = ranking.weights, build_terms(ranking)
    return Sum(
        (
            Product((Const(weights.similarity), Var(SIMILARITY))),
            Product((Const(weights.recency), terms["recency"])),
            Product((Const(weights.utility), terms["utility"])),
        )
    )


def _confidence_factor(ranking: Ranking) -> Expression:
    share = ranking.confidence_share
    return Sum((Const(1 - share), Product((Const(share), Var(CONFIDENCE)))))


def _confidence_terms(model: Confidence, types: tuple[MemoryType, ...]) -> Mapping[str, Expression]:
    remaining_share: Expression = Power(Const(model.daily_factor), Var(IDLE_DAYS))
    fading = by_fading(types, _ONE, remaining_share)
    doublings = Quotient(Function("ln", _ACCESSES_AND_ONE), Const(math.log(2)))
    boost = Sum((_ONE, Product((Const(model.access_boost), doublings))))
    return {
        EFFECTIVE_CONFIDENCE: Product((Var(CONFIDENCE), fading)),
        "access_boost": Minimum((boost, Const(model.max_boost))),
    }


def _relevance(model: Importance, types: tuple[MemoryType, ...]) -> Expression:
    exponent = Function("neg", Product((decay_rate_of(types, _daily_rate(model)), Var(AGE_DAYS))))
    idle = Sum((_ONE, Product((Const(model.idle_factor), Var(IDLE_DAYS)))))
    return Quotient(Product((Var(IMPORTANCE), Function("exp", exponent))), idle)


def _daily_rate(model: Importance) -> Expression:
    """Return the decay rate of a memory that fades and has no rate of its own."""
    rate = Const(model.daily_rate)
    if model.unimportant_factor == 1:
        return rate
    is_unimportant = Compare("<=", Var(IMPORTANCE), Const(UNIMPORTANT))
    return If(is_unimportant, Const(model.daily_rate * model.unimportant_factor), rate)


@lru_cache(maxsize=256)
def build_priority(model: Priority) -> Expression:
    """Return the expression of a memory's priority, 0..1, which is independent of the query."""
    return _priority_terms(model)["priority"]


def _priority_terms(model: Priority) -> Mapping[str, Expression]:
    recency = Decay(Var(AGE_DAYS), Const(model.half_life_days))
    accesses = Quotient(Function("log10", _ACCESSES_AND_ONE), Const(math.log10(model.max_accesses + 1)))
    frequency = Minimum((accesses, _ONE))
    priority = Sum(
        (
            Product((Const(model.recency), recency)),
            Product((Const(model.frequency), frequency)),
            Product((Const(model.importance), Var(IMPORTANCE))),
        )
    )
    return {"recency": recency, "frequency": frequency, "priority": priority, "horizon": _horizon(model.horizons)}


def _horizon(horizons: Horizons) -> Expression:
    """Return the expression of the weight for the memory's age, or of the knowledge bank, relative to the largest."""
    steps = ((1 / 24, horizons.hourly), (1.0, horizons.daily), (7.0, horizons.weekly), (30.0, horizons.monthly))
    largest = max(horizons.yearly, horizons.knowledge_bank, *(weight for _, weight in steps))
    by_age: Expression = Const(horizons.yearly / largest)
    for days, weight in reversed(steps):
        by_age = If(Compare("<=", Var(AGE_DAYS), Const(days)), Const(weight / largest), by_age)
    return ByType((Case((KNOWLEDGE_TYPE,), Const(horizons.knowledge_bank / largest)),), by_age)


def _priority_score(model: Priority, factors: tuple[Expression, ...]) -> Expression:
    terms = _priority_terms(model)
    weighted_sum = Sum(
        (
            Product((Const(model.similarity_share), Var(SIMILARITY))),
            Product((Const(1 - model.similarity_share), terms["priority"])),
        )
    )
    score = _product(*factors, terms["horizon"], weighted_sum)
    if min(astuple(model.horizons)) <= 0:
        score = If(Compare(">", terms["horizon"], Const(0.0)), score, Const(EXCLUDED_SCORE))
    if model.min_priority > 0:
        score = If(Compare(">=", terms["priority"], Const(model.min_priority)), score, Const(EXCLUDED_SCORE))
    return score


def _product(*factors: Expression) -> Expression:
    return factors[0] if len(factors) == 1 else Product(factors)
