"""Times that a query names, such as "last week" or "between May and July": their spans at a reference time.

| kind | shift | span |
|---|---|---|
| `day`, `week`, `month`, `year`, `unit` (the one in the text) | -1, 0, +1 | that calendar unit |
| | `-number`, `+number` | the unit that many units away, the number being in the text |
| | `past` | that many units up to the end of the reference day |
| `hour` | the same | an hour around that time; `past` and -1 are up to the reference time |
| `weekday`, `weekend`, `named` (a month), `season`, `holiday`, `date` | none | of the named year, else the last begun |
| | -2, -1, +1 | the last but one and the last that have ended; the next to begin |
| | 0 | the present one, else the one of the current week or year |
| | `in -1`, `in 0`, `in +1` | the one of the previous, the current or the next week or year |

A week starts on Monday (ISO 8601). A season starts with March, June, September or December. A day starts at midnight
in the time zone: where clocks skip midnight, at the change; where it occurs twice, at the first.
"""

import calendar
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from agentmemory_operator.search.rules.time_words import Mention, TimeWords, find_mentions, is_range
from agentmemory_operator.spec.expression.variables import DAY_MS

MAX_PARSED_CHARS = 500
"""Number of leading characters of a query in which times are recognised. It bounds the CPU time of a long one."""

MAX_MENTIONS = 32
"""Number of times in a query that are examined, also those that do not count or do not exist, such as 31 February."""

MAX_SPANS = 4
LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, in Unix milliseconds."""

_MAX_MARGIN_DAYS = 30
_HOUR_MS = 3_600_000
# First hour and end of each part of a day. A night ends on the next day.
_HOURS = {"morning": (5, 12), "afternoon": (12, 18), "evening": (17, 24), "night": (18, 30)}
_SEASON_MONTHS = 3
# Years around the reference in which a date is looked for. Between two 29 February there may be eight.
_YEARS = range(-8, 9)
_WEEKS = range(-2, 3)
_BUDDHIST_ERA = 543
_RECURRING = ("weekday", "weekend", "named", "season", "holiday", "date")

# Start and end as local times, without a time zone.
Wall = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A span of time that a query names.

    Attributes:
        since_ms: Start, Unix milliseconds.
        until_ms: End, exclusive, Unix milliseconds.
        words: Words of the query that were understood.
    """

    since_ms: int
    until_ms: int
    words: str

    @property
    def margin_ms(self) -> int:
        """Time before and after the span that counts as near it: as long as the span, but 1 to 30 days."""
        return min(max(self.until_ms - self.since_ms, DAY_MS), _MAX_MARGIN_DAYS * DAY_MS)


def find_time_spans(text: str, words: TimeWords, *, reference_ms: int, zone: ZoneInfo) -> tuple[TimeSpan, ...]:
    """Return the spans of the first four existing times among the first 32 that a text names.

    Only the first 500 characters are searched. A weak word such as "may" counts only in a range, or as in "since May".

    Args:
        reference_ms: Time that relative ones refer to, Unix milliseconds.
    """
    text = unicodedata.normalize("NFC", text[:MAX_PARSED_CHARS])
    # The dotted capital I is the only letter whose lower case has two characters, which would shift the places.
    lowered = text.replace("\u0130", "i").lower()
    spans: list[TimeSpan] = []
    mentions = islice(find_mentions(lowered, words), MAX_MENTIONS)
    first = next(mentions, None)
    while first and len(spans) < MAX_SPANS:
        last, following = first, next(mentions, None)
        if following and is_range(lowered, words, first, following):
            last, following = following, next(mentions, None)
        is_time = last is not first or not first.pattern.is_weak or first.relation not in (None, "between")
        if is_time and "number" not in (first.relation, last.relation):
            spans.extend(_resolve(first, last, reference_ms, zone, text[first.start : last.end]))
        first = following
    return tuple(spans)


def _resolve(first: Mention, last: Mention, reference_ms: int, zone: ZoneInfo, words: str) -> Iterator[TimeSpan]:
    """Yield the span of one time, or of the range from one to another; nothing if there is no such time."""
    try:
        now = datetime.fromtimestamp(reference_ms / 1000, zone)
        since_ms, until_ms = _bounds(last, now)
        if first is not last:
            # "Between November and February": the November before that February.
            is_relative = first.pattern.kind not in _RECURRING or first.pattern.shift
            end = now if is_relative else datetime.fromtimestamp((until_ms - 1) / 1000, zone)
            since_ms = _bounds(first, end)[0]
            if since_ms >= until_ms:  # "Between yesterday and last week": the later one comes first.
                since_ms, until_ms = _bounds(last, now)[0], _bounds(first, now)[1]
        else:
            since_ms, until_ms = _related(first.relation, since_ms, until_ms, now)
    except (OverflowError, ValueError):
        return
    since_ms, until_ms = max(0, since_ms), min(until_ms, LAST_MS)
    if since_ms < until_ms:
        yield TimeSpan(since_ms, until_ms, words)


def _related(relation: str | None, since_ms: int, until_ms: int, now: datetime) -> tuple[int, int]:
    # Up to the end of the day, because clocks of other processes may be ahead of the reference.
    end_ms = max(until_ms, _ms(_period("day", _wall(now))[1], now))
    spans = {
        "since": (since_ms, end_ms),
        "until": (0, until_ms),
        "before": (0, since_ms),
        "after": (until_ms, end_ms),
    }
    return spans.get(relation or "", (since_ms, until_ms))


