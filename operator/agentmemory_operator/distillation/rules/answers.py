"""What a model is asked to make of turns, or of the versions of a memory, and what of its answer counts. Pure.

Entries are known to the model by short names of ours. Whatever it says of others is dropped, and so is a memory of
which no source is left: a model can make memories of what it was shown, and of nothing else. Types of memories hold
turns, or what is distilled of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.consolidation.rules.grounding import unfounded
from agentmemory_operator.consolidation.rules.plan import Fact
from agentmemory_operator.memories.rules.record import IMPORTANCE_LEVELS, MemoryRecord
from agentmemory_operator.spec.memory_types import WORKING, MemoryType
from agentmemory_operator.spec.times import render_time

TURN_TYPES = ("episodic", "event")
TURN_EVENT = "user_interaction"
# Fields that a distilled memory has, whatever a model says.
_GIVEN = frozenset({"session_id", "source"})
DOMAIN = "domain"

MAX_MEMORIES = 32
MAX_CONTENT_CHARS = 1_000
MAX_NAME_CHARS = 64
MAX_SOURCES = 64
# Of a call: about 12,000 tokens of English.
MAX_MATERIAL_CHARS = 48_000
MAX_ANSWER_TOKENS = 4_000
# Of a time: 2026-05-03.
DAY_CHARS = 10

TASK = (
    "The material is a part of a conversation, turn by turn. Write down what is worth remembering of it for later"
    " conversations: facts about people and their work, preferences, decisions, plans, events. Leave out small talk,"
    " what only matters now, and what the turns merely ask. Each memory stands for itself: it is one or two sentences,"
    " names who it is about instead of a pronoun, and says nothing that its turns do not say. Keep names, numbers and"
    " dates as they were said. Each memory names the turns that it comes from in `sources`. How important it is, you"
    " say as low, medium, high or critical: critical is what does harm when it is forgotten. Where nothing is worth"
    " remembering, the list is empty."
)


CHAIN_TASK = (
    "The material is one memory as it changed, version by version, oldest first; the last is what holds now. Write the"
    " one text that takes the place of them all: first what holds now, as the last version says it, with nothing of"
    " that version left out; then, in a sentence or a few, what is worth knowing of how it changed: what held before,"
    " what changes time and again, what came back. It stands for itself and says nothing that the versions do not say."
    " Keep names, numbers and dates as they stand there."
)

MAX_HEAD_CHARS = 4_000
"""A model writes no longer version of a memory; one that is longer stays as it is."""

MAX_VERSIONS = 64
"""The newest versions of a memory, as many as a model reads of it."""

HEAD_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"content": {"type": "string", "minLength": 1, "maxLength": MAX_HEAD_CHARS}},
    "required": ["content"],
    "additionalProperties": False,
}
"""The form of an answer about versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistilledFact:
    """One memory that a model has made of turns.

    Attributes:
        importance: 0..1.
        source_ids: ids of the turns; at least one.
        missing: numbers, dates and names that no turn has; where there are any, somebody has to approve it.
    """

    content: str
    type: str
    importance: float
    domain: str | None
    source_ids: tuple[str, ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """What counts of an answer, and how many of its memories do not.

    Attributes:
        unsourced: named no turn that it was shown.
    """

    facts: tuple[DistilledFact, ...] = ()
    unsourced: int = 0


def parts_of(turns: Sequence[MemoryRecord]) -> list[list[MemoryRecord]]:
    """Turns in parts that one call takes; a turn is never cut."""
    parts: list[list[MemoryRecord]] = []
    room = 0
    for turn in turns:
        if not parts or len(turn.content) > room or len(parts[-1]) == MAX_SOURCES:
            parts.append([])
            room = MAX_MATERIAL_CHARS
        parts[-1].append(turn)
        room -= len(turn.content)
    return parts


def rows_of(turns: Sequence[MemoryRecord]) -> list[dict[str, str]]:
    """Turns as a model is shown them."""
    return [
        {
            "id": f"t{number}",
            "role": turn.role or ("note" if turn.is_working else "user"),
            **({"speaker": turn.speaker} if turn.speaker else {}),
            "at": render_time(turn.created_at),
            "content": turn.content,
        }
        for number, turn in enumerate(turns)
    ]


def newest_of(versions: Sequence[MemoryRecord]) -> list[MemoryRecord]:
    """The newest versions that one call takes, oldest first, of those that no key seals; a version is never cut."""
    newest: list[MemoryRecord] = []
    room = MAX_MATERIAL_CHARS
    for version in reversed(versions):
        room -= len(version.content)
        if room < 0 or len(newest) == MAX_VERSIONS:
            break
        if not version.zone:
            newest.append(version)
    return newest[::-1]


def version_rows(versions: Sequence[MemoryRecord]) -> list[dict[str, str]]:
    """Versions as a model is shown them."""
    return [
        {"id": f"v{number}", "at": render_time(version.created_at), "content": version.content}
        for number, version in enumerate(versions)
    ]


def read_head(answer: Mapping[str, Any], versions: Sequence[MemoryRecord]) -> Fact | None:
    """The version that an answer of `HEAD_SCHEMA` gives; None of a blank one.

    Args:
        versions: as they were shown, the head last.
    """
    content, head = " ".join(answer["content"].split()), versions[-1]
    if not content:
        return None
    return Fact(
        content=content,
        type=head.type,
        sources=tuple(version.id for version in versions),
        replaced=(head.id,),
        importance=head.importance,
        missing=unfounded(content, _texts_of(versions), words=[_day(version) for version in versions]),
        collapses=True,
    )


def schema_of(types: Sequence[MemoryType]) -> dict[str, Any]:
    """The form of an answer."""
    names = [type_.name for type_ in types]
    kinds = "; ".join(f"{type_.name}: {type_.meaning}" for type_ in types if type_.meaning)
    properties: dict[str, Any] = {
        "content": {"type": "string", "minLength": 1, "maxLength": MAX_CONTENT_CHARS},
        "type": {"type": "string", "enum": names, "maxLength": MAX_NAME_CHARS}
        | ({"description": kinds} if kinds else {}),
        "importance": {"type": "string", "enum": list(IMPORTANCE_LEVELS), "maxLength": MAX_NAME_CHARS},
        "sources": {
            "type": "array",
            "maxItems": MAX_SOURCES,
            "items": {"type": "string", "maxLength": MAX_NAME_CHARS},
        },
    }
    required = ["content", "type", "importance", "sources"]
    if any(DOMAIN in type_.required for type_ in types):
        what = "The field of knowledge, in a word or two."
        properties[DOMAIN] = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS, "description": what}
        required.append(DOMAIN)
    item = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {
        "type": "object",
        "properties": {"memories": {"type": "array", "maxItems": MAX_MEMORIES, "items": item}},
        "required": ["memories"],
        "additionalProperties": False,
    }


