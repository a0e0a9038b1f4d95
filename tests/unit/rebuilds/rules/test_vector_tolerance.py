"""Accepted differences of a vector after a copy into another collection."""

import math

import pytest

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, Collection
from agentmemory_operator.rebuilds.rules.vector_tolerance import VectorTolerance

UNIT = [0.6, 0.8]
NEAR = [0.6 + 1e-8, 0.8]
HALVED = [0.6001, 0.7999]


def tolerance(
    *, source: str = "Float32", target: str = "Float32", distance: str = "Cosine", was: str | None = None, **more: bool
) -> VectorTolerance:
    return VectorTolerance(
        Collection(size=2, distance=was or distance, datatype=source),
        Collection(size=2, distance=distance, datatype=target),
        **{"is_embedded": False} | more,
    )


@pytest.mark.parametrize(
    ("how", "found", "before", "is_same"),
    [
        (tolerance(distance="Dot"), [1.5, 2.5], [1.5, 2.5], True),
        (tolerance(distance="Dot"), [1.5, 2.5000005], [1.5, 2.5], False),
        (tolerance(), NEAR, UNIT, True),
        (tolerance(), HALVED, UNIT, False),
        (tolerance(was="Dot"), UNIT, [3.0, 4.0], True),
        (tolerance(was="Dot"), [0.8, 0.6], [3.0, 4.0], False),
        (tolerance(target="Float16"), HALVED, UNIT, True),
        (tolerance(source="Float16"), HALVED, UNIT, True),
        (tolerance(target="Float16"), [0.61, 0.79], UNIT, False),
        (tolerance(target="Uint8", distance="Dot"), [3.0, 255.0], [3.9, 300.0], True),
        (tolerance(target="Uint8", distance="Dot"), [5.0, 255.0], [3.9, 300.0], False),
        (tolerance(), None, UNIT, False),
        (tolerance(), None, None, True),
        (tolerance(), UNIT, None, False),
        (tolerance(), [0.6, 0.8, 0.0], UNIT, False),
    ],
)
def test_copied_vector_is_near_by_datatype(
    how: VectorTolerance, found: list[float], before: list[float], is_same: bool
) -> None:
    assert how.is_same("", found, before) is is_same


@pytest.mark.parametrize(
    ("found", "is_same"), [([3.0, 4.0], True), ([0.0, 0.0], False), ([math.nan, 1.0], False), ([1.0], False)]
)
def test_reembedded_vector_must_be_valid(found: list[float], is_same: bool) -> None:
    assert tolerance(is_embedded=True).is_same("", found, [1.0, 0.0, 0.0]) is is_same


def test_reembedded_vector_must_exist_in_both() -> None:
    how = tolerance(is_embedded=True)

    assert not how.is_same("", None, UNIT)
    assert not how.is_same("", UNIT, None)


def test_other_vectors_are_copied_exactly() -> None:
    words = {"indices": [1, 2], "values": [0.5, 0.25]}

    assert tolerance(is_embedded=True).is_same(KEYWORD_VECTOR, words, {"indices": [2, 1], "values": [0.25, 0.5]})
    assert not tolerance(is_embedded=True).is_same(KEYWORD_VECTOR, words, {"indices": [1, 2], "values": [0.5, 0.26]})


@pytest.mark.parametrize(
    ("target", "found", "is_meant"),
    [
        ("Float32", [3.0, 4.01], True),
        ("Float32", [4.0, 3.0], False),
        ("Float32", [0.0, 0.0], False),
        ("Uint8", [3.0, 4.0], True),
    ],
)
def test_embedding_is_compared_by_direction(target: str, found: list[float], is_meant: bool) -> None:
    assert tolerance(target=target, is_embedded=True).is_embedding_of(found, [3.2, 4.2]) is is_meant
