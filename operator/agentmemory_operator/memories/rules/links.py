"""Links between versions: a version stores the ids of its predecessors, and each predecessor the id of its successor.

Most versions have one predecessor, in `supersedesId`. A merged memory has several: all in `supersedesIds`, and the
first in `supersedesId` too, for readers that expect one predecessor.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LINK_KEYS = ("supersedesId", "supersedesIds", "supersededById")

Row = Mapping[str, Any]


def predecessors(row: Row) -> tuple[str, ...]:
    """Return the ids of the direct predecessors, in stored order."""
    if merged_ids := row.get("supersedesIds"):
        return tuple(merged_ids)
    single_id = row.get("supersedesId")
    return (single_id,) if single_id else ()


def successors(row: Row) -> tuple[str, ...]:
    """Return the id of the successor as a tuple; empty for a head."""
    after = row.get("supersededById")
    return (after,) if after else ()


def is_merged(row: Row) -> bool:
    """Return whether a version has several predecessors."""
    return len(predecessors(row)) > 1


def neighbours(row: Row) -> tuple[str, ...]:
    """Return the ids of the predecessors and the successor."""
    return (*predecessors(row), *successors(row))


def links_to(ids: Sequence[str]) -> dict[str, Any]:
    """Return the payload that links a version to these predecessors; a None value deletes the key."""
    distinct_ids = list(dict.fromkeys(ids))
    return {
        "supersedesId": distinct_ids[0] if distinct_ids else None,
        "supersedesIds": distinct_ids if len(distinct_ids) > 1 else None,
    }


def replace_predecessor(ids: Sequence[str], deleted: str, by: Iterable[str]) -> list[str]:
    """Return the predecessors after a deletion: those in `by` take the position of `deleted`, without duplicates.

    If `deleted` is not among `ids`, they follow at the end.
    """
    new_ids = [id_ for id_ in by if id_ not in ids]
    at = ids.index(deleted) if deleted in ids else len(ids)
    return [*ids[:at], *new_ids, *ids[at + 1 :]]
