"""When a schedule is due: cron in a time zone, also where clocks are set forward or back."""

from datetime import datetime

import pytest

from agentmemory_operator.domain.schedule import next_time_ms, schedule_fault, zone_fault


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
    ("schedule", "zone", "after", "wanted"),
    [
        ("0 3 * * *", "Etc/UTC", "2026-11-22T02:59:59+00:00", ["2026-11-22T03:00", "2026-11-23T03:00"]),
        ("0 3 * * *", "Etc/UTC", "2026-11-22T03:00:00+00:00", ["2026-11-23T03:00", "2026-11-24T03:00"]),
        ("0 3 * * *", "Asia/Kolkata", "2026-11-22T00:00:00+00:00", ["2026-11-22T21:30", "2026-11-23T21:30"]),
        ("30 4 1 JAN *", "Etc/UTC", "2026-11-22T00:00:00+00:00", ["2027-01-01T04:30", "2028-01-01T04:30"]),
        ("0 0 29 2 *", "Etc/UTC", "2026-11-22T00:00:00+00:00", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        # 2:30 does not exist on 29 March 2026: right after the gap, at 3:00 summer time.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00+00:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        # 2:30 comes twice on 25 October 2026: once.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00+00:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        # By the hour it goes by the time that passes.
        ("0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00+00:00", ["2026-10-25T00:00", "2026-10-25T01:00"]),
        ("0 * * * *", "Europe/Berlin", "2026-03-29T00:30:00+00:00", ["2026-03-29T01:00", "2026-03-29T02:00"]),
    ],
)
def test_the_next_times_are_those_of_the_clock_in_the_zone(
    schedule: str, zone: str, after: str, wanted: list[str]
) -> None:
    assert next_times(schedule, zone, after, len(wanted)) == wanted


def test_a_schedule_of_never_has_no_next_time() -> None:
    assert next_time_ms("Never", "Etc/UTC", after_ms=0) is None


@pytest.mark.parametrize(
    ("schedule", "words"), [("0 3 * * *", None), ("Never", None), ("0 3 30 2 *", "30 2"), ("9-5 3 * * *", "Bad minute")]
)
def test_what_a_pattern_cannot_see_is_told(schedule: str, words: str | None) -> None:
    fault = schedule_fault(schedule)

    assert (fault is None) == (words is None)
    assert words is None or words in str(fault)


@pytest.mark.parametrize(("zone", "is_good"), [("Europe/Berlin", True), ("Etc/UTC", True), ("Europe/Berlun", False)])
def test_a_zone_is_one_of_the_database(zone: str, is_good: bool) -> None:
    assert (zone_fault(zone) is None) == is_good
