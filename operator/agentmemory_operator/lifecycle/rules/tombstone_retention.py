"""Decide how long tombstones are kept, which is as long as a copy of the collection may be served again.

Replaying the tombstones written since a copy was taken updates the copy. Receipts are kept forever, because they
identify an erased user in a copy of any age.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentmemory_operator.memories.rules.filters import NOT_PENDING, NOT_SUPERSEDED, Filter
from agentmemory_operator.memories.rules.record import RECEIPT_KEY, TOMBSTONE_KEY, WINDOW_DUE_KEY
from agentmemory_operator.spec.expression.variables import DAY_MS
from agentmemory_operator.spec.kinds.conditions import find_condition
from agentmemory_operator.spec.times import time_or_none

MIN_KEPT_MS = 7 * DAY_MS
"""Minimum age of a tombstone before it is purged: 7 days, because requests are repeated and clocks differ."""

Document = Mapping[str, Any]


def find_keep_since_ms(
    snapshots: Sequence[Document],
    restores: Sequence[Document],
    *,
    last_snapshot: str | None,
    now_ms: int,
    rebuilt_ms: int | None = None,
) -> int | None:
    """Return the time since which an agent's tombstones are kept, in Unix milliseconds; None keeps all.

    The result is the earliest time in these rows, and no later than 7 days before `now_ms`:

    | there is | tombstones kept |
    |---|---|
    | a snapshot that completed or is in progress | since it started |
    | a failed snapshot | none: it has no file |
    | an imported snapshot, or one without any valid time | all: the age of its memories is unknown |
    | a restore in progress | all: its contents may be of any age |
    | a collection replaced by a restore and still kept | since that restore started |
    | a collection replaced by a rebuild and still kept | since the first such rebuild started |
    | a last snapshot in the agent's status that is not in `snapshots` | all: the list is incomplete |

    Args:
        snapshots, restores: Documents of the agent's MemorySnapshots and MemoryRestores, unvalidated.
        last_snapshot: Name of the last snapshot in the agent's status. None if it has none.
        rebuilt_ms: Start of the first rebuild whose source is kept, Unix milliseconds. None if there is none.
    """
    names = {document["metadata"]["name"] for document in snapshots}
    if last_snapshot is not None and last_snapshot not in names:
        return None
    times = [*_of_snapshots(snapshots), *_of_restores(restores, now_ms)]
    known_times = [time for time in times if time is not None]
    bounds = [now_ms - MIN_KEPT_MS, *([rebuilt_ms] if rebuilt_ms is not None else [])]
    return min([*known_times, *bounds]) if len(known_times) == len(times) else None


def purgeable_filter(before_ms: int) -> Filter:
    """Build the filter for tombstones before a time (Unix milliseconds), without receipts and tombstones still needed.

    A tombstone is needed while it has a successor, is pending, or its session's keyword texts need an update. Points
    with facts about a user, and receipts' points without a receipt yet, have `deletedAt` 0 and stay too.
    """
    is_old = {"key": TOMBSTONE_KEY, "range": {"gt": 0, "lt": before_ms}}
    is_no_receipt = {"is_empty": {"key": f"{RECEIPT_KEY}.at"}}
    is_not_due = {"must_not": [{"key": WINDOW_DUE_KEY, "match": {"value": True}}]}
    return {"must": [is_old, is_no_receipt, NOT_PENDING, NOT_SUPERSEDED, is_not_due]}


PURGEABLE_KEYS = (TOMBSTONE_KEY, RECEIPT_KEY, "pending", "supersededById", WINDOW_DUE_KEY)


def is_purgeable(row: Mapping[str, Any], before_ms: int) -> bool:
    """Return whether a row, with the keys in `PURGEABLE_KEYS`, matches `purgeable_filter`."""
    is_needed = any(row.get(key) for key in PURGEABLE_KEYS if key != TOMBSTONE_KEY)
    return 0 < row.get(TOMBSTONE_KEY, 0) < before_ms and not is_needed


def _of_snapshots(snapshots: Iterable[Document]) -> Iterator[int | None]:
    for document in snapshots:
        status = document.get("status") or {}
        if find_condition(status, "Succeeded").get("status") == "False":
            continue
        is_imported = bool((document.get("spec") or {}).get("import"))
        started_at = status.get("startTime") or document["metadata"].get("creationTimestamp")
        yield None if is_imported else time_or_none(started_at)


def _of_restores(restores: Iterable[Document], now_ms: int) -> Iterator[int | None]:
    for document in restores:
        status = document.get("status") or {}
        if find_condition(status, "Succeeded").get("status") not in ("True", "False"):
            yield None
        elif previous := status.get("previousCollection"):
            until_ms = time_or_none(previous.get("until"))
            if until_ms is None or until_ms > now_ms:
                yield time_or_none(status.get("startTime"))
