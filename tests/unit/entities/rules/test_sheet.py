"""Relations, aliases and renames of an entity sheet."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.entities.rules.sheet import (
    NO_SHEET,
    EntitySheet,
    sheet_from_payload,
    sheet_id,
    sheet_to_json,
)
from agentmemory_operator.memories.rules.entities import entities_from_payload, fold
from agentmemory_operator.memories.rules.record import ENTITY_SHEET_KEY

NAMES = st.sampled_from(["Anna", "anna", "Bob", "Carl", "Dora", "Å b", "ÅB"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("with_relation"), NAMES, st.sampled_from(["uses", "contact_of"]), NAMES),
        st.tuples(st.just("with_alias"), NAMES, NAMES),
        st.tuples(st.just("with_renamed"), NAMES, NAMES),
    ),
    max_size=12,
)


def apply_steps(steps: Any, sheet: EntitySheet = NO_SHEET) -> EntitySheet:
    for method, *arguments in steps:
        sheet = getattr(sheet, method)(*arguments)
    return sheet


@given(STEPS)
def test_aliases_and_relations_are_resolved(steps: Any) -> None:
    sheet = apply_steps(steps)

    for key, alias in sheet.aliases.items():
        assert key == fold(alias.alias)
        target = sheet.aliases.get(fold(alias.name))
        assert target is None or fold(target.name) == fold(alias.name)
    for key, relation in sheet.relations.items():
        assert key == relation.key
        assert key[0] != key[2]
        for name in (relation.source, relation.target):
            assert fold(sheet.resolve(name)) == fold(name)


@given(STEPS)
def test_sheet_roundtrips_through_payload(steps: Any) -> None:
    sheet = apply_steps(steps)
    assert sheet_from_payload({ENTITY_SHEET_KEY: sheet_to_json(sheet)}) == sheet


@given(STEPS)
def test_merge_is_idempotent(steps: Any) -> None:
    sheet = apply_steps(steps)

    assert sheet.merged_with(sheet) == sheet
    merged = NO_SHEET.merged_with(sheet)
    assert merged.merged_with(sheet) == merged


def test_merge_adds_strengths_and_drops_self_relations() -> None:
    sheet = NO_SHEET.with_relation("Anna", "uses", "Redis", times=2).with_relation("A. S.", "uses", "redis")
    sheet = sheet.with_relation("Anna", "contact_of", "A. S.")

    merged = sheet.with_alias("A. S.", "Anna")

    assert [(relation.source, relation.relation, relation.strength) for relation in merged.relations.values()] == [
        ("Anna", "uses", 3)
    ]
    assert merged.resolve("a. s.") == "Anna"


def test_former_name_can_be_restored() -> None:
    sheet = NO_SHEET.with_renamed("Anna", "Bob").with_renamed("Bob", "Anna")

    assert (sheet.resolve("Anna"), sheet.resolve("BOB")) == ("Anna", "Anna")


@pytest.mark.parametrize(
    "payload",
    [
        7,
        [],
        {"relations": 7, "aliases": {"a": "b"}},
        {"relations": [["a", "loves", "b", 1], ["a", "uses", "b", 0], ["a", "uses", "b", "1"], ["a", "uses"], 7]},
        {"relations": [["a", "uses", " ", 1], ["a" * 321, "uses", "b", 1]]},
        {"aliases": [["a"], ["a", 7], ["", "b"], None]},
    ],
)
def test_malformed_sheet_payload_is_ignored(payload: object) -> None:
    assert sheet_from_payload({"entitySheet": payload}) == NO_SHEET


@pytest.mark.parametrize(
    "payload", [7, "x", {}, None, [7, None, {}], [{"name": "a", "kind": ["phrase"], "role": "about"}], [{"name": " "}]]
)
def test_malformed_entities_are_ignored(payload: object) -> None:
    assert entities_from_payload(payload) == ()


def test_missing_sheet_is_empty() -> None:
    assert sheet_from_payload(None) == sheet_from_payload({"entitySheet": None}) == NO_SHEET
    assert sheet_id("a", "u") != sheet_id("a", "v") != sheet_id("b", "v")
