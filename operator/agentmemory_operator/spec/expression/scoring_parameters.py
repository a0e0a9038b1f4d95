"""Parameters of scoring models, except the weighted sum. `search/rules/score_trees.py` builds expressions from them.

Source of the defaults: the reference designs R2 (Confidence), R4 (Priority) and R5 (Importance); see `docs/scoring.md`.
"""

from dataclasses import dataclass

from agentmemory_operator.spec.expression.tree import variables_of
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.expression.variables import CONFIDENCE, IDLE_DAYS

WEIGHTED, EXPRESSION = "Weighted", "Expression"


@dataclass(frozen=True, slots=True)
class Confidence:
    """Similarity times a confidence that decays while a memory is idle, times a boost for accesses.

    Attributes:
        daily_factor: Factor of the confidence for each idle day, for types that fade.
        access_boost: Addition to the boost for each doubling of the accesses.
        max_boost: Upper bound of the boost.
    """

    daily_factor: float = 0.98
    access_boost: float = 0.3
    max_boost: float = 2.5


@dataclass(frozen=True, slots=True)
class Horizons:
    """Factors of the score by the memory's age: up to an hour, a day, 7 days, 30 days, and older.

    Each is divided by the largest one. Memories of the type `semantic` have `knowledge_bank`, whatever their age. 0
    removes memories from results.
    """

    hourly: float = 0.1
    daily: float = 0.3
    weekly: float = 0.2
    monthly: float = 0.1
    yearly: float = 0.05
    knowledge_bank: float = 0.25


@dataclass(frozen=True, slots=True)
class Priority:
    """Similarity combined with a priority of recency, frequency and importance.

    Attributes:
        recency, frequency, importance: Shares of the priority. They add up to 1.
        half_life_days: Half-life of the recency, whatever the type.
        max_accesses: Number of accesses from which the frequency is 1.
        similarity_share: Share of the similarity. The priority has the rest.
        min_priority: Memories with a lower priority are removed from results.
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
    """Similarity times an importance that decays with age and idle time.

    Attributes:
        daily_rate: Decay rate for each day of age, for a memory without its own. A type that does not fade has 0.
        idle_factor: Increase of the divisor of the importance, which is 1 at first, for each idle day.
        unimportant_factor: Factor of the daily rate if the importance is at most `UNIMPORTANT`. 1 is no change.
    """

    daily_rate: float = 0.01
    idle_factor: float = 0.1
    unimportant_factor: float = 1.0


UNIMPORTANT = 0.25
"""Importance up to which a memory is unimportant: the value of the level `low`."""


Model = Confidence | Priority | Importance | CheckedExpression
"""Scoring model that replaces the weighted sum."""


def read_variables(model: Model | None) -> frozenset[str]:
    """Return all variables that an expression reads; of the other models, only confidence and idle days."""
    match model:
        case Confidence():
            return frozenset((CONFIDENCE, IDLE_DAYS))
        case Importance():
            return frozenset((IDLE_DAYS,))
        case CheckedExpression(root=root):
            return variables_of(root)
        case _:
            return frozenset()


def model_name(model: Model | None) -> str:
    """Return the model's name as in manifests."""
    if model is None:
        return WEIGHTED
    return EXPRESSION if isinstance(model, CheckedExpression) else type(model).__name__
