"""The steps of a rebuild that replaces a plain collection, which has the name of the alias itself.

`rebuilds/rules/plain_swap_steps.py` explains the order of the steps, defines the *way back*, and lists the next step
after a crash at any call.
"""

import asyncio
import time
from dataclasses import replace
from typing import Any

from agentmemory_operator.collections.rules.changes import SetAlias
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY
from agentmemory_operator.collections.rules.rebuild_record import REBUILD_KEY, clear_copied_keys, record_to_json
from agentmemory_operator.errors import SpecInvalid, StoreRejected, StoreUnavailable, TransientError
from agentmemory_operator.ports.collections import observe_physical
from agentmemory_operator.ports.snapshots import SnapshotFile
from agentmemory_operator.rebuilds.rules.plain_swap_steps import replaces_plain_collection, with_way_back_as_source
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.snapshots.copy_comparison import ComparedSnapshot, compare
from agentmemory_operator.snapshots.rules.copy_verdict import SnapshotRecord, hash_configuration
from agentmemory_operator.snapshots.verify import restore_into
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.naming import next_physical

MAX_LINK_ATTEMPTS = 50
"""Maximum number of retries of the alias's creation, `LINK_RETRY_S` seconds apart.

Clients find nothing until the alias exists. If the last retry fails too, each pass over the object tries again.
"""

LINK_RETRY_S = 0.1

# Keys to remove from the metadata of the restored copy. They come from the original, and do not apply to the copy.
_CLEARED_METADATA = clear_copied_keys() | {PREVIOUS_KEY: None}


class _WayBackRun(RebuildRun):
    """Run that copies changes into the way back instead of the target. Its record is not stored."""

    async def update_record(self, **changes: Any) -> None:
        """Change the record in memory only."""
        self.record = replace(self.record, **changes)


async def create_way_back(task: RebuildRun) -> str:
    """Step Keep: create the way back, a copy of the plain collection, from a snapshot, and compare both.

    Return the result for users. An existing collection with the name of the way back is deleted first.

    Raises:
        SpecInvalid: If the copy differs from the collection, or the connection does not list the nodes of the server's
            cluster.
        StoreRejected, NotFound, ChecksumMismatch: If the snapshot cannot be created or restored.
        RebuildPaused, RebuildCancelled: If the rebuild must not continue.
        TransientError: If the step must be repeated.
    """
    name, server = task.record.way_back or await _choose_name(task), task.server
    # Delete the incomplete copy that a killed run may have left under that name.
    await server.collections.delete(name)
    recorded = await _read_record(task)
    file = await server.snapshots.create(task.source_name)
    try:
        await task.check()
        subject = await _subject(task, file, recorded)
        await restore_into(name, subject, server)
        await server.snapshots.write_metadata(name, _CLEARED_METADATA)
        verdict = await compare(name, subject, server)
    finally:
        # Delete the snapshot file now: once the alias has the collection's name, the file cannot be reached.
        await server.snapshots.delete_file(task.source_name, file.name)
    if not verdict.is_good:
        raise SpecInvalid(Reason.NOT_VERIFIED, f"the copy to keep differs from the collection: {verdict.message}")
    return f"{name} is kept: {verdict.message}"


async def _choose_name(task: RebuildRun) -> str:
    """Choose the name of the way back, and record it before the collection is created.

    Its number is higher than that of any existing collection and of the target.
    """
    name = next_physical(task.alias, [*await task.server.snapshots.collections(), task.target_name])
    await task.update_record(way_back=name)
    return name


async def _read_record(task: RebuildRun) -> SnapshotRecord:
    collections, name = task.server.collections, task.source_name
    started_ms, before = task.clock.now_ms(), await collections.count(name)
    # Observe again: step CatchUp may have created an index since this run started.
    observed = await observe_physical(collections, name)
    hashes = (hash_configuration(observed.collection),) if observed else ()
    return SnapshotRecord(started_ms=started_ms, before=before, config_hashes=hashes)


