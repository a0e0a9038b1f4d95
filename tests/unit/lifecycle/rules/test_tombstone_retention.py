"""Retention of tombstones: as long as any copy may need them, and all if that time is unknown."""

from datetime import UTC, datetime
from typing import Any

import pytest

from agentmemory_operator.lifecycle.rules.tombstone_retention import MIN_KEPT_MS, find_keep_since_ms

NOW_MS = int(datetime(2026, 11, 22, tzinfo=UTC).timestamp() * 1000)
OLDEST_KEPT_MS = NOW_MS - MIN_KEPT_MS
AUGUST, AUGUST_MS = "2026-08-01T00:00:00Z", int(datetime(2026, 8, 1, tzinfo=UTC).timestamp() * 1000)
JULY_MS = int(datetime(2026, 7, 1, tzinfo=UTC).timestamp() * 1000)
TODAY = "2026-11-22T00:00:00Z"
Json = dict[str, Any]


def job(*, start: str | None = AUGUST, succeeded: str | None = "True", **more: Any) -> Json:
    """Return a snapshot or a restore."""
    conditions = [{"type": "Succeeded", "status": succeeded}] if succeeded else []
    status = {"conditions": conditions, **({"startTime": start} if start else {}), **more}
    return {"metadata": {"name": "s"}, "spec": {}, "status": status}


IMPORTED = job() | {"spec": {"import": {"s3": {}}}}
REQUESTED = {"metadata": {"name": "s", "creationTimestamp": AUGUST}, "spec": {}}
RETAINED = {"physical": "a__1", "until": "2026-11-23T00:00:00Z"}
EXPIRED = {"physical": "a__1", "until": AUGUST}

CASES: dict[str, tuple[list[Json], list[Json], int | None]] = {
    "nothing is copied": ([], [], OLDEST_KEPT_MS),
    "a snapshot": ([job()], [], AUGUST_MS),
    "the oldest of several": ([job(start=TODAY), job()], [], AUGUST_MS),
    "a snapshot of today": ([job(start=TODAY)], [], OLDEST_KEPT_MS),
    "a running snapshot": ([job(succeeded="Unknown")], [], AUGUST_MS),
    "a requested snapshot": ([REQUESTED], [], AUGUST_MS),
    "a failed snapshot": ([job(succeeded="False")], [], OLDEST_KEPT_MS),
    "a snapshot without a start time": ([job(start=None)], [], None),
    "an imported snapshot": ([IMPORTED], [], None),
    "a restore in progress": ([], [job(succeeded="Unknown")], None),
    "a restore that has not started": ([], [REQUESTED], None),
    "a completed restore": ([], [job()], OLDEST_KEPT_MS),
    "a failed restore": ([], [job(succeeded="False")], OLDEST_KEPT_MS),
    "a replaced collection": ([], [job(previousCollection=RETAINED)], AUGUST_MS),
    "an expired replaced collection": ([], [job(previousCollection=EXPIRED)], OLDEST_KEPT_MS),
    "a replaced collection without an expiry": ([], [job(previousCollection={"physical": "a__1"})], AUGUST_MS),
}


@pytest.mark.parametrize(("snapshots", "restores", "expected"), CASES.values(), ids=CASES)
def test_kept_as_long_as_a_copy_may_need_them(
    snapshots: list[Json], restores: list[Json], expected: int | None
) -> None:
    assert find_keep_since_ms(snapshots, restores, last_snapshot=None, now_ms=NOW_MS) == expected


def test_all_are_kept_until_last_snapshot_is_known() -> None:
    assert find_keep_since_ms([], [], last_snapshot="s", now_ms=NOW_MS) is None
    assert find_keep_since_ms([job(start=TODAY)], [], last_snapshot="s", now_ms=NOW_MS) == OLDEST_KEPT_MS


@pytest.mark.parametrize(
    ("snapshots", "expected"),
    [([], AUGUST_MS), ([job(start="2026-07-01T00:00:00Z")], JULY_MS), ([IMPORTED], None)],
    ids=["alone", "with an older snapshot", "with an imported snapshot"],
)
def test_rebuild_keeps_those_since_its_start(snapshots: list[Json], expected: int | None) -> None:
    assert find_keep_since_ms(snapshots, [], last_snapshot=None, now_ms=NOW_MS, rebuilt_ms=AUGUST_MS) == expected


def test_rebuild_of_today_shortens_nothing() -> None:
    assert find_keep_since_ms([], [], last_snapshot=None, now_ms=NOW_MS, rebuilt_ms=NOW_MS) == OLDEST_KEPT_MS
