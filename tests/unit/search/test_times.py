"""Times in queries: the questions of the benchmark, and difficult zones, calendars and texts."""

import unicodedata
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from agentmemory_operator.search.rules.time_spans import LAST_MS, MAX_MENTIONS, MAX_PARSED_CHARS
from agentmemory_operator.search.times import find_times, list_languages, read_words
from agentmemory_operator.spec.times import parse_time
from bench.times import find_by_rules, find_in_any_language, judge, read_questions

WEDNESDAY = "2026-05-20T10:30:00Z"
# Queries that the rules misread: ambiguous dates, moving holidays, and titles that sound like times.
NOT_UNDERSTOOD = {
    "What did I tell you on 12/24/2025?": "missed",
    "What did the plumber charge after Easter?": "missed",
    "Which song is called Yesterday?": "false alarms",
}


def spans(
    text: str, language: str = "english", *, at: str = WEDNESDAY, zone: str = "UTC"
) -> list[tuple[str, str, str]]:
    """Return start, end and words of each time, in the time of the zone."""
    found = find_times(text, language, reference_ms=parse_time(at), time_zone=zone)
    return [(local(span.since_ms, zone), local(span.until_ms, zone), span.words) for span in found]


def local(time_ms: int, zone: str) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, ZoneInfo(zone)):%Y-%m-%d %H:%M}"


def days(text: str, **more: Any) -> list[tuple[str, str]]:
    """Return the first day of each time, and the day after the last. All times must start and end at midnight."""
    found = spans(text, **more)
    assert all(since.endswith("00:00") and until.endswith("00:00") for since, until, _ in found)
    return [(since[:10], until[:10]) for since, until, _ in found]


@pytest.mark.parametrize("question", read_questions(), ids=lambda question: question["question"])
def test_questions_of_the_benchmark(question: dict[str, Any]) -> None:
    expected = NOT_UNDERSTOOD.get(question["question"], "right" if question["expected"] else "none")

    assert judge(question, find_by_rules(question)) == expected


def test_benchmark_has_questions_without_a_time_in_each_language() -> None:
    questions = read_questions()

    assert len(questions) >= 100
    assert {question["language"] for question in questions} == set(list_languages())
    for language in list_languages():
        own = [question for question in questions if question["language"] == language]
        assert 3 <= sum(question["expected"] is None for question in own) < len(own)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on 8 May 2023", [("2023-05-08", "2023-05-09")]),
        ("on May 8th, 2023", [("2023-05-08", "2023-05-09")]),
        ("on 2023-05-08", [("2023-05-08", "2023-05-09")]),
        ("in December 2023", [("2023-12-01", "2024-01-01")]),
        ("in 2023", [("2023-01-01", "2024-01-01")]),
        ("on 31 February 2023", []),
        ("on 31 February", []),
        ("on 2023-99-99", []),
        ("in May", [("2026-05-01", "2026-06-01")]),
        ("in June", [("2025-06-01", "2025-07-01")]),
        ("last May", [("2025-05-01", "2025-06-01")]),
        ("next May", [("2027-05-01", "2027-06-01")]),
        ("this June", [("2026-06-01", "2026-07-01")]),
        ("last Wednesday", [("2026-05-13", "2026-05-14")]),
        ("on Wednesday", [("2026-05-20", "2026-05-21")]),
        ("next Wednesday", [("2026-05-27", "2026-05-28")]),
        ("this Sunday", [("2026-05-24", "2026-05-25")]),
        ("on Tuesday last week", [("2026-05-12", "2026-05-13")]),
        ("this winter", [("2026-12-01", "2027-03-01")]),
        ("last weekend", [("2026-05-16", "2026-05-18")]),
        ("the weekend before last", [("2026-05-09", "2026-05-11")]),
        ("between November and February", [("2025-11-01", "2026-03-01")]),
        ("between March and May 2022", [("2022-03-01", "2022-06-01")]),
        ("from Monday to Tuesday", [("2026-05-18", "2026-05-20")]),
        ("between last week and yesterday", [("2026-05-11", "2026-05-20")]),
        ("on 3 may we met", [("2026-05-03", "2026-05-04")]),
        ("between yesterday and last week", [("2026-05-11", "2026-05-20")]),
        ("between 2024 and 2022", [("2022-01-01", "2025-01-01")]),
        ("from Tuesday to Monday", [("2026-05-12", "2026-05-19")]),
        ("on 3 May", [("2026-05-03", "2026-05-04")]),
        ("since last week", [("2026-05-11", "2026-05-21")]),
        ("after March", [("2026-04-01", "2026-05-21")]),
        ("until yesterday", [("1970-01-01", "2026-05-20")]),
        ("since tomorrow", [("2026-05-21", "2026-05-22")]),
        ("yesterday or last year", [("2026-05-19", "2026-05-20"), ("2025-01-01", "2026-01-01")]),
        ("in 100 years", [("2126-01-01", "2127-01-01")]),
        ("999 years ago", []),
    ],
)
def test_english_times(text: str, expected: list[tuple[str, str]]) -> None:
    assert days(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "before the move to Oslo",
        "the last",
        "a second",
        "may march on",
        "April and June",
        "a letter from April",
        "in April's kitchen",
        "on Sundays",
        "sun",
        "room 2023",
        "v2023.4.1",
        "12023 apples",
        "three weeks",
        "twenty-five days ago",
        "twenty five days ago",
        "one hundred and two days ago",
        "half a year ago",
        "three quarters of an hour ago",
        "from yesterday to twenty-five days ago",
        "1.5 hours ago",
        "2.5 years ago",
        "1,000 days ago",
        "0 days ago",
        "Which of those 3 may be wrong?",
        "explain it in 2000 words",
        "lastweek",
        "-number",
    ],
)
def test_words_that_are_no_time(text: str) -> None:
    assert spans(text) == []