def _bounds(mention: Mention, now: datetime) -> tuple[int, int]:
    """Return start and end of a time in Unix milliseconds.

    Raises:
        OverflowError, ValueError: If there is no such time, for example 31 February.
    """
    values, shift = dict(mention.values), mention.pattern.shift
    if "buddhist" in values:
        values["year"] = values["buddhist"] - _BUDDHIST_ERA
    kind = str(values.get("unit", mention.pattern.kind))
    number = values.get("number", 1)
    if kind == "hour":
        return _hours(shift, number, int(now.timestamp() * 1000))
    if kind in _RECURRING and "number" not in shift and shift != "past":
        since, until = _recurring(kind, shift, values, _wall(now))
    elif "year" in values:
        since, until = _period("year", datetime(values["year"], 1, 1))
    elif shift == "past":
        until = _period("day", _wall(now))[1]
        since = _moved(kind, until, -number)
    else:
        since, until = _period(kind, _moved(kind, _wall(now), int(shift.replace("number", str(number)))))
    if part := mention.pattern.part or values.get("part"):
        since, until = (since + timedelta(hours=hour) for hour in _HOURS[part])
    return _ms(since, now), _ms(until, now)


def _hours(shift: str, number: int, now_ms: int) -> tuple[int, int]:
    if shift in ("past", "-1"):
        return now_ms - number * _HOUR_MS, now_ms + 1
    middle_ms = now_ms + int(shift.replace("number", str(number))) * _HOUR_MS
    return middle_ms - _HOUR_MS // 2, middle_ms + _HOUR_MS // 2


def _recurring(kind: str, shift: str, values: Mapping[str, Any], now: datetime) -> Wall:
    """Return the occurrence that a shift selects.

    Raises:
        OverflowError, ValueError: If there is none.
    """
    if "iso" in values:
        return _period("day", datetime.fromisoformat(values["iso"]))
    is_weekly = kind in ("weekday", "weekend")
    make = partial(_in_week if is_weekly else _in_year, kind, values, now)
    if "year" in values:
        return make(values["year"] - now.year)
    if "years" in values or shift.startswith("in "):
        return make(int(values.get("years", shift.removeprefix("in "))))
    occurrences = list(_existing(make, _WEEKS if is_weekly else _YEARS))
    present = _period("week" if is_weekly else "year", now)
    match shift:
        case "-1" | "-2":
            chosen = [span for span in occurrences if span[1] <= now][int(shift) :]
        case "+1":
            chosen = [span for span in occurrences if span[0] > now]
        case "0":
            chosen = [span for span in occurrences if span[0] <= now < span[1]]
            chosen += [span for span in occurrences if present[0] <= span[0] < present[1]]
        case _:
            chosen = [span for span in occurrences if span[0] <= now][-1:]
    if not chosen:
        raise ValueError("there is no such time")
    return chosen[0]


def _existing(make: Callable[[int], Wall], counts: range) -> Iterator[Wall]:
    for count in counts:
        try:
            yield make(count)
        except (OverflowError, ValueError):
            continue


def _in_week(kind: str, values: Mapping[str, Any], now: datetime, count: int) -> Wall:
    monday = _period("week", _moved("week", now, count))[0]
    if kind == "weekend":
        return _period(kind, monday)
    return _period("day", _moved("day", monday, values["weekday"] - 1))


def _in_year(kind: str, values: Mapping[str, Any], now: datetime, count: int) -> Wall:
    year = now.year + count
    match kind:
        case "holiday":
            month, day, days = map(int, values["holiday"].split("-"))
            start = datetime(year, month, day)
            return start, _moved("day", start, days)
        case "season":
            start = datetime(year, values["season"], 1)
            return start, _moved("month", start, _SEASON_MONTHS)
        case "date":
            return _period("day", datetime(year, _month(values), values["day"]))
    return _period("month", datetime(year, _month(values), 1))


def _month(values: Mapping[str, Any]) -> int:
    # 0 is a number of no month, which `datetime` rejects.
    return int(values["mm"] if "mm" in values else values["month"])


def _period(unit: str, moment: datetime) -> Wall:
    """Return the calendar unit that contains a moment; for `weekend`, the one of its week."""
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    match unit:
        case "week":
            start = day - timedelta(days=day.weekday())
        case "weekend":
            start = day + timedelta(days=5 - day.weekday())
            return start, start + timedelta(days=2)
        case "month":
            start = day.replace(day=1)
        case "year":
            start = day.replace(month=1, day=1)
        case _:
            start = day
    return start, _moved(unit, start, 1)


def _moved(unit: str, moment: datetime, count: int) -> datetime:
    """Return a moment some units later. In a shorter month it is on the last day."""
    if unit in ("day", "week", "weekend"):
        return moment + timedelta(days=count if unit == "day" else 7 * count)
    year, month = divmod(moment.year * 12 + moment.month - 1 + (12 if unit == "year" else 1) * count, 12)
    # `monthrange` accepts years that `datetime` rejects.
    last_day = calendar.monthrange(year, month + 1)[1]
    return moment.replace(year=year, month=month + 1, day=min(moment.day, last_day))


def _wall(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None, fold=0)


def _ms(wall: datetime, now: datetime) -> int:
    return int(wall.replace(tzinfo=now.tzinfo).timestamp() * 1000)
