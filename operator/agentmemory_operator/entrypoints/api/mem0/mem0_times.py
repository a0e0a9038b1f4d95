"""Conversion of mem0's times and dates. A time without an offset, and a date, are in UTC."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

from agentmemory_operator.spec.times import parse_time, render_time

DAY_MS = 86_400_000
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def time_text(value: Any) -> Any:
    """Convert a date, a time or Unix seconds to an RFC 3339 time; return other values unchanged."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return datetime.fromtimestamp(value, UTC).isoformat(timespec="milliseconds")
        except (ValueError, OverflowError, OSError):
            return value
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value.strip().upper())
    except ValueError:
        return value
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return moment.isoformat(timespec="milliseconds")


def read_time_ms(value: Any) -> int:
    """Return the Unix milliseconds of a date, a time or Unix seconds.

    Raises:
        ValueError: If it is none of them, or not between 1970 and 9999.
    """
    return parse_time(time_text(value))


def day_after(value: Any) -> Any:
    """Return the day after a date; return other values unchanged."""
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        return value
    try:
        return (date.fromisoformat(value) + timedelta(days=1)).isoformat()
    except (ValueError, OverflowError):
        return value


def expiration_date(expires_at_ms: int | None) -> str | None:
    """Return the last day on which a memory is visible; None if it does not expire."""
    return None if expires_at_ms is None else render_time(max(0, expires_at_ms - 1))[:10]
