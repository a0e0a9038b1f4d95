"""Indexing in the background: when a collection needs it, and how it happens beside reads and writes.

The engine's `optimize` holds Python's global lock while it runs (14 s for 20,000 x 384), so it cannot run here:

1. under the write lock the shard's folder is copied; from then on every update is also kept in a journal;
2. another process (`rebuilding`) loads the copy with the present configuration, optimizes and closes it;
3. under the write lock the copy is opened, the journal repeated on it, the record names it as the generation in force,
   and the old one is closed and deleted.

Until step 3's record is written, a crash leaves the old generation in force with every update in its log.
"""

import asyncio
import contextlib
import logging
import os
import pathlib
import shutil
import sys
import time
import uuid
from dataclasses import dataclass

import orjson
import qdrant_edge as edge

from qdrant_devserver.engine_faults import engine_errors
from qdrant_devserver.error_answers import ErrorAnswer
from qdrant_devserver.fields import Document
from qdrant_devserver.storage.collection import ServedCollection
from qdrant_devserver.storage.engine_configuration import KIBIBYTE, largest_vector_bytes, rebuilt_by
from qdrant_devserver.storage.files import copy_tree, rename
from qdrant_devserver.storage.shards import Shards, summarise

log = logging.getLogger(__name__)

QUIET_S = 1.0
LONGEST_WAIT_S = 3.0
FLUSH_AFTER_S = 5.0
# Points that an optimization left unindexed on purpose must grow by this before it is tried again.
REGROWTH = 1.2
JOURNAL_BATCH = 64


@dataclass(slots=True)
class Schedule:
    """What is planned for a collection.

    Attributes:
        due: monotonic time at which to look whether it needs optimizing.
        latest: time beyond which `due` is not put off.
        queued: whether something to optimize was seen since the last look; a change taken back in between counts.
        timer: fires at `due`.
        flush: fires when the collection has been quiet for long enough to flush it.
        run: the optimization under way.
        started: wall clock time at which it began.
    """

    due: float = 0.0
    latest: float = 0.0
    queued: bool = False
    timer: asyncio.TimerHandle | None = None
    flush: asyncio.TimerHandle | None = None
    run: asyncio.Task[None] | None = None
    started: float = 0.0


