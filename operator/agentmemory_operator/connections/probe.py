"""Connections as passes use them: an object's reference becomes a store, and a server known to be unfit is not asked.

One probe a connection finds out whether its server answers; the passes of its objects follow what it found, so that a
thousand objects do not hammer a server that is away.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from agentmemory_operator.collections.rules.capacity import Load, Process, need_of
from agentmemory_operator.collections.rules.collection import Collection, Tenant
from agentmemory_operator.collections.rules.rebuild_costs import Room, room_of
from agentmemory_operator.connections.capacity import Capacity, CollectionWish
from agentmemory_operator.connections.guarded_stores import guarded_collections
from agentmemory_operator.connections.link import Endpoint, Link
from agentmemory_operator.connections.reach import Reach
from agentmemory_operator.connections.resolve import Resolver, connection_of
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities, minor_of
from agentmemory_operator.connections.rules.handover import embedding_key
from agentmemory_operator.errors import AgentMemoryError, SpecInvalid, StoreRejected, StoreUnavailable, StoreUntrusted
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.kubernetes import Namespaces, Secrets
from agentmemory_operator.runtime.cache import Key, ObjectTable, key_of
from agentmemory_operator.spec.effective.embedding import effective_embedding, embedding_source
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.naming import alias_of

MINIMUM_VERSION = (1, 18)
LEAST_BETWEEN_PROBES_S = 1.0
PROBE_S = 300.0
"""Of one probe, all its calls together: as long as a connection may let one of them take."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """How an object's server is reached.

    Attributes:
        has_jwt_rbac: whether it takes tokens with limited rights; None where it does not tell.
    """

    connection: QdrantConnection
    endpoint: Endpoint
    has_jwt_rbac: bool | None


class Connections(Resolver[Link[CollectionStore]]):
    """Stores by connection, and what the last probe of each found.

    Args:
        secrets: where keys and certificates are read: with each probe, and when a server refuses.
        open_store: makes the store of an endpoint.

    Attributes:
        most_rebuild_bytes: of disk that one Rebuild may take; None is any.
        capacity: what room there is on each server.
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
        self.most_rebuild_bytes: int | None = None
        self._secrets = secrets
        self._open_store = open_store
        self.capacity = Capacity()
        self._faults: dict[Key, AgentMemoryError] = {}
        self._servers: dict[Key, ServerCapabilities] = {}
        self._failures: Counter[Key] = Counter()
        self._probed_at: dict[Key, float] = {}

    async def use(self, memory: AgentMemory, work: Callable[[CollectionStore], Awaitable[T]]) -> T:
        """What `work` makes of the store of the object's connection.

        Its collections are those of the object's namespace, by their names and aliases: whose marker they bear, `work`
        judges of what it observes.

        Args:
            work: runs once more if the server refused its key and another one has come.

        Raises:
            SpecInvalid: there is no such connection, it is not for this namespace, or its Secret is missing.
            AgentMemoryError: what the last probe found: the server is away, too old, or refuses the key.
        """
        namespace = memory.metadata.namespace

        async def guarded(store: CollectionStore) -> T:
            table = self._table
            reach = Reach(
                namespace=namespace, namespace_of=table.namespace_of, is_settled=lambda: table.claims.is_complete
            )
            return await work(guarded_collections(store, reach))

        key, document = await self._find_for(memory)
        return await self._fit_link(key).use(document, guarded)

    async def access(self, memory: AgentMemory) -> ServerAccess:
        """How the object's server is reached, be it away or not.

        Raises:
            SpecInvalid: there is no such connection, it is not for this namespace, or its Secret is missing.
            AgentMemoryError: what the server can do was never found out, and cannot be now.
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
        """What `work` makes of a connection's server as a whole, for the operator itself; raises as `use`."""
        document = self._find(key)
        return await self._fit_link(key).use(document, work)

    def find(self, key: Key) -> QdrantConnection | None:
        """A connection, None where there is none that makes sense."""
        try:
            return self._parse(key, self._find(key))
        except SpecInvalid:
            return None

    async def check_sharing(self, key: Key, namespace: str) -> None:
        """Pass where objects of a namespace may refer to a connection.

        Raises:
            SpecInvalid: they may not, or it makes no sense.
            TransientError: the namespace's labels cannot be read and never were.
        """
        if self._table.get(key) is not None:
            await self._find_allowed(key, namespace)

    @asynccontextmanager
    async def room_for(self, memory: AgentMemory, shape: Collection, *, cluster_id: str) -> AsyncIterator[None]:
        """Hold the room that an agent without a collection needs for one.

        Raises:
            ServerFull: its server has none.
            NamespaceFull: its namespace has as many as it may.
        """
        key, document = await self._find_for(memory)
        connection = self._parse(key, document)
        server, tenant = self._servers.get(key), Tenant(cluster_id, memory.metadata.namespace)
        need = need_of(shape, peers=(server.peers if server else None) or 1)
        async with self.capacity.for_new_agent(
            connection, _Whole(self, key), CollectionWish(tenant, alias_of(memory.slug), need)
        ):
            yield

    def room_of(self, memory: AgentMemory) -> Room:
        """What there is room for on the object's server, as its last probe found it."""
        server = self._servers.get(connection_of(memory))
        return (
            room_of(server, most_bytes=self.most_rebuild_bytes) if server else Room(most_bytes=self.most_rebuild_bytes)
        )

    async def _find_for(self, memory: AgentMemory) -> tuple[Key, Json]:
        key = connection_of(memory)
        return key, await self._find_allowed(key, memory.metadata.namespace)

    async def check_embedding_secret(self, memory: AgentMemory) -> None:
        """Pass unless the object's embedding names a Secret that is not there, or not for the service.

        Raises:
            SecretMissing, SecretNotUsable: names it; the API could embed nothing.
        """
        if key := embedding_key(embedding_source(effective_embedding(memory))):
            await self._secrets.read(memory.metadata.namespace, key.name, key.key, to=key.to)

    async def probe(self, document: Json) -> tuple[ServerCapabilities, bool]:
        """Read the Secrets and ask the server what it is; return it, and whether its objects have to be looked at.

        They have when the last probe found a fault, and when a Secret has changed.

        Args:
            document: the QdrantConnection as it last came.

        Raises:
            SpecInvalid: the connection is not valid, its Secret is missing, or the server is too old.
            StoreRejected: it refuses the key.
            StoreUnavailable: it does not answer.
        """
        key = key_of(document)
        try:
            return await self._probe(key, document)
        finally:
            if self._table.get(key) is None:
                # It went away meanwhile: nobody else would forget what is noted of it now.
                self.forget(key)

    async def loads(self, document: Json) -> tuple[Load, ...]:
        """How full a connection's server is, by what it said in the last minute; none where it does not tell."""
        connection = self._parse(key_of(document), document)
        try:
            return await self.survey(key_of(document), lambda store: self.capacity.loads(connection, store))
        except AgentMemoryError:
            # Whether the server answers, the probe has just found out; nothing else depends on this.
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
            is_away = isinstance(exc, StoreUnavailable) and not isinstance(exc, StoreUntrusted)
            self._failures[key] = self._failures[key] + 1 if is_away else 0
            raise
        self._failures.pop(key, None)
        self._servers[key] = server
        return server, self._faults.pop(key, None) is not None or is_rotated

    @staticmethod
    async def _ask(link: Link[CollectionStore], document: Json) -> ServerCapabilities:
        try:
            async with asyncio.timeout(PROBE_S):
                return await link.use(document, lambda store: store.server())
        except TimeoutError as exc:
            raise StoreUnavailable(f"Qdrant cannot be reached: no answer to a probe in {PROBE_S:.0f} s") from exc

    def is_away(self, key: Key | None) -> bool:
        """Whether the last probe of a connection found a fault, so that nobody asks its server."""
        return key in self._faults

    def failures(self, key: Key) -> int:
        """How many probes in a row found the server away; what a person corrects is looked at again soon."""
        return self._failures[key]

    def until_probe_s(self, key: Key) -> float:
        """How long a probe out of turn has to wait: many passes that fail at once ask for it."""
        last = self._probed_at.get(key)
        if last is None:
            return 0.0
        return max(0.0, last + LEAST_BETWEEN_PROBES_S - asyncio.get_running_loop().time())

    def forget(self, key: Key) -> None:
        """Drop what is known of a connection that is gone."""
        super().forget(key)
        self._faults.pop(key, None)
        self._servers.pop(key, None)
        self._failures.pop(key, None)
        self._probed_at.pop(key, None)
        self.capacity.forget(key)

    def _link(self, key: Key) -> Link[CollectionStore]:
        return self._links.setdefault((key, ""), Link(self._secrets, self._open_store))

    def _fit_link(self, key: Key) -> Link[CollectionStore]:
        """The link to a server that the last probe found no fault with."""
        if key in self._faults:
            raise self._faults[key].with_traceback(None)
        return self._link(key)


@dataclass(frozen=True, slots=True)
class _Whole:
    """What is asked of a server whosever its collections are."""

    connections: Connections
    key: Key

    async def process(self) -> Process:
        return await self.connections.survey(self.key, lambda store: store.process())

    async def names(self) -> list[str]:
        return await self.connections.survey(self.key, lambda store: store.names())

    async def tenant_of(self, physical: str) -> Tenant | None:
        return await self.connections.survey(self.key, lambda store: store.tenant_of(physical))


def _check_version(version: str) -> None:
    minor = minor_of(version)
    if minor is not None and minor < MINIMUM_VERSION:
        minimum = ".".join(map(str, MINIMUM_VERSION))
        raise SpecInvalid("QdrantTooOld", f"Qdrant {version} is older than {minimum}: upgrade the server")
