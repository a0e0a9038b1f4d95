"""Prompts, answer schemas and answer checks of distillation.

Each entry of the material has a short name that this module chooses. Names in an answer that were not in the material
are ignored, and a memory without a valid source is dropped. So a model can only make memories from the entries that it
was shown. An agent's memory types are split into the type of turns and the types of distilled memories.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.consolidation.rules.batch_plan import Fact
from agentmemory_operator.consolidation.rules.grounding import find_ungrounded
from agentmemory_operator.memories.rules.record import IMPORTANCE_LEVELS, MemoryRecord
from agentmemory_operator.spec.memory_types import WORKING, MemoryType
from agentmemory_operator.spec.times import render_time

TURN_TYPES = ("episodic", "event")
TURN_EVENT = "user_interaction"
# Fields that the run sets itself, and does not ask the model for. `session_id` is set only if there is a session.
_GIVEN = frozenset({"session_id", "source"})
DOMAIN = "domain"

MAX_MEMORIES = 32
MAX_CONTENT_CHARS = 1_000
MAX_NAME_CHARS = 64
MAX_SOURCES = 64
# Maximum characters of material per call, about 12,000 tokens of English.
MAX_MATERIAL_CHARS = 48_000
MAX_ANSWER_TOKENS = 4_000
# Length of the date in a timestamp: 2026-05-03.
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
"""Maximum length of a collapsed version. A chain with a longer head is not collapsed."""

MAX_VERSIONS = 64
"""Maximum number of versions that a model reads. The newest versions are chosen."""

HEAD_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"content": {"type": "string", "minLength": 1, "maxLength": MAX_HEAD_CHARS}},
    "required": ["content"],
    "additionalProperties": False,
}
"""JSON Schema of the answer about versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistilledFact:
    """Memory that a model extracted from turns.

    Attributes:
        content: Text of the memory.
        type: One of the types in the schema.
        importance: 0 to 1.
        domain: Field of knowledge, or None.
        source_ids: Ids of the turns it was made from, at least one.
        missing: Numbers, dates and names that no source contains. If there are any, the fact needs an approval.
    """

    content: str
    type: str
    importance: float
    domain: str | None
    source_ids: tuple[str, ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """Accepted part of an answer.

    Attributes:
        unsourced: Number of facts dropped because they name no shown turn or have no text.
    """

    facts: tuple[DistilledFact, ...] = ()
    unsourced: int = 0


def split_turns(turns: Sequence[MemoryRecord]) -> list[list[MemoryRecord]]:
    """Split turns into parts for one call each: at most 64 turns and 48,000 characters, or one longer turn."""
    parts: list[list[MemoryRecord]] = []
    remaining_chars = 0
    for turn in turns:
        if not parts or len(turn.content) > remaining_chars or len(parts[-1]) == MAX_SOURCES:
            parts.append([])
            remaining_chars = MAX_MATERIAL_CHARS
        parts[-1].append(turn)
        remaining_chars -= len(turn.content)
    return parts


def render_turns(turns: Sequence[MemoryRecord]) -> list[dict[str, str]]:
    """Render turns as material for the model, under the ids t0, t1 and so on that its answer refers to."""
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


def newest_versions(versions: Sequence[MemoryRecord]) -> list[MemoryRecord]:
    """Return the newest versions without a zone that fit into one call, oldest first. A version is never split."""
    newest: list[MemoryRecord] = []
    remaining_chars = MAX_MATERIAL_CHARS
    for version in reversed(versions):
        remaining_chars -= len(version.content)
        if remaining_chars < 0 or len(newest) == MAX_VERSIONS:
            break
        if not version.zone:
            newest.append(version)
    return newest[::-1]


def render_versions(versions: Sequence[MemoryRecord]) -> list[dict[str, str]]:
    """Render versions as material for the model, under the ids v0, v1 and so on."""
    return [
        {"id": f"v{number}", "at": render_time(version.created_at), "content": version.content}
        for number, version in enumerate(versions)
    ]


def parse_head(answer: Mapping[str, Any], versions: Sequence[MemoryRecord]) -> Fact | None:
    """Parse an answer of `HEAD_SCHEMA`; None if its text is blank.

    Args:
        versions: The versions that the model was shown, the head last.
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
        missing=find_ungrounded(content, _texts_of(versions), words=[_day(version) for version in versions]),
        collapses=True,
    )


def build_schema(types: Sequence[MemoryType]) -> dict[str, Any]:
    """Build the JSON Schema of an answer about turns.

    Args:
        types: Types that the model may choose from.
    """
    names = [type_.name for type_ in types]
    kinds = "; ".join(f"{type_.name}: {type_.meaning}" for type_ in types if type_.meaning)
    properties: dict[str, Any] = {
        "content": {"type": "string", "minLength": 1, "maxLength": MAX_CONTENT_CHARS},
        "type": {"type": "string", "enum": names, "maxLength": MAX_NAME_CHARS}
        | ({"description": kinds} if kinds else {}),
        "importance": {"type": "string", "enum": list(IMPORTANCE_LEVELS), "maxLength": MAX_NAME_CHARS},
        "sources": {"type": "array", "maxItems": MAX_SOURCES, "items": {"type": "string", "maxLength": MAX_NAME_CHARS}},
    }
    required = ["content", "type", "importance", "sources"]
    if any(DOMAIN in type_.required for type_ in types):
        description = "The field of knowledge, in a word or two."
        properties[DOMAIN] = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS, "description": description}
        required.append(DOMAIN)
    item = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {
        "type": "object",
        "properties": {"memories": {"type": "array", "maxItems": MAX_MEMORIES, "items": item}},
        "required": ["memories"],
        "additionalProperties": False,
    }


def parse_facts(answer: Mapping[str, Any], turns: Sequence[MemoryRecord]) -> ParsedAnswer:
    """Parse the facts that the model distilled from conversation turns.

    Facts without text, or without a known source turn, are dropped and counted in `unsourced`.

    Args:
        answer: An answer that matches the schema.
        turns: The turns that the model was shown.
    """
    turns_by_name = {f"t{number}": turn for number, turn in enumerate(turns)}
    facts: list[DistilledFact] = []
    unsourced = 0
    for item in answer["memories"]:
        sources = [turns_by_name[name] for name in dict.fromkeys(item["sources"]) if name in turns_by_name]
        content = " ".join(item["content"].split())
        if not sources or not content:
            unsourced += 1
        else:
            facts.append(
                DistilledFact(
                    content=content,
                    type=item["type"],
                    importance=IMPORTANCE_LEVELS[item["importance"]],
                    domain=" ".join(item.get(DOMAIN, "").split()) or None,
                    source_ids=tuple(turn.id for turn in sources),
                    missing=find_ungrounded(content, _texts_of(sources), words=[_day(turn) for turn in sources]),
                )
            )
    return ParsedAnswer(facts=tuple(facts), unsourced=unsourced)


def _texts_of(turns: Sequence[MemoryRecord]) -> list[str]:
    """Return the texts that may support a fact: contents and names of speakers."""
    return [text for turn in turns for text in (turn.content, turn.speaker) if text]


def _day(turn: MemoryRecord) -> str:
    return render_time(turn.created_at)[:DAY_CHARS]


def turn_type(types: Sequence[MemoryType]) -> str | None:
    """Return the type of turns: `episodic`, else `event`, else the first type.

    Args:
        types: Types of the agent. Empty if it accepts any type: then `episodic`.
    """
    names = [type_.name for type_ in types]
    return next((name for name in TURN_TYPES if name in names or not names), names[0] if names else None)


def requires_event_type(types: Sequence[MemoryType], name: str | None) -> bool:
    """Return whether a type of the agent requires an `event_type`; False if it is not listed, or None."""
    return any(type_.name == name and "event_type" in type_.required for type_ in types)


def distilled_types(types: Sequence[MemoryType], default: str, *, has_session: bool) -> tuple[MemoryType, ...]:
    """Return the types that a model may choose from. The type of turns is among them only if no other type qualifies.

    A type does not qualify if it is `working`, or if its memories end with a session, are immutable, or require a field
    that neither the run nor the model provides.

    Args:
        types: Types of the agent. Empty if it accepts any type: then the result is the default type.
        default: Type of memories without a type, if any type is accepted.
        has_session: True if the conversation has a session.
    """
    if not types:
        return (MemoryType(default, half_life_days=None),)
    provided = _GIVEN if has_session else _GIVEN - {"session_id"}
    qualifying = tuple(
        type_
        for type_ in types
        if type_.name != WORKING
        and not type_.ends_with_session
        and not type_.immutable
        and provided.union((DOMAIN,)).issuperset(type_.required)
    )
    turns = turn_type(types)
    return tuple(type_ for type_ in qualifying if type_.name != turns) or qualifying
