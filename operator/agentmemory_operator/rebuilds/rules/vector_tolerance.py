"""Maximum difference of a vector between the source and the target of a rebuild.

| datatype and distance | maximum difference of the target's vector from the source's |
|---|---|
| Float32 in both, distance not Cosine | none: equal bit for bit |
| Float32 in both, distance Cosine | 1e-6 of its length: Qdrant scales it to length 1 again |
| Float16 in either | 1e-3 of its length: 11 bits for each number, and scaled again |
| Uint8 in either | 1 for each number, of whole numbers 0..255, the range of Uint8 |

A new embedding is in another vector space. Only its number of dimensions is checked, and whether its length is positive
and finite.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any

from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.memories.rules.comparison import is_bit_for_bit

MAX_BYTE = 255
COSINE = "Cosine"
FLOAT16, UINT8 = "Float16", "Uint8"

_SCALED_TOLERANCE, _FLOAT16_TOLERANCE = 1e-6, 1e-3
MIN_COSINE = 0.99
"""Minimum cosine of two embeddings of a text by the same model. Providers may not return the same bits again."""


@dataclass(frozen=True, slots=True)
class VectorTolerance:
    """Compares vectors by name.

    The unnamed vector is the embedding of the memory. Every other vector must be copied unchanged.

    Attributes:
        source, target: The collections.
        is_embedded: True if the target's embeddings were computed again.
    """

    source: Collection
    target: Collection
    is_embedded: bool

    def is_same(self, name: str, target: Any, source: Any) -> bool:
        """Return whether a target's vector is a valid copy of the source's, or a possible new embedding.

        If one of both is missing, the other must be missing too.

        Args:
            name: Name of the vector; "" for the embedding.
        """
        if name or not target or not source:
            return is_bit_for_bit(name, target, source)
        return self.is_valid(target) if self.is_embedded else self._is_near(target, source)

    def is_valid(self, vector: Sequence[float]) -> bool:
        """Return whether a vector has the target's size and a positive, finite length."""
        return len(vector) == self.target.size and 0 < math.hypot(*vector) < math.inf

    def is_embedding_of(self, vector: Sequence[float], embedded: Sequence[float]) -> bool:
        """Return whether a target's vector is the model's embedding of its text: a cosine of at least `MIN_COSINE`.

        Args:
            embedded: New embedding of the text.
        """
        expected = _as_bytes(embedded) if self.target.datatype == UINT8 else embedded
        lengths = math.hypot(*vector) * math.hypot(*expected)
        return lengths > 0 and sum(map(mul, vector, expected)) / lengths >= MIN_COSINE

    @property
    def description(self) -> str:
        """Precision of the comparison in words, for messages."""
        if self.is_embedded:
            return "except for their vectors, which were embedded again"
        return (
            "bit for bit"
            if self._tolerance == 0 and not self._is_whole
            else "within the precision of the stored vectors"
        )

    @property
    def _is_whole(self) -> bool:
        return UINT8 in (self.source.datatype, self.target.datatype)

    @property
    def _tolerance(self) -> float:
        if FLOAT16 in (self.source.datatype, self.target.datatype):
            return _FLOAT16_TOLERANCE
        return _SCALED_TOLERANCE if self.target.distance == COSINE else 0.0

    def _is_near(self, found: Sequence[float], before: Sequence[float]) -> bool:
        expected = self._scaled(before)
        if len(found) != len(expected):
            return False
        if self._is_whole:
            return all(abs(number - other) <= 1 for number, other in zip(found, _as_bytes(expected), strict=True))
        if self._tolerance == 0:
            return is_bit_for_bit("", found, before)
        return math.dist(found, expected) <= self._tolerance * math.hypot(*expected)

    def _scaled(self, vector: Sequence[float]) -> Sequence[float]:
        """Return a vector as the target stores it: scaled to length 1 for Cosine, unless either datatype is Uint8."""
        length = math.hypot(*vector)
        if self.target.distance != COSINE or self._is_whole or length == 0:
            return vector
        return [number / length for number in vector]


def _as_bytes(vector: Sequence[float]) -> list[float]:
    return [float(min(max(int(number), 0), MAX_BYTE)) for number in vector]
