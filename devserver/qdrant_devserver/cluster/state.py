"""State of a running server: the opened data folder and everything built on it."""

import asyncio
import contextlib
import logging
import pathlib
import shutil
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from qdrant_devserver.cluster.consensus import Consensus
from qdrant_devserver.cluster.peers import (
    ACTIVE,
    INITIALIZING,
    SINGLE_SERVER,
    SimulatedCluster,
    Simulation,
    open_cluster,
    replicas_of,
    set_replicas,
)
from qdrant_devserver.features import Features
from qdrant_devserver.fields import Document
from qdrant_devserver.injected_faults import InjectedFaults
from qdrant_devserver.points.queries import QueryRunner
from qdrant_devserver.storage.catalogue import Catalogue
from qdrant_devserver.storage.collection import ServedCollection
from qdrant_devserver.storage.lock import DataFolderLock
from qdrant_devserver.storage.optimizations import Optimizations
from qdrant_devserver.storage.shards import Shards

log = logging.getLogger(__name__)


@dataclass(slots=True)
class State:
    """Components that work on an opened data folder, and the background tasks of the server.

    Attributes:
        removals: Tasks that delete the files of removed collections.
        recoveries: For each collection name, a token for each recovery in progress. A deletion removes the name.
        jobs: Background tasks, for example snapshot requests with `wait=false`.
    """

    features: Features
    catalogue: Catalogue
    shards: Shards
    optimizations: Optimizations
    lock: DataFolderLock
    cluster: SimulatedCluster
    faults: InjectedFaults
    consensus: Consensus
    removals: set[asyncio.Task[None]] = field(default_factory=set)
    recoveries: dict[str, set[object]] = field(default_factory=dict)
    jobs: set[asyncio.Task[Any]] = field(default_factory=set)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start work that continues even if its caller is cancelled."""
        job = asyncio.create_task(work)
        self.jobs.add(job)
        job.add_done_callback(self._end)
        return job

    def query_runner(self, collection: ServedCollection) -> QueryRunner:
        """Open the shard of a collection and return a query runner for it."""
        return QueryRunner(collection, self.shards.open(collection), self.features)

    def create(self, name: str, configuration: Document) -> None:
        """Create a collection. With the fault `slow-replicas` its replicas become active later.

        Raises:
            ErrorAnswer: As `Catalogue.check_free`.
        """
        collection = self.catalogue.create(name, configuration, self.cluster.place_replicas(configuration))
        if self.cluster.is_enabled and (slow_s := self.faults.slow_replicas_s()):
            for shard, states in replicas_of(collection.record).items():
                set_replicas(collection.record, shard, dict.fromkeys(states, INITIALIZING))
            collection.save()
            self.start(_activate(collection, slow_s))

    @contextlib.contextmanager
    def track_recovery(self, name: str) -> Iterator[Callable[[], bool]]:
        """Register a recovery; yield a function that returns whether the collection was deleted in the meantime."""
        token = object()
        self.recoveries.setdefault(name, set()).add(token)
        try:
            yield lambda: token not in self.recoveries.get(name, ())
        finally:
            if (running := self.recoveries.get(name)) is not None:
                running.discard(token)
                if not running:
                    del self.recoveries[name]

    async def remove(self, collection: ServedCollection) -> None:
        """Delete a collection; do nothing if it is deleted. Its files are deleted in the background."""
        await self.optimizations.cancel(collection)
        async with collection.write_lock:
            if collection.deleted:
                return
            self.shards.close(collection)
            doomed = self.catalogue.remove(collection)
        task = asyncio.create_task(asyncio.to_thread(shutil.rmtree, doomed, ignore_errors=True))
        self.removals.add(task)
        task.add_done_callback(self.removals.discard)

    def _end(self, job: asyncio.Task[Any]) -> None:
        self.jobs.discard(job)
        # A caller that waits receives the error too.
        if not job.cancelled() and (error := job.exception()):
            log.info("a background task failed: %s", error)

    async def close(self) -> None:
        """Flush and close everything, and release the data folder."""
        for job in self.jobs:
            job.cancel()
        await asyncio.gather(*self.jobs, return_exceptions=True)
        await self.optimizations.close(list(self.catalogue.collections.values()))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self.removals)
        self.shards.close_all()
        self.lock.release()


def open_state(data_dir: pathlib.Path, features: Features, simulation: Simulation = SINGLE_SERVER) -> State:
    """Lock a data folder and load its content.

    Raises:
        DataFolderBusy: If another server uses the folder.
        OSError: If the folder cannot be created, read or written.
    """
    lock = DataFolderLock(data_dir)
    catalogue, shards = Catalogue(data_dir), Shards()
    catalogue.load()
    cluster, faults = open_cluster(data_dir, simulation), InjectedFaults(data_dir)
    consensus = Consensus(catalogue, faults, is_enabled=cluster.is_enabled)
    return State(features, catalogue, shards, Optimizations(shards), lock, cluster, faults, consensus)


async def _activate(collection: ServedCollection, slow_s: float) -> None:
    """Activate the replicas of a new collection, one shard after another."""
    shards = replicas_of(collection.record)
    for shard in shards:
        await asyncio.sleep(slow_s / len(shards))
        async with collection.write_lock:
            if collection.deleted:
                return
            states = replicas_of(collection.record)[shard]
            activated = {peer: ACTIVE if state == INITIALIZING else state for peer, state in states.items()}
            set_replicas(collection.record, shard, activated)
            collection.save()
