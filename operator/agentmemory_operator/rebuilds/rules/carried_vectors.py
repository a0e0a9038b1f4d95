"""What a vector of one collection may have become in another that it was copied into.

| target | how far it may lie from the source's |
|---|---|
| Float32 as in the source, not Cosine | bit for bit |
| Float32 as in the source, Cosine | 1e-6 of its length: the engine scales to length 1 once more |
| Float16 in either | 1e-3 of its length: 11 bits a number, and scaled again |
| Uint8 in either | 1 a number, of whole numbers 0..255: all that it can hold |

An embedding that was made anew is another space's: only its size, and that it has a length, can be told.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any

from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.memories.rules.comparison import is_bit_for_bit

LARGEST_BYTE = 255
COSINE = "Cosine"
FLOAT16, UINT8 = "Float16", "Uint8"

_SCALED, _HALVED = 1e-6, 1e-3
SAME_MEANING = 0.99
"""Cosine of two embeddings of one text by one model: providers do not answer the same bits twice."""


@dataclass(frozen=True, slots=True)
class CarriedVectors:
    """Judges vectors by name; the nameless one is the memory's meaning, any other is carried as it is.

    Attributes:
        source, target: the collections.
        is_embedded: the meaning was embedded anew.
    """

    source: Collection
    target: Collection
    is_embedded: bool

    def is_same(self, name: str, found: Any, before: Any) -> bool:
        """Whether a target's vector is what became of the source's."""
        if name or not found or not before:
            return is_bit_for_bit(name, found, before)
        return self.is_sane(found) if self.is_embedded else self._is_near(found, before)

    def is_sane(self, vector: Sequence[float]) -> bool:
        """Whether a vector of the target can be compared with others."""
        return len(vector) == self.target.size and 0 < math.hypot(*vector) < math.inf

    def is_meant(self, found: Sequence[float], embedded: Sequence[float]) -> bool:
        """Whether a target's vector is the one that the model makes of its text."""
        wanted = _as_bytes(embedded) if self.target.datatype == UINT8 else embedded
        lengths = math.hypot(*found) * math.hypot(*wanted)
        return lengths > 0 and sum(map(mul, found, wanted)) / lengths >= SAME_MEANING

    @property
    def described(self) -> str:
        """How closely the meaning is compared, in a person's words."""
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
            return _HALVED
        return _SCALED if self.target.distance == COSINE else 0.0

    def _is_near(self, found: Sequence[float], before: Sequence[float]) -> bool:
        wanted = self._scaled(before)
        if len(found) != len(wanted):
            return False
        if self._is_whole:
            return all(abs(one - other) <= 1 for one, other in zip(found, _as_bytes(wanted), strict=True))
        if self._tolerance == 0:
            return is_bit_for_bit("", found, before)
        return math.dist(found, wanted) <= self._tolerance * math.hypot(*wanted)

    def _scaled(self, vector: Sequence[float]) -> Sequence[float]:
        """A vector as the target's distance has it stored; whole numbers are not scaled."""
        length = math.hypot(*vector)
        if self.target.distance != COSINE or self._is_whole or length == 0:
            return vector
        return [number / length for number in vector]


def _as_bytes(vector: Sequence[float]) -> list[float]:
    return [float(min(max(int(number), 0), LARGEST_BYTE)) for number in vector]
