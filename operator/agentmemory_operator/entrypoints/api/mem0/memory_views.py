"""Render memories as mem0's servers do."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entrypoints.api.mem0.filter_reader import RESERVED_KEY
from agentmemory_operator.entrypoints.api.mem0.mem0_times import expiration_date
from agentmemory_operator.memories.insert import Event
from agentmemory_operator.memories.rules.ids import keyed_id
from agentmemory_operator.memories.rules.record import MemoryRecord
from agentmemory_operator.spec.times import render_time

Json = dict[str, Any]

EVENTS: Mapping[Event, str] = {"ADD": "ADD", "SUPERSEDE": "UPDATE", "CORROBORATE": "NOOP", "NONE": "NOOP"}
"""Event of mem0 by the event of a stored memory."""


def own_fields(record: MemoryRecord) -> Mapping[str, Any]:
    """Return mem0's fields of a memory, as far as they are set: `RESERVED_KEY` lists them."""
    found = record.metadata.get(RESERVED_KEY)
    return found if isinstance(found, Mapping) else {}


def version_key(first_id: str, mark: str) -> str:
    """Return the idempotency key of a version that an update adds. Keys of callers have no control characters."""
    return f"\x1fmem0\x1f{first_id}\x1f{mark}"


def public_id(record: MemoryRecord, agent: Agent) -> str:
    """Return the id of a memory for mem0's clients: that of its first version.

    Callers may store any metadata, for example the id of another user's memory. So the stored id counts only if the id
    of the record was derived from it, which no request of a caller can achieve.
    """
    own = own_fields(record)
    first_id, mark = own.get("id"), own.get("mark")
    if not isinstance(first_id, str) or not isinstance(mark, str):
        return record.id
    is_own = record.id == keyed_id(agent.id_slug, record.user_id, version_key(first_id, mark))
    return first_id if is_own else record.id


def user_metadata(record: MemoryRecord) -> Json:
    """Return the metadata of a memory without mem0's own fields."""
    return {name: value for name, value in record.metadata.items() if name != RESERVED_KEY}


def render_memory(record: MemoryRecord, agent: Agent, *, id: str | None = None) -> Json:
    """Render a memory.

    Args:
        id: Id that the client uses for it. None for `public_id`.
    """
    own = own_fields(record)
    created_at = own.get("created_at")
    content = "" if record.locked else record.content
    return {
        "id": id or public_id(record, agent),
        "memory": content,
        "user_id": record.user_id,
        "agent_id": own.get("agent_id"),
        "app_id": own.get("app_id"),
        "run_id": record.session_id,
        "session_id": record.session_id,
        "hash": hashlib.md5(content.encode(), usedforsecurity=False).hexdigest(),
        "metadata": user_metadata(record),
        "categories": list(record.tags),
        "created_at": created_at if isinstance(created_at, str) else render_time(record.created_at),
        "updated_at": render_time(record.last_changed_at),
        "expiration_date": expiration_date(record.expires_at),
    }


def relevance(score: float) -> float:
    """Convert a score to mem0's scale, 0..1. Scores of unrelated memories are near 0, which becomes 0.5."""
    return min(1.0, max(0.0, (1 + score) / 2))


def score_of(relevance: float) -> float:
    """Convert a threshold on mem0's scale to one of scores."""
    return 2 * relevance - 1


def select_fields(memory: Json, fields: Sequence[str] | None) -> Json:
    """Return the requested fields of a rendered memory, and its id; all fields if none is requested."""
    return {name: value for name, value in memory.items() if name == "id" or name in fields} if fields else memory


def render_history(records: Sequence[MemoryRecord], memory_id: str) -> list[Json]:
    """Render the versions of a memory, oldest first: the first as an ADD, later ones as an UPDATE each."""
    entries: list[Json] = []
    before = None
    for record in records:
        content = None if record.locked else record.content
        entries.append(
            {
                "id": record.id,
                "memory_id": memory_id,
                "input": [{"role": record.role or "user", "content": content or ""}],
                "old_memory": before,
                "new_memory": content,
                "user_id": record.user_id,
                "run_id": record.session_id,
                "categories": list(record.tags),
                "metadata": user_metadata(record),
                "event": "ADD" if len(entries) == 0 else "UPDATE",
                "created_at": render_time(record.created_at),
                "updated_at": render_time(record.last_changed_at),
            }
        )
        before = content
    return entries
