"""The point store of each agent's connection, shared by all agents of one connection."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from agentmemory_operator.connections.link import DEFAULT_TIMEOUT_S, Endpoint, Link
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.connections.resolve import Place, Resolver
from agentmemory_operator.errors import SpecInvalid, StoreUnavailable
from agentmemory_operator.ports.access import PointsTokens
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Namespaces, Secrets
from agentmemory_operator.ports.points import ForwardingPoints, PointCall, PointStore
from agentmemory_operator.runtime.cache import QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.naming import alias_of

T = TypeVar("T")


class PointStores(Resolver["LinkedPoints"]):
    """Gives stores by connection, or where each agent has Secrets of its own, by agent.

    Args:
        secrets: where keys and certificates are read: once a change of the connection, and when the server refuses.
        open_store: makes the store of an endpoint.
        secrets_of: the Secrets of one agent, by slug, in the place of `secrets`.
    """

    def __init__(
        self,
        table: ObjectTable,
        secrets: Secrets,
        open_store: Callable[[Endpoint], PointStore],
        *,
        namespaces: Namespaces | None = None,
        secrets_of: Callable[[str], Secrets] | None = None,
    ) -> None:
        super().__init__(table, namespaces)
        self._secrets = secrets
        self._secrets_of = secrets_of
        self._open_store = open_store

    async def store_for(self, settings: AgentSettings) -> PointStore:
        """The store of the agent's connection: the same one until the connection's spec changes.

        Raises:
            StoreUnavailable: there is no such connection, it is not for this namespace, or its Secret is missing.
        """
        key = _connection_of(settings)
        place = key, settings.slug if self._secrets_of else ""
        if self._table.get(key) is None:
            self._drop(place)
        try:
            document = await self._find_allowed(key, settings.namespace)
            linked = self._links.get(place)
            if linked is None or linked.spec != document.get("spec"):
                linked = self._renew(place, document)
            if not linked.is_open:
                await linked.open()
        except SpecInvalid as exc:
            raise _unavailable(exc) from exc
        return linked

    def capabilities_of(self, settings: AgentSettings) -> frozenset[str]:
        """What the server of the agent's connection can do, as the connection's status last said."""
        document = self._table.get(_connection_of(settings))
        status = (document or {}).get("status") or {}
        return frozenset(status.get("capabilities") or ())

    def timeout_of(self, settings: AgentSettings) -> float:
        """Seconds until a call to the server of the agent's connection is given up."""
        document = self._table.get(_connection_of(settings))
        told = ((document or {}).get("spec") or {}).get("timeoutSeconds")
        return float(told or DEFAULT_TIMEOUT_S)

    def forget_agent(self, slug: str) -> None:
        """Close the stores that an agent has to itself, after their last use."""
        self._drop(*[place for place in self._links if place[1] == slug])

    def _renew(self, place: Place, document: Json) -> "LinkedPoints":
        self._drop(place)
        secrets = self._secrets_of(place[1]) if self._secrets_of else self._secrets
        linked = self._links[place] = LinkedPoints(document, Link(secrets, self._open_store, has_nodes=False))
        return linked


class LinkedPoints(ForwardingPoints):
    """Implements ports.PointStore: each call goes to the link's store of the moment.

    A key that was rotated is read again when the server refuses the old one, and the call is made once more: what is
    refused has changed nothing.

    Attributes:
        spec: the connection's, as it came.
        is_open: its Secrets were read.
    """

    def __init__(self, document: Json, link: Link[PointStore]) -> None:
        self._document = document
        self._link = link
        self.spec: Any = document.get("spec")
        self.is_open = False

    async def open(self) -> None:
        """Read the Secrets; raises as `Link.open`."""
        await self._link.open(self._document)
        self.is_open = True

    async def close(self) -> None:
        """Close the connections after their last use."""
        await self._link.close()

    async def read(self, call: PointCall[T]) -> T:
        """Make a call, once more if the server refused it for its key."""
        try:
            return await self._link.use(self._document, call.on)
        except SpecInvalid as exc:
            raise _unavailable(exc) from exc

    write = read


def _unavailable(error: SpecInvalid) -> StoreUnavailable:
    """What callers of the API learn of what only the connection's author can mend."""
    return StoreUnavailable(f"the connection of this agent cannot be used: {error}")


def _connection_of(settings: AgentSettings) -> Key:
    return Key(QDRANT_CONNECTION, settings.connection_namespace, settings.connection)


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
            raise StoreUnavailable("the server does not report whether it accepts tokens: consolidation is skipped")
        expires_at_s = self.clock.now_ms() // 1000 + LIFETIME_S
        return self.tokens.mint(api_key, alias, expires_at_s=expires_at_s) or api_key
