"""Puts a plain collection behind an alias of its own name: what of a rebuild is different there.

`rebuilds/rules/plain.py` says why, and what is next after a kill at any call.
"""

import asyncio
import time
from dataclasses import replace
from typing import Any

from agentmemory_operator.collections.rules.changes import SetAlias
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY
from agentmemory_operator.collections.rules.rebuild_record import REBUILD_KEY, copied_elsewhere, record_to_json
from agentmemory_operator.errors import SpecInvalid, StoreRejected, StoreUnavailable, TransientError
from agentmemory_operator.ports.snapshots import SnapshotFile
from agentmemory_operator.rebuilds.rules.plain import is_of_plain, without_plain
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.snapshots.compare import ComparedSnapshot, compare
from agentmemory_operator.snapshots.rules.verdict import Recorded, hash_configuration
from agentmemory_operator.snapshots.verify import restore_into
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.naming import next_physical

LINK_TRIES = 50
"""How often the alias is tried to be created while clients find nothing; after that each pass over the object does."""

LINK_RETRY_S = 0.1

# A collection that comes of a snapshot says of itself what the other one said at that moment.
_OF_THE_OTHER = copied_elsewhere() | {PREVIOUS_KEY: None}


class _Beside(RebuildRun):
    """Carries into the way back what is carried into the target: nothing of it is on record."""

    async def note(self, **changes: Any) -> None:
        """Remember it for the passes of this run."""
        self.record = replace(self.record, **changes)


async def keep(task: RebuildRun) -> str:
    """Make the way back of a plain collection: a snapshot of it, restored and compared with it.

    Raises:
        SpecInvalid: the copy is not the collection.
        RebuildPaused, RebuildUnwanted: it is not to be gone on with.
        TransientError: to be done again.
    """
    name, server = task.record.way_back or await _choose_name(task), task.server
    # What a killed run left may be half a copy.
    await server.collections.delete(name)
    recorded = await _recorded(task)
    file = await server.snapshots.create(task.source_name)
    try:
        await task.check()
        subject = await _subject(task, file, recorded)
        await restore_into(name, subject, server)
        await server.snapshots.write_metadata(name, _OF_THE_OTHER)
        verdict = await compare(name, subject, server)
    finally:
        # Under the alias nobody reaches it any more.
        await server.snapshots.delete_file(task.source_name, file.name)
    if not verdict.is_good:
        raise SpecInvalid(Reason.NOT_VERIFIED, f"the copy to keep differs from the collection: {verdict.message}")
    return f"{name} is kept: {verdict.message}"


async def _choose_name(task: RebuildRun) -> str:
    """The way back's name, put on record before anything bears it; the target's is above all that are known."""
    name = next_physical(task.alias, [*await task.server.snapshots.collections(), task.target_name])
    await task.note(way_back=name)
    return name


async def _recorded(task: RebuildRun) -> Recorded:
    collections, name = task.server.collections, task.source_name
    begun_ms, before = task.clock.now_ms(), await collections.count(name)
    # It has got an index since this run began.
    observed = await collections.observe(name, name, is_linked=True)
    return Recorded(
        begun_ms=begun_ms, before=before, config_hash=hash_configuration(observed.collection) if observed else None
    )


async def _subject(task: RebuildRun, file: SnapshotFile, recorded: Recorded) -> ComparedSnapshot:
    return ComparedSnapshot(
        uid=task.memory.metadata.uid,
        physical=task.source_name,
        name=file.name,
        size=file.size,
        sha256=file.sha256,
        recorded=replace(recorded, after=await task.server.collections.count(task.source_name)),
        live=task.source_name,
    )


async def way_back_of(task: RebuildRun) -> list[RebuildRun]:
    """What is carried into beside the target before a move: of a plain collection the way back."""
    if not is_of_plain(task.record, task.alias):
        return []
    name = task.record.way_back
    if name is None or await task.server.snapshots.metadata(name) is None:
        await keep(task)
    beside = _Beside(
        memory=task.memory,
        server=task.server,
        source=task.source,
        desired=task.source.collection,
        record=replace(task.record, target=str(task.record.way_back)),
        clock=task.clock,
        embedder=None,
        check=task.check,
        show=task.show,
    )
    return [beside]


async def take_place(task: RebuildRun) -> None:
    """Put the alias in the place of the plain collection: everything that it holds is in the target.

    Raises:
        StoreUnavailable: not everything is, by the number of points.
        TransientError: whether there is an alias is not known; every pass over the object sees to it first.
    """
    collections = task.server.collections
    await _check_whole(task)
    await _note_gone(task, task.clock.now_ms())
    begun_s = time.monotonic()
    try:
        await collections.delete(task.source_name)
    except StoreRejected:
        await _note_gone(task, None)
        raise
    await _link(task)
    task.record = replace(task.record, pause_ms=round((time.monotonic() - begun_s) * 1000))


async def note_taken(task: RebuildRun) -> None:
    """Put on record that the alias leads to the target, and that what was replaced lies in the way back."""
    record = without_plain(task.record, task.alias, task.clock.now_ms())
    if record != task.record:
        task.source = replace(task.source, physical=record.source)
        await task.note(source=record.source, pause_ms=record.pause_ms)


async def _check_whole(task: RebuildRun) -> None:
    """Pass unless points came since all were compared that bear no time: nobody but others writes such."""
    points, names = task.server.points, (task.source_name, task.target_name, str(task.record.way_back))
    there, *copies = [await points.count(name, None) for name in names]
    if min(copies) < there:
        raise StoreUnavailable(
            f"{there - min(copies)} points were written directly to {task.source_name}, which is about to be "
            f"replaced: stop direct writers; retrying"
        )


async def _note_gone(task: RebuildRun, gone_ms: int | None) -> None:
    """Say in the target's record, and nowhere else, that the collection goes: writers wait."""
    task.record = replace(task.record, gone_ms=gone_ms)
    await task.server.snapshots.write_metadata(task.target_name, {REBUILD_KEY: record_to_json(task.record)})


async def _link(task: RebuildRun) -> None:
    link = SetAlias(task.alias, task.target_name)
    for _ in range(LINK_TRIES):
        try:
            await task.server.collections.apply(task.target_name, link)
            return
        except TransientError:
            await asyncio.sleep(LINK_RETRY_S)
    await task.server.collections.apply(task.target_name, link)
