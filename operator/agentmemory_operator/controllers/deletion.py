"""Deletion of an AgentMemory: what happens to its collection, and to the keys of its zones, before the object may go.

The finalizer stands only where the collection is to be deleted too. Nothing here can hold a namespace for ever: what
cannot be deleted is kept, said in an event, and the object is released.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from agentmemory_operator.collections.reconcile import observe_linked
from agentmemory_operator.collections.retire import retire
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY, Collection
from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.collections.rules.rebuild_record import record_from_json
from agentmemory_operator.collections.rules.refusals import check_destroy, check_ownership, slug_taken
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.connections.resolve import Server, Servers, connection_of
from agentmemory_operator.errors import AgentMemoryError, DeletionWaiting, LeadershipLost, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.ports.zone_keys import KeyShards
from agentmemory_operator.runtime.cache import (
    AGENT_MEMORY,
    MEMORY_SNAPSHOT,
    Key,
    ObjectTable,
    documents_in,
    key_of,
    key_of_memory,
)
from agentmemory_operator.snapshots.rules.final import final_manifest, final_name, final_state
from agentmemory_operator.snapshots.rules.steps import files_copied
from agentmemory_operator.spec.kinds.agent_memory import CONFIRM_DELETE, GROUP, AgentMemory, Metadata
from agentmemory_operator.spec.naming import alias_of, number_of
from agentmemory_operator.zones.rules.entries import Ring

FINALIZER = f"{GROUP}/collection"
POLICIES = ("Delete", "Snapshot")
"""Those under which the operator has something to do before the object goes."""

COLLECTION_KEPT = "CollectionKept"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Release:
    """Carries out deletions.

    Attributes:
        request: asks for a pass over another object.
        servers: where is found what lies beside a collection, and what keeps its snapshots in reach.
        key_shards: where the data keys of privacy zones are; None where nobody keeps any.
    """

    table: ObjectTable
    connections: Connections
    cluster: Cluster
    request: Callable[[Key], None]
    servers: Servers
    key_shards: KeyShards | None

    async def run(self, document: Json, metadata: Metadata, *, is_overdue: bool) -> None:
        """Delete the collection where policy and guard allow it, then let the object go.

        Args:
            is_overdue: the deletion has waited for Qdrant long enough.

        Raises:
            DeletionWaiting: the last snapshot is being made.
            TransientError: Qdrant is away, and the deletion can wait.
        """
        if FINALIZER not in metadata.finalizers:
            return
        try:
            events = await self._destroy(self.table.parse(document), is_overdue=is_overdue)
        except (LeadershipLost, DeletionWaiting):
            raise
        except AgentMemoryError as exc:
            if isinstance(exc, TransientError) and not is_overdue:
                raise
            events = [_kept(f"collection kept, see `agentmemory orphans`: {exc}")]
        for event in events:
            # In a namespace that is being deleted no event can be posted.
            log.info("%s of %s/%s: %s", event.reason, metadata.namespace, metadata.name, event.message)
            await self.cluster.post_event(AGENT_MEMORY, metadata, event)
        others = [name for name in metadata.finalizers if name != FINALIZER]
        await self.cluster.write_finalizers(AGENT_MEMORY, metadata, others)

    async def _destroy(self, memory: AgentMemory, *, is_overdue: bool) -> list[Event]:
        """Delete the collection, then the keys; return the events that say so, or why they are kept."""
        if memory.spec.deletion_policy not in POLICIES:
            return []
        if memory.spec.suspend:
            return [_kept("collection kept: spec.suspend is true")]
        if self.table.namespace_of(memory.slug) not in (None, memory.metadata.namespace):
            raise slug_taken(memory.slug)
        ours = desired_collection(memory, cluster_id=await self.cluster.cluster_id())

        async def destroy(store: CollectionStore) -> Event | None:
            return await self._delete_from(store, memory, ours, is_overdue=is_overdue)

        event = await self.connections.use(memory, destroy)
        if event and event.reason == COLLECTION_KEPT:
            return [event]
        keys = await self._destroy_keys(memory, is_overdue=is_overdue)
        return [told for told in (event, keys) if told]

    async def _destroy_keys(self, memory: AgentMemory, *, is_overdue: bool) -> Event | None:
        """Destroy the data keys of an agent whose collection is gone; return what became of them, None without any.

        With them goes whatever snapshots and exports have of its zones: so that has to be confirmed even where there
        was no collection to delete.

        Raises:
            DeletionWaiting: their store is away.
        """
        is_wanted = memory.spec.deletion_policy == "Delete" and self.table.owner_of(memory.slug) == key_of_memory(
            memory
        )
        if self.key_shards is None or not is_wanted:
            return None
        ring, alias = Ring(memory.metadata.namespace, memory.slug), alias_of(memory.slug)
        try:
            if not await self.key_shards.list_names(ring):
                return None
            if memory.metadata.annotations.get(CONFIRM_DELETE) != alias:
                return _keys_kept(ring, f"the deletion was not confirmed with the annotation {CONFIRM_DELETE}={alias}")
            await self.key_shards.delete(ring)
        except LeadershipLost:
            raise
        except TransientError as exc:
            if is_overdue:
                return _keys_kept(ring, f"their store is unavailable ({exc})")
            raise DeletionWaiting(f"the deletion waits for the data key store: {exc}") from exc
        return Event(
            "Normal",
            "KeysDestroyed",
            f"data keys of agent {ring} destroyed: memories in its zones can no longer be read",
        )

    async def _delete_from(
        self, store: CollectionStore, memory: AgentMemory, ours: Collection, *, is_overdue: bool
    ) -> Event | None:
        alias, last = alias_of(memory.slug), memory.told_physical
        observed, _ = await observe_linked(alias, last, store=store)
        if observed is None:
            # Whoever deleted it may have been killed before its snapshots were in reach again.
            await self._retire(memory, last)
            return None
        check_ownership(observed, ours)
        points = await store.count(observed.physical)
        if kept := await self._refusal(memory, alias, points=points, is_overdue=is_overdue):
            return kept
        # Before the live one: who is killed in between finds that again, and these with it.
        for replaced in await self._beside(memory, alias, observed.physical):
            await self._retire(memory, replaced)
        left = await self._retire(memory, observed.physical)
        last_one = self._left_by(memory, points) if points and memory.spec.deletion_policy == "Snapshot" else ""
        placeholder = f"; {left} of its snapshots remain under an empty collection with its name" if left else ""
        message = f"{observed.physical} with {points} memories deleted{last_one}{placeholder}"
        return Event("Normal", "CollectionDeleted", message)

    def _left_by(self, memory: AgentMemory, points: int) -> str:
        """What a last snapshot has of the memories that go."""
        name = final_name(memory.metadata)
        document = self.table.get(Key(MEMORY_SNAPSHOT, memory.metadata.namespace, name)) or {}
        kept = ((document.get("status") or {}).get("points") or {}).get("after", points)
        later = f", except {points - kept} written later" if points > kept else ""
        return f"; MemorySnapshot {name} has them{later}"

    async def _refusal(self, memory: AgentMemory, alias: str, *, points: int, is_overdue: bool) -> Event | None:
        """Why a collection is kept, None where it may go.

        Raises:
            DeletionWaiting: the last snapshot is being made.
        """
        if points and memory.spec.deletion_policy == "Snapshot":
            kept = await self._last_snapshot(memory, is_overdue=is_overdue)
        else:
            confirmed = memory.metadata.annotations.get(CONFIRM_DELETE)
            kept = check_destroy(alias, points=points, confirmation=confirmed)
        return _kept(f"{kept}; `agentmemory orphans` lists it") if kept else None

    async def _last_snapshot(self, memory: AgentMemory, *, is_overdue: bool) -> str | None:
        """Why there is no last snapshot to rely on, None once there is; it is asked for where it was not yet.

        Raises:
            DeletionWaiting: it is being made; it has a deadline of its own.
            TransientError: it cannot be asked for now.
            NamespaceEnding: it cannot be asked for any more.
        """
        name = final_name(memory.metadata)
        document = self.table.get(Key(MEMORY_SNAPSHOT, memory.metadata.namespace, name))
        if document is None:
            await self.cluster.create_object(final_manifest(memory))
            if is_overdue:
                return f"{alias_of(memory.slug)} has memories, but MemorySnapshot {name} is not being created"
        if fault := final_state(document, name):
            return fault
        return None

    async def _beside(self, memory: AgentMemory, alias: str, live: str) -> list[str]:
        """The collections that were replaced and are kept for a way back, and what rebuilds have begun."""

        async def find(server: Server) -> list[str]:
            names = [name for name in await server.snapshots.collections() if number_of(name, alias) is not None]
            found = [name for name in names if _is_beside(await server.snapshots.metadata(name), name, live)]
            # One of another cluster's stays, whatever it says of itself.
            return [name for name in found if await server.may_use(name)]

        return await self.servers.use(connection_of(memory), find, namespace=memory.metadata.namespace)

    async def _retire(self, memory: AgentMemory, physical: str | None) -> int:
        """Delete a collection; return how many of its snapshots a placeholder keeps in reach."""
        if physical is None:
            return 0
        # Those of others may say anything of these files.
        documents = documents_in(self.table, MEMORY_SNAPSHOT, memory.metadata.namespace)
        copied = files_copied((document.get("status") or {} for document in documents), physical)

        async def work(server: Server) -> int:
            return await retire(server.collections, server.snapshots, physical, copied=copied)

        left = await self.servers.use(connection_of(memory), work, namespace=memory.metadata.namespace)
        for document in documents:
            if (document.get("status") or {}).get("physical") == physical:
                self.request(key_of(document))
        return left


def _is_beside(metadata: Json | None, name: str, live: str) -> bool:
    record = record_from_json(metadata)
    return name != live and (PREVIOUS_KEY in (metadata or {}) or (record is not None and record.target == name))


def _kept(message: str) -> Event:
    return Event("Warning", COLLECTION_KEPT, message)


def _keys_kept(ring: Ring, why: str) -> Event:
    message = (
        f"data keys of agent {ring} kept, so its snapshots stay readable: {why}. To destroy them, see docs/delete.md"
    )
    return Event("Warning", "KeysKept", message)
