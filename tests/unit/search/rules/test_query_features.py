"""Features of a query, and evidence values of memories."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from agentmemory_operator.memories.rules.evidence import EVIDENCE_KEY, HAS_TIME, MARKS_KEY, compute_evidence
from agentmemory_operator.memories.rules.words import content_words, first_content_words
from agentmemory_operator.search.rules.query_features import (
    AUTO_SCALE,
    MAX_QUERY_NAMES,
    QueryFeatures,
    add_evidence,
    extract_features,
)
from agentmemory_operator.search.rules.time_spans import TimeSpan
from agentmemory_operator.spec.expression.variables import DAY_MS
from agentmemory_operator.spec.presets.table import NO_EVIDENCE, EvidenceWeights


def day_ms(year: int, month: int, day: int) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp() * 1000)


def row(content: str, **more: Any) -> dict[str, Any]:
    return {"content": content, "createdAt": day_ms(2023, 5, 8)} | more


def stored(content: str, before: tuple[dict[str, Any], ...] = (), **more: Any) -> dict[str, Any]:
    """Return the payload of a memory with its evidence."""
    bare = row(content, **more)
    return bare | {EVIDENCE_KEY: compute_evidence(bare, before, "english")}


def numbers(question: str, payload: dict[str, Any]) -> dict[str, float]:
    return extract_features(question, "english").compute_evidence_values(payload, assistant=0.5)


@pytest.mark.parametrize(
    ("question", "half"),
    [("Where is it?", 10.0), ("red green blue cyan pink", 10.0), ("red green blue cyan pink grey", 12.0)],
)
def test_half_score_grows_with_content_words(question: str, half: float) -> None:
    assert extract_features(question, "english").half_score == half


def test_long_query_is_bounded() -> None:
    long = extract_features(" ".join(f"Word{n}" for n in range(5_000)), "english")

    assert (long.half_score, len(long.names)) == (128.0, MAX_QUERY_NAMES)


@pytest.mark.parametrize(
    ("question", "named"),
    [("What did Ross buy?", 1.0), ("what did ross buy?", 1.0), ("What did Joey buy?", 0.0), ("Who came?", 0.0)],
)
def test_query_names_the_speaker(question: str, named: float) -> None:
    assert numbers(question, stored("a sofa", speaker="Ross Geller"))["author"] == named


@pytest.mark.parametrize(("role", "own"), [("user", 1.0), ("assistant", 0.0)])
def test_personal_query_prefers_user_messages(role: str, own: float) -> None:
    assert numbers("What is my dog called?", stored("Rex", role=role))["author"] == own


@pytest.mark.parametrize(
    ("question", "content", "tells"),
    [
        ("When did they meet?", "we met yesterday", 1.0),
        ("In which year did they meet?", "back in 1999", 1.0),
        ("When did they meet?", "we met in Paris", 0.0),
        ("Where did they meet?", "we met yesterday", 0.0),
    ],
)
def test_when_query_prefers_memories_with_time(question: str, content: str, tells: float) -> None:
    assert numbers(question, stored(content))["time"] == tells


def test_answer_to_another_speaker_is_detected() -> None:
    asked = (row("Where is it?", speaker="Ann"),)

    assert numbers("x", stored("there", asked, speaker="Bob"))["asked"] == 1.0
    assert numbers("x", stored("there", asked, speaker="Ann"))["asked"] == 0.0
    assert numbers("x", stored("there", (row("It is here.", speaker="Ann"),), speaker="Bob"))["asked"] == 0.0


def test_memory_near_a_named_time_counts_half() -> None:
    june = TimeSpan(day_ms(2023, 6, 1), day_ms(2023, 7, 1), "in June")
    features = extract_features("x", "english", dates=(june,))

    def date(since: tuple[int, int, int], **more: int) -> float:
        return features.compute_evidence_values({"createdAt": day_ms(*since)} | more, assistant=0.5)["date"]

    assert [date((2023, month, day)) for month, day in ((5, 1), (5, 2), (6, 1), (6, 30), (7, 1), (7, 31))] == [
        *(0.0, 0.5, 1.0, 1.0),
        *(0.5, 0.0),
    ]
    assert date((2023, 1, 1), validFrom=day_ms(2023, 6, 5)) == 0.0


@pytest.mark.parametrize(("days", "margin_days"), [(1 / 24, 1), (1, 1), (7, 7), (30, 30), (365, 30)])
def test_margin_is_the_length_of_the_time_within_bounds(days: float, margin_days: int) -> None:
    assert TimeSpan(0, int(days * DAY_MS), "").margin_ms == margin_days * DAY_MS


def test_terse_value_grows_with_length() -> None:
    little, more, much = (numbers("x", stored(" ".join(["apple"] * n)))["terse"] for n in (1, 10, 300))

    assert 0 < little < more < much == 1.0


def test_missing_evidence_is_a_constant() -> None:
    """Messages of the assistant get the constant too."""

    assert numbers("x", stored("apple " * 300, role="assistant"))["terse"] == 0.5
    assert numbers("x", row("apple " * 300))["terse"] == 0.5


def test_encrypted_memory_has_no_evidence() -> None:
    assert compute_evidence(row("we met yesterday", zone="SENSITIVE", speaker="Ann"), (), "english") == {}


def test_score_with_evidence_stays_within_0_and_1() -> None:
    weights = EvidenceWeights(terse=1.0, author=1.0, time=1.0, asked=1.0, date=1.0)

    assert add_evidence(1.0, weights, dict.fromkeys(weights.terms, 1.0)) == 1.0
    assert add_evidence(0.4, weights, dict.fromkeys(weights.terms, 0.0)) == pytest.approx(0.4 / 6)
    assert add_evidence(0.4, NO_EVIDENCE, {}) == 0.4


def test_other_languages_have_names_and_word_count() -> None:
    assert extract_features("Wann hat Hans die Wohnung gekauft?", "german") == QueryFeatures(
        half_score=10.0, names=("wann", "hans", "wohnung")
    )


def test_auto_reads_english_questions_as_english() -> None:
    auto, english = (
        extract_features("When did I meet Ada?", "auto"),
        extract_features("When did I meet Ada?", "english"),
    )
    german = extract_features("Wann habe ich Ada getroffen?", "auto")

    assert replace(auto, half_score=0.0) == replace(english, half_score=0.0)
    assert auto.half_score == AUTO_SCALE * english.half_score
    assert (german.asks_when, german.is_first_person, german.names) == (False, False, ("wann", "ada"))


def test_auto_reads_english_memories_as_english() -> None:
    english = row("Yesterday I was at the lake with Ada.", role="user")
    german = row("Ich war im August mit Ada am See.", role="user")

    assert compute_evidence(english, [], "auto") == compute_evidence(english, [], "english")
    assert HAS_TIME not in compute_evidence(german, [], "auto")[MARKS_KEY]


def test_content_words_exclude_stopwords() -> None:
    assert content_words("I've been to Ann's house", "english") == ["ann", "house"]
    assert content_words("das ist ein Haus von 1999", "german") == ["haus", "1999"]


def test_text_is_cut_after_n_content_words() -> None:
    assert first_content_words("the cat and the dog ran", 2, "english") == "the cat and the dog"
    assert first_content_words("the cat", 2, "english") == "the cat"
