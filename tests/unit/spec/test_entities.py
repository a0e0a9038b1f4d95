"""Entities in force: the preset's word, the object's over it, and its own lists over the product's."""

from typing import Any

import pytest

from agentmemory_operator.entities.rules.lists import EntityLists, ListedName, lists_of
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.effective.entities import EntitySettings, OwnName
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


def test_lists_of_an_object_stand_in_the_place_of_the_product_s() -> None:
    settings = entities_of(
        entities={"systems": [{"name": "Desk", "aliases": ["the desk"], "cased": True}], "ignore": ["Blue  Heron"]}
    )
    assert settings == EntitySettings(systems=(OwnName("Desk", ("the desk",), True),), ignored=("Blue  Heron",))
    product = EntityLists(
        technologies=(ListedName("Redis"),), systems=(ListedName("Jira"),), ignored=frozenset({"gmail.com"})
    )

    assert lists_of(settings, product) == EntityLists(
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
    ],
)
def test_lists_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecInvalid):
        entities_of(entities=wrong)
