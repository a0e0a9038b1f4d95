"""The combined score."""

from dataclasses import dataclass


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
