"""Which results of a search are read again, and by what."""

from dataclasses import dataclass

DEFAULT_CANDIDATES = 30
MAX_CANDIDATES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranking:
    """A cross-encoder and how much it reads.

    Attributes:
        model: its name.
        candidates: how many of the best by the combined score it orders anew, 1..200.
    """

    model: str
    candidates: int = DEFAULT_CANDIDATES
