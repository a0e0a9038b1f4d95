"""What a vector may have become in a collection that it was copied into."""

import math

import pytest

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, Collection
from agentmemory_operator.rebuilds.rules.vector_tolerance import VectorTolerance

UNIT = [0.6, 0.8]
NEAR = [0.6 + 1e-8, 0.8]
HALVED = [0.6001, 0.7999]


def carried(
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
        (carried(distance="Dot"), [1.5, 2.5], [1.5, 2.5], True),
        (carried(distance="Dot"), [1.5, 2.5000005], [1.5, 2.5], False),
        (carried(), NEAR, UNIT, True),
        (carried(), HALVED, UNIT, False),
        (carried(was="Dot"), UNIT, [3.0, 4.0], True),
        (carried(was="Dot"), [0.8, 0.6], [3.0, 4.0], False),
        (carried(target="Float16"), HALVED, UNIT, True),
        (carried(source="Float16"), HALVED, UNIT, True),
        (carried(target="Float16"), [0.61, 0.79], UNIT, False),
        (carried(target="Uint8", distance="Dot"), [3.0, 255.0], [3.9, 300.0], True),
        (carried(target="Uint8", distance="Dot"), [5.0, 255.0], [3.9, 300.0], False),
        (carried(), None, UNIT, False),
        (carried(), None, None, True),
        (carried(), UNIT, None, False),
        (carried(), [0.6, 0.8, 0.0], UNIT, False),
    ],
)
def test_a_copied_vector_is_as_near_as_both_store_it(
    how: VectorTolerance, found: list[float], before: list[float], is_same: bool
) -> None:
    assert how.is_same("", found, before) is is_same


@pytest.mark.parametrize(
    ("found", "is_same"), [([3.0, 4.0], True), ([0.0, 0.0], False), ([math.nan, 1.0], False), ([1.0], False)]
)
def test_of_a_vector_embedded_anew_its_size_and_length_are_told(found: list[float], is_same: bool) -> None:
    assert carried(is_embedded=True).is_same("", found, [1.0, 0.0, 0.0]) is is_same


def test_a_vector_embedded_anew_is_not_to_be_left_out_nor_made_up() -> None:
    how = carried(is_embedded=True)

    assert not how.is_same("", None, UNIT)
    assert not how.is_same("", UNIT, None)


def test_any_other_vector_is_carried_bit_for_bit() -> None:
    words = {"indices": [1, 2], "values": [0.5, 0.25]}

    assert carried(is_embedded=True).is_same(KEYWORD_VECTOR, words, {"indices": [2, 1], "values": [0.25, 0.5]})
    assert not carried(is_embedded=True).is_same(KEYWORD_VECTOR, words, {"indices": [1, 2], "values": [0.5, 0.26]})


@pytest.mark.parametrize(
    ("target", "found", "is_meant"),
    [
        ("Float32", [3.0, 4.01], True),
        ("Float32", [4.0, 3.0], False),
        ("Float32", [0.0, 0.0], False),
        ("Uint8", [3.0, 4.0], True),
    ],
)
def test_a_vector_is_meant_where_the_model_makes_its_direction(target: str, found: list[float], is_meant: bool) -> None:
    assert carried(target=target, is_embedded=True).is_embedding_of(found, [3.2, 4.2]) is is_meant
