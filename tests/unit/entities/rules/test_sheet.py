"""Relations, aliases and renames as values: nothing is lost, and no alias leads to another."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.entities.rules.sheet import (
    NO_SHEET,
    EntitySheet,
    sheet_from_payload,
    sheet_id,
    sheet_to_payload,
)
from agentmemory_operator.memories.rules.entities import fold

NAMES = st.sampled_from(["Anna", "anna", "Bob", "Carl", "Dora", "Å b", "ÅB"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("related"), NAMES, st.sampled_from(["uses", "contact_of"]), NAMES),
        st.tuples(st.just("aliased"), NAMES, NAMES),
        st.tuples(st.just("renamed"), NAMES, NAMES),
    ),
    max_size=12,
)


def made_by(steps: Any, sheet: EntitySheet = NO_SHEET) -> EntitySheet:
    for method, *arguments in steps:
        sheet = getattr(sheet, method)(*arguments)
    return sheet


@given(STEPS)
def test_no_alias_leads_to_another_and_relations_know_no_alias(steps: Any) -> None:
    sheet = made_by(steps)

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
def test_a_sheet_comes_back_from_its_point(steps: Any) -> None:
    sheet = made_by(steps)
    payload = sheet_to_payload(sheet, id_="i", agent_id="a", user_id="u", since_ms=1, now_ms=2)

    assert sheet_from_payload(payload) == sheet
    assert (payload["userId"], payload["storedAt"], payload["pending"]) == ("u", 1, False)


@given(STEPS)
def test_joining_a_sheet_with_itself_or_twice_changes_nothing(steps: Any) -> None:
    sheet = made_by(steps)

    assert sheet.joined(sheet) == sheet
    taken = NO_SHEET.joined(sheet)
    assert taken.joined(sheet) == taken


def test_merging_adds_strengths_and_drops_what_relates_a_name_to_itself() -> None:
    sheet = NO_SHEET.related("Anna", "uses", "Redis", times=2).related("A. S.", "uses", "redis")
    sheet = sheet.related("Anna", "contact_of", "A. S.")

    merged = sheet.aliased("A. S.", "Anna")

    assert [(one.source, one.relation, one.strength) for one in merged.relations.values()] == [("Anna", "uses", 3)]
    assert merged.resolve("a. s.") == "Anna"


def test_a_name_may_get_its_former_name_back() -> None:
    sheet = NO_SHEET.renamed("Anna", "Bob").renamed("Bob", "Anna")

    assert (sheet.resolve("Anna"), sheet.resolve("BOB")) == ("Anna", "Anna")


def test_what_others_wrote_in_its_place_is_no_sheet() -> None:
    assert sheet_from_payload(None) == sheet_from_payload({"entitySheet": None}) == NO_SHEET
    assert sheet_id("a", "u") != sheet_id("a", "v") != sheet_id("b", "v")
