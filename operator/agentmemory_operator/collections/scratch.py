"""Scratch collections: restored to be looked at, dropped right after, and swept where a kill came between.

Their names tell which cluster they are of, so those of another installation on the same server are never touched.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.runtime.cache import QDRANT_CONNECTION, ObjectTable
from agentmemory_operator.runtime.queue import rounds
from agentmemory_operator.spec.naming import scratch_name, scratch_prefix

SWEEP_S = 600.0
"""Seconds between two sweeps."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Scratch:
    """The scratch collections of one cluster.

    Attributes:
        cluster_id: asks which cluster it is.
    """

    cluster_id: Callable[[], Awaitable[str]]
    _in_use: set[str] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def hold(self, server: Server, uid: str) -> AsyncIterator[str]:
        """Give the name of an object's scratch collection, which is there neither before nor after.

        Args:
            uid: of the object; one holder at a time.
        """
        name = scratch_name(await self.cluster_id(), uid)
        self._in_use.add(name)
        server.grant(name)
        try:
            # What a killed run left may be half a copy.
            await server.collections.delete(name)
            yield name
        finally:
            try:
                await _drop(server, name)
            finally:
                self._in_use.discard(name)

    async def sweep(self, server: Server) -> list[str]:
        """Drop this cluster's scratch collections that nobody holds; return their names."""
        prefix = scratch_prefix(await self.cluster_id())
        left = [name for name in await server.snapshots.collections() if name.startswith(prefix)]
        dropped = [name for name in left if name not in self._in_use]
        for name in dropped:
            await server.collections.delete(name)
        return dropped


@dataclass(slots=True)
class ScratchSweeper:
    """Sweeps every server, at the start and then from time to time; only the operator that leads runs it."""

    table: ObjectTable
    servers: Servers
    scratch: Scratch
    period_s: float = SWEEP_S

    async def run(self) -> None:
        """Sweep until cancelled."""
        sweep = partial(self.servers.sweep, work=self.scratch.sweep, what="scratch collections")
        await rounds(self.table, QDRANT_CONNECTION, sweep, period_s=self.period_s)


async def _drop(server: Server, name: str) -> None:
    try:
        await server.collections.delete(name)
    except AgentMemoryError as exc:
        # What was found out is not lost for that; the sweeper drops it.
        log.warning("scratch collection %s is deleted later: %s", name, exc)
