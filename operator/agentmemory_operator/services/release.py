"""Deletion of an AgentMemory: what happens to its collection before the object may go.

The finalizer stands only where the collection is to be deleted too. Nothing here can hold a namespace for ever: what
cannot be deleted is kept, said in an event, and the object is released.
"""

from collections.abc import Mapping
from typing import Any

from agentmemory_operator.domain.collection import Collection
from agentmemory_operator.domain.desired import desired_collection
from agentmemory_operator.domain.manifests import parse_agent_memory
from agentmemory_operator.domain.naming import alias_of, physical_names
from agentmemory_operator.domain.resources import CONFIRM_DELETE, GROUP, AgentMemory, Metadata
from agentmemory_operator.domain.safety import check_destroy, check_ownership
from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.ports import Cluster, CollectionStore, Event
from agentmemory_operator.services.connections import Connections
from agentmemory_operator.services.objects import AGENT_MEMORY

FINALIZER = f"{GROUP}/collection"


async def release(
    document: Mapping[str, Any], metadata: Metadata, *, connections: Connections, cluster: Cluster, is_overdue: bool
) -> None:
    """Delete the collection where policy and guard allow it, then let the object go.

    Args:
        is_overdue: the deletion has waited for Qdrant long enough.

    Raises:
        TransientError: Qdrant is away, and the deletion can wait.
    """
    if FINALIZER not in metadata.finalizers:
        return
    try:
        memory = parse_agent_memory(document)
        event = await _destroy(memory, connections=connections, cluster=cluster)
    except AgentMemoryError as exc:
        if isinstance(exc, TransientError) and not is_overdue:
            raise
        event = Event("Warning", "CollectionKept", f"the collection is kept, `agentmemory orphans` lists it: {exc}")
    if event:
        await cluster.post_event(AGENT_MEMORY, metadata, event)
    await cluster.write_finalizers(AGENT_MEMORY, metadata, [name for name in metadata.finalizers if name != FINALIZER])


async def _destroy(memory: AgentMemory, *, connections: Connections, cluster: Cluster) -> Event | None:
    """Delete the collection, or return the event that says why it is kept."""
    if memory.spec.deletion_policy != "Delete":
        return None
    if memory.spec.suspend:
        return Event("Warning", "CollectionKept", "the collection is kept: spec.suspend is true")
    ours = desired_collection(memory, cluster_id=await cluster.cluster_id())
    return await connections.use(memory, lambda store: _delete_from(store, memory, ours))


async def _delete_from(store: CollectionStore, memory: AgentMemory, ours: Collection) -> Event | None:
    alias = alias_of(memory.slug)
    likely, _ = physical_names(alias, (memory.status.get("collection") or {}).get("physical"))
    observed = await store.observe(alias, likely)
    if observed is None:
        return None
    check_ownership(observed, ours)
    points = await store.count(observed.physical)
    kept = check_destroy(alias, points=points, confirmation=memory.metadata.annotations.get(CONFIRM_DELETE))
    if kept:
        return Event("Warning", "CollectionKept", f"{kept}; `agentmemory orphans` lists it")
    await store.delete(observed.physical)
    return Event("Normal", "CollectionDeleted", f"{observed.physical} with {points} memories deleted")