class Optimizations:
    """Watches collections after updates and optimizes one at a time."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._schedules: dict[pathlib.Path, Schedule] = {}
        self._one_at_a_time = asyncio.Semaphore(1)

    def wake(self, collection: ServedCollection) -> None:
        """Note an update, or a PATCH that restarts optimizers: from now on the collection is looked after."""
        if collection.deleted:
            return
        collection.awake = True
        loop = asyncio.get_running_loop()
        schedule = self._schedules.setdefault(collection.folder, Schedule())
        now = loop.time()
        if schedule.timer is None:
            schedule.latest = now + LONGEST_WAIT_S
            schedule.timer = loop.call_at(now + QUIET_S, self._look, collection)
        schedule.due = min(now + QUIET_S, schedule.latest)
        schedule.queued = schedule.queued or self.is_pending(collection)

    def status(self, collection: ServedCollection) -> str:
        """The collection's status in the server's colours."""
        schedule = self._schedules.get(collection.folder)
        if schedule is not None and (schedule.queued or schedule.run is not None):
            return "yellow"
        if collection.failure is not None:
            return "red"
        if not self.is_pending(collection):
            return "green"
        return "yellow" if collection.awake else "grey"

    def is_running(self, collection: ServedCollection) -> bool:
        """Whether an optimization of the collection is under way."""
        schedule = self._schedules.get(collection.folder)
        return schedule is not None and schedule.run is not None

    def started(self, collection: ServedCollection) -> float:
        """The wall clock time at which the running optimization began."""
        return self._schedules[collection.folder].started

    def is_pending(self, collection: ServedCollection) -> bool:
        """Whether the segments differ from what the configuration asks for."""
        summary, record = self._shards.summary(collection), collection.record
        if record.built != rebuilt_by(record.configuration, indexed=record.indexed_base > 0):
            return True
        optimizers = record.configuration["optimizer_config"]
        plain = summary.points - _per_point(summary.indexed_dense, collection)
        threshold = optimizers["indexing_threshold"]
        too_large = plain * largest_vector_bytes(record.configuration) > threshold * KIBIBYTE
        if threshold and too_large and plain > record.left_plain * REGROWTH:
            return True
        lost = record.indexed_base - summary.indexed_dense
        enough = record.indexed_base >= optimizers["vacuum_min_vector_number"]
        allowed: float = optimizers["deleted_threshold"] * record.indexed_base
        return bool(enough) and lost > allowed

    async def forget(self, collection: ServedCollection) -> None:
        """Stop whatever is planned or running for a collection."""
        schedule = self._schedules.pop(collection.folder, None)
        if schedule is None:
            return
        for timer in (schedule.timer, schedule.flush):
            if timer is not None:
                timer.cancel()
        if schedule.run is not None:
            schedule.run.cancel()
            await asyncio.gather(schedule.run, return_exceptions=True)

    async def close(self, collections: list[ServedCollection]) -> None:
        """Stop everything."""
        for collection in collections:
            await self.forget(collection)

    def _look(self, collection: ServedCollection) -> None:
        """Start what the collection needs, or look again later while updates keep coming."""
        loop = asyncio.get_running_loop()
        schedule = self._schedules[collection.folder]
        if loop.time() < schedule.due:
            schedule.timer = loop.call_at(schedule.due, self._look, collection)
            return
        schedule.timer, schedule.queued = None, False
        if schedule.flush is None:
            schedule.flush = loop.call_later(FLUSH_AFTER_S, self._flush, collection)
        if schedule.run is None and self.is_pending(collection):
            collection.failure = None
            schedule.started = time.time()
            schedule.run = asyncio.create_task(self._run(collection, schedule))

    def _flush(self, collection: ServedCollection) -> None:
        self._schedules[collection.folder].flush = None
        if collection.shard is not None:
            collection.shard.flush()

    async def _run(self, collection: ServedCollection, schedule: Schedule) -> None:
        try:
            async with self._one_at_a_time:
                await self._optimize(collection)
        except (OSError, RuntimeError, ErrorAnswer) as error:
            log.error("optimizing collection %s failed: %s", collection.name, error)
            collection.failure = str(error)
        finally:
            collection.journal = None
            schedule.run = None
        if collection.failure is None:
            self.wake(collection)

    async def _optimize(self, collection: ServedCollection) -> None:
        generation = collection.record.generation
        if generation is None:
            # Nothing is stored yet: the engine's files will be made with the present configuration.
            collection.record.built = rebuilt_by(collection.record.configuration, indexed=False)
            collection.save()
            return
        # Its own name each time: a process that outlived a killed server must not write into another's copy.
        building = collection.folder / f"shard-building-{uuid.uuid4().hex}"
        try:
            configuration = await self._copy(collection, building)
            await _rebuild(building, configuration)
            await self._switch(collection, building, configuration=configuration, generation=generation + 1)
        finally:
            await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)
        await asyncio.to_thread(shutil.rmtree, collection.shard_folder(generation), ignore_errors=True)

    async def _copy(self, collection: ServedCollection, building: pathlib.Path) -> Document:
        """Copy the shard's folder and keep later updates in a journal; return the configuration to build with."""
        async with collection.writing:
            # As a crash would leave it: what is not flushed yet is in the log, which the other process repeats.
            generation = collection.record.generation or 0
            await asyncio.to_thread(_copy_afresh, collection.shard_folder(generation), building)
            collection.journal = []
            return collection.record.configuration

    async def _switch(
        self, collection: ServedCollection, building: pathlib.Path, *, configuration: Document, generation: int
    ) -> None:
        """Put the optimized copy in force."""
        async with collection.writing:
            folder = collection.shard_folder(generation)
            rename(building, folder)
            with engine_errors():
                fresh = edge.EdgeShard.load(str(folder), None)
            built = summarise(fresh, collection)
            try:
                await _repeat(collection.journal or [], fresh)
            except ErrorAnswer:
                fresh.close()
                shutil.rmtree(folder)
                raise
            record = collection.record
            record.generation = generation
            indexed = record.indexed_base = built.indexed_dense
            # A PATCH that came meanwhile shows as a difference from what was built.
            record.built = rebuilt_by(configuration, indexed=indexed > 0)
            # Without the journal's points, which the optimizer has not seen.
            record.left_plain = max(0, built.points - _per_point(indexed, collection))
            collection.save()
            collection.journal = None
            self._shards.replace(collection, fresh)


async def _repeat(journal: list[edge.UpdateOperation], shard: edge.EdgeShard) -> None:
    for index, operation in enumerate(journal):
        with engine_errors():
            shard.update(operation)
        if index % JOURNAL_BATCH == JOURNAL_BATCH - 1:
            await asyncio.sleep(0)
    shard.flush()


def _copy_afresh(source: pathlib.Path, target: pathlib.Path) -> None:
    if target.exists():
        shutil.rmtree(target)
    copy_tree(source, target)


def _per_point(vectors: int, collection: ServedCollection) -> int:
    return vectors // max(1, len(collection.vectors))


async def _rebuild(building: pathlib.Path, configuration: Document) -> None:
    """Optimize a copy in another process.

    Raises:
        RuntimeError: it failed; the message is the engine's.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "qdrant_devserver.storage.rebuilding",
        str(building),
        str(os.getpid()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        _, errors = await process.communicate(orjson.dumps(configuration))
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode:
        last_line = errors.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        raise RuntimeError(last_line or f"the rebuilding process ended with {process.returncode}")
