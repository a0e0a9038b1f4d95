"""Due times of a schedule: cron in a time zone, also across changes of the clocks."""

from datetime import datetime

import pytest

from agentmemory_operator.spec.cron import (
    MAX_SPREAD_MS,
    last_time_ms,
    max_interval_ms,
    next_time_ms,
    schedule_fault,
    spread_ms,
    zone_fault,
)

HOUR_MS = 3_600_000


def ms(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp() * 1000)


def next_times(schedule: str, zone: str, after: str, number: int) -> list[str]:
    """Return the next times in UTC."""
    found, after_ms = [], int(datetime.fromisoformat(after).timestamp() * 1000)
    for _ in range(number):
        due = next_time_ms(schedule, zone, after_ms=after_ms)
        assert due is not None
        found.append(datetime.fromtimestamp(due / 1000, tz=datetime.fromisoformat(after).tzinfo).isoformat()[:16])
        after_ms = due
    return found


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "expected"),
    [
        ("0 3 * * *", "Etc/UTC", "2026-11-22T02:59:59+00:00", ["2026-11-22T03:00", "2026-11-23T03:00"]),
        ("0 3 * * *", "Etc/UTC", "2026-11-22T03:00:00+00:00", ["2026-11-23T03:00", "2026-11-24T03:00"]),
        ("0 3 * * *", "Asia/Kolkata", "2026-11-22T00:00:00+00:00", ["2026-11-22T21:30", "2026-11-23T21:30"]),
        ("30 4 1 JAN *", "Etc/UTC", "2026-11-22T00:00:00+00:00", ["2027-01-01T04:30", "2028-01-01T04:30"]),
        ("0 0 29 2 *", "Etc/UTC", "2026-11-22T00:00:00+00:00", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        # 2:30 does not exist on 29 March 2026: right after the gap, at 3:00 summer time.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00+00:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        # 2:30 occurs twice on 25 October 2026: the schedule is due once.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00+00:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        # Hourly schedules follow elapsed time.
        ("0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00+00:00", ["2026-10-25T00:00", "2026-10-25T01:00"]),
        ("0 * * * *", "Europe/Berlin", "2026-03-29T00:30:00+00:00", ["2026-03-29T01:00", "2026-03-29T02:00"]),
        # During the repeated hour, the first 2:30 is past.
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00+00:00", ["2026-10-26T01:30", "2026-10-27T01:30"]),
        # Two times in one gap are due once.
        ("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00+00:00", ["2026-03-29T01:00", "2026-03-30T00:00"]),
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00:00+00:00", ["2026-03-08T07:00", "2026-03-09T06:30"]),
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00:00+00:00", ["2026-11-01T05:30", "2026-11-02T06:30"]),
        # Lord Howe's clocks move by half an hour.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00+00:00", ["2026-10-03T15:30", "2026-10-04T15:15"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00+00:00", ["2026-04-04T14:45", "2026-04-05T15:15"]),
        # Midnight does not exist in Santiago on 6 September 2026.
        ("0 0 * * *", "America/Santiago", "2026-09-05T12:00:00+00:00", ["2026-09-06T04:00", "2026-09-07T03:00"]),
        # Apia had no 30 December 2011: its noon is due at the following midnight.
        ("0 12 * * *", "Pacific/Apia", "2011-12-29T23:00:00+00:00", ["2011-12-30T10:00", "2011-12-30T22:00"]),
    ],
)
def test_next_times_follow_the_clock_of_the_zone(schedule: str, zone: str, after: str, expected: list[str]) -> None:
    assert next_times(schedule, zone, after, len(expected)) == expected


def test_never_has_no_next_time() -> None:
    assert next_time_ms("Never", "Etc/UTC", after_ms=0) is None


@pytest.mark.parametrize(
    ("schedule", "message"),
    [("0 3 * * *", None), ("Never", None), ("0 3 30 2 *", "30 2"), ("9-5 3 * * *", "Bad minute")],
)
def test_fault_of_an_impossible_schedule_is_found(schedule: str, message: str | None) -> None:
    fault = schedule_fault(schedule)

    assert (fault is None) == (message is None)
    assert message is None or message in str(fault)


