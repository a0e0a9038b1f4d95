"""Schedule and run the cleanups of AgentMemory objects.

1. Each reconcile pass over an object calls `CleanupSchedule.plan_next`, which plans the next cleanup.
2. When the cleanup is due, `RunSchedule` runs it, at most two at a time for one namespace. One run makes up for any
   number of missed ones.
3. After the run, another pass writes the result into `status.lastCleanup`.

The status is the only stored state: a restarted operator continues from there.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, StoreUnavailable, TransientError
from agentmemory_operator.lifecycle.cleanup import (
    Cleanup,
    CleanupApproval,
    CleanupResult,
    purge_tombstones,
    read_first_rebuild_ms,
)
from agentmemory_operator.lifecycle.rules.cleanup_rules import build_rules
from agentmemory_operator.lifecycle.rules.cleanup_status import (
    due_ms,
    find_approved_run,
    render_counts,
    run_status,
    withheld_status,
)
from agentmemory_operator.lifecycle.rules.tombstone_retention import find_keep_since_ms
from agentmemory_operator.memories.rules.record import LONG_CHAIN
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.runtime.jobs import RunSchedule
from agentmemory_operator.runtime.metrics import MetricSet
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, MEMORY_RESTORE, MEMORY_SNAPSHOT, Key, ObjectTable
from agentmemory_operator.spec.effective.settings import AgentSettings, effective_settings
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.times import parse_time, render_second

log = logging.getLogger(__name__)

MAX_CONCURRENT_CLEANUPS = 2
# Histogram buckets in seconds, from a run without removals to a run over millions of memories.
DURATION_BUCKETS_S = (0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
PURGE_AFTER_START_MS = 600_000
DONE, HELD, FAILED = "done", "held", "failed"

OpenAgent = Callable[[AgentSettings], Awaitable[Agent]]
"""Opens an agent for access to its collection. Its embedder is not used."""


class CleanupMeter(MetricSet):
    """Prometheus metrics of cleanups: number by result, removed memories by reason, and duration."""

    def __init__(self) -> None:
        super().__init__()
        self._runs = self.add_counter("agentmemory_cleanups_total", "Cleanups by result.", "outcome")
        self._removed = self.add_counter("agentmemory_cleanup_removed_total", "Memories removed by cleanups.", "reason")
        self._durations = self.add_histogram(
            "agentmemory_cleanup_duration_seconds", "Duration of cleanups in seconds.", buckets=DURATION_BUCKETS_S
        )

    def count_failure(self) -> None:
        """Count a run that ended with an error. Its duration is not measured."""
        self._runs.labels(FAILED).inc()

    def count_run(self, outcome: CleanupResult, duration_ms: float) -> None:
        """Count a run that was carried out or withheld, and the memories that it removed.

        Args:
            duration_ms: Duration in milliseconds.
        """
        self._runs.labels(HELD if outcome.approval_digest else DONE).inc()
        self._durations.observe(duration_ms / 1000)
        for reason, number in outcome.counts.items() if not outcome.approval_digest else ():
            self._removed.labels(str(reason)).inc(number)


@dataclass(slots=True)
class CleanupSchedule:
    """Schedules and runs the cleanups of all objects.

    Attributes:
        request: Requests a reconcile pass over an object.
        is_rebuilding: Returns whether an object's collection is being rebuilt. No cleanup runs then, because removals
            and tombstones would have to be applied to both collections.
    """

    table: ObjectTable
    open_agent: OpenAgent
    cluster: Cluster
    clock: Clock
    cleanup: Cleanup
    request: Callable[[Key], None]
    is_rebuilding: Callable[[Key], bool] = lambda key: False
    schedule: RunSchedule = field(init=False)
    meter: CleanupMeter = field(init=False, default_factory=CleanupMeter)
    _begun_ms: int = field(init=False)

    def __post_init__(self) -> None:
        self._begun_ms = self.clock.now_ms()
        parts = self.table, self.clock, self.is_rebuilding, self.request
        self.schedule = RunSchedule(*parts, "lastCleanup", due_ms=_due_ms, run=self._run, share=MAX_CONCURRENT_CLEANUPS)

    def plan_next(self, key: Key, memory: AgentMemory, settings: AgentSettings) -> Json:
        """Plan the next cleanup of an object; return the status fields `lastCleanup` and `nextCleanupTime`.

        `lastCleanup` is absent before the first run, `nextCleanupTime` if a run is due immediately or none is planned.
        """
        last = self.schedule.last_result(key, memory)
        next_ms = due_ms(memory, settings.lifecycle, last)
        status: Json = {"lastCleanup": last} if last else {}
        if next_ms is None:
            return status
        self.schedule.plan(key, next_ms)
        return status | ({"nextCleanupTime": render_second(next_ms / 1000)} if next_ms else {})

    async def _run(self, key: Key, memory: AgentMemory, last: Json) -> None:
        try:
            with self.schedule.block_rebuild(key):
                await self._clean_up(key, memory, effective_settings(memory), last)
        except LeadershipLost:
            raise
        except TransientError:
            self.meter.count_failure()
            raise
        except AgentMemoryError as exc:
            self.meter.count_failure()
            raise StoreUnavailable(f"cannot be cleaned up: {exc}") from exc

    async def _clean_up(self, key: Key, memory: AgentMemory, settings: AgentSettings, last: Json) -> None:
        started_ms, approval = self.clock.now_ms(), _approval(memory, last)
        rules = build_rules(settings.lifecycle, settings.ranking, approval.as_of_ms if approval else started_ms)
        agent = await self.open_agent(settings)
        # Purge first, because a failure after the removals would lose their counts.
        await self.purge(key, memory, agent)
        result = await self.cleanup.run(agent, rules, approval)
        took_ms = self.clock.now_ms() - started_ms
        held = _held(result, settings)
        counts = {} if held else result.counts
        status = run_status(counts, time_ms=started_ms, duration_ms=took_ms, memory=memory, withheld=held)
        self.schedule.record_result(key, memory, status)
        self.meter.count_run(result, took_ms)
        for event in cleanup_events(result, held):
            await self.cluster.post_event(AGENT_MEMORY, memory.metadata, event)
        log.info("cleaned up %s: %s", key, "held" if held else render_counts(counts) or "nothing to remove")

    async def purge(self, key: Key, memory: AgentMemory, agent: Agent) -> None:
        """Delete the tombstones that no copy of the collection needs.

        Deletes nothing during a rebuild, in the first 10 minutes of this process, or if a copy may have any age
        (`find_keep_since_ms`).

        Raises:
            StoreRejected: If Qdrant rejects a call.
            TransientError: If Qdrant is unavailable. Some tombstones may be deleted.
        """
        now_ms, last_snapshot = self.clock.now_ms(), memory.status.get("lastSnapshot") or {}
        since_ms = find_keep_since_ms(
            self.table.list_jobs(key, MEMORY_SNAPSHOT),
            self.table.list_jobs(key, MEMORY_RESTORE),
            last_snapshot=last_snapshot.get("name"),
            now_ms=now_ms,
            rebuilt_ms=await read_first_rebuild_ms(agent),
        )
        # Do not purge soon after the start: the watches of snapshots and restores may not have delivered all of them.
        if since_ms is None or now_ms - self._begun_ms < PURGE_AFTER_START_MS or self.is_rebuilding(key):
            return
        if count := await purge_tombstones(agent, since_ms):
            log.info("removed %d tombstones of %s", count, key)


def _due_ms(memory: AgentMemory, last: Json) -> int | None:
    return due_ms(memory, effective_settings(memory).lifecycle, last)


def _approval(memory: AgentMemory, last: Json) -> CleanupApproval | None:
    approved = find_approved_run(memory, last)
    if not approved or not approved.get("time"):
        return None
    return CleanupApproval(as_of_ms=parse_time(approved["time"]), max_removals=approved.get("wouldRemove") or 0)


def _held(result: CleanupResult, settings: AgentSettings) -> Json | None:
    if result.approval_digest is None:
        return None
    return withheld_status(
        result.counts,
        total=result.total,
        digest=result.approval_digest,
        as_of_ms=result.as_of_ms,
        percent=settings.lifecycle.max_removal_percent,
    )


def cleanup_events(outcome: CleanupResult, withheld: Json | None) -> Iterator[Event]:
    """Yield the Kubernetes events of a run.

    Args:
        withheld: Status of a withheld run, else None.
    """
    if withheld:
        yield Event("Warning", "CleanupHeld", withheld["message"])
    if outcome.removed:
        yield Event("Normal", "CleanedUp", f"removed {outcome.removed} memories: {render_counts(outcome.counts)}")
    if outcome.long_chains:
        long_chains = f"{outcome.long_chains} memories have at least {LONG_CHAIN} versions"
        yield Event("Normal", "LongChains", f"{long_chains}: see docs/distillation.md")
