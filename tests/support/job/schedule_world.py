"""An agent with a snapshot schedule, in the operator's object table, with a clock that tests set."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, MEMORY_SNAPSHOT, Key, ObjectTable, key_of
from agentmemory_operator.snapshots.retention import BytesRemoval
from agentmemory_operator.snapshots.rules.facts import RETENTION_LABEL, SLOT, UNDER_RETENTION
from agentmemory_operator.snapshots.schedule import SnapshotSchedule
from agentmemory_operator.spec.times import render_second
from tests.support.engine.fakes import FakeClock, FakeCluster
from tests.support.spec.documents import Document, connection_document, memory_document

AGENT = Key(AGENT_MEMORY, "agents", "probe")
BORN = "2026-11-20T12:00:00Z"
NAMESPACE = "agents"


def ms(time: str) -> int:
    """Convert an ISO 8601 time to Unix milliseconds."""
    return int(datetime.fromisoformat(time).timestamp() * 1000)


def condition(kind: str, status: str, reason: str = "Told", message: str = "told") -> Document:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": 1,
        "lastTransitionTime": BORN,
    }


def scheduled_agent(name: str = "probe", *, is_ready: bool = True, **snapshots: Any) -> Document:
    """Build an AgentMemory with a `snapshots` block and a Ready condition. The default schedule is daily at 03:00."""
    document = memory_document(name, metadata={"creationTimestamp": BORN})
    document["spec"]["snapshots"] = {"schedule": "0 3 * * *"} | snapshots
    conditions = [condition("Ready", "True" if is_ready else "False")]
    document["status"] = {"collection": {"physical": f"agent_memory_{name}__1"}, "conditions": conditions}
    return document


def snapshot_document(
    name: str,
    *,
    begun: str = BORN,
    of: str = "probe",
    succeeded: str = "True",
    verified: str = "True",
    version: str = "1.18.3",
    physical: str = "agent_memory_probe__1",
    slot: str | None = None,
    is_scheduled: bool = True,
    annotations: dict[str, str] | None = None,
    **metadata: Any,
) -> Document:
    """Build a completed MemorySnapshot, or one in progress if `succeeded` is Unknown."""
    conditions = [condition("Succeeded", succeeded), condition("Verified", verified)]
    named: Document = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "creationTimestamp": begun}
    named["labels"] = {RETENTION_LABEL: UNDER_RETENTION} if is_scheduled else {}
    named["annotations"] = ({SLOT: slot} if slot else {}) | (annotations or {})
    return {
        "apiVersion": "agentmemory.dev/v1alpha1",
        "kind": MEMORY_SNAPSHOT,
        "metadata": named | metadata,
        "spec": {"agentMemoryRef": {"name": of}},
        "status": {"conditions": conditions, "startTime": begun, "qdrantVersion": version, "physical": physical},
    }


class NothingToRemove:
    """A BytesRemoval for tests in which no snapshot may be removed."""

    async def remove(self, status: Mapping[str, Any], *, snapshot: Json) -> None:
        raise AssertionError(f"{snapshot['metadata']['name']} is removed")


@dataclass(slots=True)
class ScheduleWorld:
    """An object table, a fake cluster, and the snapshot schedule on them."""

    now: str = "2026-11-22T12:00:00Z"
    table: ObjectTable = field(default_factory=ObjectTable)
    cluster: FakeCluster = field(default_factory=FakeCluster)
    requested: list[Key] = field(default_factory=list)
    removal: BytesRemoval = field(default_factory=NothingToRemove)
    clock: FakeClock = field(init=False)
    schedule: SnapshotSchedule = field(init=False)

    def __post_init__(self) -> None:
        self.clock = FakeClock(ms(self.now))
        self.connect()
        self.restart()

    def restart(self) -> None:
        """Replace the schedule by a new one without memory. The objects are unchanged."""
        self.schedule = SnapshotSchedule(self.table, self.cluster, self.clock, self.requested.append, self.removal)

    def connect(self, version: str = "1.18.3") -> None:
        """Store a connection with the server's version in its status."""
        self.table.put(connection_document("main") | {"status": {"version": version}})

    def put(self, *documents: Document) -> None:
        for document in documents:
            self.table.put(document)

    def at(self, time: str) -> None:
        """Set the time."""
        self.clock.value_ms = ms(time)

    async def run_schedule(self, key: Key = AGENT) -> float | None:
        """Run the schedule for an agent like the queue, then add created objects to the table like a watch."""
        due_s = await self.schedule.check(key)
        for document in self.cluster.created.values():
            uid = {"uid": document["metadata"]["name"], "creationTimestamp": render_second(self.clock.now_ms() / 1000)}
            if self.table.get(key_of(document)) is None:
                self.put(document | {"metadata": document["metadata"] | uid})
        return due_s

    def write_status(self, key: Key = AGENT) -> Document:
        """Store the agent's status after a pass in the table; return it."""
        document = self.table.get(key)
        assert document is not None
        told = {k: v for k, v in document["status"].items() if k in ("collection", "conditions")}
        document["status"] = self.schedule.update_status(key, document, told)
        status: Document = document["status"]
        return status

    @property
    def created(self) -> list[str]:
        """Names of the created snapshots."""
        return [name for _, name in self.cluster.created]


def conditions_of(status: Document) -> dict[str, str]:
    """Return STATUS/Reason by condition type."""
    return {item["type"]: f"{item['status']}/{item['reason']}" for item in status["conditions"]}
