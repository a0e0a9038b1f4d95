"""Whether an agent gets an empty collection: not while one is restored for it, nor where it begins with a snapshot."""

from agentmemory_operator.domain.conditions import Reason, condition_of
from agentmemory_operator.domain.resources import API_VERSION, AgentMemory
from agentmemory_operator.domain.restore_reporting import SUCCEEDED, has_ended, has_succeeded
from agentmemory_operator.errors import RestoreUnderWay, SpecInvalid
from agentmemory_operator.ports import Cluster, Json
from agentmemory_operator.services.objects import MEMORY_RESTORE, Key, ObjectTable
from agentmemory_operator.services.restore_queue import restore_under_way

# Of a name of 253 letters, what leaves room for the rest.
_MOST_LETTERS = 230


async def check_creation(key: Key, memory: AgentMemory, *, table: ObjectTable, cluster: Cluster) -> None:
    """Pass where an agent without a collection gets an empty one; begin its restore where it is to begin with one.

    Raises:
        RestoreUnderWay: its collection comes with a restore.
        SpecInvalid: the snapshot that it is to begin with cannot be restored.
    """
    if found := restore_under_way(key, table):
        raise RestoreUnderWay(f"the collection comes with MemoryRestore {found.name}, which is under way")
    if memory.spec.bootstrap is None:
        return
    restore = bootstrap_of(memory)
    own = Key(MEMORY_RESTORE, key.namespace, restore["metadata"]["name"])
    document = table.get(own)
    if document is None:
        await cluster.create_object(restore)
    status = (document or {}).get("status") or {}
    if not has_ended(status):
        raise RestoreUnderWay(
            f"the collection comes with MemoryRestore {own.name}: {status.get('progress', 'it is about to begin')}"
        )
    if not has_succeeded(status):
        told = condition_of(status, SUCCEEDED)["message"]
        raise SpecInvalid(
            Reason.BOOTSTRAP_FAILED,
            f"spec.bootstrap: MemoryRestore {own.name} failed: {told}. Delete it to have it tried again, name another "
            f"snapshot, or remove spec.bootstrap to begin empty",
        )


def bootstrap_of(memory: AgentMemory) -> Json:
    """Return the restore that an agent begins with; one that was made anew begins anew."""
    assert memory.spec.bootstrap is not None
    snapshot = memory.spec.bootstrap.from_snapshot.name
    metadata = memory.metadata
    name = f"{metadata.name[:_MOST_LETTERS]}-bootstrap-{metadata.uid[:8]}"
    return {
        "apiVersion": API_VERSION,
        "kind": MEMORY_RESTORE,
        "metadata": {"name": name, "namespace": metadata.namespace},
        "spec": {"target": {"name": metadata.name}, "source": {"snapshotRef": {"name": snapshot}}},
    }
