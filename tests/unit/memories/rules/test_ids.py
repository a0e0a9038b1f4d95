"""Ids of memories."""

import random
import uuid

import pytest

from agentmemory_operator.memories.rules.ids import is_id, keyed_id, parts_within, time_ordered_id

NOW_MS = 1_795_000_000_000


def test_ids_of_a_batch_keep_its_order() -> None:
    ids = [time_ordered_id(NOW_MS, place, randomness=random.getrandbits(62)) for place in range(1000)]

    assert ids == sorted(ids)


def test_new_id_is_a_uuid_7_with_its_time() -> None:
    made = uuid.UUID(time_ordered_id(NOW_MS, 4097, randomness=2**62 - 1))

    assert (made.version, made.variant, made.int >> 80) == (7, uuid.RFC_4122, NOW_MS)


def test_keyed_id_depends_on_agent_user_and_key() -> None:
    ids = {keyed_id(agent, user, key) for agent in "ab" for user in "uv" for key in "kl"}

    assert len(ids) == 8
    assert keyed_id("a", "u", "k") == keyed_id("a", "u", "k")
    assert all(map(is_id, ids))


@pytest.mark.parametrize("value", ["", "7", "not-an-id", "018F0000-0000-7000-8000-000000000000", "{" + "0" * 32 + "}"])
def test_other_spellings_are_no_id(value: str) -> None:
    assert not is_id(value)


@pytest.mark.parametrize(
    ("sizes", "max_items", "parts"),
    [
        ([], None, []),
        ([3, 3, 4], None, [[3, 3, 4]]),
        ([3, 3, 5], None, [[3, 3], [5]]),
        ([11, 1, 12], None, [[11], [1], [12]]),
        ([0, 0, 0], 2, [[0, 0], [0]]),
    ],
)
def test_parts_keep_to_both_limits(sizes: list[int], max_items: int | None, parts: list[list[int]]) -> None:
    assert list(parts_within(((size, size) for size in sizes), 10, max_items)) == parts
