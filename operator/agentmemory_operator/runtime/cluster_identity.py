"""Which cluster a process serves: asked until somebody knows, and then for good; no status is asked.

Markers of collections name their cluster. As long as it is not known here, no collection is known to be this cluster's,
and none is served.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from agentmemory_operator.errors import AgentMemoryError, TransientError

log = logging.getLogger(__name__)

FIRST_RETRY_S, LAST_RETRY_S = 0.5, 10.0


class ClusterIdentity:
    """Knows the id of the cluster, once it was told.

    Args:
        ask: asks for it; what it raises says what to do.
    """

    def __init__(self, ask: Callable[[], Awaitable[str]]) -> None:
        self._ask = ask
        self._known: str | None = None
        self._told = ""

    @property
    def is_known(self) -> bool:
        """Whether agents can be served."""
        return self._known is not None

    async def cluster_id(self) -> str:
        """The id; requests do not ask for it themselves.

        Raises:
            TransientError: it is not known yet.
        """
        if self._known is None:
            raise TransientError(
                "the API does not know its cluster ID yet, so it cannot tell which collections belong to its agents:"
                " nothing was read or written; retry",
                retry_after_s=2,
            )
        return self._known

    async def run(self) -> None:
        """Ask until it is known, or until cancelled."""
        pause_s = FIRST_RETRY_S
        while not await self._learns():
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_RETRY_S)

    async def _learns(self) -> bool:
        try:
            self._known = await self._ask() or None
        except AgentMemoryError as error:
            if str(error) != self._told:
                log.warning("not ready: the cluster ID is not known: %s", error)
            self._told = str(error)
        return self.is_known


ClusterId = Callable[[], Awaitable[str]]
"""Tells which cluster this process serves; raises TransientError as long as nobody knows."""
