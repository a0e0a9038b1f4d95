"""Times in queries, for drawn zones and reference times: each starts at the start of a day in the zone."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import assume, given
from hypothesis import strategies as st

from agentmemory_operator.search.times import find_times

ZONES = (
    *("Europe/Berlin", "America/New_York", "America/Sao_Paulo", "America/Havana", "Asia/Tokyo", "Asia/Kathmandu"),
    *("Africa/Casablanca", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Kiritimati", "Asia/Beirut", "Etc/GMT+12"),
)
MOMENTS = st.integers(min_value=86_400_000 * 800, max_value=4_102_444_800_000)
WORDS = (
    "yesterday",
    "today",
    "tomorrow",
    "last week",
    "this week",
    "next week",
    "last month",
    "this month",
    "last year",
)


def span(words: str, at_ms: int, zone: str) -> tuple[int, int]:
    [found] = find_times(words, "english", reference_ms=at_ms, time_zone=zone)
    return found.since_ms, found.until_ms


def wall(time_ms: int, zone: str) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, ZoneInfo(zone))


@given(MOMENTS, st.sampled_from(ZONES), st.sampled_from(WORDS))
def test_spans_begin_with_the_day_of_the_zone(at_ms: int, zone: str, words: str) -> None:
    """The moment before the start is on an earlier day of the zone than the start."""
    for end_ms in span(words, at_ms, zone):
        assert wall(end_ms - 1, zone).date() < wall(end_ms, zone).date()


@given(MOMENTS, st.sampled_from(ZONES), st.sampled_from(WORDS))
def test_spans_differ_from_those_in_utc(at_ms: int, zone: str, words: str) -> None:
    since_ms, until_ms = span(words, at_ms, zone)
    offset = wall(since_ms, zone).utcoffset()
    assume(offset and offset.total_seconds() % 86_400)

    assert (since_ms, until_ms) != span(words, at_ms, "UTC")


@given(MOMENTS, st.sampled_from(ZONES))
def test_neighbouring_spans_meet(at_ms: int, zone: str) -> None:
    for before, present, after in (WORDS[:3], WORDS[3:6]):
        spans = [span(words, at_ms, zone) for words in (before, present, after)]

        assert spans[0][1] == spans[1][0]
        assert spans[1][1] == spans[2][0]
        assert spans[1][0] <= at_ms < spans[1][1]
    assert wall(span("this week", at_ms, zone)[0], zone).weekday() == 0


@given(MOMENTS, st.sampled_from(ZONES), st.integers(min_value=1, max_value=500))
def test_days_ago_are_calendar_days(at_ms: int, zone: str, count: int) -> None:
    since_ms, _ = span(f"{count} days ago", at_ms, zone)

    assert wall(since_ms, zone).date() == wall(at_ms, zone).date() - timedelta(days=count)
    assert datetime.fromtimestamp(since_ms / 1000, UTC) < datetime.fromtimestamp(at_ms / 1000, UTC)
