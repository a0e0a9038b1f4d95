"""Looks after what a restore has replaced: it forgets whom the agent forgets, and goes when its time is over."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentmemory_operator.domain.collection import METADATA_KEY
from agentmemory_operator.domain.manifests import parse_agent_memory
from agentmemory_operator.domain.naming import ALIAS_PREFIX
from agentmemory_operator.domain.restore_reporting import removed_status
from agentmemory_operator.domain.times import parse_time
from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, TransientError
from agentmemory_operator.ports import Clock
from agentmemory_operator.services.objects import AGENT_MEMORY, QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.services.previous import PREVIOUS_KEY, live_behind, remove_due
from agentmemory_operator.services.restore_jobs import RestoreJob, RestorePeriods, alias_behind
from agentmemory_operator.services.restored_erasures import RestoredErasures
from agentmemory_operator.services.servers import Server, Servers

log = logging.getLogger(__name__)

SWEEP_S = 1800.0
"""Seconds between two sweeps."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """Keeps what restores have replaced, for as long as they say."""

    table: ObjectTable
    servers: Servers
    erasures: RestoredErasures
    periods: RestorePeriods

    async def look(self, job: RestoreJob) -> float | None:
        """Look after what a restore has replaced; return after how many seconds to look again, None for never.

        Raises:
            TransientError: it is to be tried again.
        """
        try:
            return await self._look(job)
        except TransientError:
            raise
        except AgentMemoryError as exc:
            # The connection is gone, or wrong: nothing is removed by guess.
            log.warning("what %s replaced is looked at later: %s", job.key, exc)
            return self.periods.erase_s

    def seen_after_s(self, job: RestoreJob) -> float | None:
        """Return when to look again: the watch may not have brought the finalizer that a pass has just written."""
        return self.periods.look_s if job.age_s(job.status.get("endTime")) < self.periods.watch_s else None

    async def _look(self, job: RestoreJob) -> float | None:
        previous, connection = job.previous, job.connection
        until = (job.status.get("previousCollection") or {}).get("until")
        if previous is None or connection is None or until is None:
            return self.seen_after_s(job)
        left_s = -job.age_s(until)

        async def work(server: Server) -> bool:
            if left_s > 0:
                await self._erase_again(job, server, previous)
                return False
            return await remove_due(server, previous, alias=alias_behind(previous), now_ms=job.now_ms)

        if await self.servers.use(connection, work, namespace=job.key.namespace):
            await job.job.write(removed_status(job.status, job.moment))
            await job.tell("Normal", "PreviousRemoved", f"{previous} is removed")
            return None
        # One whose time is over and that is live, or not marked, is looked at as seldom as any.
        return min(max(left_s, self.periods.look_s) if left_s > 0 else math.inf, self.periods.erase_s)

    async def _erase_again(self, job: RestoreJob, server: Server, previous: str) -> None:
        live = await live_behind(server, alias_behind(previous), job.physical)
        document = self.table.get(Key(AGENT_MEMORY, job.key.namespace, job.restore.spec.target.name))
        if live is None or document is None or live.physical == previous:
            return
        since_ms = parse_time(job.status["endTime"])
        await self.erasures.carry(server, live.physical, previous, parse_agent_memory(document), since_ms=since_ms)


@dataclass(slots=True)
class PreviousSweeper:
    """Removes what was replaced by restores whose objects are gone; only the operator that leads runs it."""

    table: ObjectTable
    servers: Servers
    clock: Clock
    cluster_id: Callable[[], Awaitable[str]]
    period_s: float = SWEEP_S

    async def run(self) -> None:
        """Sweep every server from time to time, until cancelled."""
        while True:
            await asyncio.sleep(self.period_s)
            for connection in self.table.keys(QDRANT_CONNECTION):
                await self._sweep(connection)

    async def _sweep(self, connection: Key) -> None:
        try:
            removed = await self.servers.use(connection, self.sweep, namespace=connection.namespace)
        except LeadershipLost:
            raise
        except AgentMemoryError as exc:
            log.info("what restores have replaced on %s is looked for later: %s", connection, exc)
        else:
            if removed:
                log.info("removed from %s what restores had replaced: %s", connection, ", ".join(removed))

    async def sweep(self, server: Server) -> list[str]:
        """Remove this cluster's collections that are marked as replaced and whose time is over; return their names."""
        cluster_id, removed = await self.cluster_id(), []
        for name in await server.snapshots.collections():
            if not name.startswith(ALIAS_PREFIX):
                continue
            metadata = await server.snapshots.metadata(name) or {}
            is_ours = (metadata.get(METADATA_KEY) or {}).get("clusterId") == cluster_id
            if not is_ours or PREVIOUS_KEY not in metadata:
                continue
            if await remove_due(server, name, alias=alias_behind(name), now_ms=self.clock.now_ms()):
                removed.append(name)
        return removed
