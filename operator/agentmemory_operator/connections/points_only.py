"""One agent's points, and nothing else of its server: for work that what others wrote has a say in."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.ports.access import PointsTokens
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.naming import alias_of

LIFETIME_S = 2 * 3600


@dataclass(frozen=True, slots=True)
class PointsOnly:
    """Opens stores that the server holds to the points of one alias, where it takes tokens.

    A server that takes none is opened as the retrieval API opens it: with the connection's key, or with none.
    """

    connections: Connections
    open_points: Callable[[Endpoint], PointStore]
    tokens: PointsTokens
    clock: Clock

    @asynccontextmanager
    async def store_of(self, memory: AgentMemory) -> AsyncIterator[PointStore]:
        """The store of an object's points, for two hours at most.

        Raises:
            SpecInvalid: its connection cannot be used.
            StoreUnavailable: it is not known whether the server takes tokens.
        """
        access = await self.connections.access(memory)
        api_key = self._key(access.endpoint.api_key, alias_of(memory.slug), access.has_jwt_rbac)
        store = self.open_points(replace(access.endpoint, api_key=api_key))
        try:
            yield store
        finally:
            await store.close()

    def _key(self, api_key: str | None, alias: str, has_jwt_rbac: bool | None) -> str | None:
        if api_key is None or has_jwt_rbac is False:
            return api_key
        if has_jwt_rbac is None:
            # A passing silence must not hand out what opens every collection.
            raise StoreUnavailable("the server does not tell whether it takes tokens: nothing is consolidated")
        expires_at_s = self.clock.now_ms() // 1000 + LIFETIME_S
        return self.tokens.mint(api_key, alias, expires_at_s=expires_at_s) or api_key
