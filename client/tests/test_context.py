"""`format_context`: as many memories as fit, best first, none truncated."""

from datetime import UTC, datetime

import pytest

from agentmemory_client import Memory, estimate_tokens, format_context

MEMORIES = ["pays by invoice", "x" * 50, "likes tea"]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1000, "- pays by invoice\n- " + "x" * 50 + "\n- likes tea"),
        (29, "- pays by invoice\n- likes tea"),
        (28, "- pays by invoice"),
        (17, "- pays by invoice"),
        (16, "- likes tea"),
        (10, ""),
        (0, ""),
    ],
)
def test_memories_that_do_not_fit_are_skipped(limit: int, expected: str) -> None:
    assert format_context(MEMORIES, limit=limit) == expected


@pytest.mark.parametrize("limit", range(0, 90, 7))
def test_limit_applies_to_the_measure(limit: int) -> None:
    assert len(format_context(MEMORIES, limit=limit)) <= limit
    assert estimate_tokens(format_context(MEMORIES, limit=limit, measure=estimate_tokens)) <= limit


def test_lines_of_a_memory_stay_together() -> None:
    assert format_context([" first\nsecond ", "third"], limit=100) == "- first\n  second\n- third"


@pytest.mark.parametrize("line_break", ["\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029"], ids=ascii)
def test_no_line_break_leaves_the_item(line_break: str) -> None:
    assert format_context([f"first{line_break}second"], limit=100) == "- first\n  second"


def test_memory_without_text_is_skipped() -> None:
    created_at = datetime(2026, 1, 2, tzinfo=UTC)
    locked = Memory(id="i", user_id="u", content=None, type="fact", importance=0.5, created_at=created_at, locked=True)

    assert format_context(["a", locked, " ", "b"], limit=100) == "- a\n- b"
    assert format_context([locked], limit=100) == ""


def test_render_is_customisable() -> None:
    assert format_context(["a", "b"], limit=9, render=lambda memory: f"<{memory}>") == "<a>\n<b>"
