"""What is known of snapshots from their objects."""

from typing import Any

import pytest

from agentmemory_operator.snapshots.rules.facts import max_recorded_points

Json = dict[str, Any]


def seen(physical: str, after: int | None) -> Json:
    """Return a MemorySnapshot whose collection held so many memories."""
    return {"status": {"physical": physical, "points": {"after": after}}}


@pytest.mark.parametrize(
    ("snapshots", "held"),
    [
        ([], 0),
        ([{}, {"status": None}, {"status": {"physical": "a__1"}}], 0),
        ([seen("a__1", 3), seen("a__1", 7), seen("a__1", None)], 7),
        ([seen("a__2", 9)], 0),
    ],
    ids=["none", "not made yet", "the most of several", "another collection's"],
)
def test_what_a_collection_held_is_known_from_its_snapshots(snapshots: list[Json], held: int) -> None:
    assert max_recorded_points("a__1", snapshots) == held