@pytest.mark.parametrize(
    ("language", "text"),
    [
        *((language, "release 3.0.2024") for language in ("auto", "none", "german")),
        ("russian", "12.0.2023"),
        ("french", "le 1/00/2023"),
        ("spanish", "5/0/2024"),
        *((language, "0月") for language in ("chinese", "japanese")),
        ("korean", "0월"),
    ],
)
def test_month_zero_is_no_time(language: str, text: str) -> None:
    assert spans(text, language) == []


class TestZones:
    @pytest.mark.parametrize(
        ("zone", "at", "hours"),
        [
            pytest.param("Europe/Berlin", "2025-03-30T10:00:00Z", 23, id="an hour is skipped"),
            pytest.param("Europe/Berlin", "2025-10-26T10:00:00Z", 25, id="an hour occurs twice"),
            pytest.param("America/Sao_Paulo", "2018-11-04T15:00:00Z", 23, id="midnight is skipped"),
            pytest.param("America/Havana", "2023-11-05T15:00:00Z", 25, id="midnight occurs twice"),
            pytest.param("Australia/Lord_Howe", "2025-10-05T05:00:00Z", 23.5, id="half an hour is skipped"),
            pytest.param("Asia/Kathmandu", "2025-10-05T05:00:00Z", 24, id="a quarter of an hour"),
        ],
    )
    def test_day_ends_where_the_next_begins(self, zone: str, at: str, hours: float) -> None:
        at_ms = parse_time(at)
        yesterday, today, tomorrow = (
            find_times(word, "english", reference_ms=at_ms, time_zone=zone)[0]
            for word in ("yesterday", "today", "tomorrow")
        )

        assert today.until_ms - today.since_ms == hours * 3_600_000
        assert (yesterday.until_ms, today.until_ms) == (today.since_ms, tomorrow.since_ms)

    def test_zone_decides_the_day(self) -> None:
        at = "2026-01-01T03:00:00Z"

        assert days("today", at=at) == [("2026-01-01", "2026-01-02")]
        assert days("today", at=at, zone="America/New_York") == [("2025-12-31", "2026-01-01")]
        assert days("last year", at=at, zone="America/New_York") == [("2024-01-01", "2025-01-01")]

    @pytest.mark.parametrize(
        ("language", "text"),
        [("english", "in the past hour"), ("german", "in der letzten Stunde"), ("spanish", "en la última hora")],
    )
    def test_last_hour_ends_at_the_reference_time(self, language: str, text: str) -> None:
        [found] = find_times(text, language, reference_ms=parse_time(WEDNESDAY), time_zone="UTC")

        assert (found.since_ms, found.until_ms) == (parse_time("2026-05-20T09:30:00Z"), parse_time(WEDNESDAY) + 1)

    def test_hours_are_real_hours_where_clocks_change(self) -> None:
        """At 3:30 after the change, two hours ago was 0:30."""
        found = spans("2 hours ago", at="2025-03-30T01:30:00Z", zone="Europe/Berlin")

        assert found == [("2025-03-30 00:00", "2025-03-30 01:00", "2 hours ago")]


