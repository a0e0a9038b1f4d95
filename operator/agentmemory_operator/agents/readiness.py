"""What this process serves from: whether the objects were read, how old they are, whether any Qdrant answers."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Hashable

from agentmemory_operator.agents.directory import AgentDirectory
from agentmemory_operator.errors import AgentMemoryError, NotFound, StoreRejected
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.runtime.tasks import side_by_side
from agentmemory_operator.spec.effective.settings import AgentSettings

log = logging.getLogger(__name__)

# One call for each connection that agents use.
PROBE_S = 5.0
PROBED_AT_ONCE = 8
# For how long the API server is waited for at the start, as the operator waits; and between looks.
PATIENCE_S, START_S = 120.0, 0.5
UNREAD = "the agents are not loaded yet: see the log if this takes long"
UNIDENTIFIED = "the cluster ID is not known yet: see the log"
UNPROBED = "no Qdrant server has been probed yet"
AWAY = "no Qdrant answers"


class Readiness:
    """Knows what stands between this process and good answers.

    Args:
        sources: what has to be read.
        store_for: gives the store of an agent's connection.
        is_identified: tells whether it is known which cluster the agents are of.
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
        self._is_away: bool | None = None
        self._all_synced = asyncio.Event()

    def synced(self, source: Hashable) -> None:
        """Note that a source was read whole."""
        self._synced.add(source)
        if self._synced >= self._sources:
            self._all_synced.set()

    def failed(self, source: Hashable, why: str) -> None:
        """Note why a source cannot be read; probes, which strangers may ask, do not tell it."""
        self._failures[source] = why

    async def check_start(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until every agent and the cluster are known; then for ever.

        Raises:
            AgentMemoryError: they were not for so long; says what is missing, as far as it is known.
        """
        waiting_s = self._now_s() + patience_s
        while (why := self._unread()) is not None:
            if self._now_s() >= waiting_s:
                missing = [self._failures[source] for source in self._failures if source not in self._synced]
                raise AgentMemoryError(f"gave up after {patience_s:.0f} s: {missing[0] if missing else why}")
            await asyncio.sleep(START_S)
        await asyncio.Event().wait()

    def heard(self, source: Hashable) -> None:
        """Note that a source has just given a sign of life."""
        self._heard_s[source] = self._now_s()

    def age_s(self) -> float:
        """For how long a source has been silent; 0 for one that cannot be, as a folder."""
        now_s = self._now_s()
        return max((now_s - heard_s for heard_s in self._heard_s.values()), default=0.0)

    def why_not_ready(self) -> str | None:
        """What keeps every agent from being served, None when nothing does.

        One Qdrant of several that is away is no reason: the agents of the others are served.
        """
        if unread := self._unread():
            return unread
        if self._is_away is None:
            return UNPROBED
        return AWAY if self._is_away else None

    def _unread(self) -> str | None:
        if not self._all_synced.is_set():
            return UNREAD
        return None if self._is_identified() else UNIDENTIFIED

    async def run(self) -> None:
        """Ask every Qdrant in use now and then, until cancelled."""
        await self._all_synced.wait()
        while True:
            await self.probe()
            await asyncio.sleep(PROBE_S)

    async def probe(self) -> None:
        """Ask every Qdrant in use for one collection."""
        settings = {(one.connection_namespace, one.connection): one for one in self._directory.list()}
        answers = await side_by_side(map(self._ask, settings.values()), at_once=PROBED_AT_ONCE)
        is_away = bool(answers) and not any(answers)
        if is_away and not self._is_away:
            log.warning("not ready: %s", AWAY)
        self._is_away = is_away

    async def _ask(self, settings: AgentSettings) -> bool:
        """Whether the Qdrant of an agent's connection answers, whatever it is."""
        try:
            store = await self._store_for(settings)
            async with asyncio.timeout(PROBE_S):
                await store.describe(settings.alias)
        except (NotFound, StoreRejected):
            return True
        except (AgentMemoryError, TimeoutError):
            return False
        return True
