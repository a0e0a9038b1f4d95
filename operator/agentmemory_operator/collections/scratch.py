"""Scratch collections: snapshots are restored into them for verification. They are deleted right afterwards.

A sweep deletes those that a killed operator left. Names contain a hash of the cluster ID, so that other installations
on the same Qdrant server are not touched.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.runtime.object_table import QDRANT_CONNECTION, ObjectTable
from agentmemory_operator.runtime.work_queue import run_periodically
from agentmemory_operator.spec.naming import scratch_name, scratch_prefix

SWEEP_PERIOD_S = 600.0
"""Seconds between two sweeps."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ScratchCollections:
    """The scratch collections of one cluster. An operator has one instance, which records the names in use.

    Attributes:
        cluster_id: Returns the ID of the cluster.
    """

    cluster_id: Callable[[], Awaitable[str]]
    _in_use: set[str] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def reserve(self, server: Server, uid: str) -> AsyncIterator[str]:
        """Reserve the name of an object's scratch collection; delete the collection before and after its use.

        A failure of the second deletion is only logged: the sweep repeats it.

        Args:
            uid: UID of the object. Only one caller at a time may reserve a collection for the same object.

        Raises:
            AgentMemoryError: If the first deletion fails. Nothing is reserved.
        """
        name = scratch_name(await self.cluster_id(), uid)
        self._in_use.add(name)
        server.grant(name)
        try:
            # Delete the incomplete collection that a killed run may have left.
            await server.collections.delete(name)
            yield name
        finally:
            try:
                await _drop(server, name)
            finally:
                self._in_use.discard(name)

    async def sweep(self, server: Server) -> list[str]:
        """Delete this cluster's scratch collections that are not in use; return their names."""
        prefix = scratch_prefix(await self.cluster_id())
        existing = [name for name in await server.snapshots.collections() if name.startswith(prefix)]
        dropped = [name for name in existing if name not in self._in_use]
        for name in dropped:
            await server.collections.delete(name)
        return dropped


@dataclass(slots=True)
class ScratchSweeper:
    """Sweeps every Qdrant server at startup and then periodically. Only the leading operator runs it."""

    table: ObjectTable
    servers: Servers
    scratch: ScratchCollections
    period_s: float = SWEEP_PERIOD_S

    async def run(self) -> None:
        """Sweep every server immediately and then every `period_s` seconds, until cancelled."""
        sweep = partial(self.servers.sweep, work=self.scratch.sweep, kind="scratch collections")
        await run_periodically(self.table, QDRANT_CONNECTION, sweep, period_s=self.period_s)


async def _drop(server: Server, name: str) -> None:
    try:
        await server.collections.delete(name)
    except AgentMemoryError as exc:
        # Only log the error, to keep the result of the verification. The sweep deletes the collection later.
        log.warning("scratch collection %s is deleted later: %s", name, exc)
