"""When something that repeats is due: cron expressions in a time zone.

Where clocks are set forward or back, a time of day that is skipped comes right after the gap, and one that comes twice
counts once, as in Debian's cron; a schedule by the hour or the minute goes by the time that passes.
"""

import zlib
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from agentmemory_operator.spec.times import parse_time

NEVER = "Never"

LARGEST_SPREAD_MS = 300_000
_SPREAD_SHARE = 10
_TIMES = 5000

_MONTHS = "JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC"
_DAYS = "SUN|MON|TUE|WED|THU|FRI|SAT"


def _field(value: str) -> str:
    """The pattern of one field: values, ranges and steps, separated by commas."""
    one = rf"(\*|({value})(-({value}))?)(/[1-9][0-9]?)?"
    return rf"{one}(,{one})*"


_FIELDS = (
    "[0-5]?[0-9]",
    "[01]?[0-9]|2[0-3]",
    "0?[1-9]|[12][0-9]|3[01]",
    f"0?[1-9]|1[0-2]|{_MONTHS}",
    f"[0-7]|{_DAYS}",
)
SCHEDULE_PATTERN = f"^{NEVER}$|^{' '.join(map(_field, _FIELDS))}$"
ZONE_PATTERN = r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$"


def schedule_fault(schedule: str) -> str | None:
    """Why a schedule of the right form can never be followed, None where it can."""
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
    """Why a time zone cannot be used, None where it can."""
    try:
        zone_of(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"{time_zone!r} is not an IANA time zone: use for example Europe/Berlin or Etc/UTC"
    return None


def next_time_ms(schedule: str, time_zone: str, *, after_ms: int) -> int | None:
    """The first time after `after_ms` (Unix milliseconds) that the schedule names, None where there is none.

    The schedule and the zone have no fault.
    """
    if schedule == NEVER:
        return None
    after = datetime.fromtimestamp(after_ms / 1000, zone_of(time_zone))
    times = (int(found.timestamp() * 1000) for found in CronSim(schedule, after))
    # Within an hour that comes twice the library goes by the clock alone, and may name the first one from the second.
    return next((time_ms for time_ms in times if time_ms > after_ms), None)


def last_time_ms(schedule: str, time_zone: str, *, until_ms: int) -> int | None:
    """The last time up to and with `until_ms` that the schedule names, None where there is none.

    The schedule and the zone have no fault.
    """
    if schedule == NEVER:
        return None
    until = datetime.fromtimestamp(until_ms // 1000 + 1, zone_of(time_zone))
    before = next(CronSim(schedule, until, reverse=True), None)
    if before is None:
        return None
    last_ms = int(before.timestamp() * 1000)
    # Where an hour comes twice, the library misses what the first one had.
    while (later_ms := next_time_ms(schedule, time_zone, after_ms=last_ms)) is not None and later_ms <= until_ms:
        last_ms = later_ms
    return last_ms


@lru_cache(maxsize=1024)
def longest_gap_ms(schedule: str, time_zone: str) -> int | None:
    """The longest time between two neighbours of a schedule's times, None where there are no two.

    Looked for in 13 months from a Friday noon on, among the first 5,000 times: a night, a weekend, and the ends of a
    month and of a year are in them.
    """
    if schedule == NEVER:
        return None
    first = datetime(2026, 1, 2, 12, tzinfo=zone_of(time_zone))
    times, end = CronSim(schedule, first), first + timedelta(days=396)
    seen = [*islice(times, 2), *takewhile(lambda time: time < end, islice(times, _TIMES))]
    gaps = (int((after.timestamp() - before.timestamp()) * 1000) for before, after in pairwise(seen))
    return max(gaps, default=None)


def spread_ms(identity: str, schedule: str, time_zone: str, *, at_ms: int) -> int:
    """The delay of a run after a time of its schedule, so that a thousand do not start at once, milliseconds.

    It is the same each time: up to a tenth of the time until the next one, so that runs by the minute are still made
    each minute, and at most 5 minutes.

    Args:
        identity: what tells one from another.
        at_ms: the time that the schedule names.
    """
    after_ms = next_time_ms(schedule, time_zone, after_ms=at_ms) or at_ms
    most = min((after_ms - at_ms) // _SPREAD_SHARE, LARGEST_SPREAD_MS)
    return zlib.crc32(identity.encode()) % (most + 1)


def next_run_ms(identity: str, schedule: str, time_zone: str, *, after: str | None) -> int | None:
    """When a run is due, however many times were missed since `after`: the next time of the schedule, and its spread.

    Args:
        after: RFC 3339; None is 1970.
    """
    due = next_time_ms(schedule, time_zone, after_ms=parse_time(after) if after else 0)
    return None if due is None else due + spread_ms(identity, schedule, time_zone, at_ms=due)


@lru_cache(maxsize=256)
def zone_of(name: str) -> ZoneInfo:
    """The time zone of a checked name."""
    return ZoneInfo(name)
