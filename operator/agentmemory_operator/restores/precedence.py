"""Decide whether a restore may proceed, from the state of its AgentMemory and of other restores and rebuilds."""

from agentmemory_operator.collections.rules.rebuild_record import is_moving
from agentmemory_operator.ports.base import Json
from agentmemory_operator.restores.job import RestoreJob
from agentmemory_operator.restores.rules.status import has_ended, is_rolling_back
from agentmemory_operator.restores.rules.swap_checks import PendingRestore, find_preceding
from agentmemory_operator.runtime.object_table import MEMORY_RESTORE, Key, ObjectTable, slug_of
from agentmemory_operator.spec.kinds.conditions import Reason


def find_obstacle(job: RestoreJob, table: ObjectTable) -> tuple[str, str] | None:
    """Return the condition reason and message that block a restore, or None if it can proceed.

    A restore waits while its AgentMemory is suspended or does not own its slug, and while another restore precedes it.
    A restore in place also waits until other ones are undone.
    Before the start it also waits while the AgentMemory is missing or being deleted, or a rebuild is moving the alias.
    """
    key = job.target_key
    document = table.get(key)
    if document is None or document["metadata"].get("deletionTimestamp"):
        if job.physical is not None:
            return None
        return Reason.AGENT_MEMORY_NOT_FOUND, f"there is no AgentMemory {key.name}: create it or delete this restore"
    spec = document.get("spec") or {}
    if spec.get("suspend"):
        return Reason.SUSPENDED, f"AgentMemory {key.name} is suspended: set its spec.suspend to false"
    owner = table.find_owner(slug_of(document))
    if owner != key:
        return Reason.SLUG_TAKEN, f"agent {slug_of(document)!r} belongs to the older AgentMemory {owner}"
    preceding = find_preceding(_contender(job.key, table), _others(job.key, key, table))
    # Only a restore that has not started waits for a rebuild. A started restore blocks the move of a rebuild, so if it
    # waited too, neither would ever proceed.
    if job.physical is None and (rebuild := moving_rebuild_message(key, table)):
        return Reason.WAITS_FOR_REBUILD, rebuild
    if preceding is not None:
        message = f"waiting for MemoryRestore {preceding.name} into {key.name}"
        return Reason.WAITS_FOR_RESTORE, message
    if job.is_in_place and (undoing := undoing_message(key, table, waiting=job.key)):
        return Reason.WAITS_FOR_RESTORE, undoing
    return None


def undoing_message(
    target: Key, table: ObjectTable, *, waiting: Key | None = None, closed: str | None = None
) -> str | None:
    """Return a message if a restore in place failed or is being deleted, and is not undone yet; else None.

    It may still restore its safety snapshot over the collection that it has closed, and then opens the agent.

    Args:
        waiting: Restore that waits, which does not count itself; None if a rebuild waits.
        closed: Considers only restores that have closed this collection. None considers all of the AgentMemory.
    """
    for key in table.list_job_keys(target, MEMORY_RESTORE):
        document = table.get(key) or {"metadata": {}}
        status = document.get("status") or {}
        is_undoing = "closedSince" in status and (has_ended(status) or document["metadata"].get("deletionTimestamp"))
        if key != waiting and is_undoing and closed in (None, status.get("physical")):
            return (
                f"waiting for MemoryRestore {key.name} to be undone, see its condition Succeeded. If that is "
                f"impossible, restore a snapshot with mode Swap, then delete {key.name}"
            )
    return None


def moving_rebuild_message(target: Key, table: ObjectTable) -> str | None:
    """Return a message if a rebuild is about to move the alias of an AgentMemory, or has moved it and not ended.

    Else return None.
    """
    rebuild = ((table.get(target) or {}).get("status") or {}).get("rebuild") or {}
    return f"waiting for a rebuild of {target.name}, which is at {rebuild['step']}" if is_moving(rebuild) else None


def find_started_restore(target: Key, table: ObjectTable) -> Key | None:
    """Return a restore into an AgentMemory that has started and not ended, or is being rolled back, or None.

    Restores whose objects are being deleted do not count.
    """
    started = (key for key in _unended(target, table) if _has_started(table.get(key) or {}))
    return next(started, None)


def blocking_restore_message(target: Key, table: ObjectTable) -> str | None:
    """Return a message if a restore must end, or one in place must be undone, before a rebuild continues; else None."""
    restore = find_started_restore(target, table)
    return f"waiting for MemoryRestore {restore.name}" if restore else undoing_message(target, table)


def find_target_fault(job: RestoreJob, document: Json | None) -> str | None:
    """Return the reason why a started restore must stop, or None if the AgentMemory that it started for still exists.

    Args:
        document: The AgentMemory; None if it was deleted.
    """
    name = job.restore.spec.target.name
    if document is None or document["metadata"].get("deletionTimestamp"):
        return f"AgentMemory {name} was deleted: the partial result is removed"
    uid, expected_uid = document["metadata"].get("uid", ""), job.status.get("targetUid")
    if expected_uid is not None and uid != expected_uid:
        return f"AgentMemory {name} was deleted and created again: the partial result is removed"
    return None


def _unended(target: Key, table: ObjectTable) -> list[Key]:
    return [key for key in table.list_job_keys(target, MEMORY_RESTORE) if _is_in_progress(table.get(key) or {})]


def _is_in_progress(document: Json) -> bool:
    status = document.get("status") or {}
    is_open = not has_ended(status) or is_rolling_back(status)
    return not document["metadata"].get("deletionTimestamp") and is_open


def _has_started(document: Json) -> bool:
    return bool((document.get("status") or {}).get("physical"))


def _others(own_key: Key, target: Key, table: ObjectTable) -> list[PendingRestore]:
    return [_contender(key, table) for key in _unended(target, table) if key != own_key]


def _contender(key: Key, table: ObjectTable) -> PendingRestore:
    document = table.get(key) or {"metadata": {}}
    metadata = document["metadata"]
    return PendingRestore(
        namespace=key.namespace,
        name=key.name,
        created=metadata.get("creationTimestamp") or "",
        uid=metadata.get("uid") or "",
        is_started=_has_started(document),
    )
