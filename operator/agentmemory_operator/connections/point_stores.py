"""Point stores of connections: one for all agents of a connection, for one agent, or for a single use with a token."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from agentmemory_operator.connections.link import DEFAULT_TIMEOUT_S, Endpoint, Link
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.connections.resolve import LinkKey, Resolver
from agentmemory_operator.errors import SpecInvalid, StoreUnavailable
from agentmemory_operator.ports.access import PointsTokens
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Namespaces, Secrets
from agentmemory_operator.ports.points import ForwardingPoints, PointCall, PointStore
from agentmemory_operator.runtime.object_table import QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.naming import alias_of

T = TypeVar("T")


class PointStores(Resolver["LinkedPoints"]):
    """Provides stores by connection, or by agent if each agent has its own Secrets.

    Args:
        secrets: Reads keys and certificates: for a new store, and after the server has refused the key.
        open_store: Opens the store of an endpoint.
        secrets_of: Returns the Secrets of an agent by slug, in place of `secrets`. None if agents have none of their
            own.
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
        """Return the store of the agent's connection.

        It is the same object until the connection's spec changes, the connection is deleted, or `forget_agent` drops
        it.

        Raises:
            StoreUnavailable: If the connection is missing or invalid, or may not be used from this namespace. Also if
                its Secret is missing or may not be sent to its host.
            TransientError: If the Secret or the namespace's labels cannot be read now, or the operator has not copied
                the Secret for the agent yet.
        """
        key = _connection_of(settings)
        link_key = key, settings.slug if self._secrets_of else ""
        if self._table.get(key) is None:
            self._drop(link_key)
        try:
            document = await self._find_allowed(key, settings.namespace)
            linked = self._links.get(link_key)
            if linked is None or linked.spec != document.get("spec"):
                linked = self._renew(link_key, document)
            if not linked.is_open:
                await linked.open()
        except SpecInvalid as exc:
            raise _unavailable(exc) from exc
        return linked

    async def read_status(self, settings: AgentSettings) -> Json:
        """Return the status of the agent's connection.

        Raises:
            SpecInvalid: If the connection does not exist, or may not be used from this namespace.
            TransientError: If the namespace's labels cannot be read now.
        """
        document = await self._find_allowed(_connection_of(settings), settings.namespace)
        return document.get("status") or {}

    def capabilities_of(self, settings: AgentSettings) -> frozenset[str]:
        """Return the capabilities of the agent's server from the connection's status; empty if unknown."""
        document = self._table.get(_connection_of(settings))
        status = (document or {}).get("status") or {}
        return frozenset(status.get("capabilities") or ())

    def timeout_of(self, settings: AgentSettings) -> float:
        """Return the timeout in seconds of calls to the agent's server: the connection's own, or the default of 10."""
        document = self._table.get(_connection_of(settings))
        timeout_s = ((document or {}).get("spec") or {}).get("timeoutSeconds")
        return float(timeout_s or DEFAULT_TIMEOUT_S)

    def forget_agent(self, slug: str) -> None:
        """Close the stores that only this agent uses, after their last use."""
        self._drop(*[link_key for link_key in self._links if link_key[1] == slug])

    def _renew(self, link_key: LinkKey, document: Json) -> "LinkedPoints":
        self._drop(link_key)
        secrets = self._secrets_of(link_key[1]) if self._secrets_of else self._secrets
        linked = self._links[link_key] = LinkedPoints(document, Link(secrets, self._open_store, has_nodes=False))
        return linked


class LinkedPoints(ForwardingPoints):
    """Implements ports.PointStore: each call uses the link's current store.

    If the server refuses a rotated key, the Secret is read again and the call is repeated, because a refused call has
    changed nothing.

    Attributes:
        spec: Spec of the connection, unparsed.
        is_open: True once the connection's Secrets were read.
    """

    def __init__(self, document: Json, link: Link[PointStore]) -> None:
        self._document = document
        self._link = link
        self.spec: Any = document.get("spec")
        self.is_open = False

    async def open(self) -> None:
        """Open the store with the content of the Secrets.

        Raises:
            SpecInvalid: If the connection is invalid, or one of its Secrets is missing or unusable.
            TransientError: If the Secrets cannot be read now.
        """
        await self._link.open(self._document)
        self.is_open = True

    async def close(self) -> None:
        """Close the connections after their last use; a later call opens new ones."""
        await self._link.close()

    async def read(self, call: PointCall[T]) -> T:
        """Make a call; repeat it if the server refused the key and the Secret contains a new key.

        Raises:
            StoreUnavailable: If the connection or its Secret cannot be used, or the egress policy forbids the host.
            AgentMemoryError: Other errors of the call, or of reading the Secret.
        """
        try:
            return await self._link.use(self._document, call.make)
        except SpecInvalid as exc:
            raise _unavailable(exc) from exc

    write = read


def _unavailable(error: SpecInvalid) -> StoreUnavailable:
    """Turn an error in the configuration into one for clients of the API, who cannot correct it."""
    return StoreUnavailable(f"the connection of this agent cannot be used: {error}")


def _connection_of(settings: AgentSettings) -> Key:
    return Key(QDRANT_CONNECTION, settings.connection_namespace, settings.connection)


TOKEN_LIFETIME_S = 2 * 3600


@dataclass(frozen=True, slots=True)
class ScopedPointStores:
    """Opens stores with a token that permits only the points of one alias, if the server accepts tokens.

    If the server accepts none, or the connection's key is itself a token, the stores use the key. Without a key, they
    use none.
    """

    connections: Connections
    open_points: Callable[[Endpoint], PointStore]
    tokens: PointsTokens
    clock: Clock

    @asynccontextmanager
    async def open_store(self, memory: AgentMemory) -> AsyncIterator[PointStore]:
        """Open the store of an object's points. A token for it is valid for two hours.

        Raises:
            SpecInvalid: If the connection cannot be used.
            StoreUnavailable: If the connection has a key, and it is unknown whether the server accepts tokens.
            AgentMemoryError: Other errors of `Connections.access`.
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
            # Do not fall back to the key: a temporary failure must not expose it, because it opens every collection.
            raise StoreUnavailable("the server does not report whether it accepts tokens: consolidation is skipped")
        expires_at_s = self.clock.now_ms() // 1000 + TOKEN_LIFETIME_S
        return self.tokens.mint(api_key, alias, expires_at_s=expires_at_s) or api_key
