"""Request the due snapshots of agents, and write the state of their snapshots into the status.

Every pass over an agent calls `update_status`, and every event of a snapshot calls `request_check`; both schedule a
check of the agent. A check claims a due snapshot by creating an object. The object's name is derived from the time of
the schedule, the new Qdrant version or the time of the rebuild. All claims are objects, so a restart loses none.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from prometheus_client.registry import Collector

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.runtime.metrics import Labels, LiveGauge
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, MEMORY_SNAPSHOT, Key, ObjectTable, Statuses
from agentmemory_operator.runtime.work_queue import WorkQueue
from agentmemory_operator.snapshots.retention import BytesRemoval, RetentionRuns
from agentmemory_operator.snapshots.rules.due import (
    DueSnapshot,
    SnapshotOverview,
    SnapshotSettings,
    build_manifest,
    due_after_rebuild,
    due_after_upgrade,
    last_snapshot_status,
    next_scheduled,
    read_settings,
    snapshots_fault,
    stale_at_ms,
    states_of,
)
from agentmemory_operator.snapshots.rules.facts import SnapshotFacts, parse_facts
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, is_true, merge_conditions
from agentmemory_operator.spec.times import parse_time, render_second

log = logging.getLogger(__name__)

MAX_CONCURRENT_AGENTS = 8
TYPES = ("SnapshotFresh", "SnapshotVerified")
FIELDS = ("lastSnapshot", "lastSnapshotSlot", "nextSnapshotTime")


class ScheduleMeter:
    """Metrics of agents with a schedule: start of the last usable snapshot, and number of overdue agents by reason."""

    def __init__(self) -> None:
        self._last_s: dict[Key, float] = {}
        self._overdue: dict[Key, str] = {}

    @property
    def metrics(self) -> list[Collector]:
        """Collectors to register with Prometheus."""
        return [
            LiveGauge(
                "agentmemory_snapshot_last_verified_timestamp_seconds",
                "Start time of the last verified snapshot that the server can restore, of each agent with a schedule;"
                " 0 if there is none.",
                ("namespace", "name"),
                lambda: {(key.namespace, key.name): last_s for key, last_s in self._last_s.items()},
            ),
            LiveGauge(
                "agentmemory_snapshots_overdue",
                "Agents with condition SnapshotFresh=False.",
                ("reason",),
                self._reasons,
            ),
        ]

    def forget(self, key: Key) -> None:
        """Remove the metrics of an agent that was deleted or has no schedule. Without metrics, nothing is done."""
        self._last_s.pop(key, None)
        self._overdue.pop(key, None)

    def record(self, key: Key, overview: SnapshotOverview) -> None:
        """Replace an agent's metrics by the current state of its snapshots. Without a schedule, remove the metrics."""
        self.forget(key)
        if overview.figures.stale_ms is None:
            return
        self._last_s[key] = overview.usable[0].started_ms / 1000 if overview.usable else 0.0
        for state in states_of(overview):
            if state.type == "SnapshotFresh" and state.status is False:
                self._overdue[key] = str(state.reason)

    def _reasons(self) -> dict[Labels, float]:
        reasons = (Reason.SNAPSHOT_OVERDUE, Reason.SERVER_VERSION_CHANGED, Reason.COLLECTION_REBUILT)
        overdue = list(self._overdue.values())
        return {(str(reason),): float(overdue.count(reason)) for reason in reasons}


