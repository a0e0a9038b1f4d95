"""Bring back every agent that lost its collection with a Qdrant server, each from its latest proven snapshot.

A restore's name is made of the agent, of when it was lost, and of the snapshot. So whoever was interrupted runs the
same again: what was made is found by its name and waited for, and nothing is made twice.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.errors import NotFound, SpecInvalid, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.runtime.cache import (
    AGENT_MEMORY,
    MEMORY_RESTORE,
    MEMORY_SNAPSHOT,
    QDRANT_CONNECTION,
    Key,
)
from agentmemory_operator.snapshots.rules.facts import Taken, check_version, taken_of
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from agentmemory_operator.spec.kinds.conditions import Reason, condition_of

EVERYWHERE = ""
# Of a name of 253 letters, what leaves room for the rest.
_MOST_LETTERS = 220


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """An agent whose collection is gone.

    Attributes:
        since: when it was first seen to be gone.
        snapshots: proven ones that the server can restore, newest first.
    """

    namespace: str
    name: str
    since: str
    snapshots: tuple[Taken, ...]

    def restore_from(self, snapshot: str) -> Json:
        """The restore that brings it back from a snapshot."""
        stamp = "".join(letter for letter in self.since.lower() if letter.isalnum())
        choice = hashlib.sha256(snapshot.encode()).hexdigest()[:6]
        name = f"{self.name[:_MOST_LETTERS]}-{stamp}-{choice}"
        return {
            "apiVersion": API_VERSION,
            "kind": MEMORY_RESTORE,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"target": {"name": self.name}, "source": {"snapshotRef": {"name": snapshot}}},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredAgent:
    """What became of one agent.

    Attributes:
        message: with the way out where it was not restored.
    """

    agent: str
    is_restored: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreAll:
    """Restores what a connection's server lost.

    Attributes:
        at_once: restores under way at a time.
        poll_s: between two looks at one that is under way.
        tell: called with what became of each agent, in the order of the ends.
    """

    objects: JobObjects
    connection: Key
    tell: Callable[[RestoredAgent], None]
    at_once: int = 4
    poll_s: float = 0.5

    async def find(self) -> list[Lost]:
        """The agents of the connection that lost their collections, by name.

        Raises:
            NotFound: there is no such connection.
        """
        connection = await self.objects.read_object(QDRANT_CONNECTION, self.connection.namespace, self.connection.name)
        version = str((connection.get("status") or {}).get("version") or "")
        memories = await self.objects.list_in(AGENT_MEMORY, EVERYWHERE)
        lost = [document for document in memories if self._is_user(document) and _lost_since(document)]
        return [await self._lost(document, version) for document in sorted(lost, key=_name_of)]

    def _is_user(self, document: Mapping[str, Any]) -> bool:
        ref, namespace = document["spec"]["connectionRef"], document["metadata"]["namespace"]
        return (ref.get("namespace") or namespace, ref["name"]) == (self.connection.namespace, self.connection.name)

    async def _lost(self, document: Mapping[str, Any], version: str) -> Lost:
        namespace, name = _name_of(document)
        found = await self.objects.list_in(MEMORY_SNAPSHOT, namespace)
        taken = [taken_of(one) for one in found if one["spec"]["agentMemoryRef"]["name"] == name]
        usable = [one for one in taken if _is_usable(one, version)]
        newest_first = sorted(usable, key=lambda one: (one.time_ms, one.name), reverse=True)
        since = _lost_since(document) or ""
        return Lost(namespace=namespace, name=name, since=since, snapshots=tuple(newest_first))

    async def run(self, lost: Sequence[Lost]) -> list[RestoredAgent]:
        """Restore agents, a bounded number at once; one that fails holds up no other."""
        turns = asyncio.Semaphore(self.at_once)

        async def in_turn(one: Lost) -> RestoredAgent:
            async with turns:
                result = await self._restore(one)
            self.tell(result)
            return result

        return list(await asyncio.gather(*(in_turn(one) for one in lost)))

    async def _restore(self, lost: Lost) -> RestoredAgent:
        """Restore one agent from the newest of its snapshots that can be recovered."""
        agent = f"{lost.namespace}/{lost.name}"
        message = "this server cannot restore any of its verified snapshots: restore it manually, or start empty"
        for snapshot in lost.snapshots:
            document = lost.restore_from(snapshot.name)
            try:
                await self.objects.create_object(document)
            except TransientError as exc:
                return RestoredAgent(agent=agent, is_restored=False, message=f"run the command again: {exc}")
            is_restored, message = await self._end_of(document)
            if is_restored:
                return RestoredAgent(agent=agent, is_restored=True, message=message)
        return RestoredAgent(agent=agent, is_restored=False, message=message)

    async def _end_of(self, document: Json) -> tuple[bool, str]:
        """Whether a restore was applied, and what it says, once it has ended."""
        metadata = document["metadata"]
        while True:
            try:
                found = await self.objects.read_object(MEMORY_RESTORE, metadata["namespace"], metadata["name"])
            except NotFound:
                return False, f"MemoryRestore {metadata['name']} was deleted before it finished"
            except TransientError:
                found = {}
            succeeded = condition_of(found.get("status"), "Succeeded")
            if succeeded.get("status") in ("True", "False"):
                return succeeded["status"] == "True", f"MemoryRestore {metadata['name']}: {succeeded['message']}"
            await asyncio.sleep(self.poll_s)


def _lost_since(document: Mapping[str, Any]) -> str | None:
    """Since when an agent's collection is known to be gone, None of one that has it."""
    ready = condition_of(document.get("status"), "Ready")
    is_lost = (ready.get("status"), ready.get("reason")) == ("False", Reason.COLLECTION_LOST)
    return str(ready["lastTransitionTime"]) if is_lost else None


def _is_usable(taken: Taken, version: str) -> bool:
    try:
        check_version(taken.version, version)
    except SpecInvalid:
        return False
    return taken.has_succeeded and taken.is_verified is True and not taken.is_going


def _name_of(document: Mapping[str, Any]) -> tuple[str, str]:
    return document["metadata"]["namespace"], document["metadata"]["name"]
