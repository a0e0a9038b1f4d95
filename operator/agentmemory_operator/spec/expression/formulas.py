"""Formulas of the engine: constants that it takes without loss, and sums and products in as few steps as may be.

The engine computes in float64 but takes constants as float32, so a constant that float32 does not hold is spelled as a
sum of some that it does. It takes each step of a formula for every candidate.
"""

import math
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

Formula = Any
"""A Qdrant formula expression as JSON: a number, a variable's name, or an object."""


def sum_formula(*terms: Formula) -> Formula:
    """The formula of a sum, in as few steps as may be."""
    flat = [part for part in _parts_of("sum", terms) if part != 0.0]
    return {"sum": flat} if len(flat) > 1 else flat[0] if flat else 0.0


def product_formula(*factors: Formula) -> Formula:
    """The formula of a product, in as few steps as may be; what stands first is looked at first."""
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
    """A number without loss in the engine: a sum of up to three constants that float32 holds exactly.

    The same object comes again for the same number: it is not to be changed.
    A constant beyond float32's range is rounded to what it can hold.
    """
    parts: list[float] = []
    rest = value
    while rest and len(parts) < 3:
        parts.append(_as_float32(rest))
        rest -= parts[-1]
    return {"sum": parts} if len(parts) > 1 else (parts[0] if parts else 0.0)


def _as_float32(value: float) -> float:
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(_LARGEST_FLOAT32, value)
    return rounded


_LARGEST_FLOAT32 = 3.4028234663852886e38


def split_constant(value: int) -> Formula:
    """An integer below 2**48 as a sum of two constants that float32 holds exactly."""
    low = value & 0xFFFFFF
    return {"sum": [float(value - low), float(low)]}
