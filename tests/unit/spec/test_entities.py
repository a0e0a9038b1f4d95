"""Entity settings in force: the object's fields override the preset, its lists override the product's."""

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


def test_only_brain_enables_entities_by_default() -> None:
    assert [preset for preset in PRESETS if entities_of(preset=preset)] == ["brain"]


@pytest.mark.parametrize("preset", PRESETS)
def test_object_overrides_its_preset(preset: str) -> None:
    assert entities_of(preset=preset, entities={"enabled": False}) is None
    assert entities_of(preset=preset, entities={"enabled": True}) == EntitySettings()
    assert entities_of(preset=preset, entities={}) == EntitySettings()


def test_figures_of_the_object_override_the_design() -> None:
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


def test_changed_figures_need_no_new_detection() -> None:
    before, after = EntitySettings(), EntitySettings(spreading=Spreading(decay=0.5))

    assert before.detection == after.detection
    assert before.detection != EntitySettings(ignored=("x",)).detection


@pytest.mark.parametrize(("configured", "expected"), [(None, 0.92), (0, 0), (0.5, 0.5), (1, 1)])
def test_duplicate_similarity_is_configurable(configured: float | None, expected: float) -> None:
    spec = {} if configured is None else {"consolidation": {"duplicateSimilarity": configured}}

    assert effective_settings(parse_agent_memory(manifest(**spec))).duplicate_similarity == expected


@pytest.mark.parametrize("invalid", [-0.1, 1.1, "0.9", float("nan")])
def test_invalid_similarity_is_rejected(invalid: Any) -> None:
    with pytest.raises(SpecInvalid, match="duplicateSimilarity"):
        effective_settings(parse_agent_memory(manifest(consolidation={"duplicateSimilarity": invalid})))


def test_lists_of_the_object_override_the_product() -> None:
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
    "invalid",
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
def test_invalid_entities_are_rejected(invalid: dict[str, Any]) -> None:
    with pytest.raises(SpecInvalid):
        entities_of(entities=invalid)
