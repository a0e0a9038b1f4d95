"""What a running server holds."""

import asyncio
import contextlib
import logging
import pathlib
import shutil
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.devserver.catalogue import Catalogue
from agentmemory_operator.devserver.cluster import ALONE, Cluster, Simulation, open_cluster
from agentmemory_operator.devserver.collection import Collection
from agentmemory_operator.devserver.features import Features
from agentmemory_operator.devserver.fields import Document
from agentmemory_operator.devserver.injected_faults import InjectedFaults
from agentmemory_operator.devserver.lock import DataFolderLock
from agentmemory_operator.devserver.optimizations import Optimizations
from agentmemory_operator.devserver.queries import Searching
from agentmemory_operator.devserver.shards import Shards

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class State:
    """The opened data folder of a server."""

    features: Features
    catalogue: Catalogue
    shards: Shards
    optimizations: Optimizations
    lock: DataFolderLock
    cluster: Cluster
    faults: InjectedFaults
    removals: set[asyncio.Task[None]] = field(default_factory=set)
    jobs: set[asyncio.Task[Any]] = field(default_factory=set)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start work that goes on when nobody waits for it."""
        job = asyncio.create_task(work)
        self.jobs.add(job)
        job.add_done_callback(self._end)
        return job

    def searching(self, collection: Collection) -> Searching:
        """Return where a query of the collection runs."""
        return Searching(collection, self.shards.open(collection), self.features)

    def create(self, name: str, configuration: Document) -> None:
        """Create a collection."""
        self.catalogue.create(name, configuration, self.cluster.placed(configuration))

    async def remove(self, collection: Collection) -> None:
        """Delete a collection; its files go in the background."""
        await self.optimizations.forget(collection)
        async with collection.writing:
            if collection.deleted:
                return
            self.shards.close(collection)
            doomed = self.catalogue.remove(collection)
        task = asyncio.create_task(asyncio.to_thread(shutil.rmtree, doomed, ignore_errors=True))
        self.removals.add(task)
        task.add_done_callback(self.removals.discard)

    def _end(self, job: asyncio.Task[Any]) -> None:
        self.jobs.discard(job)
        # Where somebody waits, it is also an answer.
        if not job.cancelled() and (error := job.exception()):
            logger.info("a snapshot request failed: %s", error)

    async def close(self) -> None:
        """Flush and close everything, and let the folder go."""
        for job in self.jobs:
            job.cancel()
        await asyncio.gather(*self.jobs, return_exceptions=True)
        await self.optimizations.close(list(self.catalogue.collections.values()))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self.removals)
        self.shards.close_all()
        self.lock.release()


def open_state(data_dir: pathlib.Path, features: Features, simulation: Simulation = ALONE) -> State:
    """Take a data folder and read what it holds.

    Raises:
        DataFolderBusy: another server has it.
    """
    lock = DataFolderLock(data_dir)
    catalogue, shards = Catalogue(data_dir), Shards()
    catalogue.load()
    cluster = open_cluster(data_dir, simulation)
    return State(features, catalogue, shards, Optimizations(shards), lock, cluster, InjectedFaults(data_dir))
