"""What is about to be stored: as it came, and without secrets, before anything is hashed, compared or embedded.

Scrubbed is what is said: content, context, the value of a status, the strings of metadata. What names something (ids,
keys, subjects, tags, namespaces, authors) stays as it is: two names must not become one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.memories.rules.criteria import METADATA
from agentmemory_operator.memories.rules.record import StatedMemory
from agentmemory_operator.memories.rules.scrubbing import Kind, SecretRule, Steps, scrub, scrub_object
from agentmemory_operator.runtime.slices import in_slices

_FRACTION = (
    "{key}: not found by filters: its index is of type integer, and the value is not one: store a whole number,"
    " or set type: float in spec.index.payloadIndexes"
)
SCRUBBED = ("content", "context", "status_value", "metadata")


@dataclass(frozen=True, kw_only=True)
class IncomingMemory(StatedMemory):
    """A memory to store. The caller has checked its form; what depends on the agent is checked as it is drafted.

    Attributes:
        type: None is the agent's first type.
        confidence, knowledge_category: None is that of the type, or of the agent.
        author: who stores it, where that is said.
        stored_by: who stores it, where nobody else is said to; no part of the request.
        created_at: Unix milliseconds; None is now.
        valid_from: Unix milliseconds from which on it is true; None is created_at.
        vector: only with provider `none`, and demanded there.
        offset_ms: how long before the end of its request it was said, where created_at says nothing.
        is_turn: a turn of a conversation: it is stored although another says the same.
        idempotency_key: the same key and body again gives the same memory; another body is a Conflict.
    """

    type: str | None = None
    confidence: float | None = None
    knowledge_category: str | None = None
    author: str | None = None
    stored_by: str | None = None
    supersedes: str | None = None
    created_at: int | None = None
    valid_from: int | None = None
    vector: Sequence[float] | None = None
    offset_ms: int | None = None
    is_turn: bool = False
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Clean:
    """A memory without secrets, as `clean` alone makes it.

    Attributes:
        warnings: of which kinds some were taken out, and which numbers filters will not find, for the answer.
    """

    memory: IncomingMemory
    warnings: tuple[str, ...] = ()


async def clean(agent: Agent, memories: Sequence[IncomingMemory]) -> list[Clean]:
    """Each memory as it may be stored: unchanged where the agent's object says that nothing is scrubbed.

    All strings of a request are one work, in slices: others have their turn between them.
    """
    return await in_slices(_all_clean(memories, agent))


async def clean_metadata(agent: Agent, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Metadata as they may be stored."""
    return (await in_slices(scrub_object(metadata, agent.secret_rules))).value if agent.secret_rules else metadata


def _all_clean(memories: Sequence[IncomingMemory], agent: Agent) -> Steps[list[Clean]]:
    rules, cleaned = agent.secret_rules, []
    integers = [key for key, type_ in agent.settings.indexes.items() if type_ == "integer" and key.startswith(METADATA)]
    for memory in memories:
        clean = (yield from _clean(memory, rules)) if rules else Clean(memory)
        fractions = [_FRACTION.format(key=key) for key in integers if _has_float(memory.metadata, key)]
        cleaned.append(replace(clean, warnings=(*clean.warnings, *fractions)) if fractions else clean)
        yield
    return cleaned


def _has_float(metadata: Mapping[str, Any], key: str) -> bool:
    value: Any = metadata
    for name in key.removeprefix(METADATA).split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return any(isinstance(part, float) for part in (value if isinstance(value, list) else [value]))


def _clean(memory: IncomingMemory, rules: Sequence[SecretRule]) -> Steps[Clean]:
    found: dict[str, tuple[Any, frozenset[Kind]]] = {}
    for name in SCRUBBED:
        if given := getattr(memory, name):
            value, kinds = yield from _scrubbed(given, rules)
            found |= {name: (value, kinds)} if kinds else {}
    if not found:
        return Clean(memory)
    changed = replace(memory, **{name: value for name, (value, _) in found.items()})
    return Clean(
        changed,
        tuple(
            f"{name}: redacted before it was stored: {', '.join(sorted(kinds))} (spec.lifecycle.scrubSecrets)"
            for name, (_, kinds) in found.items()
        ),
    )


def _scrubbed(value: str | Mapping[str, Any], rules: Sequence[SecretRule]) -> Steps[tuple[Any, frozenset[Kind]]]:
    if isinstance(value, str):
        text = yield from scrub(value, rules)
        return text.text, text.kinds
    scrubbed = yield from scrub_object(value, rules)
    return scrubbed.value, scrubbed.kinds
