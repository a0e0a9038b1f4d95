"""Output of `agentmemory search`."""

from datetime import UTC, datetime
from typing import Any

import pytest

from agentmemory_client import Found, SearchResult
from agentmemory_operator.entrypoints.cli.memories.search_view import result_section
from agentmemory_operator.entrypoints.cli.tables import plain

AT = datetime(2026, 11, 25, tzinfo=UTC)
EXPLAINED = {"similarity": 0.53, "keyword": None, "recency": 1.0, "boost": 1.0, "age_days": 2.04, "terms": None}


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


def test_explanation_lists_terms_and_candidates() -> None:
    candidates = {"scored": 1, "below_threshold": 0, "eligible": 2, "exact": True}

    _, columns, row, note = render_lines(answer(memory(**EXPLAINED), total=2, candidates=candidates))

    assert columns.split() == ["ID", "SCORE", "TYPE", "CREATED", "BECAUSE", "CONTENT"]
    assert "similarity 0.53, recency 1, 2.04 days old" in row
    assert note.strip() == "1 of 2 were scored: nothing better was missed"


def test_explanation_names_terms_of_an_expression() -> None:
    explained = EXPLAINED | {"boost": 1.2, "terms": {"decay": 0.125}}
    candidates = {"scored": 1, "eligible": 1, "exact": False}

    _, _, row, note = render_lines(answer(memory(**explained), total=1, candidates=candidates))

    assert "recency 1, boost 1.2, decay 0.125" in row
    assert note.strip().endswith("something better may have been missed")


def test_control_characters_of_a_memory_are_escaped() -> None:
    lines = render_lines(answer(memory("a\x1b[2J\x1b]0;title\x07b\u202ec"), total=1))

    assert all(line.isprintable() for line in lines)
    assert r"a\x1b[2J" in lines[2]
