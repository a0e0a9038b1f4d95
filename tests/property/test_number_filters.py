"""Number conditions in Qdrant: the filter finds every match, and the certain filter only matches."""

import math
import random
from collections.abc import Iterator
from typing import Any

from agentmemory_operator.memories.rules.criteria import Criterion, compile_certain, compile_criterion, is_exact
from agentmemory_operator.memories.rules.criteria_json import parse_filters
from agentmemory_operator.memories.rules.criteria_match import matches
from agentmemory_operator.memories.rules.exact_numbers import (
    INT64_MAX,
    INT64_MIN,
    MAX_STEPS,
    find_stored_float,
    is_compared_exactly,
    is_int64,
)
from tests.contract.memories.test_filters import COMPARED
from tests.unit.memories.rules.test_exact_numbers import CHANGED, any_double

Number = int | float
FIXED: tuple[Number, ...] = (0, 5, 0.5, 0.3, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 1e22, 1e300, CHANGED)


def bounds(generator: random.Random) -> Iterator[Number]:
    """Yield numbers of every size: changed by Qdrant, rounded by floats, and short ones."""
    while True:
        yield generator.choice(
            (
                generator.choice(FIXED),
                any_double(generator),
                generator.gauss(0, 100),
                generator.randint(INT64_MIN, INT64_MAX),
                round(generator.uniform(-1e6, 1e6), generator.randrange(5)),
            )
        )


def near(generator: random.Random, bound: Number) -> Number:
    """Return a number that Qdrant may confuse with a bound, or one close to it."""
    if isinstance(bound, int) and generator.random() < 0.5:
        found: Number = bound + generator.randrange(-3, 4) * 10 ** generator.randrange(4)
        return found if is_int64(found) else bound
    moved = float(bound)
    for _ in range(generator.randrange(4)):
        moved = math.nextafter(moved, generator.choice((-math.inf, math.inf)))
    return moved if math.isfinite(moved) else float(bound)


def draw_filter(generator: random.Random, bound: Number) -> dict[str, Any]:
    name = generator.choice(("eq", "ne", "in", *COMPARED, *COMPARED))
    if name in COMPARED:
        other = generator.choice(("gt", "gte", "lt", "lte"))
        condition: dict[str, Any] = {other: near(generator, bound), name: bound}
    else:
        condition = {name: [bound, near(generator, bound)] if name == "in" else bound}
    return {"NOT": [{"metadata.n": condition}]} if generator.random() < 0.3 else {"metadata.n": condition}


def is_met(condition: dict[str, Any], values: list[Number]) -> bool:
    """Return whether Qdrant finds the values: integers match exactly, ranges compare floats as stored."""
    stored = [find_stored_float(value) if isinstance(value, float) else float(value) for value in values]
    match condition:
        case {"must": parts}:
            return all(is_met(part, values) for part in parts)
        case {"should": parts}:
            return any(is_met(part, values) for part in parts)
        case {"must_not": parts}:
            return not any(is_met(part, values) for part in parts)
        case {"match": {"value": expected}}:
            return any(isinstance(value, int) and value == expected for value in values)
        case {"range": limits}:
            return any(all(COMPARED[name](value, limits[name]) for name in limits) for value in stored)
    raise AssertionError(condition)


def matches_stored(criterion: Criterion, values: list[Number]) -> bool:
    """Return whether the criterion holds for the stored floats, which a plain range compares."""
    stored = [find_stored_float(value) if isinstance(value, float) else float(value) for value in values]
    return matches(criterion, {"metadata": {"n": stored}})


def test_filter_finds_every_match() -> None:
    generator = random.Random(45)
    numbers = bounds(generator)
    wrong = exact = ambiguous = 0
    for _ in range(4_000):
        bound = next(numbers)
        filters = draw_filter(generator, bound)
        criterion = parse_filters(filters)
        assert criterion is not None
        values = [near(generator, bound) for _ in range(generator.randrange(1, 3))]
        is_meant = matches(criterion, {"metadata": {"n": values}})
        is_found = is_met(compile_criterion(criterion), values)
        certain = compile_certain(criterion)
        is_certain = certain is not None and is_met(certain, values)

        assert is_certain <= is_meant <= is_found, (filters, values)
        assert not is_exact(criterion) or is_found == is_meant, (filters, values)
        wrong += matches_stored(criterion, values) != is_meant
        exact += is_exact(criterion)
        ambiguous += is_found and not is_certain
    assert wrong > 100
    assert exact > 500
    assert ambiguous > 100


def test_short_numbers_compare_like_stored_ones() -> None:
    generator = random.Random(46)
    values = [0.0, 1e-9, 999999999999999.0, *(float(number) for number in range(1, 50))]
    drawn = (f"{generator.uniform(1, 10) * 10 ** generator.uniform(-9, 13):.{n % 14}e}" for n in range(300))
    values += [value for value in map(float, drawn) if is_compared_exactly(value)]

    assert len(values) > 300
    for value in values:
        around = [value, *steps(value, -math.inf), *steps(value, math.inf)]
        for number in around:
            stored = find_stored_float(number)
            assert (stored < value, stored > value) == (number < value, number > value), (value, number)


def steps(value: float, limit: float) -> Iterator[float]:
    for _ in range(MAX_STEPS):
        value = math.nextafter(value, limit)
        yield value
