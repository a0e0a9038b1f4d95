"""Output of `agentmemory search`."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from agentmemory_client import AgentDetails, Found, SearchResult
from agentmemory_operator.entrypoints.cli.memories.search_view import result_section
from agentmemory_operator.entrypoints.cli.tables import plain

AT = datetime(2026, 11, 25, tzinfo=UTC)
EXPLAINED = {
    "model": "Weighted",
    **{"similarity": 0.53, "keyword": None, "fused": 0.53, "evidence": None, "entities": None},
    **{"recency": 0.25, "utility": 0.0, "confidence_factor": None, "terms": None, "boost": 1.0},
    "weights": {"similarity": 0.5, "recency": 0.3, "utility": 0.2},
    **{"age_days": 730.0, "half_life_days": 365.0},
}


def memory(content: str | None = "Pays by invoice", **explain: Any) -> Found:
    return Found(
        id="1",
        user_id="ada",
        content=content,
        type="fact",
        created_at=AT,
        importance=0.5,
        score=0.61,
        explain=explain or None,
    )


def answer(*results: Found, total: int, removed: int = 0, **more: Any) -> SearchResult:
    return SearchResult(
        results=results, generation=3, total_candidates=total, removed_by_threshold=removed, took_ms=1.0, **more
    )


def render_lines(result: SearchResult) -> list[str]:
    return plain([result_section(result)]).splitlines()


def test_result_has_its_score() -> None:
    heading, columns, row = render_lines(answer(memory(), total=1))

    assert heading == "1 of 1 memories, by generation 3"
    assert columns.split() == ["ID", "SCORE", "TYPE", "CREATED", "CONTENT"]
    assert row.split() == ["1", "0.610", "fact", "2026-11-25", "Pays", "by", "invoice"]


def test_explain_counts_what_was_left_out() -> None:
    candidates = {"scored": 3, "eligible": 3, "exact": True}
    left_out = ({"id": "2", "session_id": "s", "score": 0.9},)

    lines = render_lines(answer(memory(), total=3, candidates=candidates, left_out=left_out))

    assert lines[-1].strip() == "1 left out by --per-session"


@pytest.mark.parametrize(
    ("gates", "lines"),
    [
        (
            {"threshold": 0.3},
            ["0 of 1 memories, by generation 3: 1 below the threshold 0.3", "--threshold -1 leaves nothing out by"],
        ),
        ({"min_similarity": 0.5}, ["1 below the similarity 0.5", "--min-similarity -1 leaves nothing out"]),
        (
            {"threshold": 0.25, "min_similarity": 0.5},
            ["1 below the threshold 0.25 or the similarity 0.5", "--threshold -1", "--min-similarity -1"],
        ),
        ({}, ["1 below a threshold"]),
    ],
    ids=["score", "similarity", "both", "older"],
)
def test_empty_result_has_a_reason_and_a_remedy(gates: dict[str, float], lines: list[str]) -> None:
    output = render_lines(answer(total=1, removed=1, **gates))

    assert len(output) == len(lines)
    assert all(line in printed for printed, line in zip(output, lines, strict=True))


def test_user_without_memories_is_reported() -> None:
    assert render_lines(answer(total=0))[1].strip().startswith("no memory of this user is there")


CANDIDATES = {"scored": 1, "below_threshold": 0, "eligible": 2, "exact": True}
FUSION = {"language": "english", "method": "Score", "keyword_weight": 0.7, "k": 60}
EVIDENCE = {"terse": 0.1, "author": 0.2, "time": 0.0, "asked": 0.0, "date": 0.0, "assistant": 0.5}
PRIORITY = {"similarity_share": 0.4}
MATCHED = {"terse": 0.4, "author": 0.0, "time": 1.0, "asked": 0.0, "date": 0.0}


def details(**more: Any) -> AgentDetails:
    """Return the settings of an agent without keywords, with the generation that `answer` contains."""
    figures: dict[str, Any] = {"limit": 10, "score_threshold": 0.0, "min_similarity": -1.0, "candidates": "Auto"}
    named = {"agent": "words", "namespace": "team", "preset": "cortex", "ready": True, "generation": 3, "memories": 1}
    return AgentDetails(**named, **figures, model="Weighted", distance="Cosine", embedding={}, **more)


def explain(settings: AgentDetails, **explained: Any) -> str:
    """Return the calculation of a result's score."""
    found = memory(**EXPLAINED | explained)
    lines = plain([result_section(answer(found, total=2, candidates=CANDIDATES), settings)]).splitlines()
    score, _, formula = lines[3].strip().partition(" = ")
    assert (lines[2].split()[1], score) == ("0.6100", "0.6100")
    return formula


