"""Delete an AgentMemory: decide about its collection and the keys of its zones, then remove the finalizer.

1. With `deletionPolicy: Snapshot`, take a final snapshot of a collection with memories, and wait for it. With `Delete`,
   keep a collection with memories unless an annotation confirms the deletion.
2. Delete replaced collections and rebuild targets, then the live collection.
3. With `deletionPolicy: Delete`, destroy the data keys if the deletion was confirmed.
4. Post events, and remove the finalizer.

If the object is suspended, the operator keeps its collection and keys, and only does step 4. Only objects with one of
these policies have the finalizer. A deletion cannot block a namespace forever. The final snapshot has a deadline of its
own. If Qdrant or the key store is unavailable after `Periods.release_s`, the operator keeps the remaining data, posts
an event, and removes the finalizer.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from agentmemory_operator.collections.reconcile import observe_or_link
from agentmemory_operator.collections.replaced_collection import delete_keeping_snapshots
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY, Collection
from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.collections.rules.rebuild_record import record_from_json
from agentmemory_operator.collections.rules.refusals import build_slug_taken, check_ownership, find_deletion_obstacle
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.connections.resolve import Server, Servers, connection_of
from agentmemory_operator.errors import AgentMemoryError, DeletionPending, LeadershipLost, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.key_shards import KeyShards
from agentmemory_operator.ports.kubernetes import Cluster, Event
from agentmemory_operator.runtime.object_table import (
    AGENT_MEMORY,
    MEMORY_SNAPSHOT,
    Key,
    ObjectTable,
    documents_in,
    key_of,
    key_of_memory,
)
from agentmemory_operator.snapshots.rules.final import build_final_manifest, final_name, find_fault
from agentmemory_operator.snapshots.rules.steps import copied_files
from agentmemory_operator.spec.kinds.agent_memory import CONFIRM_DELETE, GROUP, AgentMemory, Metadata
from agentmemory_operator.spec.naming import alias_of, number_of
from agentmemory_operator.zones.rules.entries import Ring

FINALIZER = f"{GROUP}/collection"
DELETING_POLICIES = ("Delete", "Snapshot")
"""Deletion policies that need work before the object may be removed."""

COLLECTION_KEPT = "CollectionKept"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Deletion:
    """Carries out the deletion of AgentMemory objects.

    Attributes:
        request: Requests a pass over another object.
        servers: Access to whole servers, to find replaced collections and to keep snapshot files reachable.
        key_shards: Store of the data keys of privacy zones. None if zones are not supported.
    """

    table: ObjectTable
    connections: Connections
    cluster: Cluster
    request: Callable[[Key], None]
    servers: Servers
    key_shards: KeyShards | None

    async def run(self, document: Json, metadata: Metadata, *, is_overdue: bool) -> None:
        """Delete the collection and the data keys as the deletion policy permits, then remove the finalizer.

        Do nothing without the finalizer. After an AgentMemoryError that is not listed below, keep the remaining data,
        post an event, and remove the finalizer.

        Args:
            is_overdue: True if the deletion has waited for Qdrant long enough. Then data that cannot be deleted is
                kept.

        Raises:
            DeletionPending: If the final snapshot is in progress, even if the deletion is overdue. Also if the key
                store is unavailable and the deletion is not overdue.
            TransientError: If Qdrant is unavailable and the deletion is not overdue, or Kubernetes is unavailable.
            LeadershipLost: If this process may no longer write.
        """
        if FINALIZER not in metadata.finalizers:
            return
        try:
            events = await self._destroy(self.table.parse(document), is_overdue=is_overdue)
        except (LeadershipLost, DeletionPending):
            raise
        except AgentMemoryError as exc:
            if isinstance(exc, TransientError) and not is_overdue:
                raise
            events = [_kept(f"collection kept, see `agentmemory orphans`: {exc}")]
        for event in events:
            # Log each event too, because a namespace that is being deleted accepts no new objects, and so no events.
            log.info("%s of %s/%s: %s", event.reason, metadata.namespace, metadata.name, event.message)
            await self.cluster.post_event(AGENT_MEMORY, metadata, event)
        remaining = [name for name in metadata.finalizers if name != FINALIZER]
        await self.cluster.write_finalizers(AGENT_MEMORY, metadata, remaining)

    async def _destroy(self, memory: AgentMemory, *, is_overdue: bool) -> list[Event]:
        """Delete the collection, then the keys; return events that describe the result.

        A suspended object keeps both. If the collection is kept, the keys are too.

        Raises:
            NotOwned: If another namespace has claimed the slug, or another object owns the collection.
            AgentMemoryError: Other errors of Qdrant, Kubernetes and the key store.
        """
        if memory.spec.deletion_policy not in DELETING_POLICIES:
            return []
        if memory.spec.suspend:
            return [_kept("collection kept: spec.suspend is true")]
        if self.table.find_namespace(memory.slug) not in (None, memory.metadata.namespace):
            raise build_slug_taken(memory.slug)
        desired = desired_collection(memory, cluster_id=await self.cluster.cluster_id())

        async def destroy(store: CollectionStore) -> Event | None:
            return await self._delete_from(store, memory, desired, is_overdue=is_overdue)

        event = await self.connections.use(memory, destroy)
        if event and event.reason == COLLECTION_KEPT:
            return [event]
        keys = await self._destroy_keys(memory, is_overdue=is_overdue)
        return [posted for posted in (event, keys) if posted]

    async def _destroy_keys(self, memory: AgentMemory, *, is_overdue: bool) -> Event | None:
        """Destroy the data keys if `deletionPolicy` is Delete and the object owns its slug.

        Return an event about the destroyed or kept keys; None if there is nothing to destroy.

        Without keys, zone memories in snapshots and exports become unreadable. So this needs a confirmation even if
        there was no collection to delete.

        Raises:
            DeletionPending: If the key store is unavailable and the deletion is not overdue.
            LeadershipLost: If this process may no longer write.
        """
        may_delete = memory.spec.deletion_policy == "Delete" and self.table.find_owner(memory.slug) == key_of_memory(
            memory
        )
        if self.key_shards is None or not may_delete:
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
            raise DeletionPending(f"the deletion waits for the data key store: {exc}") from exc
        return Event(
            "Normal",
            "KeysDestroyed",
            f"data keys of agent {ring} destroyed: memories in its zones can no longer be read",
        )

    async def _delete_from(
        self, store: CollectionStore, memory: AgentMemory, desired: Collection, *, is_overdue: bool
    ) -> Event | None:
        alias, last_physical = alias_of(memory.slug), memory.reported_physical
        observed, _ = await observe_or_link(alias, last_physical, store=store)
        if observed is None:
            # Repeat the end of the deletion: an attempt that was killed may not have created the placeholder for
            # snapshots.
            await self._retire(memory, last_physical)
            return None
        check_ownership(observed, desired)
        points = await store.count(observed.physical)
        if event := await self._check_kept(memory, alias, points=points, is_overdue=is_overdue):
            return event
        # Delete replaced collections before the live one, through which the next attempt finds them after a crash.
        for replaced in await self._find_replaced(memory, alias, observed.physical):
            await self._retire(memory, replaced)
        remaining = await self._retire(memory, observed.physical)
        final_snapshot = self._backup_of(memory, points) if points and memory.spec.deletion_policy == "Snapshot" else ""
        placeholder = (
            f"; {remaining} of its snapshots remain under an empty collection with its name" if remaining else ""
        )
        message = f"{observed.physical} with {points} memories deleted{final_snapshot}{placeholder}"
        return Event("Normal", "CollectionDeleted", message)

    def _backup_of(self, memory: AgentMemory, points: int) -> str:
        """Return the end of a message: the final snapshot's name, and how many memories were written after it."""
        name = final_name(memory.metadata)
        document = self.table.get(Key(MEMORY_SNAPSHOT, memory.metadata.namespace, name)) or {}
        included = ((document.get("status") or {}).get("points") or {}).get("after", points)
        later = f", except {points - included} written later" if points > included else ""
        return f"; MemorySnapshot {name} has them{later}"

    async def _check_kept(self, memory: AgentMemory, alias: str, *, points: int, is_overdue: bool) -> Event | None:
        """Return an event with the reason to keep the collection, or None to delete it.

        Raises:
            DeletionPending, TransientError, NamespaceTerminating: As in `_ensure_final_snapshot`.
        """
        if points and memory.spec.deletion_policy == "Snapshot":
            reason = await self._ensure_final_snapshot(memory, is_overdue=is_overdue)
        else:
            confirmed = memory.metadata.annotations.get(CONFIRM_DELETE)
            reason = find_deletion_obstacle(alias, points=points, confirmation=confirmed)
        return _kept(f"{reason}; `agentmemory orphans` lists it") if reason else None

    async def _ensure_final_snapshot(self, memory: AgentMemory, *, is_overdue: bool) -> str | None:
        """Return the reason why there is no usable final snapshot, or None if there is one.

        Creates the MemorySnapshot if needed.

        Raises:
            DeletionPending: If the snapshot was created just now or is in progress. It has a deadline of its own.
            TransientError: If the MemorySnapshot cannot be created now.
            NamespaceTerminating: If the namespace is being deleted and accepts no new objects.
        """
        name = final_name(memory.metadata)
        document = self.table.get(Key(MEMORY_SNAPSHOT, memory.metadata.namespace, name))
        if document is None:
            await self.cluster.create_object(build_final_manifest(memory))
            if is_overdue:
                return f"{alias_of(memory.slug)} has memories, but MemorySnapshot {name} is not being created"
        if fault := find_fault(document, name):
            return fault
        return None

    async def _find_replaced(self, memory: AgentMemory, alias: str, live: str) -> list[str]:
        """Return the collections kept for a rollback, and the targets of rebuilds, that the namespace may use."""

        async def find(server: Server) -> list[str]:
            names = [name for name in await server.snapshots.collections() if number_of(name, alias) is not None]
            found = [name for name in names if _is_replaced(await server.snapshots.metadata(name), name, live)]
            # Skip collections that the namespace may not use, because metadata proves no ownership.
            return [name for name in found if await server.may_use(name)]

        return await self.servers.use(connection_of(memory), find, namespace=memory.metadata.namespace)

    async def _retire(self, memory: AgentMemory, physical: str | None) -> int:
        """Delete a collection; return how many of its snapshots a placeholder keeps. 0 if `physical` is None."""
        if physical is None:
            return 0
        # Read only snapshots of this namespace, because statuses in others may claim anything about these files.
        documents = documents_in(self.table, MEMORY_SNAPSHOT, memory.metadata.namespace)
        copied = copied_files((document.get("status") or {} for document in documents), physical)

        async def operation(server: Server) -> int:
            return await delete_keeping_snapshots(server.collections, server.snapshots, physical, copied=copied)

        remaining = await self.servers.use(connection_of(memory), operation, namespace=memory.metadata.namespace)
        for document in documents:
            if (document.get("status") or {}).get("physical") == physical:
                self.request(key_of(document))
        return remaining


def _is_replaced(metadata: Json | None, name: str, live: str) -> bool:
    record = record_from_json(metadata)
    return name != live and (PREVIOUS_KEY in (metadata or {}) or (record is not None and record.target == name))


def _kept(message: str) -> Event:
    return Event("Warning", COLLECTION_KEPT, message)


def _keys_kept(ring: Ring, reason: str) -> Event:
    message = (
        f"data keys of agent {ring} kept, so its snapshots stay readable: {reason}. To destroy them, see docs/delete.md"
    )
    return Event("Warning", "KeysKept", message)
