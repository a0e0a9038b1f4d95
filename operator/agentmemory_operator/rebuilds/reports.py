"""Report rebuilds to users: in the status of their object, in its conditions, and in events."""

import logging
from dataclasses import dataclass, field, replace

from agentmemory_operator.collections.rules.outcome import PassOutcome
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, recall_to_json
from agentmemory_operator.collections.rules.refusals import Refusal
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.rebuilds.rules.recall_probes import approval_value
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, Key, ObjectTable, Statuses, owned_memory
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.spec_rebuild import RebuildState, RebuildStatus, RecallStatus, is_active
from agentmemory_operator.spec.printable import printable_lines
from agentmemory_operator.spec.times import render_time

log = logging.getLogger(__name__)

PROGRESS_PERIOD_MS = 2_000
"""Minimum milliseconds between two writes of progress."""

_REASONS = {
    RebuildState.FAILED: Reason.REBUILD_FAILED,
    RebuildState.PAUSED: Reason.REBUILD_PAUSED,
    RebuildState.HELD: Reason.AWAITING_APPROVAL,
}


@dataclass(slots=True)
class RebuildReports:
    """Reports the state of rebuilds, and keeps the last reported state of each in memory."""

    table: ObjectTable
    cluster: Cluster
    clock: Clock
    statuses: Statuses = field(init=False)
    # The last state of each rebuild, by object and its UID. The stored status may be older, because progress is written
    # rarely, and the state of a queued rebuild by the next pass.
    _statuses_by_object: dict[tuple[Key, str], Json] = field(default_factory=dict)
    _shown_ms: dict[Key, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.statuses = Statuses(self.table, self.cluster, self.clock)

    def last_status(self, key: Key) -> Json:
        """Return the last reported `status.rebuild` of an object; empty if there is none.

        The object's stored status may not contain it yet.
        """
        document = self.table.get(key) or {"metadata": {}}
        recorded = self._statuses_by_object.get((key, document["metadata"].get("uid", "")))
        stored: Json = (document.get("status") or {}).get("rebuild") or {}
        return stored if recorded is None else recorded

    def is_in_progress(self, key: Key) -> bool:
        """Return whether the last reported state is that of a rebuild in progress."""
        return is_active(self.last_status(key))

    def explain(self, key: Key, done: PassOutcome) -> PassOutcome:
        """Return a pass's result with the reason why its rebuild does not run: failed, paused, or not approved.

        A refusal for lack of space that the rebuild itself occupies is replaced. In all other cases `done` is returned
        unchanged.
        """
        last, refusal = self.last_status(key), _ignore_own_space(done.refusal, self.last_status(key))
        if refusal is not done.refusal:
            done = replace(done, refusal=refusal)
        reason = _REASONS.get(last.get("state", ""))
        if refusal is None or not refusal.is_running or reason is None:
            return done
        digest = approval_value(last.get("digest", "")) if reason is Reason.AWAITING_APPROVAL else refusal.digest
        return replace(done, refusal=replace(refusal, reason=reason, message=last.get("message", ""), digest=digest))

    async def report_progress(self, key: Key, record: RebuildRecord, message: str) -> None:
        """Write the progress to the status. Changes of numbers alone are written at most every two seconds.

        Args:
            message: Current action, or the cause of a wait; "" for neither.
        """
        now_ms, new, last = (
            self.clock.now_ms(),
            render_rebuild_status(record, RebuildState.RUNNING, message),
            self.last_status(key),
        )
        is_change = any(new.get(name) != last.get(name) for name in ("step", "state", "message"))
        if is_change or now_ms - self._shown_ms.get(key, 0) >= PROGRESS_PERIOD_MS:
            self._shown_ms[key] = now_ms
            await self.write(key, new)
        elif memory := owned_memory(self.table, key):
            self._statuses_by_object[key, memory.metadata.uid] = new

    def report_queued(self, key: Key) -> None:
        """Record that a rebuild is queued, unless one is in progress or has failed. The next pass writes the status."""
        last, memory = self.last_status(key), owned_memory(self.table, key)
        if memory is None or is_active(last) or last.get("state") == RebuildState.FAILED:
            return
        message = "queued: the connection reached its limit of concurrent rebuilds (AGENTMEMORY_REBUILDS_AT_ONCE)"
        self._statuses_by_object[key, memory.metadata.uid] = {"state": RebuildState.WAITING, "message": message}

    async def report_waiting(
        self, key: Key, state: RebuildState, message: str, record: RebuildRecord | None = None
    ) -> None:
        """Report that a rebuild has stopped or waits, and why.

        Other fields of `status.rebuild` are kept if they are of the same unfinished rebuild.

        Args:
            state: New state, for example WAITING or PAUSED.
            record: Record of the rebuild; None if there is none, or it is that of the status.
        """
        last = self.last_status(key)
        new_status = last if is_active(last) else {}
        if record is not None and new_status.get("target") != record.target:
            new_status = render_rebuild_status(record, state, message)
        await self.write(key, new_status | {"state": state, "message": printable_lines(message)})

    async def report_end(
        self, key: Key, record: RebuildRecord, state: RebuildState, message: str, *, retry_value: str | None = None
    ) -> None:
        """Report the end of a rebuild.

        Args:
            retry_value: Current value of the annotation that requests another attempt of a failed rebuild. None if the
                object has no such annotation, or the rebuild did not fail.
        """
        new_status = render_rebuild_status(record, state, message, end_time=self.statuses.now)
        await self.write(key, new_status | ({"requestedAt": retry_value} if retry_value is not None else {}))

    async def write(self, key: Key, status: Json) -> None:
        """Write the state of a rebuild into its object's status, if the object still exists."""
        memory, document = owned_memory(self.table, key), self.table.get(key)
        if memory is None or document is None:
            return
        self._statuses_by_object[key, memory.metadata.uid] = status
        await self.statuses.write(document, memory.metadata, (document.get("status") or {}) | {"rebuild": status})

    async def post_event(self, memory: AgentMemory, event: Event) -> None:
        """Post an event about an AgentMemory, and log it."""
        await self.cluster.post_event(AGENT_MEMORY, memory.metadata, event)
        log.info("%s/%s: %s: %s", memory.metadata.namespace, memory.metadata.name, event.reason, event.message)

    def has_failed(self, key: Key, digest: str | None, requested_at: str | None) -> bool:
        """Return whether a rebuild of a plan has failed, and no other attempt was requested since.

        Args:
            digest: Digest of the plan; None for any plan.
            requested_at: Current value of the annotation that requests another attempt; None without it.
        """
        last = self.last_status(key)
        is_same = digest is None or last.get("digest") == digest
        return last.get("state") == RebuildState.FAILED and last.get("requestedAt") == requested_at and is_same


def _ignore_own_space(refusal: Refusal | None, last: Json) -> Refusal | None:
    """Replace a refusal for lack of space if the rebuild in progress occupies that space; return others unchanged."""
    if refusal is None or refusal.reason != Reason.INSUFFICIENT_SPACE:
        return refusal
    if not is_active(last) or last.get("digest") != refusal.digest:
        return refusal
    return replace(
        refusal, reason=Reason.REBUILD_RUNNING, message="a new collection is being built; this one keeps serving"
    )


def render_rebuild_status(
    record: RebuildRecord, state: RebuildState, message: str, *, end_time: str | None = None
) -> Json:
    """Render the status field `rebuild`.

    Args:
        message: Current action, cause of a wait, result, or reason of the failure; empty omits the field.
        end_time: End time, RFC 3339 UTC. None if the rebuild has not ended.
    """
    status = RebuildStatus(
        kind=record.kind,
        state=state,
        step=record.step,
        digest=record.digest,
        source=record.source,
        target=record.target,
        copied=record.copied,
        total=record.total,
        embedding_calls=record.calls,
        recall=RecallStatus.model_validate(recall_to_json(record.recall)) if record.recall else None,
        start_time=render_time(record.started_ms),
        move_time=render_time(record.moved_ms) if record.moved_ms is not None else None,
        end_time=end_time,
        pause_ms=record.pause_ms,
        message=printable_lines(message) or None,
    )
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
