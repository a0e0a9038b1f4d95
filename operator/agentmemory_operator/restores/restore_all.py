"""Restore every agent that lost its collection with a Qdrant server.

Each agent is restored from its newest verified snapshot; if that fails, from the next older snapshot. The name of a
restore is derived from the agent, the time of the loss, and the snapshot. So an interrupted command can run again: it
finds existing restores by name, waits for them, and restores nothing twice.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentmemory_operator.errors import AgentMemoryError, NotFound, SpecInvalid
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.object_table import (
    AGENT_MEMORY,
    MEMORY_RESTORE,
    MEMORY_SNAPSHOT,
    QDRANT_CONNECTION,
    Key,
)
from agentmemory_operator.runtime.tasks import read_through_outage
from agentmemory_operator.snapshots.rules.facts import SnapshotFacts, check_version, parse_facts
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from agentmemory_operator.spec.kinds.conditions import Reason, find_condition
from agentmemory_operator.spec.naming import append_suffix

EVERYWHERE = ""
# Default maximum number of concurrent restores.
CONCURRENCY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAgent:
    """An agent that lost its collection.

    Attributes:
        since: Time of the last transition of the condition Ready, which is False because of the loss; RFC 3339.
        snapshots: Verified snapshots that the server can restore, or may if a version is unknown; newest first.
    """

    namespace: str
    name: str
    since: str
    snapshots: tuple[SnapshotFacts, ...]

    def build_restore(self, snapshot: str) -> Json:
        """Build the MemoryRestore of a MemorySnapshot, given by its name, into the agent.

        Its name is the same for the same agent, loss and snapshot.
        """
        stamp = "".join(char for char in self.since.lower() if char.isalnum())
        hash_ = hashlib.sha256(snapshot.encode()).hexdigest()[:6]
        name = append_suffix(self.name, f"-{stamp}-{hash_}")
        return {
            "apiVersion": API_VERSION,
            "kind": MEMORY_RESTORE,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"target": {"name": self.name}, "source": {"snapshotRef": {"name": snapshot}}},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredAgent:
    """Result for one agent.

    Attributes:
        agent: NAMESPACE/NAME of the AgentMemory.
        message: Result for users, with the remedy if the agent was not restored.
    """

    agent: str
    is_restored: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreAll:
    """Restores the agents that lost their collections with the server of a connection.

    Attributes:
        concurrency: Maximum number of restores in progress.
        connection: Key of the QdrantConnection.
        poll_s: Pause between reads of a restore in progress, in seconds.
        report: Called with the result of each agent, in order of completion.
    """

    objects: JobObjects
    connection: Key
    report: Callable[[RestoredAgent], None]
    concurrency: int = CONCURRENCY
    poll_s: float = 0.5

    async def find(self) -> list[LostAgent]:
        """Return the agents of the connection that lost their collections, sorted by namespace and name.

        Raises:
            NotFound: If the connection does not exist.
        """
        connection = await self.objects.read_object(QDRANT_CONNECTION, self.connection.namespace, self.connection.name)
        version = str((connection.get("status") or {}).get("version") or "")
        memories = await self.objects.list_in(AGENT_MEMORY, EVERYWHERE)
        lost_documents = [document for document in memories if self._is_user(document) and _lost_since(document)]
        return [await self._read_lost(document, version) for document in sorted(lost_documents, key=_namespaced_name)]

    def _is_user(self, document: Mapping[str, Any]) -> bool:
        ref, namespace = document["spec"]["connectionRef"], document["metadata"]["namespace"]
        return (ref.get("namespace") or namespace, ref["name"]) == (self.connection.namespace, self.connection.name)

    async def _read_lost(self, document: Mapping[str, Any], version: str) -> LostAgent:
        namespace, name = _namespaced_name(document)
        documents = await self.objects.list_in(MEMORY_SNAPSHOT, namespace)
        facts = [parse_facts(snapshot) for snapshot in documents if snapshot["spec"]["agentMemoryRef"]["name"] == name]
        usable = [snapshot for snapshot in facts if _is_usable(snapshot, version)]
        newest_first = sorted(usable, key=lambda snapshot: (snapshot.time_ms, snapshot.name), reverse=True)
        lost_since = _lost_since(document) or ""
        return LostAgent(namespace=namespace, name=name, since=lost_since, snapshots=tuple(newest_first))

    async def run(self, agents: Sequence[LostAgent]) -> list[RestoredAgent]:
        """Restore agents, at most `concurrency` concurrently; return the results in the order of `agents`.

        A restore that fails does not stop the others.
        """
        slots = asyncio.Semaphore(self.concurrency)

        async def restore_in_slot(agent: LostAgent) -> RestoredAgent:
            async with slots:
                result = await self._restore(agent)
            self.report(result)
            return result

        return list(await asyncio.gather(*(restore_in_slot(agent) for agent in agents)))

    async def _restore(self, lost_agent: LostAgent) -> RestoredAgent:
        """Restore one agent from its newest snapshot. If that restore fails, try the next older snapshot.

        If a MemoryRestore cannot be created or read, no older snapshot is tried.
        """
        agent = f"{lost_agent.namespace}/{lost_agent.name}"
        message = "this server cannot restore any of its verified snapshots: restore it manually, or start empty"
        for snapshot in lost_agent.snapshots:
            document = lost_agent.build_restore(snapshot.name)
            try:
                await self.objects.create_object(document)
                is_restored, message = await self._wait_for_end(document)
            except AgentMemoryError as exc:
                return RestoredAgent(agent=agent, is_restored=False, message=f"run the command again: {exc}")
            if is_restored:
                return RestoredAgent(agent=agent, is_restored=True, message=message)
        return RestoredAgent(agent=agent, is_restored=False, message=message)

    async def _wait_for_end(self, document: Json) -> tuple[bool, str]:
        """Wait until a restore ends; return whether it was applied, and its message. A deleted one counts as failed.

        Raises:
            TransientError: If the restore cannot be read for too long. The restore continues.
        """
        metadata = document["metadata"]
        read = partial(self.objects.read_object, MEMORY_RESTORE, metadata["namespace"], metadata["name"])
        while True:
            try:
                restore = await read_through_outage(read, poll_s=self.poll_s)
            except NotFound:
                return False, f"MemoryRestore {metadata['name']} was deleted before it finished"
            succeeded = find_condition(restore.get("status"), "Succeeded")
            if succeeded.get("status") in ("True", "False"):
                return succeeded["status"] == "True", f"MemoryRestore {metadata['name']}: {succeeded['message']}"
            await asyncio.sleep(self.poll_s)


def _lost_since(document: Mapping[str, Any]) -> str | None:
    """Return the last transition time of the condition Ready; None if it does not report a lost collection."""
    ready = find_condition(document.get("status"), "Ready")
    is_lost = (ready.get("status"), ready.get("reason")) == ("False", Reason.COLLECTION_LOST)
    return str(ready["lastTransitionTime"]) if is_lost else None


def _is_usable(snapshot: SnapshotFacts, version: str) -> bool:
    try:
        check_version(snapshot.version, version)
    except SpecInvalid:
        return False
    return snapshot.has_succeeded and snapshot.is_verified is True and not snapshot.is_removing


def _namespaced_name(document: Mapping[str, Any]) -> tuple[str, str]:
    return document["metadata"]["namespace"], document["metadata"]["name"]