class TestCalendar:
    @pytest.mark.parametrize(
        ("at", "text", "expected"),
        [
            ("2023-03-01T00:00:00Z", "on 29 February", ("2020-02-29", "2020-03-01")),
            ("1971-03-01T00:00:00Z", "on 29 February", None),
            ("2024-02-29T00:00:00Z", "a year ago", ("2023-01-01", "2024-01-01")),
            ("2024-03-31T00:00:00Z", "last month", ("2024-02-01", "2024-03-01")),
            ("2024-03-31T00:00:00Z", "in the past 1 month", ("2024-03-01", "2024-04-01")),
            ("2024-12-30T00:00:00Z", "last week", ("2024-12-23", "2024-12-30")),
            ("2024-12-29T23:59:59Z", "last week", ("2024-12-16", "2024-12-23")),
            ("2025-01-01T00:00:00Z", "yesterday", ("2024-12-31", "2025-01-01")),
        ],
    )
    def test_edges(self, at: str, text: str, expected: tuple[str, str] | None) -> None:
        assert days(text, at=at) == ([expected] if expected else [])

    @pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
    @pytest.mark.parametrize("at", ["1970-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z"])
    def test_times_at_the_ends_of_the_range_stay_in_it(self, at: str, zone: str) -> None:
        texts = [
            "yesterday",
            "tomorrow",
            "last week",
            "next year",
            "3 months ago",
            "in 3 weeks",
            "in March",
            "since Christmas",
        ]
        texts += [
            "on Monday",
            "next Monday",
            "2 hours ago",
            "in 999 years",
            "999 years ago",
            "last weekend",
            "next summer",
        ]

        for text in texts:
            for span in find_times(text, "english", reference_ms=parse_time(at), time_zone=zone):
                assert 0 <= span.since_ms < span.until_ms <= LAST_MS, text


class TestText:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            pytest.param("\u0130\u0130\u0130 Yesterday?", "Yesterday", id="dotted capital I"),
            pytest.param("LAST\u00a0WEEK", "LAST\u00a0WEEK", id="capitals, no-break space"),
            pytest.param("\u0663 days ago", "\u0663 days ago", id="Arabic digits"),
            pytest.param("(yesterday)", "yesterday", id="brackets"),
            pytest.param("last week's trip", "last week", id="genitive"),
        ],
    )
    def test_words_are_quoted_as_written(self, text: str, words: str) -> None:
        assert [found for _, _, found in spans(text)] == [words]

    def test_dotless_i_is_another_letter(self) -> None:
        assert spans("th\u0131s week") == []

    def test_decomposed_letters_are_understood(self) -> None:
        text = unicodedata.normalize("NFD", "im März")

        assert days(text, language="german") == [("2026-03-01", "2026-04-01")]

    @pytest.mark.parametrize(
        ("part", "language", "count"),
        [
            ("yesterday ", "english", 4),
            ("yesterday ", "none", 4),
            ("3 may 2023,", "english", 4),
            ("昨天", "chinese", 4),
            ("昨天", "none", 4),
            ("between may and ", "english", 4),
            ("last ", "none", 0),
            ("1 ", "none", 0),
            ("may ", "english", 0),
            (" ", "none", 0),
            ("2023", "none", 0),
            ("2023 ", "none", 0),
            ("2024-", "none", 0),
            ("二月31日", "none", 0),
            ("a few ", "none", 0),
        ],
    )
    def test_long_text_has_at_most_four_times(self, part: str, language: str, count: int) -> None:
        assert len(spans((part * 65_536)[:65_536], language)) == count

    @pytest.mark.parametrize(("language", "part"), [("english", "2023 "), ("none", "2023 "), ("chinese", "二月31日")])
    def test_times_that_do_not_count_are_limited(self, language: str, part: str) -> None:
        last = "昨天" if language == "chinese" else "yesterday"

        assert spans(part * (MAX_MENTIONS - 1) + last, language)
        assert spans(part * MAX_MENTIONS + last, language) == []

    def test_end_of_a_long_text_is_not_read(self) -> None:
        assert spans("x" * (MAX_PARSED_CHARS - 10) + " yesterday")
        assert spans("x" * MAX_PARSED_CHARS + " yesterday") == []


