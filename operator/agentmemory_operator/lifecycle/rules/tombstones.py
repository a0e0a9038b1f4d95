"""Until when tombstones are needed: by every copy of the collection that may yet be served.

What was erased is found in a copy by the tombstones that were made since it was copied. Receipts stay for ever: by them
an erased user is found in any copy.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentmemory_operator.memories.rules.filters import NOT_PENDING, NOT_SUPERSEDED, Filter
from agentmemory_operator.memories.rules.record import DUE_KEY, RECEIPT_KEY, TOMBSTONE_KEY
from agentmemory_operator.spec.expression.variables import DAY_MS
from agentmemory_operator.spec.kinds.conditions import condition_of
from agentmemory_operator.spec.times import parse_time

LEAST_KEPT_MS = 7 * DAY_MS
"""A deletion is remembered for so long in any case: requests are repeated, and clocks differ."""

Document = Mapping[str, Any]


def keep_since_ms(
    snapshots: Sequence[Document],
    restores: Sequence[Document],
    *,
    last_snapshot: str | None,
    now_ms: int,
    rebuilt_ms: int | None = None,
) -> int | None:
    """From when on an agent's tombstones are kept, Unix milliseconds; None keeps all.

    | there is | keeps tombstones |
    |---|---|
    | a snapshot that was made, or is being made | since it was begun |
    | a snapshot that has failed | none: it has no bytes |
    | a snapshot that was taken in, or of no known time | all: nobody knows how old its memories are |
    | a restore under way | all: what it restores may be of any time |
    | a collection that a restore has replaced, still kept | since that restore was begun |
    | a collection that a rebuild has replaced, still kept | since that rebuild was begun |
    | a last snapshot in the agent's status that is not among these | all: they are not known yet |

    Args:
        snapshots, restores: those of the agent, as they came.
        last_snapshot: name of the one that the agent's status tells of.
        rebuilt_ms: when the first rebuild was begun whose source is kept, Unix milliseconds; None where none is.
    """
    names = {document["metadata"]["name"] for document in snapshots}
    if last_snapshot is not None and last_snapshot not in names:
        return None
    times = [*_of_snapshots(snapshots), *_of_restores(restores, now_ms)]
    known = [time for time in times if time is not None]
    least = [now_ms - LEAST_KEPT_MS, *([rebuilt_ms] if rebuilt_ms is not None else [])]
    return min([*known, *least]) if len(known) == len(times) else None


def purgeable(before_ms: int) -> Filter:
    """The filter of tombstones older than a time to which no link leads, without receipts.

    Facts about users beside their memories, which are marked as deleted at 0, stay too.
    """
    is_old = {"key": TOMBSTONE_KEY, "range": {"gt": 0, "lt": before_ms}}
    is_no_receipt = {"is_empty": {"key": f"{RECEIPT_KEY}.at"}}
    not_due = {"must_not": [{"key": DUE_KEY, "match": {"value": True}}]}
    return {"must": [is_old, is_no_receipt, NOT_PENDING, NOT_SUPERSEDED, not_due]}


PURGEABLE_KEYS = (TOMBSTONE_KEY, RECEIPT_KEY, "pending", "supersededById", DUE_KEY)


def is_purgeable(row: Mapping[str, Any], before_ms: int) -> bool:
    """Return whether a row, of it at least `PURGEABLE_KEYS`, is one that `purgeable` means."""
    is_needed = any(row.get(key) for key in PURGEABLE_KEYS if key != TOMBSTONE_KEY)
    return 0 < row.get(TOMBSTONE_KEY, 0) < before_ms and not is_needed


def _of_snapshots(snapshots: Iterable[Document]) -> Iterator[int | None]:
    for document in snapshots:
        status = document.get("status") or {}
        if condition_of(status, "Succeeded").get("status") == "False":
            continue
        is_imported = bool((document.get("spec") or {}).get("import"))
        begun = status.get("startTime") or document["metadata"].get("creationTimestamp")
        yield None if is_imported else _time(begun)


def _of_restores(restores: Iterable[Document], now_ms: int) -> Iterator[int | None]:
    for document in restores:
        status = document.get("status") or {}
        if condition_of(status, "Succeeded").get("status") not in ("True", "False"):
            yield None
        elif previous := status.get("previousCollection"):
            until = _time(previous.get("until"))
            if until is None or until > now_ms:
                yield _time(status.get("startTime"))


def _time(text: str | None) -> int | None:
    try:
        return parse_time(text)
    except ValueError:
        return None
