"""Memory types and their rules."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryType:
    """One type of memory.

    Attributes:
        half_life_days: days after which recency has halved; None never decays (recency 1).
        boost: multiplies the combined score.
    """

    name: str
    half_life_days: float | None
    boost: float = 1.0
