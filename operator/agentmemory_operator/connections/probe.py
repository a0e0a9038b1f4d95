"""Connections as passes use them: references become stores, and servers with a known fault are not called.

Each connection is probed periodically. Passes over its objects rely on the result of the last probe, so that a thousand
objects do not call an unavailable server.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from agentmemory_operator.collections.rules.capacity import Load, Process, need_of
from agentmemory_operator.collections.rules.collection import Collection, Tenant
from agentmemory_operator.collections.rules.rebuild_costs import ServerResources, server_resources
from agentmemory_operator.connections.collection_authorizer import CollectionAuthorizer
from agentmemory_operator.connections.guarded_stores import guarded_collections
from agentmemory_operator.connections.link import Endpoint, Link
from agentmemory_operator.connections.resolve import Resolver, connection_of
from agentmemory_operator.connections.rules.agent_secret_slots import embedding_key
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities, parse_version
from agentmemory_operator.connections.server_capacity import Capacity, CollectionRequest
from agentmemory_operator.errors import (
    AgentMemoryError,
    SpecInvalid,
    StoreRejected,
    StoreUnavailable,
    TlsVerificationFailed,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.kubernetes import Namespaces, Secrets
from agentmemory_operator.runtime.object_table import Key, ObjectTable, key_of
from agentmemory_operator.spec.effective.embedding import effective_embedding, embedding_source
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.naming import alias_of

MIN_VERSION = (1, 18)
MIN_PROBE_PERIOD_S = 1.0
PROBE_TIMEOUT_S = 300.0
"""Timeout of a probe's calls to the server, in seconds: the longest timeout that a connection may set for one call."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """Access to an object's server.

    Attributes:
        has_jwt_rbac: True if the server accepts tokens with limited rights. None if it does not report it.
    """

    connection: QdrantConnection
    endpoint: Endpoint
    has_jwt_rbac: bool | None


class Connections(Resolver[Link[CollectionStore]]):
    """Stores by connection, and the result of the last probe of each.

    Args:
        secrets: Reads keys and certificates: for a new store, in each probe, and after a server has refused a key.
        open_store: Opens the store of an endpoint.
        namespaces: Reads labels of namespaces. None if namespaces have no labels.

    Attributes:
        max_rebuild_bytes: Maximum disk that one Rebuild may use. None limits it by the reported size of the disk.
        capacity: Capacity of each server.
    """

    def __init__(
        self,
        table: ObjectTable,
        secrets: Secrets,
        open_store: Callable[[Endpoint], CollectionStore],
        *,
        namespaces: Namespaces | None = None,
    ) -> None:
        super().__init__(table, namespaces)
        self.max_rebuild_bytes: int | None = None
        self._secrets = secrets
        self._open_store = open_store
        self.capacity = Capacity()
        self._faults: dict[Key, AgentMemoryError] = {}
        self._servers: dict[Key, ServerCapabilities] = {}
        self._failures: Counter[Key] = Counter()
        self._probed_at: dict[Key, float] = {}

    async def use(self, memory: AgentMemory, work: Callable[[CollectionStore], Awaitable[T]]) -> T:
        """Run `work` with the store of the object's connection, and return its result.

        The store accepts only collections that the object's namespace may use by name or alias. `work` must check the
        marker of the collections that it observes.

        Args:
            work: Called a second time if the server refused the key and the Secret contains a new key.

        Raises:
            SpecInvalid: If the connection does not exist, is invalid, or may not be used from this namespace, or if one
                of its Secrets is missing or unusable.
            TransientError: If one of its Secrets or the namespace's labels cannot be read now.
            AgentMemoryError: Errors of `work`, or the fault that the last probe found: the server is unavailable, too
                old, or refuses the key.
        """
        namespace = memory.metadata.namespace

        async def guarded(store: CollectionStore) -> T:
            table = self._table
            authorizer = CollectionAuthorizer(
                namespace=namespace,
                namespace_of=table.find_namespace,
                are_claims_complete=lambda: table.claims.is_complete,
            )
            return await work(guarded_collections(store, authorizer))

        key, document = await self._find_for(memory)
        return await self._fit_link(key).use(document, guarded)

    async def access(self, memory: AgentMemory) -> ServerAccess:
        """Return the access to the object's server, even if it is unavailable now.

        Raises:
            SpecInvalid: If the connection does not exist, is invalid, or may not be used from this namespace, or if one
                of its Secrets is missing or unusable.
            TransientError: If one of its Secrets or the namespace's labels cannot be read now.
            AgentMemoryError: If the capabilities of the server were never read, and cannot be read now.
        """
        key, document = await self._find_for(memory)
        server = self._servers.get(key)
        if server is None:
            server = await self.use(memory, lambda store: store.server())
        return ServerAccess(
            connection=self._parse(key, document),
            endpoint=await self._link(key).endpoint(document),
            has_jwt_rbac=server.has_jwt_rbac,
        )

    async def survey(self, key: Key, work: Callable[[CollectionStore], Awaitable[T]]) -> T:
        """Run `work` with all collections of a connection's server. For the operator itself, not for a namespace.

        Raises:
            SpecInvalid: If the connection does not exist or is invalid, or one of its Secrets is missing or unusable.
            TransientError: If one of its Secrets cannot be read now.
            AgentMemoryError: Errors of `work`, or the fault that the last probe found.
        """
        document = self._find(key)
        return await self._fit_link(key).use(document, work)

    def find(self, key: Key) -> QdrantConnection | None:
        """Return a connection, or None if it does not exist or is invalid."""
        try:
            return self._parse(key, self._find(key))
        except SpecInvalid:
            return None

    async def check_sharing(self, key: Key, namespace: str) -> None:
        """Raise unless objects of a namespace may refer to a connection. A missing connection passes.

        Raises:
            SpecInvalid: If they may not, or the connection is in another namespace and invalid.
            TransientError: If the namespace's labels cannot be read and never were.
        """
        if self._table.get(key) is not None:
            await self._find_allowed(key, namespace)

    @asynccontextmanager
    async def reserve_capacity(self, memory: AgentMemory, shape: Collection, *, cluster_id: str) -> AsyncIterator[None]:
        """Reserve capacity for the first collection of an agent.

        Args:
            shape: Collection that will be created.

        Raises:
            ServerFull: If the server has no capacity.
            NamespaceFull: If the namespace has reached its limit of collections.
            AgentMemoryError: Other errors of `use`.
        """
        key, document = await self._find_for(memory)
        connection = self._parse(key, document)
        server, tenant = self._servers.get(key), Tenant(cluster_id, memory.metadata.namespace)
        need = need_of(shape, peers=(server.peers if server else None) or 1)
        async with self.capacity.for_new_agent(
            connection, _Whole(self, key), CollectionRequest(tenant, alias_of(memory.slug), need)
        ):
            yield

    def server_resources(self, memory: AgentMemory) -> ServerResources:
        """Return the resources of the object's server from its last successful probe.

        Before that, all are unknown except the limit `max_rebuild_bytes`.
        """
        server = self._servers.get(connection_of(memory))
        return (
            server_resources(server, max_bytes=self.max_rebuild_bytes)
            if server
            else ServerResources(max_rebuild_bytes=self.max_rebuild_bytes)
        )

    async def _find_for(self, memory: AgentMemory) -> tuple[Key, Json]:
        key = connection_of(memory)
        return key, await self._find_allowed(key, memory.metadata.namespace)

    async def check_embedding_secret(self, memory: AgentMemory) -> None:
        """Raise unless the Secret of the object's embedding exists and may be sent to the service.

        An embedding that sends no key passes.

        Raises:
            SecretMissing: If the Secret or its key does not exist: the API could not embed any text.
            SecretNotUsable: If the Secret may not be sent to the service, or its value cannot be part of a header.
            SpecInvalid: If the URL of the service is invalid.
            TransientError: If the Secret cannot be read now.
        """
        if key := embedding_key(embedding_source(effective_embedding(memory))):
            await self._secrets.read(memory.metadata.namespace, key.name, key.key, to=key.to)

    async def probe(self, document: Json) -> tuple[ServerCapabilities, bool]:
        """Read the Secrets and the server's capabilities.

        Return the capabilities, and whether the connection's objects need passes. They do if the last probe found a
        fault, or if a Secret, a URL or the timeout has changed.

        Args:
            document: Latest QdrantConnection from the watch.

        Raises:
            SpecInvalid: If the connection is invalid, one of its Secrets is missing or unusable, or the server is too
                old.
            StoreRejected: If the server refuses the key.
            StoreUnavailable: If the server does not respond, or its certificate is not trusted.
            TransientError: If a Secret cannot be read now.
        """
        key = key_of(document)
        try:
            return await self._probe(key, document)
        finally:
            if self._table.get(key) is None:
                # Drop the state of a connection that was deleted during the probe: no later event would remove it.
                self.forget(key)

    async def loads(self, document: Json) -> tuple[Load, ...]:
        """Return the loads of a connection's server, at most a minute old if it responds; empty if unknown.

        Raises:
            SpecInvalid: If the connection is invalid.
        """
        connection = self._parse(key_of(document), document)
        try:
            return await self.survey(key_of(document), lambda store: self.capacity.loads(connection, store))
        except AgentMemoryError:
            # Report no loads. The probe has just reported whether the server responds.
            return ()

    async def _probe(self, key: Key, document: Json) -> tuple[ServerCapabilities, bool]:
        link = self._link(key)
        self._probed_at[key] = asyncio.get_running_loop().time()
        try:
            is_rotated = await link.renew(document)
            server = await self._ask(link, document)
            _check_version(server.version)
        except (SpecInvalid, StoreRejected, StoreUnavailable) as exc:
            self._faults[key] = exc
            is_unavailable = isinstance(exc, StoreUnavailable) and not isinstance(exc, TlsVerificationFailed)
            self._failures[key] = self._failures[key] + 1 if is_unavailable else 0
            raise
        self._failures.pop(key, None)
        self._servers[key] = server
        return server, self._faults.pop(key, None) is not None or is_rotated

    @staticmethod
    async def _ask(link: Link[CollectionStore], document: Json) -> ServerCapabilities:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await link.use(document, lambda store: store.server())
        except TimeoutError as exc:
            raise StoreUnavailable(
                f"Qdrant cannot be reached: no answer to a probe in {PROBE_TIMEOUT_S:.0f} s"
            ) from exc

    def has_fault(self, key: Key | None) -> bool:
        """Return whether the last probe found a fault, so that only probes call the server. False if `key` is None."""
        return key in self._faults

    def failures(self, key: Key) -> int:
        """Return the number of consecutive probes that found the server unavailable.

        Other faults reset the number, because users correct them, and the server is then probed again soon.
        """
        return self._failures[key]

    def probe_delay_s(self, key: Key) -> float:
        """Return the seconds until an extra probe may run, 0 if it may run now. Failed passes request such probes."""
        last_probe_s = self._probed_at.get(key)
        if last_probe_s is None:
            return 0.0
        return max(0.0, last_probe_s + MIN_PROBE_PERIOD_S - asyncio.get_running_loop().time())

    def forget(self, key: Key) -> None:
        """Drop the faults, capabilities and capacity of a deleted connection. Close its link after the last use."""
        super().forget(key)
        self._faults.pop(key, None)
        self._servers.pop(key, None)
        self._failures.pop(key, None)
        self._probed_at.pop(key, None)
        self.capacity.forget(key)

    def _link(self, key: Key) -> Link[CollectionStore]:
        return self._links.setdefault((key, ""), Link(self._secrets, self._open_store))

    def _fit_link(self, key: Key) -> Link[CollectionStore]:
        """Return the link to a server, or raise the fault that the last probe found."""
        if key in self._faults:
            raise self._faults[key].with_traceback(None)
        return self._link(key)


@dataclass(frozen=True, slots=True)
class _Whole:
    """Implements `CapacitySource` by calls to a whole server, without checks of ownership."""

    connections: Connections
    key: Key

    async def process(self) -> Process:
        return await self.connections.survey(self.key, lambda store: store.process())

    async def names(self) -> list[str]:
        return await self.connections.survey(self.key, lambda store: store.names())

    async def read_owner(self, physical: str) -> Tenant | None:
        return await self.connections.survey(self.key, lambda store: store.read_owner(physical))


def _check_version(version: str) -> None:
    minor = parse_version(version)
    if minor is not None and minor < MIN_VERSION:
        minimum = ".".join(map(str, MIN_VERSION))
        raise SpecInvalid("QdrantTooOld", f"Qdrant {version} is older than {minimum}: upgrade the server")
