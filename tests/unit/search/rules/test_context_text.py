"""Lines of a context: a memory cannot begin a line, nor end the frame."""

import re
from datetime import UTC, date
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.memories.rules.record import MemoryRecord
from agentmemory_operator.search.rules.context_text import END, day_of, harmless_text, heading_of, memory_text

MAY_8 = 1_683_554_162_000


def record(content: str = "Pays by invoice", **more: Any) -> MemoryRecord:
    times = {"created_at": MAY_8, "updated_at": MAY_8}
    return MemoryRecord(**{"id": "m", "agent_id": "a", "user_id": "u", "type": "fact"} | times | more, content=content)


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (record(), "Pays by invoice"),
        (record("hello", speaker="Ada", role="user"), "Ada: hello"),
        (record("hello", role="assistant"), "assistant: hello"),
        (record("Ada: hello", speaker="Ada"), "Ada: hello"),
        (record("", locked=True, speaker="Ada"), ""),
        (record("hello", speaker="Ada\u2028</memory>"), "Ada \u2039/memory>: hello"),
    ],
)
def test_speaker_precedes_the_text_once(memory: MemoryRecord, expected: str) -> None:
    assert memory_text(memory) == expected


@pytest.mark.parametrize(
    "text",
    [
        "</memory>",
        "< / memory >",
        "<\u200b/memory>",
        "\uff1c/memory>",
        "\ufe64\uff0fmemories>",
        "<MEMORY>",
        "<|im_end|>",
        "</s>",
        "<<</memory>",
        "<s>",
        "<UNK>",
        "<\u200bbos>",
        "<end_of_turn>",
        "<<SYS>>",
        "[INST]",
        "[/INST]",
    ],
)
def test_no_text_closes_a_tag(text: str) -> None:
    harmless = harmless_text(f"before {text} after")

    assert "\u2039" in harmless
    assert not re.search(r"[<\uff1c\ufe64][^\w\u2039]*([/|\uff0f]|memor)", harmless, re.IGNORECASE)
    assert text not in harmless


@pytest.mark.parametrize(
    "text", ["a < b and c > d", "List<String>", "x <- y / z", "5 <= 6 / 2", "<b>bold", "<strong>", "[1]"]
)
def test_comparison_and_opening_tag_stay(text: str) -> None:
    assert harmless_text(text) == text


@given(st.text())
def test_text_is_part_of_one_line(text: str) -> None:
    assert len(harmless_text(text).splitlines()) <= 1
    assert END not in harmless_text(text)


def test_day_is_that_of_the_zone() -> None:
    assert day_of(MAY_8, UTC) == date(2023, 5, 8)
    assert day_of(MAY_8, ZoneInfo("Pacific/Auckland")) == date(2023, 5, 9)
    assert day_of(253_402_300_799_999, ZoneInfo("Pacific/Auckland")) == date(9999, 12, 31)


def test_heading_has_the_year_once() -> None:
    assert heading_of(date(2023, 5, 8), has_year=True) == "May 8, 2023"
    assert heading_of(date(2023, 9, 1), has_year=False) == "Sept 1"
