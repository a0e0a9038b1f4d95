"""Entities in force: the preset's word, the object's over it, and its own lists over the product's."""

from typing import Any

import pytest

from agentmemory_operator.entities.rules.lists import EntityLists, ListedName, build_lists
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.effective.entities import DeclaredName, EntitySettings, Spreading
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.presets import PRESETS
from tests.support.spec.golden import manifest


def entities_of(**spec: Any) -> EntitySettings | None:
    return effective_settings(parse_agent_memory(manifest(**spec))).entities


def test_the_brain_alone_has_entities_by_itself() -> None:
    assert [preset for preset in PRESETS if entities_of(preset=preset)] == ["brain"]


@pytest.mark.parametrize("preset", PRESETS)
def test_an_object_s_word_holds_over_its_preset_s(preset: str) -> None:
    assert entities_of(preset=preset, entities={"enabled": False}) is None
    assert entities_of(preset=preset, entities={"enabled": True}) == EntitySettings()
    assert entities_of(preset=preset, entities={}) == EntitySettings()


def test_figures_of_an_object_stand_in_the_place_of_the_design_s() -> None:
    assert entities_of(preset="brain") == EntitySettings(
        spreading=Spreading(decay=0.8, typed_boost=2, max_depth=2, min_activation=0.1)
    )
    some = {"decay": 1, "typedBoost": 3, "maxDepth": 0, "minActivation": 0}
    assert entities_of(entities=some) == EntitySettings(
        spreading=Spreading(decay=1, typed_boost=3, max_depth=0, min_activation=0)
    )
    one = entities_of(preset="brain", entities={"decay": 0.5})
    assert one is not None
    assert one.spreading == Spreading(decay=0.5)


def test_other_figures_do_not_have_stored_memories_searched_again() -> None:
    before, after = EntitySettings(), EntitySettings(spreading=Spreading(decay=0.5))

    assert before.detection == after.detection
    assert before.detection != EntitySettings(ignored=("x",)).detection


@pytest.mark.parametrize(("given", "wanted"), [(None, 0.92), (0, 0), (0.5, 0.5), (1, 1)])
def test_how_near_a_fact_may_be_is_the_object_s_word(given: float | None, wanted: float) -> None:
    spec = {} if given is None else {"consolidation": {"duplicateSimilarity": given}}

    assert effective_settings(parse_agent_memory(manifest(**spec))).duplicate_similarity == wanted


@pytest.mark.parametrize("wrong", [-0.1, 1.1, "0.9", float("nan")])
def test_a_nearness_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(SpecInvalid, match="duplicateSimilarity"):
        effective_settings(parse_agent_memory(manifest(consolidation={"duplicateSimilarity": wrong})))


def test_lists_of_an_object_stand_in_the_place_of_the_product_s() -> None:
    settings = entities_of(
        entities={"systems": [{"name": "Desk", "aliases": ["the desk"], "cased": True}], "ignore": ["Blue  Heron"]}
    )
    assert settings == EntitySettings(systems=(DeclaredName("Desk", ("the desk",), True),), ignored=("Blue  Heron",))
    product = EntityLists(
        technologies=(ListedName("Redis"),), systems=(ListedName("Jira"),), ignored=frozenset({"gmail.com"})
    )

    assert build_lists(settings, product) == EntityLists(
        technologies=(ListedName("Redis"),),
        systems=(ListedName("Desk", ("the desk",), True),),
        ignored=frozenset({"gmail.com", "blue heron"}),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"enabled": "yes"},
        {"systems": [{"name": "a\nb"}]},
        {"systems": [{"name": " a"}]},
        {"systems": [{"name": "x" * 61}]},
        {"systems": [{"name": "a"}, {"name": "a"}]},
        {"technologies": [{"name": str(number)} for number in range(201)]},
        {"technologies": [{"name": "a", "aliases": [str(number) for number in range(9)]}]},
        {"ignore": ["a", "a"]},
        {"patterns": ["a.*"]},
        {"decay": 0},
        {"decay": 1.01},
        {"decay": "0.8"},
        {"typedBoost": 0.9},
        {"typedBoost": 10.1},
        {"maxDepth": -1},
        {"maxDepth": 6},
        {"maxDepth": 1.5},
        {"minActivation": -0.1},
        {"minActivation": 1.1},
    ],
)
def test_lists_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecInvalid):
        entities_of(entities=wrong)
