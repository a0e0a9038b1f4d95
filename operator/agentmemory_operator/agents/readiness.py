"""Readiness of an API process: loaded objects and their age, a known cluster ID, and a Qdrant server that responds."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Hashable

from agentmemory_operator.agents.directory import AgentDirectory
from agentmemory_operator.errors import AgentMemoryError, NotFound, StoreRejected
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.runtime.tasks import gather_bounded
from agentmemory_operator.spec.effective.settings import AgentSettings

log = logging.getLogger(__name__)

# Seconds between two probes, and timeout of each call. A probe makes one call for each connection in use.
PROBE_PERIOD_S = 5.0
MAX_CONCURRENT_PROBES = 8
# Maximum seconds that `check_start` waits, as long as the operator does, and seconds between two of its checks.
START_TIMEOUT_S, START_POLL_S = 120.0, 0.5
UNREAD = "the agents are not loaded yet: see the log if this takes long"
UNIDENTIFIED = "the cluster ID is not known yet: see the log"
UNPROBED = "no Qdrant server has been probed yet"
NO_QDRANT = "no Qdrant answers"


class Readiness:
    """Tracks whether this process can serve agents.

    Args:
        sources: Everything that must be read once, such as a watched kind.
        store_for: Returns the store of an agent's connection.
        is_identified: Returns whether the ID of the agents' cluster is known.
        now_s: Monotonic clock.
    """

    def __init__(
        self,
        sources: Collection[Hashable],
        directory: AgentDirectory,
        store_for: Callable[[AgentSettings], Awaitable[PointStore]],
        *,
        is_identified: Callable[[], bool] = lambda: True,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_identified = is_identified
        self._sources = frozenset(sources)
        self._directory = directory
        self._store_for = store_for
        self._now_s = now_s
        self._synced: set[Hashable] = set()
        self._heard_s: dict[Hashable, float] = {}
        self._failures: dict[Hashable, str] = {}
        self._is_unavailable: bool | None = None
        self._all_synced = asyncio.Event()

    def record_synced(self, source: Hashable) -> None:
        """Record that a source was read completely at least once."""
        self._synced.add(source)
        if self._synced >= self._sources:
            self._all_synced.set()

    def record_failure(self, source: Hashable, message: str) -> None:
        """Record why a source cannot be read, for the error of `check_start`.

        Readiness probes do not return the reason: they need no authentication.
        """
        self._failures[source] = message

    async def check_start(self, patience_s: float = START_TIMEOUT_S) -> None:
        """Wait until all sources are read and the cluster ID is known. Then block until cancelled.

        Raises:
            AgentMemoryError: If that takes longer than `patience_s`. The message gives the cause if it is known.
        """
        waiting_s = self._now_s() + patience_s
        while (obstacle := self._unread()) is not None:
            if self._now_s() >= waiting_s:
                missing = [self._failures[source] for source in self._failures if source not in self._synced]
                raise AgentMemoryError(f"gave up after {patience_s:.0f} s: {missing[0] if missing else obstacle}")
            await asyncio.sleep(START_POLL_S)
        await asyncio.Event().wait()

    def record_activity(self, source: Hashable) -> None:
        """Record the current time as that of the source's last event, for `age_s`."""
        self._heard_s[source] = self._now_s()

    def age_s(self) -> float:
        """Return the seconds since the last event of the source that has been silent longest.

        0 if no source has sent an event, as with a folder.
        """
        now_s = self._now_s()
        return max((now_s - last_heard_s for last_heard_s in self._heard_s.values()), default=0.0)

    def find_obstacle(self) -> str | None:
        """Return the reason why no agent can be served, or None if the process is ready.

        If only some Qdrant servers are unavailable, the process is ready: agents of the others are served.
        """
        if obstacle := self._unread():
            return obstacle
        if self._is_unavailable is None:
            return UNPROBED
        return NO_QDRANT if self._is_unavailable else None

    def find_unread(self) -> str | None:
        """Return `UNREAD` until all sources are read: an agent that is missing may exist. None afterwards."""
        return None if self._all_synced.is_set() else UNREAD

    def _unread(self) -> str | None:
        return self.find_unread() or (None if self._is_identified() else UNIDENTIFIED)

    async def run(self) -> None:
        """Probe every Qdrant server in use each `PROBE_PERIOD_S`, once all sources are read, until cancelled."""
        await self._all_synced.wait()
        while True:
            await self.probe()
            await asyncio.sleep(PROBE_PERIOD_S)

    async def probe(self) -> None:
        """Read one collection through every connection in use, and record whether no server responded.

        If no agents are configured, nothing is read, and no server counts as unavailable.
        """
        settings = {(agent.connection_namespace, agent.connection): agent for agent in self._directory.list_settings()}
        results = await gather_bounded(map(self._responds, settings.values()), concurrency=MAX_CONCURRENT_PROBES)
        is_unavailable = bool(results) and not any(results)
        if is_unavailable and not self._is_unavailable:
            log.warning("not ready: %s", NO_QDRANT)
        self._is_unavailable = is_unavailable

    async def _responds(self, settings: AgentSettings) -> bool:
        """Return whether an agent's Qdrant server responds within PROBE_PERIOD_S, even with a rejection."""
        try:
            store = await self._store_for(settings)
            async with asyncio.timeout(PROBE_PERIOD_S):
                await store.describe(settings.alias)
        except (NotFound, StoreRejected):
            return True
        except (AgentMemoryError, TimeoutError):
            return False
        return True