@dataclass(slots=True)
class SnapshotSchedule:
    """Requests the due snapshots of all agents with a schedule, and runs the retention of snapshots.

    Attributes:
        request: Requests a pass over an object.
        removal: Removes the files of snapshots that retention does not keep.
    """

    table: ObjectTable
    cluster: Cluster
    clock: Clock
    request: Callable[[Key], None]
    removal: BytesRemoval
    retention: RetentionRuns = field(init=False)
    queue: WorkQueue[Key] = field(init=False)
    meter: ScheduleMeter = field(init=False, default_factory=ScheduleMeter)
    _slots: dict[tuple[Key, str], int] = field(init=False, default_factory=dict)
    _versions: dict[Key, tuple[str, int]] = field(init=False, default_factory=dict)
    _collections: dict[Key, tuple[str, Json]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(self.check, tenant_lane_of=self.table.tenant_lane_of, share=MAX_CONCURRENT_AGENTS)
        statuses = Statuses(self.table, self.cluster, self.clock)
        self.retention = RetentionRuns(self.table, self.cluster, statuses, self.removal, self.read_overview)

    @property
    def metrics(self) -> list[Collector]:
        """Collectors of the schedule and of retention, to register with Prometheus."""
        return [*self.meter.metrics, *self.retention.metrics]

    async def run(self) -> None:
        """Run the queues of checks and of retention until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.run())
            group.create_task(self.retention.queue.run())

    def update_status(self, key: Key, document: Json, status: Json) -> Json:
        """Return an agent's new status with the state of its snapshots, and schedule a check of them.

        An agent without `snapshots` block, snapshots and their status fields gets no check, and the same `status`. If
        the object is invalid or being deleted, the old conditions of its snapshots are kept.

        Args:
            document: The object as received, with its old status.
            status: New status that the pass has computed.
        """
        old = document.get("status") or {}
        if not self._has_snapshots(key, document):
            return status
        self.queue.request(key)
        memory = self._parsed(document)
        if memory is None or memory.metadata.deletion_timestamp:
            old_conditions = [item for item in old.get("conditions") or [] if item["type"] in TYPES]
            return status | {"conditions": [*_other_conditions(status), *old_conditions]}
        if "collection" in status:
            self._collections[key] = memory.metadata.uid, status["collection"]
        return self._with_snapshots(self._outlook(key, memory), old=old, status=status)

    def request_check(self, memory: Key) -> None:
        """Schedule a check of an AgentMemory, after a change of it or of one of its snapshots."""
        self.queue.request(memory)

    def _has_snapshots(self, key: Key, document: Json) -> bool:
        """Return whether an agent has a `snapshots` block, snapshots, or status fields of earlier ones."""
        spec, status = document.get("spec"), document.get("status") or {}
        has_block = isinstance(spec, dict) and bool(spec.get("snapshots"))
        return has_block or bool(self.table.list_jobs(key, MEMORY_SNAPSHOT)) or any(name in status for name in FIELDS)

    def _with_snapshots(self, outlook: SnapshotOverview, *, old: Json, status: Json) -> Json:
        memory, now = outlook.memory, render_second(outlook.now_ms / 1000)
        states = states_of(outlook) if status.get("collection") else []
        other_conditions = _other_conditions(status)
        fault = snapshots_fault(memory.spec.snapshots)
        if fault and not is_true(other_conditions, "Stalled"):
            message = f"{': '.join(fault)}; until this is fixed, no snapshot is taken or removed"
            states.append(ConditionState("Stalled", True, Reason.SCHEDULE_REJECTED, message))
        merged = merge_conditions(old.get("conditions") or [], states, generation=memory.metadata.generation, now=now)
        other_fields = {name: value for name, value in status.items() if name not in FIELDS}
        return other_fields | self._fields(outlook) | {"conditions": [*other_conditions, *merged]}

    def _fields(self, outlook: SnapshotOverview) -> Json:
        fields: Json = {}
        if last := last_snapshot_status(outlook):
            fields["lastSnapshot"] = last
        if outlook.slot_ms:
            fields["lastSnapshotSlot"] = render_second(outlook.slot_ms / 1000)
        claim = next_scheduled(outlook) if outlook.figures.has_schedule and not outlook.memory.spec.suspend else None
        return fields | ({"nextSnapshotTime": render_second(claim.due_ms / 1000)} if claim else {})

    def _outlook(self, key: Key, memory: AgentMemory) -> SnapshotOverview:
        snapshots = [parse_facts(document) for document in self.table.list_jobs(key, MEMORY_SNAPSHOT)]
        figures = read_settings(memory.spec.snapshots) if memory.metadata.creation_timestamp else SnapshotSettings()
        return SnapshotOverview(
            memory=self._with_collection(key, memory),
            figures=figures,
            snapshots=snapshots,
            slot_ms=self._slot_ms(key, memory, snapshots),
            server_version=self._version_of(key)[0],
            now_ms=self.clock.now_ms(),
        )

    def _with_collection(self, key: Key, memory: AgentMemory) -> AgentMemory:
        """Return the object with the collection that the last pass observed, which its status may not contain yet."""
        uid, collection = self._collections.get(key, ("", {}))
        if uid != memory.metadata.uid:
            return memory
        return memory.model_copy(update={"status": memory.status | {"collection": collection}})

    def _slot_ms(self, key: Key, memory: AgentMemory, facts: list[SnapshotFacts]) -> int:
        """Return the last claimed time of the schedule in Unix milliseconds; 0 if there is none.

        It is the latest in the status, in the memory of this process, and in the MemorySnapshots.
        """
        recorded = memory.status.get("lastSnapshotSlot")
        claimed_ms = self._slots.get((key, memory.metadata.uid), 0)
        return max(parse_time(recorded) if recorded else 0, claimed_ms, *(item.slot_ms or 0 for item in facts), 0)

    def _version_of(self, key: Key) -> tuple[str | None, int]:
        """Return the Qdrant version of the agent's server, and the time at which this process first observed it.

        The time is in Unix milliseconds. If the version is unknown, return None and 0.
        """
        connection = self.table.find_connection(key)
        document = self.table.get(connection) if connection else None
        version = ((document or {}).get("status") or {}).get("version")
        if connection is None or version is None:
            return None, 0
        observed = self._versions.get(connection)
        if observed is None or observed[0] != version:
            observed = self._versions[connection] = version, self.clock.now_ms()
        return observed

    def read_overview(self, key: Key) -> SnapshotOverview | None:
        """Return the state of an agent's snapshots. None if the agent is deleted, suspended or invalid."""
        document = self.table.get(key)
        memory = self._parsed(document) if document is not None else None
        if memory is None or memory.metadata.deletion_timestamp or memory.spec.suspend:
            return None
        return self._outlook(key, memory)

    def _parsed(self, document: Json) -> AgentMemory | None:
        try:
            return self.table.parse(document)
        except SpecInvalid:
            return None

    async def check(self, key: Key) -> float | None:
        """Claim the first due snapshot; return the seconds until the next check, or None if no time is known.

        Also updates the metrics, requests a retention run, and requests a pass if the status is out of date. Returns
        None for an agent that is deleted or invalid.

        Raises:
            TransientError: If the check must be repeated.
        """
        document = self.table.get(key)
        memory = self._parsed(document) if document is not None else None
        if document is None or memory is None or memory.metadata.deletion_timestamp:
            self.meter.forget(key)
            self._collections.pop(key, None)
            return None
        outlook = self._outlook(key, memory)
        self.meter.record(key, outlook)
        self.retention.queue.request(key)
        claims = self._claims(key, outlook) if self._is_served(key, outlook) else []
        for claim in claims:
            if claim.due_ms <= outlook.now_ms:
                await self._claim(key, claim, outlook)
                outlook = replace(outlook, slot_ms=max(outlook.slot_ms, claim.slot_ms or 0))
                break
        status = document.get("status") or {}
        if status and _normalised(self._with_snapshots(outlook, old=status, status=status)) != _normalised(status):
            self.request(key)
        return _seconds_until_next(outlook, [claim.due_ms for claim in claims])

    def _claims(self, key: Key, outlook: SnapshotOverview) -> list[DueSnapshot]:
        """Return the next snapshots, due now or later: for a new version, after a rebuild, and the scheduled one."""
        since_ms = self._version_of(key)[1]
        claims = (due_after_upgrade(outlook, since_ms=since_ms), due_after_rebuild(outlook), next_scheduled(outlook))
        return [claim for claim in claims if claim is not None]

    def _is_served(self, key: Key, outlook: SnapshotOverview) -> bool:
        """Return whether a snapshot may be requested now: the agent is served, and no scheduled snapshot is running.

        The agent must have a schedule and a collection, own its slug, be ready, and not be suspended. Before that,
        requested snapshots would accumulate and later run in a burst.
        """
        memory = outlook.memory
        conditions = memory.status.get("conditions") or []
        is_idle = outlook.figures.has_schedule and not outlook.is_running and not memory.spec.suspend
        is_owner = self.table.find_owner(memory.slug) == key
        return is_idle and is_owner and bool(memory.status.get("collection")) and is_true(conditions, "Ready")

    async def _claim(self, key: Key, claim: DueSnapshot, outlook: SnapshotOverview) -> None:
        is_new = await self.cluster.create_object(build_manifest(claim, outlook))
        if claim.slot_ms is not None:
            self._slots[key, outlook.memory.metadata.uid] = claim.slot_ms
        if not is_new:
            return
        log.info("%s: requested snapshot %s", key, claim.name)
        if claim.cause:
            event = Event("Normal", "SnapshotDue", f"{claim.cause}: {claim.name} is made")
            await self.cluster.post_event(AGENT_MEMORY, outlook.memory.metadata, event)


def _seconds_until_next(outlook: SnapshotOverview, due_times_ms: list[int]) -> float | None:
    """Return the seconds until the next claim, or until the last snapshot becomes too old.

    None if neither is in the future.
    """
    stale_ms = stale_at_ms(outlook)
    times_ms = [*due_times_ms, *([stale_ms] if stale_ms is not None else [])]
    future_ms = [time_ms for time_ms in times_ms if time_ms > outlook.now_ms]
    return (min(future_ms) - outlook.now_ms) / 1000 if future_ms else None


def _other_conditions(status: Json) -> list[Json]:
    """Return the conditions of a status except those of snapshots."""
    return [item for item in status.get("conditions") or [] if item["type"] not in TYPES]


def _normalised(status: Json) -> Json:
    """Return a status with its conditions sorted by type, to compare two."""
    return status | {"conditions": sorted(status.get("conditions") or [], key=lambda item: str(item["type"]))}
