"""Kubernetes objects of agents as this process has last read them, to be shown to callers of the API.

Tenants can write every part of these objects, statuses included. So they are only shown: nothing is decided by them.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import (
    AGENT_MEMORY,
    MEMORY_RESTORE,
    MEMORY_SNAPSHOT,
    Key,
    ObjectTable,
    uid_of,
)
from agentmemory_operator.spec.effective.settings import AgentSettings

JOB_KINDS = (MEMORY_SNAPSHOT, MEMORY_RESTORE)

# Parts of snapshots and restores to keep. There may be tens of thousands, and most of their statuses is not shown.
_METADATA = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")
_STATUS = (
    *("conditions", "startTime", "endTime", "progress", "points", "sizeBytes", "locations", "qdrantVersion"),
    *("previousCollection", "rolledBackTime"),
)

ConnectionStatus = Callable[[AgentSettings], Awaitable[Json]]
"""Returns the status of an agent's connection. Raises AgentMemoryError if the agent may not use the connection."""


class AgentObjects:
    """Objects of agents.

    Args:
        table: Objects of this process.
        is_cluster: True if the objects are of a cluster, where kubectl can change them.
    """

    def __init__(self, table: ObjectTable, read_connection: ConnectionStatus, *, is_cluster: bool) -> None:
        self._table = table
        self._read_connection = read_connection
        self._complete: set[tuple[str, str]] = set()
        self.is_cluster = is_cluster

    def record_list(self, kind: str, namespace: str = "") -> None:
        """Record that all objects of a kind have been read, of one namespace or, with '', of all."""
        self._complete.add((kind, namespace))

    def find_memory(self, settings: AgentSettings) -> Json | None:
        """Return the AgentMemory of an agent; None if it was deleted or recreated in the meantime."""
        document = self._table.get(_key_of(settings))
        return document if document is not None and uid_of(document) == settings.uid else None

    def list_jobs(self, settings: AgentSettings, kind: str) -> list[Json] | None:
        """Return the snapshots or restores of an agent, unsorted; None if they have not been read completely.

        They are those that name its AgentMemory in its namespace, including those of an earlier object of this name.
        """
        if self._complete.isdisjoint({(kind, ""), (kind, settings.namespace)}):
            return None
        return self._table.list_jobs(_key_of(settings), kind)

    async def read_connection_status(self, settings: AgentSettings) -> Json:
        """Return the status of an agent's connection; empty if there is none, or the agent may not use it."""
        try:
            return await self._read_connection(settings)
        except AgentMemoryError:
            return {}


def shown_part(document: Json) -> Json:
    """Return the part of a snapshot or restore to keep; other objects whole."""
    if document["kind"] not in JOB_KINDS:
        return document
    metadata = _select(document["metadata"], _METADATA)
    status = document.get("status")
    # A status of another type is dropped by the table.
    part = _select(status, _STATUS) if isinstance(status, Mapping) else status
    return {"kind": document["kind"], "metadata": metadata, "spec": document.get("spec"), "status": part}


def _select(values: Mapping[str, Any], names: tuple[str, ...]) -> Json:
    return {name: values[name] for name in names if name in values}


def _key_of(settings: AgentSettings) -> Key:
    return Key(AGENT_MEMORY, settings.namespace, settings.name)
