"""`python -m bench.times`: recognition of times in questions, in nine languages, and its CPU time.

Each question of `bench/data/times` has a reference time, a zone, and the span that it names or none. A span is right if
start and end are equal; a false alarm is a span in a question that names none. If dateparser is installed, it answers
the same questions: by the day, week, month or year that it reports for each date that it finds.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from agentmemory_operator.search.times import find_times, read_words
from agentmemory_operator.spec.times import parse_time
from bench.tables import Cells, machine, render

DATA = Path(__file__).parent / "data" / "times" / "questions.json"
HEAD = ("language", "questions", "right", "wrong", "missed", "none", "false alarms", "us a question")
CODES = {"english": "en", "german": "de", "spanish": "es", "french": "fr", "russian": "ru", "chinese": "zh"}
CODES |= {"japanese": "ja", "korean": "ko", "thai": "th"}
REPEATS = 20

Json = dict[str, Any]
Spans = list[tuple[int, int]]


def read_questions() -> list[Json]:
    """Return the questions. `expected` is start and end of the span in Unix milliseconds, None if there is none."""
    questions: list[Json] = json.loads(DATA.read_text(encoding="utf-8"))["questions"]
    return [question | {"expected": question["span"] and tuple(_ends(question))} for question in questions]


def _ends(question: Json) -> Iterator[int]:
    zone = ZoneInfo(question["time_zone"])
    for end in question["span"]:
        # "1970" stands for no start, in every zone.
        yield max(0, int(datetime.fromisoformat(end).replace(tzinfo=zone).timestamp() * 1000))


def find_by_rules(question: Json) -> Spans:
    """Return the spans that a search uses."""
    found = find_times(
        question["question"],
        question["language"],
        reference_ms=parse_time(question["reference_time"]),
        time_zone=question["time_zone"],
    )
    return [(span.since_ms, span.until_ms) for span in found]


def find_in_any_language(question: Json) -> Spans:
    """Return the spans that a search uses if the agent's keywords have the language `auto`."""
    return find_by_rules(question | {"language": "auto"})


def find_by_dateparser(question: Json) -> Spans:
    """Return the periods of the dates that dateparser finds in a question."""
    zone = ZoneInfo(question["time_zone"])
    now = datetime.fromisoformat(question["reference_time"]).astimezone(zone).replace(tzinfo=None)
    settings = {"RELATIVE_BASE": now, "PREFER_DATES_FROM": "past", "RETURN_TIME_AS_PERIOD": True}
    languages = [CODES[question["language"]]]
    search = import_module("dateparser.search").search_dates
    found = search(question["question"], languages=languages, settings=settings)
    reader = import_module("dateparser.date").DateDataParser(languages=languages, settings=settings)
    return [_period(moment, reader.get_date_data(words).period, zone) for words, moment in found or ()]


def _period(moment: datetime, period: str | None, zone: ZoneInfo) -> tuple[int, int]:
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    match period:
        case "week":
            start = day - timedelta(days=day.weekday())
            end = start + timedelta(days=7)
        case "month":
            start = day.replace(day=1)
            end = (start + timedelta(days=32)).replace(day=1)
        case "year":
            start = day.replace(month=1, day=1)
            end = start.replace(year=start.year + 1)
        case "time":
            start, end = moment - timedelta(minutes=30), moment + timedelta(minutes=30)
        case _:
            start, end = day, day + timedelta(days=1)
    since_ms, until_ms = (int(bound.replace(tzinfo=zone).timestamp() * 1000) for bound in (start, end))
    return since_ms, until_ms


def judge(question: Json, spans: Spans) -> str:
    """Return the column of `HEAD` that counts the spans which were found for a question."""
    if question["expected"] is None:
        return "false alarms" if spans else "none"
    return "right" if spans == [question["expected"]] else "wrong" if spans else "missed"


def rows(questions: list[Json], find: Callable[[Json], Spans]) -> Iterator[Cells]:
    """Yield one row for each language, and one for all."""
    totals: Counter[str] = Counter()
    spent_s = 0.0
    for language in dict.fromkeys(question["language"] for question in questions):
        asked = [question for question in questions if question["language"] == language]
        counts = Counter(judge(question, find(question)) for question in asked)
        started_s = time.process_time()
        for question in asked * REPEATS:
            find(question)
        took_s = (time.process_time() - started_s) / REPEATS
        yield _row(language, counts, took_s)
        totals, spent_s = totals + counts, spent_s + took_s
    yield _row("all", totals, spent_s)


def _row(name: str, counts: Counter[str], took_s: float) -> Cells:
    count = counts.total()
    return (name, str(count), *(str(counts[column]) for column in HEAD[2:-1]), f"{took_s / count * 1e6:.0f}")


def main() -> None:
    questions = read_questions()
    print(machine())
    started_s = time.process_time()
    for language in CODES:
        read_words(language)
    print(f"all tables are read in {(time.process_time() - started_s) * 1000:.0f} ms")
    ways = {"rules": find_by_rules, "rules, with the language `auto`": find_in_any_language} | (
        {"dateparser": find_by_dateparser} if find_spec("dateparser") else {}
    )
    for name, find in ways.items():
        print(f"\n{name}\n\n{render(HEAD, list(rows(questions, find)))}", flush=True)
    for question in questions:
        if (verdict := judge(question, find_by_rules(question))) not in ("right", "none"):
            print(f"{verdict}: {question['question']}")


if __name__ == "__main__":
    main()