def read_answer(answer: Mapping[str, Any], turns: Sequence[MemoryRecord]) -> ReadAnswer:
    """What counts of an answer of the schema.

    Args:
        turns: as they were shown.
    """
    shown = {f"t{number}": turn for number, turn in enumerate(turns)}
    facts: list[DistilledFact] = []
    unsourced = 0
    for said in answer["memories"]:
        sources = [shown[name] for name in dict.fromkeys(said["sources"]) if name in shown]
        content = " ".join(said["content"].split())
        if not sources or not content:
            unsourced += 1
        else:
            facts.append(
                DistilledFact(
                    content=content,
                    type=said["type"],
                    importance=IMPORTANCE_LEVELS[said["importance"]],
                    domain=" ".join(said.get(DOMAIN, "").split()) or None,
                    source_ids=tuple(turn.id for turn in sources),
                    missing=unfounded(content, _texts_of(sources), words=[_day(turn) for turn in sources]),
                )
            )
    return ReadAnswer(facts=tuple(facts), unsourced=unsourced)


def _texts_of(turns: Sequence[MemoryRecord]) -> list[str]:
    """What a fact may take its names and figures from: what was said, and who said it."""
    return [text for turn in turns for text in (turn.content, turn.speaker) if text]


def _day(turn: MemoryRecord) -> str:
    return render_time(turn.created_at)[:DAY_CHARS]


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
