"""What people are told of rebuilds: in the status of their object, in its conditions, in events."""

import logging
from dataclasses import dataclass, field, replace

from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.domain.outcomes import Reconciled
from agentmemory_operator.domain.rebuild_status import State, is_under_way, rebuild_status
from agentmemory_operator.domain.rebuilding import Record
from agentmemory_operator.domain.recall_probes import approval_of
from agentmemory_operator.domain.resources import AgentMemory
from agentmemory_operator.domain.safety import Refusal
from agentmemory_operator.domain.times import render_second
from agentmemory_operator.ports import Clock, Cluster, Event, Json
from agentmemory_operator.services.objects import AGENT_MEMORY, Key, ObjectTable, owned_memory

log = logging.getLogger(__name__)

SHOW_MS = 2_000
"""Between two writes of progress."""

_EXPLAINED = {
    State.FAILED: Reason.REBUILD_FAILED,
    State.PAUSED: Reason.REBUILD_PAUSED,
    State.HELD: Reason.AWAITING_APPROVAL,
}


@dataclass(slots=True)
class RebuildReports:
    """Tells how rebuilds stand."""

    table: ObjectTable
    cluster: Cluster
    clock: Clock
    _told: dict[tuple[Key, str], Json] = field(default_factory=dict)
    _shown_ms: dict[Key, int] = field(default_factory=dict)

    @property
    def now(self) -> str:
        """The time as statuses say it."""
        return render_second(self.clock.now_ms() / 1000)

    def last(self, key: Key) -> Json:
        """Return what was told last of an object's rebuild; the watch may not have brought it yet."""
        document = self.table.get(key) or {"metadata": {}}
        own = self._told.get((key, document["metadata"].get("uid", "")))
        told: Json = (document.get("status") or {}).get("rebuild") or {}
        return told if own is None else own

    def is_under_way(self, key: Key) -> bool:
        """Tell whether an object's collection is being rebuilt, as far as is known here."""
        return is_under_way(self.last(key))

    def explained(self, key: Key, done: Reconciled) -> Reconciled:
        """Return what a pass found, with why the rebuild that it asks for does not run."""
        told, refusal = self.last(key), _without_own_room(done.refusal, self.last(key))
        if refusal is not done.refusal:
            done = replace(done, refusal=refusal)
        reason = _EXPLAINED.get(State(told["state"])) if told else None
        if refusal is None or not refusal.is_carried_out or reason is None:
            return done
        digest = approval_of(told["digest"]) if reason is Reason.AWAITING_APPROVAL else refusal.digest
        return replace(done, refusal=replace(refusal, reason=reason, message=told.get("message", ""), digest=digest))

    async def show(self, key: Key, record: Record, message: str) -> None:
        """Tell how far one is, not more often than people read."""
        now_ms, told, last = self.clock.now_ms(), rebuild_status(record, State.RUNNING, message), self.last(key)
        is_news = any(told.get(name) != last.get(name) for name in ("step", "state", "message"))
        if is_news or now_ms - self._shown_ms.get(key, 0) >= SHOW_MS:
            self._shown_ms[key] = now_ms
            await self.write(key, told)
        elif memory := owned_memory(self.table, key):
            self._told[key, memory.metadata.uid] = told

    def await_turn(self, key: Key) -> None:
        """Tell that one is wanted and not begun: others of its connection are before it."""
        told, memory = self.last(key), owned_memory(self.table, key)
        if memory is None or is_under_way(told) or told.get("state") == State.FAILED:
            return
        waits = "it waits its turn: so many at a time of a connection (AGENTMEMORY_REBUILDS_AT_ONCE)"
        self._told[key, memory.metadata.uid] = {"state": State.WAITING, "message": waits}

    async def stand(self, key: Key, state: State, message: str, record: Record | None = None) -> None:
        """Tell that one stands, and why; what was told of the same one before stays, nothing of an earlier one."""
        last = self.last(key)
        told = last if is_under_way(last) else {}
        if record is not None and told.get("target") != record.target:
            told = rebuild_status(record, state, message)
        await self.write(key, told | {"state": state, "message": message})

    async def end(self, key: Key, record: Record, state: State, message: str, *, asked: str | None = None) -> None:
        """Tell how one ended.

        Args:
            asked: the annotation by which somebody would have a failed one tried again, as it is now.
        """
        told = rebuild_status(record, state, message, ended=self.now)
        await self.write(key, told | ({"requestedAt": asked} if asked is not None else {}))

    async def write(self, key: Key, told: Json) -> None:
        """Write how a rebuild stands into its object's status, if that is still there."""
        memory, document = owned_memory(self.table, key), self.table.get(key)
        if memory is None or document is None:
            return
        self._told[key, memory.metadata.uid] = told
        status = (document.get("status") or {}) | {"rebuild": told}
        if status != document.get("status"):
            await self.cluster.write_status(AGENT_MEMORY, memory.metadata, status)
            document["status"] = status

    async def post(self, memory: AgentMemory, event: Event) -> None:
        """Tell of something that happened."""
        await self.cluster.post_event(AGENT_MEMORY, memory.metadata, event)
        log.info("%s/%s: %s: %s", memory.metadata.namespace, memory.metadata.name, event.reason, event.message)

    def has_failed(self, key: Key, digest: str | None, asked: str | None) -> bool:
        """Tell whether one of this plan has failed, and nobody has asked for another try since."""
        told = self.last(key)
        is_same = digest is None or told.get("digest") == digest
        return told.get("state") == State.FAILED and told.get("requestedAt") == asked and is_same


def _without_own_room(refusal: Refusal | None, told: Json) -> Refusal | None:
    """Return what is held, but for a want of room that the rebuild which runs has made itself."""
    if refusal is None or refusal.reason != Reason.INSUFFICIENT_SPACE:
        return refusal
    if not is_under_way(told) or told.get("digest") != refusal.digest:
        return refusal
    return replace(refusal, reason=Reason.REBUILD_RUNNING, message="another collection is being made; this one serves")
