"""Take secrets out of what is about to be stored, before anything is hashed, compared or embedded.

Scrubbed is what is said: content, context, the value of a status, the strings of metadata. What names something (ids,
keys, subjects, tags, namespaces, authors) stays as it is: two names must not become one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentmemory_operator.domain.scrubbing import Kind, scrub, scrub_object
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.drafts import Clean, NewMemory

FIELDS = ("content", "context", "status_value", "metadata")

# Between so many characters others get their turn; some 10 ms.
_CHARACTERS_AT_ONCE = 64 << 10


async def clean(agent: Agent, memories: Sequence[NewMemory]) -> list[Clean]:
    """Return each memory as it may be stored: unchanged where the agent's object says that nothing is scrubbed."""
    cleaned, read = [], 0
    for memory in memories:
        cleaned.append(_clean(agent, memory))
        read += len(memory.content)
        if agent.secret_rules and read >= _CHARACTERS_AT_ONCE:
            read = 0
            await asyncio.sleep(0)
    return cleaned


def clean_metadata(agent: Agent, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata as they may be stored."""
    return scrub_object(metadata, agent.secret_rules).value if agent.secret_rules else metadata


def _clean(agent: Agent, memory: NewMemory) -> Clean:
    if not agent.secret_rules:
        return Clean(memory)
    scrubbed = {name: _scrubbed(getattr(memory, name), agent) for name in FIELDS if getattr(memory, name)}
    found = {name: (value, kinds) for name, (value, kinds) in scrubbed.items() if kinds}
    changed = replace(memory, **{name: value for name, (value, _) in found.items()})
    return Clean(changed, tuple(_warning(name, kinds) for name, (_, kinds) in found.items()))


def _scrubbed(value: str | Mapping[str, Any], agent: Agent) -> tuple[Any, frozenset[Kind]]:
    if isinstance(value, str):
        text = scrub(value, agent.secret_rules)
        return text.text, text.kinds
    scrubbed = scrub_object(value, agent.secret_rules)
    return scrubbed.value, scrubbed.kinds


def _warning(name: str, kinds: frozenset[Kind]) -> str:
    return f"{name}: taken out before it was stored: {', '.join(sorted(kinds))} (spec.lifecycle.scrubSecrets)"
