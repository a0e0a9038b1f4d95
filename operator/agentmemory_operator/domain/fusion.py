"""How the similarity and the keyword term of a memory become one number."""

from dataclasses import dataclass

DEFAULT_METHOD = "Score"
DEFAULT_KEYWORD_WEIGHT = 0.7
DEFAULT_K = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """How a search by meaning and words ranks.

    Attributes:
        method: Score, RRF or None.
        keyword_weight: share of the keyword term, 0..1; with RRF strictly between.
        k: of RRF: the larger, the less the first places stand out.
    """

    method: str = DEFAULT_METHOD
    keyword_weight: float = DEFAULT_KEYWORD_WEIGHT
    k: int = DEFAULT_K
