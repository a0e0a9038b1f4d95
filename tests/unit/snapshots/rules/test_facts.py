"""Facts derived from MemorySnapshot objects."""

from typing import Any

import pytest

from agentmemory_operator.snapshots.rules.facts import max_recorded_points

Json = dict[str, Any]


def snapshot(physical: str, after: int | None) -> Json:
    """Return a MemorySnapshot with the recorded number of memories."""
    return {"status": {"physical": physical, "points": {"after": after}}}


@pytest.mark.parametrize(
    ("snapshots", "held"),
    [
        ([], 0),
        ([{}, {"status": None}, {"status": {"physical": "a__1"}}], 0),
        ([snapshot("a__1", 3), snapshot("a__1", 7), snapshot("a__1", None)], 7),
        ([snapshot("a__2", 9)], 0),
    ],
    ids=["none", "not made yet", "the most of several", "another collection's"],
)
def test_maximum_comes_from_all_snapshots(snapshots: list[Json], held: int) -> None:
    assert max_recorded_points("a__1", snapshots) == held
