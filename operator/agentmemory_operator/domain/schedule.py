"""When something that repeats is due: cron expressions in a time zone.

Where clocks are set forward or back, a time of day that is skipped comes right after the gap, and one that comes twice
counts once, as in Debian's cron; a schedule by the hour or the minute goes by the time that passes.
"""

from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

NEVER = "Never"

_MONTHS = "JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC"
_DAYS = "SUN|MON|TUE|WED|THU|FRI|SAT"


def _field(value: str) -> str:
    """Return the pattern of one field: values, ranges and steps, separated by commas."""
    one = rf"(\*|({value})(-({value}))?)(/[1-9][0-9]?)?"
    return rf"{one}(,{one})*"


_FIELDS = (
    "[0-5]?[0-9]",
    "[01]?[0-9]|2[0-3]",
    "0?[1-9]|[12][0-9]|3[01]",
    f"0?[1-9]|1[0-2]|{_MONTHS}",
    f"[0-7]|{_DAYS}",
)
CRON_PATTERN = "^" + " ".join(map(_field, _FIELDS)) + "$"
SCHEDULE_PATTERN = f"^{NEVER}$|{CRON_PATTERN}"
ZONE_PATTERN = r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$"


def schedule_fault(schedule: str) -> str | None:
    """Return why a schedule of the right form can never be followed, None where it can."""
    if schedule == NEVER:
        return None
    try:
        next(CronSim(schedule, datetime(2026, 1, 1, tzinfo=UTC)))
    except CronSimError as exc:
        return f"{schedule!r} is no schedule ({exc}): give minute, hour, day, month and weekday, as in 0 3 * * *"
    except StopIteration:
        return f"{schedule!r} never comes: give a day that the month has"
    return None


def zone_fault(time_zone: str) -> str | None:
    """Return why a time zone cannot be used, None where it can."""
    try:
        _zone(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"{time_zone!r} is no time zone of the IANA database: give one as Europe/Berlin, or Etc/UTC"
    return None


def next_time_ms(schedule: str, time_zone: str, *, after_ms: int) -> int | None:
    """Return the first time after `after_ms` (Unix milliseconds) that the schedule names, None where there is none.

    The schedule and the zone have no fault.
    """
    if schedule == NEVER:
        return None
    after = datetime.fromtimestamp(after_ms / 1000, _zone(time_zone))
    found = next(CronSim(schedule, after), None)
    return None if found is None else int(found.timestamp() * 1000)


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
