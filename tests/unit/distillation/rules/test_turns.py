"""Choice of the memory types for turns and for distilled memories."""

import pytest

from agentmemory_operator.distillation.rules.model_output import distilled_types, requires_event_type, turn_type
from agentmemory_operator.spec.memory_types import WORKING, MemoryType, Ttl
from agentmemory_operator.spec.presets import PRESETS


def kind(name: str, **rules: object) -> MemoryType:
    return MemoryType(name, half_life_days=1, **rules)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "turns"),
    [
        (["fact", "event", "episodic"], "episodic"),
        (["fact", "event"], "event"),
        (["fact", "note"], "fact"),
        ([], "episodic"),
    ],
)
def test_turns_are_episodic_then_event_then_first_type(names: list[str], turns: str) -> None:
    assert turn_type([kind(name) for name in names]) == turns


@pytest.mark.parametrize(
    ("preset", "turns", "distilled"),
    [
        ("cortex", "episodic", {"fact", "preference", "person", "project", "task", "decision", "correction"}),
        ("brain", "event", {"fact", "status"}),
        ("cognitive", "episodic", {"semantic"}),
        ("importance", "episodic", {"semantic", "procedural"}),
        ("keyed", "episodic", {"memory"}),
    ],
)
def test_preset_types(preset: str, turns: str, distilled: set[str]) -> None:
    types = PRESETS[preset][-1].types

    assert turn_type(types) == turns
    assert {type_.name for type_ in distilled_types(types, "memory", has_session=True)} == distilled


@pytest.mark.parametrize(
    "unfit",
    [
        kind("log", immutable=True),
        kind(WORKING),
        kind("scratch", ttl=Ttl("Session")),
        kind("state", required=("subject",)),
    ],
    ids=lambda type_: type_.name,
)
def test_unsuitable_type_is_not_distilled(unfit: MemoryType) -> None:
    """A model chooses no immutable, working or expiring type, and none that requires an unsupported field."""

    types = (kind("episodic"), kind("fact"), unfit)

    assert [type_.name for type_ in distilled_types(types, "memory", has_session=True)] == ["fact"]
    assert distilled_types((unfit,), "memory", has_session=True) == ()


def test_only_type_serves_turns_and_distilled() -> None:
    assert [type_.name for type_ in distilled_types((kind("note"),), "memory", has_session=True)] == ["note"]


def test_type_requiring_a_session_needs_one() -> None:
    types = (kind("episodic"), kind("fact", required=("session_id", "source", "domain")))

    assert [type_.name for type_ in distilled_types(types, "memory", has_session=True)] == ["fact"]
    assert [type_.name for type_ in distilled_types(types, "memory", has_session=False)] == ["episodic"]


def test_event_type_is_given_if_required() -> None:
    types = (kind("episodic", required=("event_type",)), kind("fact"))

    assert (requires_event_type(types, "episodic"), requires_event_type(types, "fact")) == (True, False)
