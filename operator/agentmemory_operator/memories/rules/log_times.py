"""Times of changes in the change log, Unix milliseconds. Pure."""

from collections.abc import Mapping
from typing import Any

from agentmemory_operator.memories.rules.record import LOGGED_KEY

MAX_CLOCK_DIFFERENCE_MS = 4_000
"""Assumed maximum of the clock difference between two processes that write or read."""


def next_logged_at(row: Mapping[str, Any] | None, now_ms: int) -> int:
    """Return the time of a change of a point: now, or later if the point's last change has the same or a later time.

    So each change of a point has a time of its own, by which a reader recognises that it has not seen the change yet.

    Args:
        row: Payload of the point before the change. None if there is no point.
    """
    last = (row or {}).get(LOGGED_KEY, 0)
    # A time further ahead comes from a clock that was wrong, and must not delay the entries of later changes.
    return last + 1 if now_ms <= last <= now_ms + MAX_CLOCK_DIFFERENCE_MS else now_ms
