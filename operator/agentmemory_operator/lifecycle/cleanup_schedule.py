"""Schedule cleanups of AgentMemory objects, and run them a few at a time.

1. Each pass over an object calls `Cleaning.note`, which plans the next cleanup.
2. When it is due, `RunSchedule` runs it. One run makes up for any number of missed ones.
3. After the run a pass writes its result into `status.lastCleanup`.

The status is the only stored state: a restarted operator continues from there.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, StoreUnavailable, TransientError
from agentmemory_operator.lifecycle.cleanup import Approval, Cleanup, CleanupOutcome, purge_tombstones, rebuilt_since_ms
from agentmemory_operator.lifecycle.rules.cleanup import rules_of
from agentmemory_operator.lifecycle.rules.cleanup_status import approval_of, described, due_ms, held_status, run_status
from agentmemory_operator.lifecycle.rules.tombstones import keep_since_ms
from agentmemory_operator.memories.rules.record import LONG_CHAIN
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.runtime.cache import (
    AGENT_MEMORY,
    MEMORY_RESTORE,
    MEMORY_SNAPSHOT,
    Key,
    ObjectTable,
)
from agentmemory_operator.runtime.jobs import RunSchedule
from agentmemory_operator.spec.effective.settings import AgentSettings, effective_settings
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.times import parse_time, render_second

log = logging.getLogger(__name__)

AGENTS_AT_ONCE = 2
# Seconds: from a run without removals to one over millions of memories.
SECONDS = (0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
SETTLED_MS = 600_000
DONE, HELD, FAILED = "done", "held", "failed"

OpenAgent = Callable[[AgentSettings], Awaitable[Agent]]
"""Opens an agent for access to its collection. Its embedder is not used."""


class CleaningMeter:
    """Prometheus metrics of cleanups."""

    def __init__(self) -> None:
        self._runs = Counter("agentmemory_cleanups_total", "Cleanups by result.", ("outcome",), registry=None)
        self._removed = Counter(
            "agentmemory_cleanup_removed_total", "Memories removed by cleanups.", ("reason",), registry=None
        )
        self._durations = Histogram(
            "agentmemory_cleanup_duration_seconds", "Duration of cleanups in seconds.", buckets=SECONDS, registry=None
        )

    @property
    def metrics(self) -> list[Collector]:
        """Collectors to register."""
        return [self._runs, self._removed, self._durations]

    def failed(self) -> None:
        """Count a run that failed."""
        self._runs.labels(FAILED).inc()

    def ended(self, outcome: CleanupOutcome, took_ms: float) -> None:
        """Count a run that was carried out or withheld, and the memories that it removed.

        Args:
            took_ms: Duration in milliseconds.
        """
        self._runs.labels(HELD if outcome.held else DONE).inc()
        self._durations.observe(took_ms / 1000)
        for reason, number in outcome.counts.items() if not outcome.held else ():
            self._removed.labels(str(reason)).inc(number)


@dataclass(slots=True)
class Cleaning:
    """Schedules and runs the cleanups of all objects.

    Attributes:
        request: Requests a pass over an object.
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
    meter: CleaningMeter = field(init=False, default_factory=CleaningMeter)
    _begun_ms: int = field(init=False)

    def __post_init__(self) -> None:
        self._begun_ms = self.clock.now_ms()
        parts = self.table, self.clock, self.is_rebuilding, self.request
        self.schedule = RunSchedule(*parts, "lastCleanup", due_ms=_due_ms, run=self._run, share=AGENTS_AT_ONCE)

    def note(self, key: Key, memory: AgentMemory, settings: AgentSettings) -> Json:
        """Plan the next cleanup of an object; return the fields of its status about cleanups."""
        last = self.schedule.last_result(key, memory)
        due = due_ms(memory, settings.lifecycle, last)
        status: Json = {"lastCleanup": last} if last else {}
        if due is None:
            return status
        self.schedule.plan(key, due)
        return status | ({"nextCleanupTime": render_second(due / 1000)} if due else {})

    async def _run(self, key: Key, memory: AgentMemory, last: Json) -> None:
        try:
            with self.schedule.changing(key):
                await self._clean_up(key, memory, effective_settings(memory), last)
        except LeadershipLost:
            raise
        except TransientError:
            self.meter.failed()
            raise
        except AgentMemoryError as exc:
            self.meter.failed()
            raise StoreUnavailable(f"cannot be cleaned up: {exc}") from exc

    async def _clean_up(self, key: Key, memory: AgentMemory, settings: AgentSettings, last: Json) -> None:
        started_ms, approval = self.clock.now_ms(), _approval(memory, last)
        rules = rules_of(settings.lifecycle, settings.ranking, approval.as_of_ms if approval else started_ms)
        agent = await self.open_agent(settings)
        outcome = await self.cleanup.run(agent, rules, approval)
        await self.purge(key, memory, agent)
        took_ms = self.clock.now_ms() - started_ms
        held = _held(outcome, settings)
        counts = {} if held else outcome.counts
        status = run_status(counts, time_ms=started_ms, took_ms=took_ms, memory=memory, held=held)
        self.schedule.keep(key, memory, status)
        self.meter.ended(outcome, took_ms)
        for event in events_of(outcome, held):
            await self.cluster.post_event(AGENT_MEMORY, memory.metadata, event)
        log.info("cleaned up %s: %s", key, "held" if held else described(counts) or "nothing to remove")

    async def purge(self, key: Key, memory: AgentMemory, agent: Agent) -> None:
        """Delete the tombstones that no copy of the collection needs.

        Deletes nothing during a rebuild, or in the first 10 minutes of this process.
        """
        now_ms, last_snapshot = self.clock.now_ms(), memory.status.get("lastSnapshot") or {}
        since_ms = keep_since_ms(
            self.table.jobs_of(key, MEMORY_SNAPSHOT),
            self.table.jobs_of(key, MEMORY_RESTORE),
            last_snapshot=last_snapshot.get("name"),
            now_ms=now_ms,
            rebuilt_ms=await rebuilt_since_ms(agent),
        )
        # Snapshots and restores have their own watches: after a start some may not be known yet.
        if since_ms is None or now_ms - self._begun_ms < SETTLED_MS or self.is_rebuilding(key):
            return
        if count := await purge_tombstones(agent, since_ms):
            log.info("removed %d tombstones of %s", count, key)