class TestLanguages:
    def test_language_of_the_agent_decides(self) -> None:
        assert spans("yesterday", "german") == []
        assert days("gestern", language="german") == [("2026-05-19", "2026-05-20")]

    @pytest.mark.parametrize(
        ("language", "text", "expected"),
        [
            ("korean", "오늘 전화한 사람", ("2026-05-20", "2026-05-21")),
            ("korean", "어제 전달한 파일", ("2026-05-19", "2026-05-20")),
            ("korean", "월요일 전략 회의", ("2026-05-18", "2026-05-19")),
            ("korean", "월요일 전에", ("1970-01-01", "2026-05-18")),
            ("korean", "월요일 전까지는", ("1970-01-01", "2026-05-18")),
            ("korean", "월요일 이전", ("1970-01-01", "2026-05-18")),
            ("korean", "3일 전화", None),
            ("korean", "3일 전에", ("2026-05-17", "2026-05-18")),
            ("korean", "이틀 전", ("2026-05-18", "2026-05-19")),
            ("korean", "3일 후배", None),
            ("japanese", "昨日の前田さん", ("2026-05-19", "2026-05-20")),
            ("japanese", "昨日の後輩", ("2026-05-19", "2026-05-20")),
            ("japanese", "昨日の前に", ("1970-01-01", "2026-05-19")),
            ("japanese", "昨日の後", ("2026-05-20", "2026-05-21")),
        ],
    )
    def test_next_word_is_no_suffix(self, language: str, text: str, expected: tuple[str, str] | None) -> None:
        assert days(text, language=language) == ([expected] if expected else [])

    @pytest.mark.parametrize(
        ("language", "text"), [("german", "vorletztes Wochenende"), ("spanish", "el fin de semana antepasado")]
    )
    def test_weekend_before_last(self, language: str, text: str) -> None:
        assert days(text, language=language) == [("2026-05-09", "2026-05-11")]

    @pytest.mark.parametrize(
        ("language", "text"),
        [
            ("russian", "двадцать пять дней назад"),
            ("russian", "двадцать лет назад"),
            ("russian", "полтора года назад"),
            ("russian", "1000 дней назад"),
            ("russian", "2,5 года назад"),
            ("chinese", "二十五天前"),
            ("chinese", "二十天前"),
            ("chinese", "1.5年前"),
            ("japanese", "二十五日前"),
            ("korean", "스물 다섯 달 전"),
            ("thai", "ยี่สิบวันก่อน"),
            ("thai", "ยี่สิบห้าวันก่อน"),
            ("thai", "ร้อยวันก่อน"),
            ("thai", "1,000 วันก่อน"),
        ],
    )
    def test_end_of_a_larger_number_is_no_number(self, language: str, text: str) -> None:
        assert spans(text, language) == []

    @pytest.mark.parametrize(
        ("language", "text", "expected"),
        [
            ("english", "the year we sold a hundred, yesterday", ("2026-05-19", "2026-05-20")),
            ("english", "room 5, 3 days ago", ("2026-05-17", "2026-05-18")),
            ("english", "10 days ago", ("2026-05-10", "2026-05-11")),
            ("english", "twelve days ago", ("2026-05-08", "2026-05-09")),
            ("russian", "год назад", ("2025-01-01", "2026-01-01")),
            ("chinese", "十二天前", ("2026-05-08", "2026-05-09")),
            ("chinese", "周三今天", ("2026-05-20", "2026-05-21")),
            ("thai", "12 วันก่อน", ("2026-05-08", "2026-05-09")),
        ],
    )
    def test_numbers(self, language: str, text: str, expected: tuple[str, str]) -> None:
        assert days(text, language=language)[-1] == expected

    @pytest.mark.parametrize(
        ("language", "text", "expected"),
        [
            ("english", "5 January last year", ("2025-01-05", "2025-01-06")),
            ("english", "on January 5th, last year", ("2025-01-05", "2025-01-06")),
            ("english", "in May this year", ("2026-05-01", "2026-06-01")),
            ("english", "in May of last year", ("2025-05-01", "2025-06-01")),
            ("english", "29 February last year", None),
            ("english", "Christmas last year", ("2025-12-24", "2025-12-27")),
            ("english", "the summer of last year", ("2025-06-01", "2025-09-01")),
            ("english", "Christmas the year before last", ("2024-12-24", "2024-12-27")),
            ("german", "am 5. Januar letzten Jahres", ("2025-01-05", "2025-01-06")),
            ("german", "im Mai letzten Jahres", ("2025-05-01", "2025-06-01")),
            ("german", "Weihnachten letztes Jahr", ("2025-12-24", "2025-12-27")),
            ("spanish", "en mayo del año pasado", ("2025-05-01", "2025-06-01")),
            ("spanish", "el 5 de enero del año pasado", ("2025-01-05", "2025-01-06")),
            ("french", "en mai de l'année dernière", ("2025-05-01", "2025-06-01")),
            ("french", "le 5 janvier de l\u2019an dernier", ("2025-01-05", "2025-01-06")),
            ("russian", "в мае прошлого года", ("2025-05-01", "2025-06-01")),
            ("russian", "5 января прошлого года", ("2025-01-05", "2025-01-06")),
            ("russian", "зимой прошлого года", ("2025-12-01", "2026-03-01")),
            ("chinese", "去年3月5日", ("2025-03-05", "2025-03-06")),
            ("chinese", "去年三月", ("2025-03-01", "2025-04-01")),
            ("japanese", "去年の3月5日", ("2025-03-05", "2025-03-06")),
            ("japanese", "去年の夏", ("2025-06-01", "2025-09-01")),
            ("korean", "작년 3월 5일", ("2025-03-05", "2025-03-06")),
            ("thai", "5 มีนาคมปีที่แล้ว", ("2025-03-05", "2025-03-06")),
        ],
    )
    def test_year_after_or_before_a_date(self, language: str, text: str, expected: tuple[str, str] | None) -> None:
        assert days(text, language=language) == ([expected] if expected else [])

    @pytest.mark.parametrize("language", ["none", "turkish", "auto"])
    def test_language_without_words_tries_all(self, language: str) -> None:
        for text in ("yesterday", "gestern", "昨天", "เมื่อวาน"):
            assert days(text, language=language) == [("2026-05-19", "2026-05-20")]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            pytest.param("Was hat Anna hier gesagt?", [], id="a German word that is French too"),
            pytest.param("Wat heb ik hier gezegd?", [], id="a Dutch word that is French too"),
            pytest.param("Qu'est-ce qu'elle a dit hier ?", [("2026-05-19", "2026-05-20")], id="the French word"),
            pytest.param("hier?", [("2026-05-19", "2026-05-20")], id="no stop word"),
            pytest.param("What did Anna say gestern?", [("2026-05-19", "2026-05-20")], id="two languages"),
            pytest.param("去年の三月", [("2025-03-01", "2025-04-01")], id="a month of last year in Japanese"),
            pytest.param("一昨日", [("2026-05-18", "2026-05-19")], id="a longer Japanese word"),
            pytest.param("2024年の夏はどこ", [("2024-06-01", "2024-09-01")], id="a summer in Japanese"),
            pytest.param("先週の月曜日と昨日", [("2026-05-11", "2026-05-12"), ("2026-05-19", "2026-05-20")], id="kana"),
        ],
    )
    def test_best_of_all_languages_counts(self, text: str, expected: list[tuple[str, str]]) -> None:
        assert days(text, language="auto") == expected

    def test_part_of_a_day_in_japanese_is_not_read_as_chinese(self) -> None:
        assert spans("今日の午後", "auto") == [("2026-05-20 12:00", "2026-05-20 18:00", "今日の午後")]

    @pytest.mark.parametrize("question", read_questions(), ids=lambda question: question["question"])
    def test_questions_of_the_benchmark_in_any_language(self, question: dict[str, Any]) -> None:
        expected = NOT_UNDERSTOOD.get(question["question"], "right" if question["expected"] else "none")

        assert judge(question, find_in_any_language(question)) == expected

    @pytest.mark.parametrize("language", list_languages())
    def test_meanings_are_known(self, language: str) -> None:
        words = read_words(language)

        for pattern in words.patterns:
            assert pattern.kind in KINDS
            assert pattern.shift in SHIFTS
        assert words.gaps.keys() == {"to", "and"}
        assert words.prefixes.keys() | words.suffixes.keys() <= RELATIONS


KINDS = {"hour", "day", "week", "month", "year", "unit", "weekday", "weekend", "named", "season", "holiday", "date"}
SHIFTS = {"", "-1", "-2", "-3", "0", "+1", "+2", "-number", "+number", "past", "in -1", "in 0", "in +1"}
RELATIONS = {"number", "in", "since", "until", "before", "after", "between"}
