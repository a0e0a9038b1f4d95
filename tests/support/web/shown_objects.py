"""The Kubernetes objects that an API of a test has read, with statuses as an operator writes them."""

from typing import Any

from agentmemory_operator.agents.agent_objects import JOB_KINDS, AgentObjects, shown_part
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, MEMORY_RESTORE, MEMORY_SNAPSHOT, ObjectTable
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION

TIME = "2026-11-21T03:00:00Z"


class ShownObjects:
    """Objects of agents, to be changed by a test while the API runs.

    Attributes:
        connection: Status of the connection of every agent.
    """

    def __init__(self, *, is_cluster: bool = True, has_jobs: bool = True) -> None:
        self.table = ObjectTable()
        self.connection: Json = {}
        self.objects = AgentObjects(self.table, self._read_connection, is_cluster=is_cluster)
        for kind in JOB_KINDS if has_jobs else ():
            self.objects.record_list(kind)

    async def _read_connection(self, settings: AgentSettings) -> Json:
        return self.connection

    def clear(self) -> None:
        """Remove all objects."""
        for kind in (AGENT_MEMORY, *JOB_KINDS):
            for key in self.table.keys(kind):
                self.table.remove(key)
        self.connection = {}

    def put(self, *documents: Json) -> None:
        """Add or replace objects, as the API does when it has read them."""
        for document in documents:
            self.table.put(shown_part(document))

    def report(self, document: Json, *conditions: Json, **status: Any) -> None:
        """Replace the status of an AgentMemory. Without conditions, it is ready and in sync."""
        conditions = conditions or (told("Ready", "True", "Serving"), told("InSync", "True", "Converged"))
        self.put(document | {"status": {"observedGeneration": 1, "conditions": list(conditions)} | status})


def told(kind: str, status: str, reason: str = "Because", message: str = "told") -> Json:
    """Build a condition."""
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": TIME}


def snapshot_of(agent: str, name: str, *conditions: Json, namespace: str = "agents", **status: Any) -> Json:
    """Build a MemorySnapshot. Without conditions, it is complete and verified."""
    conditions = conditions or (told("Succeeded", "True", "SnapshotTaken"), told("Verified", "True", "Verified"))
    spec = {"agentMemoryRef": {"name": agent}}
    return _job(MEMORY_SNAPSHOT, name, namespace, spec, {"conditions": list(conditions), "startTime": TIME} | status)


def restore_of(agent: str, name: str, *conditions: Json, source: Any = None, **status: Any) -> Json:
    """Build a MemoryRestore. Without conditions, it has succeeded."""
    conditions = conditions or (told("Succeeded", "True", "Restored"),)
    spec = {"target": {"name": agent}, "source": source or {"snapshotRef": {"name": "nightly"}}}
    return _job(MEMORY_RESTORE, name, "agents", spec, {"conditions": list(conditions), "startTime": TIME} | status)


def _job(kind: str, name: str, namespace: str, spec: Json, status: Json) -> Json:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": TIME}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec, "status": status}
