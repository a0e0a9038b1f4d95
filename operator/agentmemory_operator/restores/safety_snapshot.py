"""The safety snapshot: a verified MemorySnapshot of the contents that a restore in place replaces."""

from dataclasses import dataclass

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.memories.point_scan import count_changed
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.restores.job import RestoreJob, RestoreRun
from agentmemory_operator.restores.rules.in_place_steps import safety_name
from agentmemory_operator.restores.rules.status import with_fields
from agentmemory_operator.runtime.object_table import MEMORY_RESTORE, MEMORY_SNAPSHOT, Key, ObjectTable
from agentmemory_operator.snapshots.copy_comparison import ComparedSnapshot
from agentmemory_operator.snapshots.rules.facts import AGENT_MEMORY_LABEL, PIN
from agentmemory_operator.snapshots.rules.steps import QDRANT, is_ended, is_verified, location_of
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.naming import label_of
from agentmemory_operator.spec.times import parse_time


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyLimits:
    """Limits of safety snapshots.

    Attributes:
        max_attempts: Maximum number of safety snapshots of a restore. After a direct write to Qdrant since the start of
            the last one, another is required.
    """

    max_attempts: int = 3


@dataclass(frozen=True, slots=True)
class SafetySnapshots:
    """Creates safety snapshots while the agent is closed, until no write has followed the start of the last one."""

    table: ObjectTable
    cluster: Cluster
    limits: SafetyLimits

    async def advance(self, task: RestoreRun) -> str | None:
        """Create or check the safety snapshot; return its description for users, or None while it is in progress.

        Raises:
            SpecInvalid: If the snapshot is not verified, its start time is unknown, or direct writes to Qdrant
                continue. The restore has not changed the contents of the collection.
            TransientError: If Qdrant or the Kubernetes API is unavailable. The call can be repeated.
        """
        job = task.job
        attempt = (job.status.get("safetySnapshot") or {}).get("attempt", 1)
        name = safety_name(job.key.name, attempt)
        await job.write(with_fields(job.status, {"safetySnapshot": {"name": name, "attempt": attempt}}))
        key = Key(MEMORY_SNAPSHOT, job.key.namespace, name)
        document = self.table.get(key)
        if document is None:
            await self.cluster.create_object(build_safety_manifest(key, task.memory.metadata.name))
            return None
        status = document.get("status") or {}
        if not is_ended(status):
            return None
        if not is_verified(status):
            faults = "; ".join(item["message"] for item in status["conditions"] if item["status"] != "True")
            raise SpecInvalid(Reason.SNAPSHOT_REFUSED, f"the safety snapshot {name} is not verified: {faults}")
        start_time = status.get("startTime")
        if start_time is None:
            raise SpecInvalid(Reason.SNAPSHOT_REFUSED, f"the start time of the safety snapshot {name} is not known")
        change_count = await count_changed(task.server.points, task.physical, parse_time(start_time))
        if not change_count:
            return await self._record_undone(task, name)
        if attempt >= self.limits.max_attempts:
            raise SpecInvalid(
                Reason.WRITES_GO_ON,
                f"{change_count} memories were written directly to Qdrant while {attempt} safety snapshots were taken: "
                f"stop direct writers, or restore with mode Swap",
            )
        await job.write(with_fields(job.status, {"safetySnapshot": {"name": name, "attempt": attempt + 1}}))
        return None

    async def _record_undone(self, task: RestoreRun, name: str) -> str:
        """Record how many writes the restore undoes, if the time of its source is known; return a text for users.

        The safety snapshot contains all of them.
        """
        points, started_ms = task.server.points, task.source.started_ms
        changes = await count_changed(points, task.physical, started_ms) if started_ms is not None else None
        safety = {**task.job.status["safetySnapshot"]} | ({} if changes is None else {"writesSince": changes})
        count = await task.server.collections.count(task.physical)
        fields = {"safetySnapshot": safety, "points": {"before": count}}
        await task.job.write(with_fields(task.job.status, fields))
        change_text = "an unknown number of" if changes is None else str(changes)
        return f"{name} holds {count} memories, including {change_text} changes since the snapshot"

    def subject(self, job: RestoreJob) -> ComparedSnapshot:
        """Return the safety snapshot of a restore, as `restore_into` and `restore_file_over` accept it.

        Raises:
            SpecInvalid: If its object was deleted, or its status has no location in Qdrant.
        """
        name = read_safety_name(job)
        document = self.table.get(Key(MEMORY_SNAPSHOT, job.key.namespace, name)) or {}
        status = document.get("status") or {}
        location = location_of(status, QDRANT)
        if location is None:
            raise SpecInvalid(Reason.SNAPSHOT_NOT_FOUND, f"the safety snapshot {name} was deleted in Qdrant")
        return ComparedSnapshot(
            uid=job.metadata.uid, physical=location["physical"], name=location["name"], sha256=status.get("sha256")
        )


def read_safety_name(job: RestoreJob) -> str:
    """Return the name of a restore's safety snapshot, or "" if it has none."""
    return str((job.status.get("safetySnapshot") or {}).get("name") or "")


def build_safety_manifest(key: Key, memory: str) -> Json:
    """Build the manifest of a safety MemorySnapshot of an AgentMemory, given by its name.

    The snapshot is pinned, and its file is kept when its object is deleted.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": MEMORY_SNAPSHOT,
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": {AGENT_MEMORY_LABEL: label_of(memory)},
            "annotations": {PIN: "taken before a restore"},
        },
        "spec": {"agentMemoryRef": {"name": memory}, "verify": "Full", "deletionPolicy": "Retain"},
    }


def build_rollback_manifest(key: Key, memory: str, safety_name: str) -> Json:
    """Build the manifest of the MemoryRestore that restores a safety snapshot into an AgentMemory."""
    return {
        "apiVersion": API_VERSION,
        "kind": MEMORY_RESTORE,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": {"target": {"name": memory}, "source": {"snapshotRef": {"name": safety_name}}, "mode": "InPlace"},
    }