async def _subject(task: RebuildRun, file: SnapshotFile, recorded: SnapshotRecord) -> ComparedSnapshot:
    return ComparedSnapshot(
        uid=task.memory.metadata.uid,
        physical=task.source_name,
        name=file.name,
        size=file.size,
        sha256=file.sha256,
        recorded=replace(recorded, after=await task.server.collections.count(task.source_name)),
        live=task.source_name,
    )


async def way_back_runs(task: RebuildRun) -> list[RebuildRun]:
    """Return the run that copies changes into the way back of a plain collection; an empty list for other rebuilds.

    Creates the way back if it does not exist. Errors are those of `create_way_back`.
    """
    if not replaces_plain_collection(task.record, task.alias):
        return []
    name = task.record.way_back
    if name is None or await task.server.snapshots.metadata(name) is None:
        await create_way_back(task)
    run = _WayBackRun(
        memory=task.memory,
        server=task.server,
        source=task.source,
        desired=task.source.collection,
        record=replace(task.record, target=str(task.record.way_back)),
        clock=task.clock,
        embedder=None,
        check=task.check,
        report_progress=task.report_progress,
    )
    return [run]


async def replace_by_alias(task: RebuildRun) -> None:
    """Delete the plain collection and create the alias. The target must contain all its points.

    Raises:
        StoreUnavailable: If the target or the way back has fewer points than the collection. Nothing was changed.
        StoreRejected: If Qdrant rejects the deletion, and nothing was deleted; or the alias, and the collection is
            deleted. In the second case every pass over the object first tries to create the alias.
        TransientError: If the outcome of the deletion or of the alias's creation is unknown. Every pass over the object
            first creates the alias if the collection is deleted.
    """
    collections = task.server.collections
    await _check_complete(task)
    await _record_deletion(task, task.clock.now_ms())
    started_s = time.monotonic()
    try:
        await collections.delete(task.source_name)
    except StoreRejected:
        await _record_deletion(task, None)
        raise
    await _link(task)
    task.record = replace(task.record, pause_ms=round((time.monotonic() - started_s) * 1000))


async def record_replaced(task: RebuildRun) -> None:
    """Record that the alias points to the target, and that the replaced contents are in the way back.

    Does nothing if the rebuild replaces no plain collection.
    """
    record = with_way_back_as_source(task.record, task.alias, task.clock.now_ms())
    if record != task.record:
        task.source = replace(task.source, physical=record.source)
        await task.update_record(source=record.source, pause_ms=record.pause_ms)


async def _check_complete(task: RebuildRun) -> None:
    """Raise StoreUnavailable if the target or the way back has fewer points than the collection.

    The collection then has points without `updatedAt` that direct writers added since the full comparison.
    """
    points, names = task.server.points, (task.source_name, task.target_name, str(task.record.way_back))
    source_count, *counts = [await points.count(name, None) for name in names]
    if min(counts) < source_count:
        raise StoreUnavailable(
            f"{source_count - min(counts)} points were written directly to {task.source_name}, which is about to be "
            f"replaced: stop direct writers; retrying"
        )


async def _record_deletion(task: RebuildRun, deleted_ms: int | None) -> None:
    """Record in the target's metadata that the collection is about to be deleted; None withdraws that.

    Progress is not reported, because writers wait.
    """
    task.record = replace(task.record, deleted_ms=deleted_ms)
    await task.server.snapshots.write_metadata(task.target_name, {REBUILD_KEY: record_to_json(task.record)})


async def _link(task: RebuildRun) -> None:
    change = SetAlias(task.alias, task.target_name)
    for _ in range(MAX_LINK_ATTEMPTS):
        try:
            await task.server.collections.apply(task.target_name, change)
            return
        except TransientError:
            await asyncio.sleep(LINK_RETRY_S)
    await task.server.collections.apply(task.target_name, change)
