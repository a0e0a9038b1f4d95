"""Which types hold the turns of a conversation, and which hold what is distilled of them. Pure."""

from collections.abc import Sequence

from agentmemory_operator.spec.memory_types import WORKING, MemoryType

TURN_TYPES = ("episodic", "event")
TURN_EVENT = "user_interaction"
# Fields that a distilled memory has, whatever a model says.
_GIVEN = frozenset({"session_id", "source"})
DOMAIN = "domain"


def turn_type(types: Sequence[MemoryType]) -> str | None:
    """The type of turns: episodic, else event, else the first; of an agent that takes any type, episodic.

    Args:
        types: the agent's; none takes any.
    """
    names = [type_.name for type_ in types]
    return next((name for name in TURN_TYPES if name in names or not names), names[0] if names else None)


def needs_event(types: Sequence[MemoryType], name: str | None) -> bool:
    """Whether memories of a type are refused without an event_type."""
    return any(type_.name == name and "event_type" in type_.required for type_ in types)


def distilled_types(types: Sequence[MemoryType], default: str, *, has_session: bool) -> tuple[MemoryType, ...]:
    """The types that a model may choose among, without those that hold turns unless there are no others.

    Left out is what ends with a session, what nobody could change or delete any more, and what demands a field that a
    model is not asked for.

    Args:
        default: the type of memories that name none, where any is taken.
        has_session: the conversation names its session.
    """
    if not types:
        return (MemoryType(default, half_life_days=None),)
    given = _GIVEN if has_session else _GIVEN - {"session_id"}
    fit = tuple(
        type_
        for type_ in types
        if type_.name != WORKING
        and not type_.lasts_a_session
        and not type_.immutable
        and given.union((DOMAIN,)).issuperset(type_.required)
    )
    turns = turn_type(types)
    return tuple(type_ for type_ in fit if type_.name != turns) or fit
