"""Verification of snapshots under any writes: a correct one always passes, a damaged one does not."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.memories.rules.comparison import Equality, compare_points, is_unchanged
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, tombstone_of
from agentmemory_operator.snapshots.rules.copy_verdict import (
    CLOCK_MARGIN_MS,
    SnapshotRecord,
    compare_count,
    must_contain,
)

BEGUN_MS = 10 * CLOCK_MARGIN_MS
Points = dict[str, dict[str, Any]]
acts = st.lists(st.tuples(st.sampled_from(("store", "change", "delete")), st.integers(0, 9)), max_size=12)


def run(points: Points, steps: list[tuple[str, int]], now_ms: int) -> None:
    """Apply writes like the API: a revision with every write, a tombstone for a deletion."""
    for number, (act, place) in enumerate(steps):
        id_, stamp = f"p{place}", now_ms + number
        row = points.get(id_, {}).get("payload")
        if act == "store" and row is None:
            payload = {"id": id_, "agentId": "a", "userId": "u", "type": "fact", "content": id_, "rev": 1}
            points[id_] = {"id": id_, "payload": payload | {"updatedAt": stamp}, "vector": [0.5]}
        elif act == "change" and row and TOMBSTONE_KEY not in row:
            changed = row | {"content": f"{id_}-{stamp}", "rev": row["rev"] + 1, "updatedAt": stamp}
            points[id_] = points[id_] | {"payload": changed}
        elif act == "delete" and row and TOMBSTONE_KEY not in row:
            points[id_] = {"id": id_, "payload": tombstone_of(row, stamp), "vector": None}


def alive(points: Points) -> int:
    return sum(TOMBSTONE_KEY not in point["payload"] for point in points.values())


def deleted_since(points: Points) -> int:
    return sum(point["payload"].get(TOMBSTONE_KEY, 0) >= BEGUN_MS - CLOCK_MARGIN_MS for point in points.values())


@given(acts, acts, acts, acts)
def test_snapshot_during_writes_is_correct(long_ago, before, after, later) -> None:
    points: Points = {}
    run(points, long_ago, 1000)
    counts = [alive(points)]
    run(points, before, BEGUN_MS)
    copy = {id_: dict(point) for id_, point in points.items()}
    run(points, after, BEGUN_MS + 100)
    counts.append(alive(points))
    run(points, later, BEGUN_MS + 200)

    recorded = SnapshotRecord(started_ms=BEGUN_MS, before=counts[0], after=counts[1])

    assert compare_count(alive(copy), recorded, deleted_since(points)).is_good
    assert not compare_points(copy.values(), points.values(), Equality(has_keyword=False)).differing
    assert all(id_ in copy for id_, p in points.items() if must_contain(p["payload"]["updatedAt"], BEGUN_MS))


@given(acts, acts, st.randoms(use_true_random=False))
def test_damage_of_unchanged_point_is_found(long_ago, later, chance: random.Random) -> None:
    points: Points = {}
    run(points, [("store", 0), *long_ago], 1000)
    copy = {id_: dict(point) for id_, point in points.items()}
    run(points, later, BEGUN_MS)
    damaged = chance.choice(sorted(copy))
    copy[damaged]["payload"] = copy[damaged]["payload"] | {"type": "damaged"}

    compared = compare_points(copy.values(), points.values(), Equality(has_keyword=False))

    is_judged = is_unchanged(copy[damaged]["payload"], points[damaged]["payload"])
    assert [id_ for id_, _ in compared.differing] == ([damaged] if is_judged else [])


@given(acts, acts, st.randoms(use_true_random=False))
def test_loss_of_unchanged_point_is_found(long_ago, later, chance: random.Random) -> None:
    points: Points = {}
    run(points, [("store", 0), *long_ago], 1000)
    lost = chance.choice(sorted(points))
    copy = {id_: point for id_, point in points.items() if id_ != lost}
    run(points, later, BEGUN_MS)

    absent = [id_ for id_, p in points.items() if id_ not in copy and must_contain(p["payload"]["updatedAt"], BEGUN_MS)]

    assert absent == ([lost] if points[lost]["payload"]["updatedAt"] < BEGUN_MS - CLOCK_MARGIN_MS else [])