def _due_ms(memory: AgentMemory, last: Json) -> int | None:
    return due_ms(memory, effective_settings(memory).lifecycle, last)


def _approval(memory: AgentMemory, last: Json) -> Approval | None:
    approved = approval_of(memory, last)
    if not approved or not approved.get("time"):
        return None
    return Approval(as_of_ms=parse_time(approved["time"]), most=approved.get("wouldRemove") or 0)


def _held(outcome: CleanupOutcome, settings: AgentSettings) -> Json | None:
    if outcome.held is None:
        return None
    return held_status(
        outcome.counts,
        total=outcome.total,
        digest=outcome.held,
        as_of_ms=outcome.as_of_ms,
        percent=settings.lifecycle.max_removal_percent,
    )


def events_of(outcome: CleanupOutcome, held: Json | None) -> Iterator[Event]:
    """Yield the Kubernetes events of a run.

    Args:
        held: Status of a withheld run, else None.
    """
    if held:
        yield Event("Warning", "CleanupHeld", held["message"])
    if outcome.removed:
        yield Event("Normal", "CleanedUp", f"removed {outcome.removed} memories: {described(outcome.counts)}")
    if outcome.long_chains:
        long_chains = f"{outcome.long_chains} memories have at least {LONG_CHAIN} versions"
        yield Event("Normal", "LongChains", f"{long_chains}: see docs/distillation.md")
