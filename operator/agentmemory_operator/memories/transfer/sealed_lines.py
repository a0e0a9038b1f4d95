"""Lines of an export whose memory is sealed, opened with the keys of the agent that takes them in."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError, Conflict, Unreadable
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.rules.item_versions import NUMBER_KEY, ItemVersion
from agentmemory_operator.memories.rules.record import CHANGED_KEY, PAYLOAD_KEYS, VERSIONS_KEY
from agentmemory_operator.memories.transfer.import_batch import Line
from agentmemory_operator.memories.zoned import zone_keys_of
from agentmemory_operator.zones.keyring import DataKey
from agentmemory_operator.zones.rules.sealing import SEALED_KEY, ZONE_KEY, Envelope, envelope_of
from agentmemory_operator.zones.sealed_store import opened_with

_SAID = {field.name: PAYLOAD_KEYS[field.name] for field in fields(IncomingMemory) if field.name in PAYLOAD_KEYS}


async def open_lines(agent: Agent, lines: Sequence[Line]) -> list[Line | AgentMemoryError]:
    """Each line as it was before it was sealed, or why it cannot be opened.

    Raises:
        KeysUnavailable: the keys cannot be had now.
    """
    envelopes = {
        place: envelope_of({SEALED_KEY: line.sealed}) for place, line in enumerate(lines) if line.sealed is not None
    }
    if not envelopes:
        return list(lines)
    zone_keys = zone_keys_of(agent)
    keys = await zone_keys.reading({envelope.key_id for envelope in envelopes.values() if envelope})
    return [
        _opened(zone_keys.scope, line, envelopes[place], keys) if place in envelopes else line
        for place, line in enumerate(lines)
    ]


def _opened(scope: str, line: Line, envelope: Envelope | None, keys: Mapping[str, DataKey]) -> Line | AgentMemoryError:
    key = keys.get(envelope.key_id) if envelope else None
    if envelope is None or key is None:
        way_out = "import it into an installation with its keys, or export it with plain=true"
        return Conflict(f"sealed: its key is unavailable or deleted: {way_out}")
    whose = {"userId": line.memory.user_id, "id": line.id or "", ZONE_KEY: line.memory.zone or ""}
    try:
        inner = json.loads(opened_with(key, envelope, scope=scope, payload=whose))
    except Unreadable:
        return Conflict("sealed: it was sealed for another agent, user, memory or zone, or was changed concurrently")
    said = {name: _immutable(inner[payload_key]) for name, payload_key in _SAID.items() if payload_key in inner}
    versions = tuple(map(_version, inner.get(VERSIONS_KEY) or ()))
    return replace(line, memory=replace(line.memory, **said), versions=versions, sealed=None)


def _version(said: Mapping[str, Any]) -> ItemVersion:
    return ItemVersion(
        content=said["content"],
        valid_from=said["validFrom"],
        valid_to=said["validTo"],
        metadata=said.get("metadata") or {},
        importance=said.get("importance", 0.5),
        tags=tuple(said.get("tags") or ()),
        category=said.get("category"),
        updated_at=said.get(CHANGED_KEY),
        version=said.get(NUMBER_KEY),
    )


def _immutable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
