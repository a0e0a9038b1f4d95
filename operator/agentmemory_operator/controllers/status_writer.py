"""Writes what passes found into the status of their object, where it differs; errors become conditions and events.

The status says, too, which restore has an agent closed. The API goes by the collection's metadata and the claim of the
slug, never by this.
"""

from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.rules.refusals import REQUESTS
from agentmemory_operator.collections.takeover import TakeoverRequests
from agentmemory_operator.consolidation.schedule import Consolidating
from agentmemory_operator.controllers.rules.status import (
    failed_connection_status,
    failed_status,
    with_access_counted,
    with_request_handled,
)
from agentmemory_operator.error_reasons import reason_of
from agentmemory_operator.errors import AgentMemoryError, NotOwned, StoreUnavailable, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.runtime.cache import (
    AGENT_MEMORY,
    MEMORY_RESTORE,
    QDRANT_CONNECTION,
    Key,
    ObjectTable,
    Statuses,
    key_of,
    slug_of,
)
from agentmemory_operator.runtime.queue import Request
from agentmemory_operator.snapshots.schedule import SnapshotSchedule
from agentmemory_operator.spec.effective.settings import subjects_now
from agentmemory_operator.spec.kinds.agent_memory import RECONCILE_REQUESTED_AT, Metadata
from agentmemory_operator.spec.presets import DEFAULT_PRESET, PRESETS
from agentmemory_operator.zones.upkeep import KeyUpkeep


@dataclass(frozen=True, slots=True)
class StatusWriter:
    """Writes the statuses of AgentMemories and QdrantConnections.

    Attributes:
        request: asks for a pass over another object.
        asking: which takeovers each connection is asked for.
        snapshots: told of each object; says what there is to say of its snapshots.
        upkeep: told of each object; says how the keys of its zones are.
        consolidating: told of each object; says what consolidations came to.
    """

    table: ObjectTable
    cluster: Cluster
    statuses: Statuses
    request: Request
    asking: TakeoverRequests
    snapshots: SnapshotSchedule
    upkeep: KeyUpkeep
    consolidating: Consolidating

    async def fail(self, document: Json, metadata: Metadata, exc: AgentMemoryError) -> bool:
        """Write down what failed; tell whether that is news.

        Raises:
            TransientError: `exc` itself, if it is not Qdrant's: Kubernetes' own trouble says nothing about the object.
        """
        if isinstance(exc, TransientError) and not isinstance(exc, StoreUnavailable):
            raise exc
        reason, is_stalled = reason_of(exc)
        make_status = failed_connection_status if document["kind"] == QDRANT_CONNECTION else failed_status
        status = make_status(
            reason,
            str(exc),
            is_stalled=is_stalled,
            old=document.get("status") or {},
            generation=metadata.generation,
            now=self.statuses.now,
        )
        if document["kind"] == AGENT_MEMORY:
            status |= self._refused(key_of(document), document, exc)
        if _reasons(status) != _reasons(document.get("status") or {}):
            await self.cluster.post_event(document["kind"], metadata, Event("Warning", reason, str(exc)))
        return await self.write(document, metadata, status)

    def _refused(self, key: Key, document: Json, exc: AgentMemoryError) -> Json:
        """Let whoever may allow a takeover see that it is asked for; return what the object's own status says of it."""
        if not isinstance(exc, NotOwned) or exc.owner is None:
            self.asking.settle(key)
            return {}
        if exc.is_same_tenant:
            self.asking.settle(key)
            return {"foreignOwner": {name: value for name, value in exc.owner.items() if name != "connection"}}
        if connection := self.asking.note(key, slug_of(document), exc, now=self.statuses.now):
            self.request(connection)
        return {}

    async def write(self, document: Json, metadata: Metadata, status: Json, *, is_ended: bool = True) -> bool:
        """Write the status where it differs; tell whether it did.

        Args:
            is_ended: nothing is left of the pass but this.
        """
        if document["kind"] == AGENT_MEMORY:
            if is_ended:
                status = with_request_handled(status, metadata.annotations.get(RECONCILE_REQUESTED_AT))
            status = with_names(status, document)
            # Of an object that is suspended, or not valid, no other part of a pass looks at who may call.
            status = with_access_counted(status, subjects_now(document))
            status = with_closing(status, key_of(document), self.table)
            status = self.upkeep.note(key_of(document), document, status)
            status = self.consolidating.note(key_of(document), document, status)
            status = self.snapshots.note(key_of(document), document, status)
        else:
            status = {name: value for name, value in status.items() if name != REQUESTS}
            if asked := self.asking.of_connection(key_of(document)):
                status[REQUESTS] = asked
        return await self.statuses.write(document, metadata, status)


def _reasons(status: Json) -> list[Any]:
    return [(condition["type"], condition["reason"]) for condition in status.get("conditions") or []]


def with_names(status: Json, document: Json) -> Json:
    """An AgentMemory's status that names its agent, and the preset in force or, before one is, the one asked for."""
    spec, effective = document.get("spec"), status.get("effective") or {}
    wanted = (spec.get("preset") if isinstance(spec, dict) else None) or DEFAULT_PRESET
    if effective.keys() <= {"preset"} and isinstance(wanted, str) and wanted in PRESETS:
        effective = {"preset": wanted}
    return status | {"agent": slug_of(document)} | ({"effective": effective} if effective else {})


def closed_by(memory: Key, table: ObjectTable) -> Json | None:
    """Which restore has an AgentMemory closed, and since when; None where none has."""
    for key in table.job_keys(memory, MEMORY_RESTORE):
        status = (table.get(key) or {}).get("status") or {}
        if status.get("closedSince"):
            return {"restore": key.name, "since": status["closedSince"]}
    return None


def with_closing(status: Json, memory: Key, table: ObjectTable) -> Json:
    """An AgentMemory's status that says whether it is closed."""
    closed = closed_by(memory, table)
    others = {name: value for name, value in status.items() if name != "closed"}
    return others | ({"closed": closed} if closed else {})