@pytest.mark.parametrize(
    ("zone", "is_valid"),
    [
        ("Europe/Berlin", True),
        ("Etc/UTC", True),
        ("Europe/Berlun", False),
        # ZoneInfo raises a different error for each of these.
        ("Europe", False),
        ("leapseconds", False),
        ("Europe/__init__/x", False),
        ("A" * 256, False),
        ("\ud800", False),
        ("../UTC", False),
    ],
)
def test_zone_must_exist_in_the_database(zone: str, is_valid: bool) -> None:
    assert (zone_fault(zone) is None) == is_valid


@pytest.mark.parametrize(
    ("schedule", "zone", "until", "expected"),
    [
        ("0 3 * * *", "Etc/UTC", "2026-11-22T03:00:00+00:00", "2026-11-22T03:00:00+00:00"),
        ("0 3 * * *", "Etc/UTC", "2026-11-22T02:59:59+00:00", "2026-11-21T03:00:00+00:00"),
        ("0 3 * * 1-5", "Etc/UTC", "2026-11-22T12:00:00+00:00", "2026-11-20T03:00:00+00:00"),
        # Times in the skipped hour, and in the repeated hour.
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T01:00:00+00:00", "2026-03-29T01:00:00+00:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T00:59:59+00:00", "2026-03-28T01:30:00+00:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00+00:00", "2026-10-25T00:30:00+00:00"),
        ("*/15 * * * *", "Europe/Berlin", "2026-10-25T01:10:00+00:00", "2026-10-25T01:00:00+00:00"),
    ],
)
def test_last_time_matches_the_next_times(schedule: str, zone: str, until: str, expected: str) -> None:
    found = last_time_ms(schedule, zone, until_ms=ms(until))

    assert found == ms(expected)


@pytest.mark.parametrize(
    ("schedule", "zone", "hours"),
    [
        ("0 */6 * * *", "Etc/UTC", 6),
        ("0 3 * * *", "Etc/UTC", 24),
        ("0 3 * * *", "Europe/Berlin", 25),
        ("0 3 * * 1-5", "Etc/UTC", 72),
        ("* 9-17 * * 1-5", "Etc/UTC", 63 + 1 / 60),
        ("0 0 1 * *", "Etc/UTC", 31 * 24),
        ("0 0 29 2 *", "Etc/UTC", 1461 * 24),
    ],
)
def test_max_interval_spans_nights_and_leap_years(schedule: str, zone: str, hours: float) -> None:
    assert max_interval_ms(schedule, zone) == pytest.approx(hours * HOUR_MS)


def test_never_has_no_last_time_and_no_interval() -> None:
    assert last_time_ms("Never", "Etc/UTC", until_ms=0) is None
    assert max_interval_ms("Never", "Etc/UTC") is None


def test_spread_is_even_bounded_and_stable() -> None:
    at_ms = ms("2026-11-22T03:00:00+00:00")
    delays_ms = [spread_ms(f"agent-{n}", "0 3 * * *", "Etc/UTC", at_ms=at_ms) for n in range(1000)]
    next_day = [spread_ms(f"agent-{n}", "0 3 * * *", "Etc/UTC", at_ms=at_ms + 24 * HOUR_MS) for n in range(1000)]

    assert max(delays_ms) <= MAX_SPREAD_MS
    # No 10 seconds of the 5 minutes contain a tenth of the agents.
    assert max(sum(first <= delay_ms < first + 10_000 for delay_ms in delays_ms) for first in delays_ms) < 100
    assert delays_ms == next_day


def test_spread_is_at_most_a_tenth_of_a_minute() -> None:
    at_ms = ms("2026-11-22T03:00:00+00:00")

    assert max(spread_ms(str(n), "* * * * *", "Etc/UTC", at_ms=at_ms) for n in range(200)) <= 6_000
