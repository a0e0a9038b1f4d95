"""What people are told of rebuilds: in the status of their object, in its conditions, in events."""

import logging
from dataclasses import dataclass, field, replace

from agentmemory_operator.collections.rules.outcome import Reconciled
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, recall_to_json
from agentmemory_operator.collections.rules.refusals import Refusal
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.rebuilds.rules.probes import approval_of
from agentmemory_operator.runtime.cache import AGENT_MEMORY, Key, ObjectTable, Statuses, owned_memory
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.rebuild import RebuildState, RebuildStatus, RecallStatus, is_under_way
from agentmemory_operator.spec.printable import printable_lines
from agentmemory_operator.spec.times import render_time

log = logging.getLogger(__name__)

SHOW_MS = 2_000
"""Between two writes of progress."""

_EXPLAINED = {
    RebuildState.FAILED: Reason.REBUILD_FAILED,
    RebuildState.PAUSED: Reason.REBUILD_PAUSED,
    RebuildState.HELD: Reason.AWAITING_APPROVAL,
}


@dataclass(slots=True)
class RebuildReports:
    """Tells how rebuilds stand."""

    table: ObjectTable
    cluster: Cluster
    clock: Clock
    statuses: Statuses = field(init=False)
    # Not all of it is written: progress is only now and then, and what waits for its turn with the pass that says so.
    _told: dict[tuple[Key, str], Json] = field(default_factory=dict)
    _shown_ms: dict[Key, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.statuses = Statuses(self.table, self.cluster, self.clock)

    def last(self, key: Key) -> Json:
        """What was told last of an object's rebuild; the watch may not have brought it yet."""
        document = self.table.get(key) or {"metadata": {}}
        own = self._told.get((key, document["metadata"].get("uid", "")))
        told: Json = (document.get("status") or {}).get("rebuild") or {}
        return told if own is None else own

    def is_under_way(self, key: Key) -> bool:
        """Whether an object's collection is being rebuilt, as far as is known here."""
        return is_under_way(self.last(key))

    def explained(self, key: Key, done: Reconciled) -> Reconciled:
        """What a pass found, with why the rebuild that it asks for does not run."""
        told, refusal = self.last(key), _without_own_room(done.refusal, self.last(key))
        if refusal is not done.refusal:
            done = replace(done, refusal=refusal)
        reason = _EXPLAINED.get(told.get("state", ""))
        if refusal is None or not refusal.is_carried_out or reason is None:
            return done
        digest = approval_of(told.get("digest", "")) if reason is Reason.AWAITING_APPROVAL else refusal.digest
        return replace(done, refusal=replace(refusal, reason=reason, message=told.get("message", ""), digest=digest))

    async def show(self, key: Key, record: RebuildRecord, message: str) -> None:
        """Tell how far one is, not more often than people read."""
        now_ms, told, last = self.clock.now_ms(), rebuild_status(record, RebuildState.RUNNING, message), self.last(key)
        is_news = any(told.get(name) != last.get(name) for name in ("step", "state", "message"))
        if is_news or now_ms - self._shown_ms.get(key, 0) >= SHOW_MS:
            self._shown_ms[key] = now_ms
            await self.write(key, told)
        elif memory := owned_memory(self.table, key):
            self._told[key, memory.metadata.uid] = told

    def await_turn(self, key: Key) -> None:
        """Tell that one is wanted and not begun: others of its connection are before it."""
        told, memory = self.last(key), owned_memory(self.table, key)
        if memory is None or is_under_way(told) or told.get("state") == RebuildState.FAILED:
            return
        waits = "queued: the connection reached its limit of concurrent rebuilds (AGENTMEMORY_REBUILDS_AT_ONCE)"
        self._told[key, memory.metadata.uid] = {"state": RebuildState.WAITING, "message": waits}

    async def stand(self, key: Key, state: RebuildState, message: str, record: RebuildRecord | None = None) -> None:
        """Tell that one stands, and why; what was told of the same one before stays, nothing of an earlier one."""
        last = self.last(key)
        told = last if is_under_way(last) else {}
        if record is not None and told.get("target") != record.target:
            told = rebuild_status(record, state, message)
        await self.write(key, told | {"state": state, "message": printable_lines(message)})

    async def end(
        self, key: Key, record: RebuildRecord, state: RebuildState, message: str, *, asked: str | None = None
    ) -> None:
        """Tell how one ended.

        Args:
            asked: the annotation by which somebody would have a failed one tried again, as it is now.
        """
        told = rebuild_status(record, state, message, ended=self.statuses.now)
        await self.write(key, told | ({"requestedAt": asked} if asked is not None else {}))

    async def write(self, key: Key, told: Json) -> None:
        """Write how a rebuild stands into its object's status, if that is still there."""
        memory, document = owned_memory(self.table, key), self.table.get(key)
        if memory is None or document is None:
            return
        self._told[key, memory.metadata.uid] = told
        await self.statuses.write(document, memory.metadata, (document.get("status") or {}) | {"rebuild": told})

    async def post(self, memory: AgentMemory, event: Event) -> None:
        """Tell of something that happened."""
        await self.cluster.post_event(AGENT_MEMORY, memory.metadata, event)
        log.info("%s/%s: %s: %s", memory.metadata.namespace, memory.metadata.name, event.reason, event.message)

    def has_failed(self, key: Key, digest: str | None, asked: str | None) -> bool:
        """Whether one of this plan has failed, and nobody has asked for another try since."""
        told = self.last(key)
        is_same = digest is None or told.get("digest") == digest
        return told.get("state") == RebuildState.FAILED and told.get("requestedAt") == asked and is_same


def _without_own_room(refusal: Refusal | None, told: Json) -> Refusal | None:
    """What is held, but for a want of room that the rebuild which runs has made itself."""
    if refusal is None or refusal.reason != Reason.INSUFFICIENT_SPACE:
        return refusal
    if not is_under_way(told) or told.get("digest") != refusal.digest:
        return refusal
    return replace(
        refusal, reason=Reason.REBUILD_RUNNING, message="a new collection is being built; this one keeps serving"
    )


def rebuild_status(record: RebuildRecord, state: RebuildState, message: str, *, ended: str | None = None) -> Json:
    """A rebuild as people see it.

    Args:
        message: what it does or waits for; empty says nothing.
        ended: when it ended, RFC 3339 UTC.
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
        start_time=render_time(record.begun_ms),
        move_time=render_time(record.moved_ms) if record.moved_ms is not None else None,
        end_time=ended,
        pause_ms=record.pause_ms,
        message=printable_lines(message) or None,
    )
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
