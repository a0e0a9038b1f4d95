"""Compute the due times of cron expressions in a time zone.

When clocks change, daily times behave as in Debian's cron: a skipped time runs right after the gap, and a repeated time
runs once. Schedules by the hour or the minute follow elapsed time.
"""

import zlib
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from agentmemory_operator.spec.times import parse_time

NEVER = "Never"

MAX_SPREAD_MS = 300_000
_SPREAD_SHARE = 10
_TIMES = 5000

_MONTHS = "JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC"
_DAYS = "SUN|MON|TUE|WED|THU|FRI|SAT"


def _field(value: str) -> str:
    """Build the pattern of one field: values, ranges and steps, separated by commas."""
    element = rf"(\*|({value})(-({value}))?)(/[1-9][0-9]?)?"
    return rf"{element}(,{element})*"


_FIELDS = ("[0-5]?[0-9]", "[01]?[0-9]|2[0-3]", "0?[1-9]|[12][0-9]|3[01]", f"0?[1-9]|1[0-2]|{_MONTHS}", f"[0-7]|{_DAYS}")
SCHEDULE_PATTERN = f"^{NEVER}$|^{' '.join(map(_field, _FIELDS))}$"
ZONE_PATTERN = r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$"


def schedule_fault(schedule: str) -> str | None:
    """Return why a schedule is invalid or never occurs. None if it is usable, or if it is `Never`."""
    if schedule == NEVER:
        return None
    try:
        next(CronSim(schedule, datetime(2026, 1, 1, tzinfo=UTC)))
    except CronSimError as exc:
        return (
            f"{schedule!r} is not a cron schedule ({exc}): give minute, hour, day, month and weekday, for example "
            f"0 3 * * *"
        )
    except StopIteration:
        return f"{schedule!r} never occurs: give a day that the month has"
    return None


def zone_fault(time_zone: str) -> str | None:
    """Return why a time zone cannot be used. None if it can."""
    try:
        zone_of(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        return f"{time_zone!r} is not an IANA time zone: use for example Europe/Berlin or Etc/UTC"
    return None


def next_time_ms(schedule: str, time_zone: str, *, after_ms: int) -> int | None:
    """Return the first time of the schedule after `after_ms`, in Unix milliseconds. None if there is none.

    Schedule and zone must be valid (`schedule_fault`, `zone_fault`).
    """
    if schedule == NEVER:
        return None
    start = datetime.fromtimestamp(after_ms / 1000, zone_of(time_zone))
    times = (int(time.timestamp() * 1000) for time in CronSim(schedule, start))
    # In an hour that clocks repeat, cronsim compares local times only: from the second pass it may return a time of the
    # first.
    return next((time_ms for time_ms in times if time_ms > after_ms), None)


def last_time_ms(schedule: str, time_zone: str, *, until_ms: int) -> int | None:
    """Return the last time of the schedule up to and including `until_ms`, in Unix milliseconds. None if there is none.

    Schedule and zone must be valid (`schedule_fault`, `zone_fault`).
    """
    if schedule == NEVER:
        return None
    end = datetime.fromtimestamp(until_ms // 1000 + 1, zone_of(time_zone))
    last = next(CronSim(schedule, end, reverse=True), None)
    if last is None:
        return None
    last_ms = int(last.timestamp() * 1000)
    # Search forward for the times that cronsim skips: those of the first pass of an hour that clocks repeat.
    while (later_ms := next_time_ms(schedule, time_zone, after_ms=last_ms)) is not None and later_ms <= until_ms:
        last_ms = later_ms
    return last_ms


@lru_cache(maxsize=1024)
def max_interval_ms(schedule: str, time_zone: str) -> int | None:
    """Return the longest sampled interval between two consecutive times of a schedule, in milliseconds.

    The sample has the first two times after a Friday noon, and at most 5,000 more within 13 months. So it includes
    nights and a weekend, and for rarer schedules the ends of months and of a year. None if there are fewer than two
    times.
    """
    if schedule == NEVER:
        return None
    start = datetime(2026, 1, 2, 12, tzinfo=zone_of(time_zone))
    times, end = CronSim(schedule, start), start + timedelta(days=396)
    occurrences = [*islice(times, 2), *takewhile(lambda time: time < end, islice(times, _TIMES))]
    gaps = (int((later.timestamp() - earlier.timestamp()) * 1000) for earlier, later in pairwise(occurrences))
    return max(gaps, default=None)


def spread_ms(identity: str, schedule: str, time_zone: str, *, at_ms: int) -> int:
    """Return by how many milliseconds to delay a run, so that runs of the same schedule do not start together.

    The delay is at most 5 minutes, and at most a tenth of the time until the next run. So runs scheduled every minute
    still happen every minute. It depends only on the identity and this maximum, and is 0 without a next run.

    Args:
        identity: Distinguishes the objects that share a schedule.
        at_ms: The scheduled time in Unix milliseconds.
    """
    next_ms = next_time_ms(schedule, time_zone, after_ms=at_ms) or at_ms
    max_spread_ms = min((next_ms - at_ms) // _SPREAD_SHARE, MAX_SPREAD_MS)
    return zlib.crc32(identity.encode()) % (max_spread_ms + 1)


def next_run_ms(identity: str, schedule: str, time_zone: str, *, after: str | None) -> int | None:
    """Return the due time of the first run after `after`: its scheduled time plus its spread, in Unix milliseconds.

    However many runs were missed since `after`, only this one is due. None if the schedule has no further time.

    Args:
        after: RFC 3339 time, usually of the last run. None is 1970.

    Raises:
        ValueError: If `after` is not an RFC 3339 time.
    """
    due_ms = next_time_ms(schedule, time_zone, after_ms=parse_time(after) if after else 0)
    return None if due_ms is None else due_ms + spread_ms(identity, schedule, time_zone, at_ms=due_ms)


@lru_cache(maxsize=256)
def zone_of(name: str) -> ZoneInfo:
    """Return the IANA time zone of a name.

    Raises:
        ZoneInfoNotFoundError, ValueError, OSError, TypeError: If there is no such zone. `zone_fault` checks for it.
    """
    return ZoneInfo(name)
