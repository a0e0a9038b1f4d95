"""Memories as received, and the removal of secrets from them before they are hashed, compared or embedded.

Only statements are scrubbed: content, context, status value, and strings in metadata. Names (ids, keys, subjects, tags,
namespaces, authors) stay unchanged, because two different names must not become equal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.memories.rules.criteria import METADATA
from agentmemory_operator.memories.rules.record import StatedMemory
from agentmemory_operator.memories.rules.scrubbing import Kind, SecretRule, Steps, scrub, scrub_object
from agentmemory_operator.runtime.tasks import run_in_slices

_FRACTION = (
    "{key}: not found by filters: its index is of type integer, and the value is not one: store a whole number,"
    " or set type: float in spec.index.payloadIndexes"
)
SCRUBBED_FIELDS = ("content", "context", "status_value", "metadata")


@dataclass(frozen=True, kw_only=True)
class IncomingMemory(StatedMemory):
    """A memory to store.

    The caller has validated its form; rules that depend on the agent are checked when it is drafted.

    Attributes:
        type: None uses the agent's default type.
        confidence, knowledge_category: None uses the default of the type, or of the agent.
        author: Author named in the request; None uses `stored_by`.
        stored_by: Authenticated caller, not part of the request. None if the caller has no identity.
        supersedes: Id of the memory to supersede; None if the request names none.
        created_at: Unix milliseconds; None is the time of storage less `offset_ms`.
        valid_from: Unix milliseconds from which the statement is true; None is created_at.
        vector: Vector from the caller. Required with provider `none`, unless its zone has no vectors. Must be None with
            another provider.
        offset_ms: Milliseconds between its creation and its storage. None means 0. Ignored if created_at is given.
        is_turn: True for a turn of a conversation, which is stored even if another has the same content.
        idempotency_key: The same key with the same body is the same memory; with another body it is a Conflict. None:
            the request has no key.
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
class ScrubbedMemory:
    """A memory from `scrub_memories`: without secrets, unless the agent's object disables scrubbing.

    Attributes:
        warnings: Messages for the response: kinds of secrets removed, and numbers that filters will not find.
    """

    memory: IncomingMemory
    warnings: tuple[str, ...] = ()


async def scrub_memories(agent: Agent, memories: Sequence[IncomingMemory]) -> list[ScrubbedMemory]:
    """Remove the secrets of each memory, unless the agent's object disables scrubbing; collect the warnings.

    All strings of a request are processed in time slices, so other requests run in between.
    """
    return await run_in_slices(_all_clean(memories, agent))


async def scrub_metadata(agent: Agent, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata with a marker in place of each secret; unchanged if the agent's object disables scrubbing."""
    return (await run_in_slices(scrub_object(metadata, agent.secret_rules))).value if agent.secret_rules else metadata


def _all_clean(memories: Sequence[IncomingMemory], agent: Agent) -> Steps[list[ScrubbedMemory]]:
    rules, cleaned = agent.secret_rules, []
    integers = [key for key, type_ in agent.settings.indexes.items() if type_ == "integer" and key.startswith(METADATA)]
    for memory in memories:
        clean = (yield from _clean(memory, rules)) if rules else ScrubbedMemory(memory)
        fractions = [_FRACTION.format(key=key) for key in integers if _has_float(memory.metadata, key)]
        cleaned.append(replace(clean, warnings=(*clean.warnings, *fractions)) if fractions else clean)
        yield
    return cleaned


def _has_float(metadata: Mapping[str, Any], key: str) -> bool:
    value: Any = metadata
    for name in key.removeprefix(METADATA).split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return any(isinstance(part, float) for part in (value if isinstance(value, list) else [value]))


def _clean(memory: IncomingMemory, rules: Sequence[SecretRule]) -> Steps[ScrubbedMemory]:
    found: dict[str, tuple[Any, frozenset[Kind]]] = {}
    for name in SCRUBBED_FIELDS:
        if original := getattr(memory, name):
            value, kinds = yield from _scrubbed(original, rules)
            found |= {name: (value, kinds)} if kinds else {}
    if not found:
        return ScrubbedMemory(memory)
    changed = replace(memory, **{name: value for name, (value, _) in found.items()})
    return ScrubbedMemory(
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
