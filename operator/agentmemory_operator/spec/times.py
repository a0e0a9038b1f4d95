"""Conversions between RFC 3339 times and Unix time."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z
_MILLISECOND = timedelta(milliseconds=1)


def parse_time(value: object) -> int:
    """Return the Unix milliseconds of an RFC 3339 time with an offset, 1970 to 9999.

    Raises:
        ValueError: If the value is not such a time. The message continues a sentence that starts with the field's name.
    """
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        raise ValueError("must be an RFC 3339 time with offset, for example 2026-11-21T08:00:00Z")
    try:
        time_ms = (datetime.fromisoformat(value.upper()) - _EPOCH_UTC) // _MILLISECOND
    except (ValueError, OverflowError):
        raise ValueError("must be an existing time") from None
    if not 0 <= time_ms <= LAST_MS:
        raise ValueError("must be between the years 1970 and 9999")
    return time_ms


def time_or_none(value: object) -> int | None:
    """Return the Unix milliseconds of a time that another writer may have set; None unless `parse_time` accepts it."""
    try:
        return parse_time(value)
    except ValueError:
        return None


def parse_second(value: str) -> int:
    """Return the Unix milliseconds of a time in a Kubernetes object. Times before 1970 become 0.

    Args:
        value: `2026-11-21T08:00:00Z`. Its pattern also accepts days that a month does not have. They count on into the
            next month: 30 February is 2 March, in a leap year 1 March.

    Raises:
        ValueError: If `value` does not have this form.
    """
    month_start = datetime.strptime(f"{value[:8]}01{value[10:]}", "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return max(0, int(month_start.timestamp()) + (int(value[8:10]) - 1) * 86_400) * 1000


@lru_cache(maxsize=4096)
def render_time(time_ms: int) -> str:
    """Render Unix milliseconds as `2026-11-21T08:00:00.123Z`."""
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds") + "Z"


def render_second(time_s: float) -> str:
    """Render Unix seconds as `2026-11-21T08:00:00Z`, the form of Kubernetes objects. Fractions are cut off."""
    return datetime.fromtimestamp(int(time_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
