"""Build formulas of Qdrant: exact constants, and sums and products with the fewest steps.

Qdrant computes in float64 but parses constants as float32. A constant that float32 cannot represent is therefore
written as a sum of several that it can. Each step of a formula is executed for every candidate.
"""

import math
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

Formula = Any
"""A Qdrant formula expression as JSON: a number, a variable's name, or an object."""


def sum_formula(*terms: Formula) -> Formula:
    """Build the formula of a sum. Nested sums are flattened and zeros dropped."""
    flat = [part for part in _parts_of("sum", terms) if part != 0.0]
    return {"sum": flat} if len(flat) > 1 else flat[0] if flat else 0.0


def product_formula(*factors: Formula) -> Formula:
    """Build the formula of a product, with nested products flattened and ones dropped. A constant factor 0 makes it 0.

    Qdrant evaluates the factors in their order.
    """
    flat = [part for part in _parts_of("mult", factors) if part != 1.0]
    if 0.0 in flat:
        return 0.0
    return {"mult": flat} if len(flat) > 1 else flat[0] if flat else 1.0


def _parts_of(name: str, formulas: Iterable[Formula]) -> Iterator[Formula]:
    for formula in formulas:
        if isinstance(formula, dict) and formula.keys() == {name}:
            yield from formula[name]
        else:
            yield formula


@lru_cache(maxsize=4096)
def exact_constant(value: float) -> Formula:
    """Return a number that Qdrant reads without loss: a sum of up to three constants that are exact in float32.

    `value` must be in the range of float32; expressions accept only constants up to 1e30. Results are cached: callers
    must not change them.
    """
    parts: list[float] = []
    remainder = value
    while remainder and len(parts) < 3:
        parts.append(_as_float32(remainder))
        remainder -= parts[-1]
    return {"sum": parts} if len(parts) > 1 else (parts[0] if parts else 0.0)


def _as_float32(value: float) -> float:
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(_LARGEST_FLOAT32, value)
    return rounded


_LARGEST_FLOAT32 = 3.4028234663852886e38


def split_constant(value: int) -> Formula:
    """Return an integer from 0 to 2**48 - 1 as a sum of two constants that float32 represents exactly."""
    low = value & 0xFFFFFF
    return {"sum": [float(value - low), float(low)]}
