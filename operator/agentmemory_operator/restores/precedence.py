"""Whether a restore may go on: its AgentMemory, and the other restores into it."""

from agentmemory_operator.collections.rules.rebuild_record import is_moving
from agentmemory_operator.ports.base import Json
from agentmemory_operator.restores.job import RestoreJob
from agentmemory_operator.restores.rules.checks import Contender, one_before
from agentmemory_operator.restores.rules.status import has_ended, is_rolling_back
from agentmemory_operator.runtime.cache import MEMORY_RESTORE, Key, ObjectTable, slug_of
from agentmemory_operator.spec.kinds.conditions import Reason


def obstacle_of(job: RestoreJob, table: ObjectTable) -> tuple[str, str] | None:
    """Reason and message of what a restore waits for, None where it may go on."""
    key = job.target_key
    document = table.get(key)
    if document is None or document["metadata"].get("deletionTimestamp"):
        if job.physical is not None:
            return None
        return Reason.AGENT_MEMORY_NOT_FOUND, f"there is no AgentMemory {key.name}: create it or delete this restore"
    spec = document.get("spec") or {}
    if spec.get("suspend"):
        return Reason.SUSPENDED, f"AgentMemory {key.name} is suspended: set its spec.suspend to false"
    owner = table.owner_of(slug_of(document))
    if owner != key:
        return Reason.SLUG_TAKEN, f"agent {slug_of(document)!r} belongs to the older AgentMemory {owner}"
    before = one_before(_contender(job.key, table), _others(job.key, key, table))
    # One that has begun keeps a rebuild from moving; two that wait for each other would wait for ever.
    if job.physical is None and (rebuild := rebuild_moving(key, table)):
        return Reason.WAITS_FOR_REBUILD, rebuild
    if before is not None:
        told = f"waiting for MemoryRestore {before.name} into {key.name}"
        return Reason.WAITS_FOR_RESTORE, told
    return None


def rebuild_moving(target: Key, table: ObjectTable) -> str | None:
    """What a rebuild does to an AgentMemory's alias that a restore waits for, None where there is none."""
    told = ((table.get(target) or {}).get("status") or {}).get("rebuild") or {}
    return f"waiting for a rebuild of {target.name}, which is at {told['step']}" if is_moving(told) else None


def restore_under_way(target: Key, table: ObjectTable) -> Key | None:
    """A restore that is making a collection for an AgentMemory, None where there is none."""
    begun = (one for one in _unended(target, table) if _has_begun(table.get(one) or {}))
    return next(begun, None)


def target_fault(job: RestoreJob, document: Json | None) -> str | None:
    """Why the AgentMemory of a restore that has begun is not to be restored any more, None where it is.

    Args:
        document: the AgentMemory, None where it is gone.
    """
    name = job.restore.spec.target.name
    if document is None or document["metadata"].get("deletionTimestamp"):
        return f"AgentMemory {name} was deleted: the partial result is removed"
    uid, wanted = document["metadata"].get("uid", ""), job.status.get("targetUid")
    if wanted is not None and uid != wanted:
        return f"AgentMemory {name} was deleted and created again: the partial result is removed"
    return None


def _unended(target: Key, table: ObjectTable) -> list[Key]:
    return [key for key in table.job_keys(target, MEMORY_RESTORE) if _is_under_way(table.get(key) or {})]


def _is_under_way(document: Json) -> bool:
    status = document.get("status") or {}
    is_open = not has_ended(status) or is_rolling_back(status)
    return not document["metadata"].get("deletionTimestamp") and is_open


def _has_begun(document: Json) -> bool:
    return bool((document.get("status") or {}).get("physical"))


def _others(own: Key, target: Key, table: ObjectTable) -> list[Contender]:
    return [_contender(key, table) for key in _unended(target, table) if key != own]


def _contender(key: Key, table: ObjectTable) -> Contender:
    document = table.get(key) or {"metadata": {}}
    metadata = document["metadata"]
    return Contender(
        namespace=key.namespace,
        name=key.name,
        created=metadata.get("creationTimestamp") or "",
        uid=metadata.get("uid") or "",
        has_begun=_has_begun(document),
    )
