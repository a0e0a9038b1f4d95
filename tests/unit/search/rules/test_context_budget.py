"""Choice of the memories of a context within its budget."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmemory_operator.adapters.embedding.wordllama_tokenizer import WORDLLAMA_MEASURE, count_tokens
from agentmemory_operator.memories.rules.record import MemoryRecord
from agentmemory_operator.search.rules.context_budget import ComposedContext, TextMeasure, compose_context
from agentmemory_operator.search.rules.context_text import END, NOTE, START, SectionName

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000


def count_words(text: str) -> int:
    return len(text.split())


WORDS = TextMeasure(
    name="words", count=count_words, count_line=count_words, cut=lambda text, count: " ".join(text.split()[:count])
)
FRAME = count_words(f"{START}\n{NOTE}\n{END}")


def memory(id: str, content: str = "", *, day: int = 0, **more: Any) -> MemoryRecord:
    at = NOW_MS + day * DAY_MS
    kept: dict[str, Any] = {"agent_id": "a", "user_id": "u", "type": "fact", "created_at": at, "updated_at": at}
    return MemoryRecord(**kept | more, id=id, content=content or f"the content of {id}")


def compose(budget: int, *, sent: Sequence[str] = (), **candidates: Sequence[MemoryRecord]) -> ComposedContext:
    by_section: Any = candidates
    return compose_context(by_section, WORDS, budget=budget, zone=UTC, sent=sent)


def ids(context: ComposedContext, section: SectionName) -> list[str]:
    return [line.record.id for line in context.sections[section]]


def reasons(context: ComposedContext) -> dict[str, str]:
    return {one.memory_id: one.reason for one in context.left_out}


def test_text_has_sections_days_and_numbers() -> None:
    context = compose(
        500,
        facts=[memory("a", "Pays by invoice")],
        relevant=[memory("d", "went home", day=1), memory("c", "at the lake", speaker="Ada"), memory("b", "swam")],
        recent=[memory("f", "and you?", role="assistant", day=9), memory("e", "hi", role="user", day=8)],
    )

    assert context.text.splitlines() == [
        START,
        NOTE,
        "About the user:",
        "1 Pays by invoice",
        "From earlier conversations:",
        "Nov 14, 2023",
        "2 swam",
        "3 Ada: at the lake",
        "Nov 15",
        "4 went home",
        "This conversation:",
        "5 user: hi",
        "6 assistant: and you?",
        END,
    ]
    assert context.tokens == count_words(context.text)
    assert [line.number for lines in context.sections.values() for line in lines] == [1, 2, 3, 4, 5, 6]


def test_nothing_to_say_is_an_empty_frame() -> None:
    context = compose(64)

    assert context.text == f"{START}\n{NOTE}\n{END}"
    assert all(not lines for lines in context.sections.values())


def test_budget_below_one_line_leaves_all_out() -> None:
    context = compose(FRAME + 3, relevant=[memory("a")])

    assert context.text == f"{START}\n{NOTE}\n{END}"
    assert reasons(context) == {"a": "budget"}


def test_memory_that_does_not_fit_makes_way_for_shorter_ones() -> None:
    long = memory("long", "word " * 30)

    context = compose(FRAME + 15, facts=[memory("first"), long, memory("last")])

    assert ids(context, "facts") == ["first", "last"]
    assert reasons(context) == {"long": "budget"}


def test_recent_turns_have_no_gap() -> None:
    turns = [memory(str(day), "word " * (16 if day == 3 else 2), day=day, role="user") for day in range(5, 0, -1)]

    context = compose(FRAME + 17, recent=turns)

    assert ids(context, "recent") == ["4", "5"]


def test_each_section_has_its_share() -> None:
    many = [memory(f"f{number}", f"{number} " * 5) for number in range(100)]
    hits = [memory(f"h{number}", f"x{number} " * 5) for number in range(300)]

    context = compose(1000, facts=many, relevant=hits)

    assert 150 <= sum(line.tokens for line in context.sections["facts"]) <= 200
    assert context.tokens > 950


def test_remaining_budget_goes_to_sections_that_have_more() -> None:
    many = [memory(f"f{number}", f"{number} " * 5) for number in range(100)]

    assert len(compose(500, facts=many).sections["facts"]) > 60


def test_equal_text_is_in_the_text_once() -> None:
    context = compose(
        500,
        facts=[memory("a", "Pays by  invoice")],
        relevant=[memory("a", "Pays by  invoice"), memory("b", "pays BY invoice")],
    )

    assert ids(context, "facts") == ["a"]
    assert ids(context, "relevant") == []
    assert {one.reason for one in context.left_out} == {"repeated"}


def test_messages_of_the_prompt_are_left_out() -> None:
    context = compose(500, recent=[memory("a", "hello", role="user"), memory("b")], sent=["Hello "])

    assert ids(context, "recent") == ["b"]
    assert reasons(context) == {"a": "sent"}


def test_locked_memory_is_left_out() -> None:
    locked = MemoryRecord(
        id="a", agent_id="a", user_id="u", type="fact", content="", locked=True, created_at=NOW_MS, updated_at=NOW_MS
    )

    assert reasons(compose(500, relevant=[locked])) == {"a": "locked"}


def test_long_memory_is_cut_and_marked() -> None:
    [line] = compose(200, relevant=[memory("long", "word " * 100)]).sections["relevant"]

    assert line.is_cut
    assert line.text.endswith("word…")
    assert line.tokens <= 50


@pytest.mark.parametrize("budget", [64, 100, 1000])
@given(
    texts=st.lists(
        st.one_of(
            st.text(min_size=1, max_size=80),
            st.sampled_from(["a" * 5000, "🦉" * 300, "ทดสอบ " * 90, " \n" * 9, "<s> x", "a<unk>"]),
        ),
        max_size=30,
    )
)
@settings(max_examples=40, deadline=None)
def test_text_is_within_the_budget(budget: int, texts: list[str]) -> None:
    memories = [memory(str(number), text or "x", day=number % 7 * 97) for number, text in enumerate(texts)]
    third = len(memories) // 3
    candidates: Any = {
        "facts": memories[:third],
        "recent": memories[third : 2 * third],
        "relevant": memories[2 * third :],
    }

    context = compose_context(candidates, WORDLLAMA_MEASURE, budget=budget, zone=UTC)

    assert context.tokens == count_tokens(context.text) <= budget
    lines = context.text.splitlines()
    assert (lines[0], lines[-1]) == (START, END)
    assert sum(bool(re.match(r"\d+ ", line)) for line in lines) == sum(map(len, context.sections.values()))


def test_day_that_begins_twice_is_within_the_budget() -> None:
    """Clocks in St. John's went back from 00:01 to 23:01 of the day before."""
    zone, midnight = ZoneInfo("America/St_Johns"), 1_289_097_000_000
    turns = [memory(str(minute), created_at=midnight + minute * 60_000) for minute in (-90, 0, 1, 30, 60, 90)]

    context = compose_context({"relevant": turns}, WORDLLAMA_MEASURE, budget=400, zone=zone)

    assert context.tokens == count_tokens(context.text)
    assert context.text.count("\nNov ") == 2


def test_long_memories_that_do_not_fit_are_seldom_measured() -> None:
    measured: list[int] = []

    def count_line(text: str) -> int:
        measured.append(len(text))
        return count_words(text)

    measure = replace(WORDS, count_line=count_line)
    long = "many words " * 6000
    hits = [memory(str(number), f"x{number}" if number % 10 == 9 else f"{number} {long}") for number in range(200)]
    hits.insert(0, memory("first", "word " * 500))

    context = compose_context({"relevant": hits}, measure, budget=32_000, zone=UTC)

    assert len([line for line in context.sections["relevant"] if not line.is_cut]) == 21
    assert sum(measured) < 20 * len(long)


def test_frame_is_within_the_least_budget() -> None:
    assert count_tokens(f"{START}\n{NOTE}\n{END}") <= 48
