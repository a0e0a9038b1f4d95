"""Figures of `bench.consolidate` for a perfect model and for bad ones."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from agentmemory_operator.adapters.language_model.openai_chat import ChatOptions, OpenAIChat
from bench.consolidate import Figures, measure
from bench.consolidation_groups import Group, groups
from tests.support.web.http_server import serve
from tests.support.web.language_models import Answer, Row, ScriptedModel

MADE = groups(36)
Answers = Mapping[str, Sequence[Mapping[str, Any]]]


def groups_in(rows: Sequence[Row]) -> Iterator[tuple[Group, list[Row]]]:
    """Yield the groups whose memories are among the rows, with their rows."""
    for group in MADE:
        contents = {memory.content for memory in group.memories}
        if own := [row for row in rows if row["content"] in contents]:
            yield group, own


def fact_of(rows: Sequence[Row], *, more: str = "") -> dict[str, Any]:
    return {"content": " ".join(row["content"] for row in rows) + more, "source_ids": [row["id"] for row in rows]}


def note_of(rows: Sequence[Row]) -> dict[str, Any]:
    return {"memory_ids": [row["id"] for row in rows], "description": "They cannot both be true."}


def perfect(rows: list[Row]) -> Answers:
    found = list(groups_in(rows))
    return {
        "merged_facts": [fact_of(own) for group, own in found if group.label == "merge"],
        "contradictions": [note_of(own) for group, own in found if group.label == "contradiction"],
    }


def lazy(rows: list[Row]) -> Answers:
    """Merge two of each group and ignore the rest."""
    return {"merged_facts": [fact_of(own[:2]) for group, own in groups_in(rows) if group.label == "merge"]}


def lying(rows: list[Row]) -> Answers:
    """Merge correctly but add an invented name and number; report false contradictions."""
    found = list(groups_in(rows))
    return {
        "merged_facts": [
            fact_of(own, more=" Their manager is Zebulon, room 9999.") for group, own in found if group.label == "merge"
        ],
        "contradictions": [note_of(own[:2]) for group, own in found if group.label == "distinct"],
    }


def forgetful(rows: list[Row]) -> Answers:
    """Merge correctly but keep only the first memory's content."""
    return {
        "merged_facts": [
            fact_of(own) | {"content": own[0]["content"]} for group, own in groups_in(rows) if group.label == "merge"
        ]
    }


def injecting(rows: list[Row]) -> Answers:
    """Obey an injected instruction: merge everything, including unknown ids."""
    ids = [row["id"] for row in rows]
    everything = {"content": rows[0]["content"], "source_ids": [*ids, "m999"]}
    return {"merged_facts": [everything], "contradictions": [{"memory_ids": ["m998", "m999"], "description": "x"}]}


ANSWERS: dict[str, Answer] = {
    "perfect": perfect,
    "lazy": lazy,
    "lying": lying,
    "forgetful": forgetful,
    "injecting": injecting,
}


async def figures_of(mode: str) -> Figures:
    scripted = ScriptedModel(mode=mode, answers=ANSWERS)
    with serve(scripted.app()) as url:
        model = OpenAIChat(ChatOptions(model="m", base_url=f"{url}/v1", timeout_s=0.05 if mode == "hanging" else 10))
        try:
            return await measure(model, MADE)
        finally:
            await model.aclose()


async def test_perfect_model_has_perfect_figures() -> None:
    figures = await figures_of("perfect")

    assert (figures.merged_rightly, figures.merged) == (figures.to_merge, figures.to_merge)
    assert (figures.contradictions_reported, figures.false_alarms) == (figures.contradictions, 0)
    assert (figures.invented, figures.lost, figures.unusable) == (0, 0, 0)
    assert min(figures.to_merge, figures.contradictions, figures.superseded, figures.facts) > 10


async def test_invented_facts_are_counted_not_planned() -> None:
    figures = await figures_of("lying")

    assert figures.invented == figures.facts > 0
    assert (figures.planned, figures.invented_planned, figures.superseded) == (0, 0, 0)
    assert figures.false_alarms == figures.reported > 0


@pytest.mark.parametrize("mode", ["nonsense", "hanging", "overflowing"])
async def test_unusable_output_changes_nothing(mode: str) -> None:
    figures = await figures_of(mode)

    assert figures.unusable == figures.calls > 0
    assert (figures.merged, figures.reported, figures.facts) == (0, 0, 0)
