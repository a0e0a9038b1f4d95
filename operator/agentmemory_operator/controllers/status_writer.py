"""Write the result of a pass into the status of its object if it differs. An error becomes conditions and an event.

The status also names the restore that has closed an agent. This is information only: the API obeys the collection's
metadata and the claim of the slug.
"""

from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.rules.refusals import TAKEOVER_REQUESTS_FIELD
from agentmemory_operator.collections.takeover_requests import TakeoverRequests
from agentmemory_operator.consolidation.consolidation_schedule import ConsolidationSchedule
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
from agentmemory_operator.runtime.object_table import (
    AGENT_MEMORY,
    MEMORY_RESTORE,
    QDRANT_CONNECTION,
    Key,
    ObjectTable,
    Statuses,
    key_of,
    slug_of,
)
from agentmemory_operator.runtime.work_queue import Request
from agentmemory_operator.snapshots.schedule import SnapshotSchedule
from agentmemory_operator.spec.effective.settings import read_subjects
from agentmemory_operator.spec.kinds.agent_memory import RECONCILE_REQUESTED_AT, Metadata
from agentmemory_operator.spec.presets import DEFAULT_PRESET, PRESETS
from agentmemory_operator.zones.key_checks import KeyChecks


@dataclass(frozen=True, slots=True)
class StatusWriter:
    """Writes the statuses of AgentMemory and QdrantConnection objects.

    Attributes:
        request: Requests a pass over another object.
        takeover_requests: Pending takeover requests by connection.
        snapshots, key_checks, consolidation_schedule: Each plans its work for the object and adds fields to its status.
    """

    table: ObjectTable
    cluster: Cluster
    statuses: Statuses
    request: Request
    takeover_requests: TakeoverRequests
    snapshots: SnapshotSchedule
    key_checks: KeyChecks
    consolidation_schedule: ConsolidationSchedule

    async def write_failure(self, document: Json, metadata: Metadata, exc: AgentMemoryError) -> bool:
        """Write an error into the status, and post an event if its reason is new. Return whether the status changed.

        Raises:
            TransientError: `exc` itself if it is transient and not a StoreUnavailable, because it is not about the
                object; then nothing is written. Also if Kubernetes is unavailable.
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
        """Record or drop the takeover request of an object; return the status fields about the foreign owner.

        Only an owner in the same namespace is reported there; otherwise the result is empty.
        """
        if not isinstance(exc, NotOwned) or exc.owner is None:
            self.takeover_requests.forget(key)
            return {}
        if exc.is_same_tenant:
            self.takeover_requests.forget(key)
            return {"foreignOwner": {name: value for name, value in exc.owner.items() if name != "connection"}}
        if connection := self.takeover_requests.record(key, slug_of(document), exc, now=self.statuses.now):
            self.request(connection)
        return {}

    async def write(self, document: Json, metadata: Metadata, status: Json, *, is_ended: bool = True) -> bool:
        """Add further fields to the status, and write it if it differs from the stored one; return whether it differed.

        Args:
            is_ended: True if the pass is complete. Then the requested reconcile counts as handled.

        Raises:
            TransientError: If Kubernetes is unavailable.
        """
        if document["kind"] == AGENT_MEMORY:
            if is_ended:
                status = with_request_handled(status, metadata.annotations.get(RECONCILE_REQUESTED_AT))
            status = with_agent_and_preset(status, document)
            # Update the access counts here too, because a pass over a suspended or invalid object does not.
            status = with_access_counted(status, read_subjects(document))
            status = with_closing(status, key_of(document), self.table)
            status = self.key_checks.update_status(key_of(document), document, status)
            status = self.consolidation_schedule.plan_next(key_of(document), document, status)
            status = self.snapshots.update_status(key_of(document), document, status)
        else:
            status = {name: value for name, value in status.items() if name != TAKEOVER_REQUESTS_FIELD}
            if requests := self.takeover_requests.list_for(key_of(document)):
                status[TAKEOVER_REQUESTS_FIELD] = requests
        return await self.statuses.write(document, metadata, status)


def _reasons(status: Json) -> list[Any]:
    return [(condition["type"], condition["reason"]) for condition in status.get("conditions") or []]


def with_agent_and_preset(status: Json, document: Json) -> Json:
    """Return the status with the slug of the agent, and with the requested preset until a preset is in force.

    A requested preset that does not exist changes nothing.
    """
    spec, effective = document.get("spec"), status.get("effective") or {}
    preset = (spec.get("preset") if isinstance(spec, dict) else None) or DEFAULT_PRESET
    if effective.keys() <= {"preset"} and isinstance(preset, str) and preset in PRESETS:
        effective = {"preset": preset}
    return status | {"agent": slug_of(document)} | ({"effective": effective} if effective else {})


def find_closing_restore(memory: Key, table: ObjectTable) -> Json | None:
    """Return `status.closed`: name and start time of the restore that has closed an AgentMemory; None if none has."""
    for key in table.list_job_keys(memory, MEMORY_RESTORE):
        status = (table.get(key) or {}).get("status") or {}
        if status.get("closedSince"):
            return {"restore": key.name, "since": status["closedSince"]}
    return None


def with_closing(status: Json, memory: Key, table: ObjectTable) -> Json:
    """Return the status with the `closed` field set if a restore has closed the AgentMemory, and removed otherwise."""
    closed = find_closing_restore(memory, table)
    remaining = {name: value for name, value in status.items() if name != "closed"}
    return remaining | ({"closed": closed} if closed else {})
