"""What a pass looks at beside the collection itself: how an agent begins, and which memories its object leaves behind.

An agent gets no empty collection while one is restored for it, nor where it begins with a snapshot.
"""

from collections.abc import Mapping
from typing import Any

from agentmemory_operator.collections.rules.collection import Observed, limits_in_force
from agentmemory_operator.errors import NotFound, RestoreUnderWay, SpecInvalid, StoreRejected, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.restores.precedence import restore_under_way
from agentmemory_operator.restores.rules.status import SUCCEEDED, has_ended, has_succeeded
from agentmemory_operator.runtime.cache import AGENT_MEMORY, MEMORY_RESTORE, Key, ObjectTable
from agentmemory_operator.spec.effective.policies import effective_zones
from agentmemory_operator.spec.effective.settings import effective_types
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason, condition_of, is_true

# Of a name of 253 letters, what leaves room for the rest.
_MOST_LETTERS = 230

LISTED_MAX = 20_000
"""Memories that a pass lists to count them: ten calls."""


async def check_creation(key: Key, memory: AgentMemory, *, table: ObjectTable, cluster: Cluster) -> None:
    """Pass where an agent without a collection gets an empty one; begin its restore where it is to begin with one.

    Raises:
        RestoreUnderWay: its collection comes with a restore.
        SpecInvalid: the snapshot that it is to begin with cannot be restored.
        TransientError: the object is gone, and the watch has not said so yet.
    """
    if memory.status.get("collection"):
        await _check_there(memory, cluster)
    if found := restore_under_way(key, table):
        raise RestoreUnderWay(f"the collection is being created by MemoryRestore {found.name}")
    if memory.spec.bootstrap is None:
        return
    restore = bootstrap_of(memory, memory.spec.bootstrap.from_snapshot.name)
    own = Key(MEMORY_RESTORE, key.namespace, restore["metadata"]["name"])
    document = table.get(own)
    if document is None:
        await cluster.create_object(restore)
    status = (document or {}).get("status") or {}
    if not has_ended(status):
        raise RestoreUnderWay(
            f"the collection is being created by MemoryRestore {own.name}: {status.get('progress', 'starting')}"
        )
    if not has_succeeded(status):
        told = condition_of(status, SUCCEEDED)["message"]
        raise SpecInvalid(
            Reason.BOOTSTRAP_FAILED,
            f"spec.bootstrap: MemoryRestore {own.name} failed: {told}. Delete it to retry, name another "
            f"snapshot, or remove spec.bootstrap to start empty",
        )


async def _check_there(memory: AgentMemory, cluster: Cluster) -> None:
    """Pass where the object of a lost collection is there: one made for an object that is gone would keep its slug."""
    metadata = memory.metadata
    try:
        document = await cluster.read_object(AGENT_MEMORY, metadata.namespace, metadata.name)
    except NotFound:
        document = {"metadata": {}}
    if document["metadata"].get("uid") != metadata.uid or document["metadata"].get("deletionTimestamp"):
        raise TransientError(f"AgentMemory {metadata.namespace}/{metadata.name} was deleted meanwhile")


def bootstrap_of(memory: AgentMemory, snapshot: str) -> Json:
    """The restore that an agent begins with; an object that was created again begins again."""
    metadata = memory.metadata
    name = f"{metadata.name[:_MOST_LETTERS]}-bootstrap-{metadata.uid[:8]}"
    return {
        "apiVersion": API_VERSION,
        "kind": MEMORY_RESTORE,
        "metadata": {"name": name, "namespace": metadata.namespace},
        "spec": {"target": {"name": metadata.name}, "source": {"snapshotRef": {"name": snapshot}}},
    }


async def count_memories(observed: Observed, store: CollectionStore) -> int | None:
    """Count the memories of a collection; None if the server refuses.

    If the strict mode forbids exact counts, memories are listed to count them; more than `LISTED_MAX` are estimated.
    """
    if not observed.points:
        return 0
    may_be_exact = limits_in_force(observed.collection.strict_mode).get("search_allow_exact") is not False
    try:
        return await store.count_memories(observed.physical, exact=may_be_exact or observed.points <= LISTED_MAX)
    except (NotFound, StoreRejected):
        return None


async def count_unlisted(memory: AgentMemory, observed: Observed, store: CollectionStore) -> Mapping[str, int]:
    """How many memories there are of each type that the object does not list.

    New ones are refused, so only a change of the object makes any: it is asked after one, after a failure, and as long
    as there are some.
    """
    types = effective_types(memory)
    is_countable = observed.points > 0 and "type" in dict(observed.collection.indexes)
    if not types or not is_countable or not _is_due(memory.status, memory.metadata.generation):
        return {}
    return await store.count_unlisted(observed.physical, [type_.name for type_ in types])


async def count_to_reseal(memory: AgentMemory, observed: Observed, store: CollectionStore, now_ms: int) -> int | None:
    """How many memories are sealed with data keys that are to be replaced; None where none is to be."""
    zones = effective_zones(memory)
    if zones is None or not 0 < zones.rotate_before_ms <= now_ms:
        return None
    return await store.count_sealed_before(observed.physical, zones.rotate_before_ms)


def _is_due(status: Mapping[str, Any], generation: int) -> bool:
    conditions = status.get("conditions") or []
    is_known = status.get("observedGeneration") == generation and is_true(conditions, "Ready")
    return not is_known or any(condition["reason"] == Reason.TYPE_REMOVED for condition in conditions)
