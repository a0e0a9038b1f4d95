"""Agents that the API is to leave alone for a while: a snapshot is being restored into their collection itself.

Told in two places: in the AgentMemory's status, which every API process watches, and in the collection's metadata,
which one reads that has just started. Neither is a fence: whoever restores counts what was written.
"""

from collections.abc import Mapping
from typing import Any

from agentmemory_operator.ports import Json
from agentmemory_operator.services.objects import MEMORY_RESTORE, Key, ObjectTable

CLOSED_KEY = "agentmemoryClosed"
"""Key of the collection's metadata that says so."""

RETRY_AFTER_S = 10.0
"""What callers are told to wait."""


def closed_by(memory: Key, table: ObjectTable) -> Json | None:
    """Return which restore has an AgentMemory closed, and since when; None where none has."""
    for key in table.job_keys(memory, MEMORY_RESTORE):
        status = (table.get(key) or {}).get("status") or {}
        if status.get("closedSince"):
            return {"restore": key.name, "since": status["closedSince"]}
    return None


def with_closing(status: Json, memory: Key, table: ObjectTable) -> Json:
    """Return an AgentMemory's status that says whether it is closed."""
    closed = closed_by(memory, table)
    others = {name: value for name, value in status.items() if name != "closed"}
    return others | ({"closed": closed} if closed else {})


def is_closed(document: Mapping[str, Any]) -> bool:
    """Tell whether an AgentMemory's status says that it is closed."""
    status = document.get("status")
    return isinstance(status, Mapping) and bool(status.get("closed"))
