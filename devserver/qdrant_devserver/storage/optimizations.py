"""Background indexing: when a collection needs it, and how it runs concurrently with reads and writes.

The engine's `optimize` holds Python's global lock while it runs (14 s for 20,000 x 384), so it runs in another process:

1. Under the write lock, copy the shard's folder. From then on, add every update also to a journal.
2. In another process (`optimize_copy`), load the copy with the current configuration, optimize and close it.
3. Under the write lock, open the copy, replay the journal on it and store a record with it as the current generation.
   Then close and delete the old one.

Until the record of step 3 is stored, a crash leaves the old generation current, with every update in its log.
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
from qdrant_devserver.storage.engine_configuration import KIBIBYTE, largest_vector_bytes, rebuild_key
from qdrant_devserver.storage.files import copy_tree, rename
from qdrant_devserver.storage.shards import Shards, summarise

log = logging.getLogger(__name__)

QUIET_S = 1.0
MAX_WAIT_S = 3.0
FLUSH_AFTER_S = 5.0
# Growth of the points that an optimization left unindexed on purpose, before another attempt.
REGROWTH = 1.2
JOURNAL_BATCH = 64


@dataclass(slots=True)
class Schedule:
    """Planned work for a collection.

    Attributes:
        due: Time of the next check whether it needs optimizing, in seconds on the clock of the event loop.
        latest: Latest value of `due`, even if updates continue.
        queued: True if an optimization was needed at some time since the last check, even if a change was reverted.
        timer: Calls the check at `due`.
        flush: Flushes the collection after it has been quiet for long enough.
        run: Optimization in progress.
        started: Time at which it started, in Unix seconds.
    """

    due: float = 0.0
    latest: float = 0.0
    queued: bool = False
    timer: asyncio.TimerHandle | None = None
    flush: asyncio.TimerHandle | None = None
    run: asyncio.Task[None] | None = None
    started: float = 0.0


class Optimizations:
    """Schedules optimizations after updates, and runs one at a time."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._schedules: dict[pathlib.Path, Schedule] = {}
        self._one_at_a_time = asyncio.Semaphore(1)

    def schedule_check(self, collection: ServedCollection) -> None:
        """Schedule a check for 1 s later; further calls delay it, up to 3 s after the first.

        Call this after an update, or after a PATCH that restarts optimizers. A deleted collection is not checked.
        """
        if collection.deleted:
            return
        collection.awake = True
        loop = asyncio.get_running_loop()
        schedule = self._schedules.setdefault(collection.folder, Schedule())
        now = loop.time()
        if schedule.timer is None:
            schedule.latest = now + MAX_WAIT_S
            schedule.timer = loop.call_at(now + QUIET_S, self._check, collection)
        schedule.due = min(now + QUIET_S, schedule.latest)
        schedule.queued = schedule.queued or self.is_pending(collection)

    def status(self, collection: ServedCollection) -> str:
        """Return the collection's status as one of the server's colours."""
        schedule = self._schedules.get(collection.folder)
        if schedule is not None and (schedule.queued or schedule.run is not None):
            return "yellow"
        if collection.failure is not None:
            return "red"
        if not self.is_pending(collection):
            return "green"
        return "yellow" if collection.awake else "grey"

    def is_running(self, collection: ServedCollection) -> bool:
        """Return whether an optimization of the collection is in progress."""
        schedule = self._schedules.get(collection.folder)
        return schedule is not None and schedule.run is not None

    def started(self, collection: ServedCollection) -> float:
        """Return the time at which the running optimization started, in Unix seconds. Requires `is_running`."""
        return self._schedules[collection.folder].started

    def is_pending(self, collection: ServedCollection) -> bool:
        """Return whether the segments differ from the configuration, or enough vectors are unindexed or deleted."""
        summary, record = self._shards.summary(collection), collection.record
        if record.built != rebuild_key(record.configuration, indexed=record.indexed_base > 0):
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

    async def cancel(self, collection: ServedCollection) -> None:
        """Cancel everything that is planned or running for a collection, and wait for the end of the optimization."""
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
        """Cancel everything that is planned or running for the collections."""
        for collection in collections:
            await self.cancel(collection)

    def _check(self, collection: ServedCollection) -> None:
        """Start an optimization if the collection needs one; check again later while updates continue."""
        loop = asyncio.get_running_loop()
        schedule = self._schedules[collection.folder]
        if loop.time() < schedule.due:
            schedule.timer = loop.call_at(schedule.due, self._check, collection)
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
            self.schedule_check(collection)

    async def _optimize(self, collection: ServedCollection) -> None:
        generation = collection.record.generation
        if generation is None:
            # Nothing is stored yet: the engine's files will be created with the current configuration.
            collection.record.built = rebuild_key(collection.record.configuration, indexed=False)
            collection.save()
            return
        # A unique name: a process that outlives a killed server must not write into another copy.
        building = collection.folder / f"shard-building-{uuid.uuid4().hex}"
        try:
            configuration = await self._copy(collection, building)
            await _rebuild(building, configuration)
            await self._switch(collection, building, configuration=configuration, generation=generation + 1)
        finally:
            await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)
        await asyncio.to_thread(shutil.rmtree, collection.shard_folder(generation), ignore_errors=True)

    async def _copy(self, collection: ServedCollection, building: pathlib.Path) -> Document:
        """Copy the shard's folder and start the journal; return the configuration to build with."""
        async with collection.write_lock:
            # The copy equals the state after a crash: unflushed data is in the log, which the other process replays.
            generation = collection.record.generation or 0
            await asyncio.to_thread(_copy_clean, collection.shard_folder(generation), building)
            collection.journal = []
            return collection.record.configuration

    async def _switch(
        self, collection: ServedCollection, building: pathlib.Path, *, configuration: Document, generation: int
    ) -> None:
        """Replace the current generation by the optimized copy."""
        async with collection.write_lock:
            folder = collection.shard_folder(generation)
            rename(building, folder)
            with engine_errors():
                fresh = edge.EdgeShard.load(str(folder), None)
            built = summarise(fresh, collection)
            try:
                await _replay(collection.journal or [], fresh)
            except ErrorAnswer:
                fresh.close()
                shutil.rmtree(folder)
                raise
            record = collection.record
            record.generation = generation
            indexed = record.indexed_base = built.indexed_dense
            # A PATCH during the optimization shows as a difference from the built configuration.
            record.built = rebuild_key(configuration, indexed=indexed > 0)
            # Without the points in the journal, which were not optimized.
            record.left_plain = max(0, built.points - _per_point(indexed, collection))
            collection.save()
            collection.journal = None
            self._shards.replace(collection, fresh)


async def _replay(journal: list[edge.UpdateOperation], shard: edge.EdgeShard) -> None:
    for index, operation in enumerate(journal):
        with engine_errors():
            shard.update(operation)
        if index % JOURNAL_BATCH == JOURNAL_BATCH - 1:
            await asyncio.sleep(0)
    shard.flush()


def _copy_clean(source: pathlib.Path, target: pathlib.Path) -> None:
    if target.exists():
        shutil.rmtree(target)
    copy_tree(source, target)


def _per_point(vectors: int, collection: ServedCollection) -> int:
    return vectors // max(1, len(collection.vectors))


async def _rebuild(building: pathlib.Path, configuration: Document) -> None:
    """Optimize a copy in another process.

    Raises:
        RuntimeError: If it failed, with the engine's message.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "qdrant_devserver.storage.optimize_copy",
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
