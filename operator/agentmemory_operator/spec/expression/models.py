"""The figures of each scoring model; `score_trees` makes expressions of them.

Source of the defaults: the reference designs R2 (Confidence), R4 (Priority) and R5 (Importance); `docs/scoring.md`.
"""

from dataclasses import dataclass

from agentmemory_operator.spec.expression.tree import variables_of
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.expression.variables import CONFIDENCE, IDLE_DAYS

WEIGHTED, EXPRESSION = "Weighted", "Expression"


@dataclass(frozen=True, slots=True)
class Confidence:
    """Similarity times a confidence that fades while a memory is idle, times a boost for being used.

    Attributes:
        daily_factor: what is left of the confidence after an idle day, for types that fade.
        access_boost: added to 1 for each doubling of the accesses.
        max_boost: the boost is never larger.
    """

    daily_factor: float = 0.98
    access_boost: float = 0.3
    max_boost: float = 2.5


@dataclass(frozen=True, slots=True)
class Horizons:
    """What a memory's age makes its score worth, each over the largest: up to an hour, a day, a week, a month, beyond.

    Memories of the type `semantic` have the knowledge bank's, whatever their age; 0 leaves memories out.
    """

    hourly: float = 0.1
    daily: float = 0.3
    weekly: float = 0.2
    monthly: float = 0.1
    yearly: float = 0.05
    knowledge_bank: float = 0.25


@dataclass(frozen=True, slots=True)
class Priority:
    """Similarity and a priority of recency, frequency and importance.

    Attributes:
        recency, frequency, importance: shares of the priority, together 1.
        half_life_days: of the recency, whatever the type.
        max_accesses: from so many on the frequency is 1.
        similarity_share: the rest is the priority's.
        min_priority: a memory of less is left out.
    """

    recency: float = 0.3
    frequency: float = 0.2
    importance: float = 0.5
    half_life_days: float = 30.0
    max_accesses: int = 100
    similarity_share: float = 0.5
    min_priority: float = 0.0
    horizons: Horizons = Horizons()


@dataclass(frozen=True, slots=True)
class Importance:
    """Similarity times an importance that fades with age and with being idle.

    Attributes:
        daily_rate: decay rate of a memory that has none of its own; a type that does not fade has 0.
        idle_factor: how much an idle day divides by, beyond 1.
        unimportant_factor: Factor of the daily rate for memories of low importance (`UNIMPORTANT`); 1 is none.
    """

    daily_rate: float = 0.01
    idle_factor: float = 0.1
    unimportant_factor: float = 1.0


UNIMPORTANT = 0.25
"""Importance up to which a memory is unimportant: the level `low`."""


Model = Confidence | Priority | Importance | CheckedExpression
"""What ranks instead of the weighted sum."""


def variables_read(model: Model | None) -> frozenset[str]:
    """The variables beyond age, importance and accesses that a model's score depends on."""
    match model:
        case Confidence():
            return frozenset((CONFIDENCE, IDLE_DAYS))
        case Importance():
            return frozenset((IDLE_DAYS,))
        case CheckedExpression(root=root):
            return variables_of(root)
        case _:
            return frozenset()


def name_of(model: Model | None) -> str:
    """The model's name as manifests write it."""
    if model is None:
        return WEIGHTED
    return EXPRESSION if isinstance(model, CheckedExpression) else type(model).__name__
