"""Check whether a pass may create an empty collection, and count the memories that a pass reports.

No empty collection is created while a restore creates the collection, if the AgentMemory was deleted, or before the
restore of `spec.bootstrap` has succeeded. The check creates that MemoryRestore if it does not exist.

Counts: all memories, those of types that the object does not list, and those encrypted with keys due for replacement.
"""

from collections.abc import Mapping
from typing import Any

from agentmemory_operator.collections.rules.collection import Observation, effective_limits
from agentmemory_operator.errors import NotFound, RestoreInProgress, SpecInvalid, StoreRejected, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.restores.precedence import find_started_restore
from agentmemory_operator.restores.rules.status import SUCCEEDED, has_ended, has_succeeded
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, MEMORY_RESTORE, Key, ObjectTable
from agentmemory_operator.spec.effective.policies import effective_zones
from agentmemory_operator.spec.effective.settings import effective_types
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason, find_condition, is_true
from agentmemory_operator.spec.naming import append_suffix

MAX_LISTED_MEMORIES = 20_000
"""Points up to which a pass lists memories to count them: ten calls of 2,000 points."""


async def check_creation(key: Key, memory: AgentMemory, *, table: ObjectTable, cluster: Cluster) -> None:
    """Allow a new, empty collection for an agent, or raise.

    With `spec.bootstrap`, create the MemoryRestore of the agent if it does not exist.

    Raises:
        RestoreInProgress: If a restore creates the collection, or was created by this call to do so.
        SpecInvalid: If the restore of `spec.bootstrap` failed.
        NamespaceTerminating: If the MemoryRestore cannot be created, because its namespace is being deleted.
        TransientError: If Kubernetes is unavailable, or the object was deleted and the watch has not delivered that.
    """
    if memory.status.get("collection"):
        await _check_exists(memory, cluster)
    if found := find_started_restore(key, table):
        raise RestoreInProgress(f"the collection is being created by MemoryRestore {found.name}")
    if memory.spec.bootstrap is None:
        return
    restore = build_bootstrap_restore(memory, memory.spec.bootstrap.from_snapshot.name)
    restore_key = Key(MEMORY_RESTORE, key.namespace, restore["metadata"]["name"])
    document = table.get(restore_key)
    if document is None:
        await cluster.create_object(restore)
    status = (document or {}).get("status") or {}
    if not has_ended(status):
        raise RestoreInProgress(
            f"the collection is being created by MemoryRestore {restore_key.name}: {status.get('progress', 'starting')}"
        )
    if not has_succeeded(status):
        message = find_condition(status, SUCCEEDED)["message"]
        raise SpecInvalid(
            Reason.BOOTSTRAP_FAILED,
            f"spec.bootstrap: MemoryRestore {restore_key.name} failed: {message}. Delete it to retry, name another "
            f"snapshot, or remove spec.bootstrap to start empty",
        )


async def _check_exists(memory: AgentMemory, cluster: Cluster) -> None:
    """Raise TransientError unless the object still exists: a collection without an object would block the slug."""
    metadata = memory.metadata
    try:
        document = await cluster.read_object(AGENT_MEMORY, metadata.namespace, metadata.name)
    except NotFound:
        document = {"metadata": {}}
    if document["metadata"].get("uid") != metadata.uid or document["metadata"].get("deletionTimestamp"):
        raise TransientError(f"AgentMemory {metadata.namespace}/{metadata.name} was deleted meanwhile")


def build_bootstrap_restore(memory: AgentMemory, snapshot: str) -> Json:
    """Build the MemoryRestore of `spec.bootstrap`. Its name contains the uid: a recreated object gets a new restore.

    Args:
        snapshot: Name of the MemorySnapshot.
    """
    metadata = memory.metadata
    name = append_suffix(metadata.name, f"-bootstrap-{metadata.uid[:8]}")
    return {
        "apiVersion": API_VERSION,
        "kind": MEMORY_RESTORE,
        "metadata": {"name": name, "namespace": metadata.namespace},
        "spec": {"target": {"name": metadata.name}, "source": {"snapshotRef": {"name": snapshot}}},
    }


async def count_memories(observed: Observation, store: CollectionStore) -> int | None:
    """Count the memories of a collection; None if the collection is missing or the server rejects the request.

    Return 0 without a request if the collection was observed empty.

    If the strict mode forbids exact counts, up to `MAX_LISTED_MEMORIES` points are listed to count them; more are
    estimated.
    """
    if not observed.points:
        return 0
    may_be_exact = effective_limits(observed.collection.strict_mode).get("search_allow_exact") is not False
    try:
        return await store.count_memories(
            observed.physical, exact=may_be_exact or observed.points <= MAX_LISTED_MEMORIES
        )
    except (NotFound, StoreRejected):
        return None


async def count_unlisted(memory: AgentMemory, observed: Observation, store: CollectionStore) -> Mapping[str, int]:
    """Count the memories of each type that the object does not list.

    New memories of such types are rejected, so only a change of the object can make stored memories unlisted. Therefore
    the server is only called after a change or a failure, and while the last status reports unlisted memories.

    Returns:
        Number by type, for the most frequent types (at most 8), including pending writes; empty if there are none or
        they were not counted.
    """
    types = effective_types(memory)
    is_countable = observed.points > 0 and "type" in dict(observed.collection.indexes)
    if not types or not is_countable or not _is_due(memory.status, memory.metadata.generation):
        return {}
    return await store.count_unlisted(observed.physical, [type_.name for type_ in types])


async def count_to_reseal(
    memory: AgentMemory, observed: Observation, store: CollectionStore, now_ms: int
) -> int | None:
    """Count the memories encrypted with data keys created before `spec.zones.rotateKeysBefore`.

    Pending writes count too. None if the object has no zones, or the field is not set or is in the future.
    """
    zones = effective_zones(memory)
    if zones is None or not 0 < zones.rotate_before_ms <= now_ms:
        return None
    return await store.count_sealed_before(observed.physical, zones.rotate_before_ms)


def _is_due(status: Mapping[str, Any], generation: int) -> bool:
    conditions = status.get("conditions") or []
    is_ready = status.get("observedGeneration") == generation and is_true(conditions, "Ready")
    return not is_ready or any(condition["reason"] == Reason.TYPE_REMOVED for condition in conditions)
