"""Read the id of the cluster that this process serves; retry until it is known, then cache it.

Ownership markers of collections contain the id of their cluster. Until the id is known here, no collection can be
matched to this cluster, and none is served. Statuses are never used as a source of the id.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from agentmemory_operator.errors import AgentMemoryError, TransientError

log = logging.getLogger(__name__)

FIRST_RETRY_S, MAX_RETRY_S = 0.5, 10.0


class ClusterIdentity:
    """Caches the id of the cluster.

    Args:
        read_id: Reads the id. An empty id counts as unknown. The message of its error names the remedy.
    """

    def __init__(self, read_id: Callable[[], Awaitable[str]]) -> None:
        self._ask = read_id
        self._known: str | None = None
        self._last_error = ""

    @property
    def is_known(self) -> bool:
        """True if the id is known, so that agents can be served."""
        return self._known is not None

    async def cluster_id(self) -> str:
        """Return the id that `run` has read, without I/O.

        Raises:
            TransientError: If the id is not known yet.
        """
        if self._known is None:
            raise TransientError(
                "the API does not know its cluster ID yet, so it cannot tell which collections belong to its agents:"
                " nothing was read or written; retry",
                retry_after_s=2,
            )
        return self._known

    async def run(self) -> None:
        """Read the id until a read succeeds, or until cancelled. Wait 0.5 s at first, then up to 10 s."""
        pause_s = FIRST_RETRY_S
        while not await self._try_read():
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_RETRY_S)

    async def _try_read(self) -> bool:
        try:
            self._known = await self._ask() or None
        except AgentMemoryError as error:
            if str(error) != self._last_error:
                log.warning("not ready: the cluster ID is not known: %s", error)
            self._last_error = str(error)
        return self.is_known


ClusterId = Callable[[], Awaitable[str]]
"""Returns the id of the cluster that this process serves; raises TransientError while it is unknown."""
