"""Parsing the memories of a model's answer, and the turns it is shown."""

from typing import Any

import pytest

from agentmemory_operator.consolidation.rules.schema_fit import Fitted, SchemaMismatch, fit
from agentmemory_operator.distillation.rules.model_output import (
    MAX_MATERIAL_CHARS,
    MAX_MEMORIES,
    MAX_SOURCES,
    build_schema,
    parse_facts,
    render_turns,
    split_turns,
)
from agentmemory_operator.memories.rules.record import MemoryRecord
from agentmemory_operator.spec.memory_types import MemoryType

FACT = MemoryType("fact", half_life_days=1, meaning="what is true")
KNOWLEDGE = MemoryType("semantic", half_life_days=1, required=("domain",))


def turn(number: int, content: str, **more: Any) -> MemoryRecord:
    times = {"created_at": 1_777_802_400_000, "updated_at": 0}
    return MemoryRecord(
        id=f"id{number}", agent_id="a", user_id="u", type="episodic", content=content, **{**times, **more}
    )


TURNS = [turn(0, "I moved to Lisbon", speaker="Ada", role="user"), turn(1, "Noted.", role="assistant")]


def answer_with(**more: Any) -> dict[str, Any]:
    given = {"content": "Ada moved to Lisbon.", "type": "fact", "importance": "high", "sources": ["t0"]}
    return {"memories": [given | more]}


def test_sources_are_shown_turns_without_duplicates() -> None:
    [fact] = parse_facts(answer_with(sources=["t0", "t1", "t0", "t7", "id1"]), TURNS).facts

    assert (fact.content, fact.importance, fact.source_ids) == ("Ada moved to Lisbon.", 0.75, ("id0", "id1"))
    assert (fact.missing, fact.domain) == ((), None)


@pytest.mark.parametrize("sources", [[], ["t2"], ["id0"], ["m0", "T0"]])
def test_memory_without_shown_source_is_dropped(sources: list[str]) -> None:
    read = parse_facts(answer_with(sources=sources), TURNS)

    assert (read.facts, read.unsourced) == ((), 1)


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        ("Ada moved to Porto.", ("Porto",)),
        ("Ada moved to Lisbon on 2026-05-03.", ()),
        ("Ada moved to Lisbon 3 times.", ("3",)),
    ],
)
def test_words_missing_from_sources_are_reported(content: str, missing: tuple[str, ...]) -> None:
    [fact] = parse_facts(answer_with(content=content), TURNS).facts

    assert fact.missing == missing


def test_whitespace_is_collapsed() -> None:
    [fact] = parse_facts(answer_with(content=" Ada moved\n\n to\tLisbon. ", domain=" home \n life "), TURNS).facts

    assert (fact.content, fact.domain) == ("Ada moved to Lisbon.", "home life")


def test_domain_is_required_if_a_type_requires_it() -> None:
    plain, demanding = build_schema([FACT]), build_schema([FACT, KNOWLEDGE])

    assert fit(answer_with(domain="home"), plain) == fit(answer_with(), plain) == Fitted(answer_with(), 0)
    assert fit(answer_with(domain="home", type="semantic"), demanding).dropped == 0
    with pytest.raises(SchemaMismatch, match="domain is missing"):
        fit(answer_with(), demanding)


def test_invalid_memories_are_dropped_one_by_one() -> None:
    [memory] = answer_with()["memories"]
    spoiled = [{**memory, "sources": []}, {**memory, "type": "unheard"}, {**memory, "importance": "HIGH"}]

    fitted = fit({"memories": [*spoiled, *[memory] * MAX_MEMORIES]}, build_schema([FACT]))

    assert fitted.dropped == 3
    assert len(fitted.value["memories"]) == MAX_MEMORIES
    assert fitted.value["memories"][1]["importance"] == "high"


def test_turns_render_role_speaker_and_time() -> None:
    """The ids are short labels (`t0`), not those of the memories."""

    assert render_turns(TURNS) == [
        {
            "id": "t0",
            "role": "user",
            "speaker": "Ada",
            "at": "2026-05-03T10:00:00.000Z",
            "content": "I moved to Lisbon",
        },
        {"id": "t1", "role": "assistant", "at": "2026-05-03T10:00:00.000Z", "content": "Noted."},
    ]
    assert render_turns([turn(0, "an open order", is_working=True)])[0]["role"] == "note"


def test_parts_fit_one_call_without_cut_turns() -> None:
    turns = [turn(number, "x" * 20_000) for number in range(5)] + [turn(5, "y" * (MAX_MATERIAL_CHARS + 1))]

    parts = split_turns(turns)

    assert [len(part) for part in parts] == [2, 2, 1, 1]
    assert [turn for part in parts for turn in part] == turns
    assert [len(part) for part in split_turns([turn(0, "x")] * (MAX_SOURCES + 1))] == [MAX_SOURCES, 1]
    assert split_turns([]) == []