def test_explanation_is_a_calculation_of_the_terms_that_count() -> None:
    assert explain(details()) == "0.5 x 0.53 similarity + 0.3 x 0.25 recency (730 days old, half-life 365)"
    weights = {"similarity": 1.0, "recency": 0.0, "utility": 0.0}
    assert explain(details(), weights=weights) == "0.53 similarity"
    assert explain(details(), weights=weights, boost=1.2, confidence_factor=0.8) == (
        "1.2 boost x 0.8 confidence_factor x 0.53 similarity"
    )
    assert explain(details(), boost=1.2).startswith("1.2 boost x (0.5 x 0.53 similarity + ")
    assert explain(details(), weights=weights, rerank=7.25) == "0.53 similarity; reranked by 7.25"


def test_match_is_a_calculation_of_all_signals() -> None:
    settings = details(keyword=FUSION, evidence=EVIDENCE)
    weights = {"similarity": 1.0, "recency": 0.0, "utility": 0.0}
    match = "0.3 x 0.53 similarity + 0.7 x 0.1 keyword + 0.1 x 0.4 terse"

    plain_match = explain(settings, keyword=0.1, fused=0.269 / 1.3, evidence=MATCHED, weights=weights)
    with_names = explain(settings, keyword=0.1, fused=0.3, evidence=MATCHED, weights=weights)

    assert plain_match == f"({match}) / 1.3"
    assert with_names == f"({match} + 0.121 entities) / 1.3"


def test_match_by_ranks_is_one_number() -> None:
    settings = details(keyword=FUSION | {"method": "RRF"}, evidence=EVIDENCE)

    assert explain(settings, keyword=0.1, fused=0.9836, evidence=MATCHED).startswith("0.5 x 0.9836 fused + ")


@pytest.mark.parametrize(
    ("model", "terms", "formula"),
    [
        (
            "Confidence",
            {"effective_confidence": 0.9, "access_boost": 1.0},
            "0.53 similarity x 0.9 effective_confidence",
        ),
        ("Importance", {"relevance": 0.25}, "0.53 similarity x 0.25 relevance"),
        ("Priority", {"horizon": 0.5, "priority": 0.2}, "0.5 horizon x (0.4 x 0.53 similarity + 0.6 x 0.2 priority)"),
        ("Expression", {"0.1*decay": 0.125, "zero": 0.0, "keyword": 0.2}, "0.125 [0.1*decay] + 0.2 [keyword]"),
    ],
)
def test_each_model_has_its_calculation(model: str, terms: dict[str, float], formula: str) -> None:
    absent = dict.fromkeys(("recency", "utility", "weights", "confidence_factor"))

    assert explain(details(priority=PRIORITY), model=model, terms=terms, **absent) == formula


def test_explanation_reports_changed_settings_and_candidates() -> None:
    found = answer(memory(**EXPLAINED), total=2, candidates=CANDIDATES | {"exact": False})

    *_, changed, note = plain([result_section(found, replace(details(), generation=4))]).splitlines()

    assert changed.strip() == "the settings have changed since: the weights are those of generation 4"
    assert note.strip() == "1 of 2 were scored: something better may have been missed"


def test_control_characters_of_a_memory_are_escaped() -> None:
    lines = render_lines(answer(memory("a\x1b[2J\x1b]0;title\x07b\u202ec"), total=1))

    assert all(line.isprintable() for line in lines)
    assert r"a\x1b[2J" in lines[2]
