"""What late writers left in a rebuild's source, and what becomes of it in the target, which is live. Pure.

Whatever lands in the source after the last pass was acknowledged to nobody. So what was written in the target since the
move wins, and nothing is carried that could part a chain: of a change that spans several memories some may be in the
source alone. What is carried as pending is joined to its chain, or given up, by `memories/chains.py`.

| in the source | in the target | is carried |
|---|---|---|
| a tombstone | nothing | as it is |
| a memory that supersedes another | nothing | as pending |
| another memory | nothing | as it is |
| anything | written since the move, or as new | not at all |
| a tombstone | a memory | as pending, where it has a place in a chain |
| a memory with another place in its chain | | not at all: the other end of the link decides |
| a memory that is not pending any more | a pending one | not at all: it is joined there |
| a memory | | as it is |
"""

from collections.abc import Mapping
from typing import Any

from agentmemory_operator.memories.rules.comparison import rev_of
from agentmemory_operator.memories.rules.links import LINK_KEYS
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, Payload, window_mark

Row = Mapping[str, Any]


def late_insert(row: Row) -> Payload:
    """What the target gets of a point that it lacks."""
    if TOMBSTONE_KEY in row:
        return dict(row)
    joins = {"pending": True} if row.get("supersedesId") else {}
    return {**row, **joins, **window_mark(row)}


def late_update(row: Row, live: Row, *, moved_ms: int) -> Payload | None:
    """What the target gets of a point that it has, None where it keeps its own.

    Args:
        live: the target's.
        moved_ms: when the alias was moved, Unix milliseconds.
    """
    if rev_of(live) >= rev_of(row) or live.get("updatedAt", 0) >= moved_ms or TOMBSTONE_KEY in live:
        return None
    if TOMBSTONE_KEY in row:
        is_linked = any(row.get(link) for link in LINK_KEYS)
        return {**row, **({"pending": True} if is_linked else {}), **window_mark(live)}
    is_moved = any(row.get(link) != live.get(link) for link in LINK_KEYS)
    is_joined = bool(live.get("pending")) and not row.get("pending")
    return None if is_moved or is_joined else {**row, **window_mark(row)}
