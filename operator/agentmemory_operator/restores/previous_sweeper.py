"""Maintain the collections that restores and rebuilds replaced: repeat erasures in them, and remove them when due."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from agentmemory_operator.collections.replaced_collection import find_live, read_replaced_ms, remove_if_due
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY, is_owner, read_owner
from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, TransientError
from agentmemory_operator.lifecycle.erasure_replay import ErasureReplay
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.restores.job import RestoreJob, RestorePeriods, alias_in_name
from agentmemory_operator.restores.rules.status import removed_status
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.runtime.work_queue import run_periodically
from agentmemory_operator.spec.naming import ALIAS_PREFIX, alias_of

log = logging.getLogger(__name__)

SWEEP_S = 300.0
"""Seconds between two sweeps."""


@dataclass(frozen=True, slots=True)
class ReplacedCollectionRemoval:
    """Removes the collections that restores have replaced when they are due, and records that in the status."""

    servers: Servers
    periods: RestorePeriods

    async def check(self, job: RestoreJob) -> float | None:
        """Remove the collection that a restore has replaced if it is due.

        Returns:
            Seconds until the next check; None if none is needed.

        Raises:
            TransientError: If the check must be repeated.
        """
        try:
            return await self._look(job)
        except TransientError:
            raise
        except AgentMemoryError as exc:
            # Keep the collection and check again later: its state is unknown, for example without its connection.
            log.warning("checking the collection that %s replaced is postponed: %s", job.key, exc)
            return self.periods.replaced_check_period_s

    def delay_until_delivered_s(self, job: RestoreJob) -> float | None:
        """Return the seconds until the next check if the restore ended less than `watch_s` ago, else None.

        Until then, the watch may not have delivered a finalizer that a pass has set, so the object is checked again.
        """
        return self.periods.wait_poll_s if job.seconds_since(job.status.get("endTime")) < self.periods.watch_s else None

    async def _look(self, job: RestoreJob) -> float | None:
        previous, connection = job.previous, job.connection
        expires_at = (job.status.get("previousCollection") or {}).get("until")
        if previous is None or connection is None or expires_at is None:
            return self.delay_until_delivered_s(job)
        remaining_s = -job.seconds_since(expires_at)

        if remaining_s > 0:
            return min(max(remaining_s, self.periods.wait_poll_s), self.periods.replaced_check_period_s)

        async def remove(server: Server) -> bool:
            return await remove_if_due(server, previous, alias=job.alias_for(previous), now_ms=job.now_ms)

        if await self.servers.use(connection, remove, namespace=job.key.namespace):
            await job.write(removed_status(job.status, job.stamp))
            await job.post_event("Normal", "PreviousRemoved", f"{previous} is removed")
            return None
        # A due collection that may not be removed, for example because it is live, is checked at the normal interval.
        return self.periods.replaced_check_period_s


@dataclass(slots=True)
class PreviousSweeper:
    """Removes due collections that are marked as replaced, and repeats erasures in the others.

    Only the leading operator runs it.

    Attributes:
        cluster_id: Returns the ID of this cluster. Collections of other clusters are not changed.
        erasures: Repeats erasures in the collections that are kept.
        period_s: Seconds between two sweeps.
    """

    table: ObjectTable
    servers: Servers
    clock: Clock
    cluster_id: Callable[[], Awaitable[str]]
    erasures: ErasureReplay
    period_s: float = SWEEP_S

    async def run(self) -> None:
        """Sweep every server periodically until cancelled, for the first time after `period_s`."""
        await asyncio.sleep(self.period_s)
        sweep = partial(self.servers.sweep, work=self.sweep, kind="collections that were replaced")
        await run_periodically(self.table, QDRANT_CONNECTION, sweep, period_s=self.period_s)

    async def sweep(self, server: Server) -> list[str]:
        """Remove this cluster's replaced collections that are due; return their names.

        Only collections with the name prefix of agents' aliases are examined. A collection whose marker names an
        incomplete owner is kept. In a collection that is not due yet, the erasures that the live collection has had
        since the replacement are repeated.

        Raises:
            TransientError: If Qdrant is unavailable. The next sweep does the rest.
        """
        cluster_id, removed = await self.cluster_id(), []
        for name in await server.snapshots.collections():
            if not name.startswith(ALIAS_PREFIX):
                continue
            metadata = await server.snapshots.metadata(name) or {}
            owner = read_owner(metadata)
            if not is_owner(owner, (cluster_id, *owner[1:])) or PREVIOUS_KEY not in metadata:
                continue
            # An adopted collection may have a name without a number.
            alias = alias_in_name(name) or alias_of(owner[2])
            if await remove_if_due(server, name, alias=alias, now_ms=self.clock.now_ms()):
                removed.append(name)
            else:
                await self._erase_again(server, name, alias, metadata)
        return removed

    async def _erase_again(self, server: Server, name: str, alias: str, metadata: Json) -> None:
        _, namespace, object_name = read_owner(metadata)
        document = self.table.get(Key(AGENT_MEMORY, namespace, object_name))
        live = await find_live(server, alias, None)
        if live is None or document is None or live.physical == name:
            return
        since_ms = read_replaced_ms(metadata) or 0
        try:
            memory = self.table.parse(document)
            await self.erasures.reapply(server.points, live.physical, name, memory, since_ms=since_ms)
        except LeadershipLost:
            raise
        except AgentMemoryError as exc:
            log.info("erasing in %s, which was replaced, is postponed: %s", name, exc)
