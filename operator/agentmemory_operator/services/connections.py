"""Connections as passes use them: an object's reference becomes a store, and a server known to be unfit is not asked.

One probe a connection finds out whether its server answers; the passes of its objects follow what it found, so that a
thousand objects do not hammer a server that is away.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from agentmemory_operator.domain.capabilities import Server, minor_of
from agentmemory_operator.domain.manifests import parse_connection
from agentmemory_operator.domain.rebuild_costs import Room, room_of
from agentmemory_operator.domain.resources import AgentMemory, QdrantConnection
from agentmemory_operator.errors import AgentMemoryError, SpecInvalid, StoreRejected, StoreUnavailable, StoreUntrusted
from agentmemory_operator.ports import CollectionStore, Json, Namespaces, Secrets
from agentmemory_operator.services.links import Endpoint, Link
from agentmemory_operator.services.objects import Key, ObjectTable, key_of
from agentmemory_operator.services.servers import connection_of
from agentmemory_operator.services.sharing import Sharing

MINIMUM_VERSION = (1, 18)
LEAST_BETWEEN_PROBES_S = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How an object's server is reached.

    Attributes:
        has_jwt_rbac: whether it takes tokens with limited rights; None where it does not tell.
    """

    connection: QdrantConnection
    endpoint: Endpoint
    has_jwt_rbac: bool | None


class Connections:
    """Stores by connection, and what the last probe of each found.

    Args:
        table: the objects as they last came.
        secrets: where keys and certificates are read: with each probe, and when a server refuses.
        open_store: makes the store of an endpoint.
        namespaces: where labels are read; None where no namespace has any.

    Attributes:
        most_rebuild_bytes: of disk that one Rebuild may take; None is any.
    """

    def __init__(
        self,
        table: ObjectTable,
        secrets: Secrets,
        open_store: Callable[[Endpoint], CollectionStore],
        *,
        namespaces: Namespaces | None = None,
    ) -> None:
        self.most_rebuild_bytes: int | None = None
        self._table = table
        self._secrets = secrets
        self._open_store = open_store
        self._sharing = Sharing(namespaces)
        self._links: dict[Key, Link[CollectionStore]] = {}
        self._faults: dict[Key, AgentMemoryError] = {}
        self._servers: dict[Key, Server] = {}
        self._failures: Counter[Key] = Counter()
        self._probed_at: dict[Key, float] = {}
        self._parsed: dict[Key, tuple[Json, QdrantConnection]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def use(self, memory: AgentMemory, work: Callable[[CollectionStore], Awaitable[T]]) -> T:
        """Return what `work` makes of the store of the object's connection.

        Args:
            work: runs once more if the server refused its key and another one has come.

        Raises:
            SpecInvalid: there is no such connection, it is not for this namespace, or its Secret is missing.
            AgentMemoryError: what the last probe found: the server is away, too old, or refuses the key.
        """
        key, document = await self._find(memory)
        if key in self._faults:
            raise self._faults[key].with_traceback(None)
        return await self._link(key).use(document, work)

    async def access(self, memory: AgentMemory) -> Access:
        """Return how the object's server is reached, be it away or not.

        Raises:
            SpecInvalid: there is no such connection, it is not for this namespace, or its Secret is missing.
            AgentMemoryError: what the server can do was never found out, and cannot be now.
        """
        key, document = await self._find(memory)
        server = self._servers.get(key)
        if server is None:
            server = await self.use(memory, lambda store: store.server())
        return Access(
            connection=self._parse(key, document),
            endpoint=await self._link(key).endpoint(document),
            has_jwt_rbac=server.has_jwt_rbac,
        )

    def room_of(self, memory: AgentMemory) -> Room:
        """Return what there is room for on the object's server, as its last probe found it."""
        server = self._servers.get(connection_of(memory))
        return (
            room_of(server, most_bytes=self.most_rebuild_bytes) if server else Room(most_bytes=self.most_rebuild_bytes)
        )

    async def _find(self, memory: AgentMemory) -> tuple[Key, Json]:
        """Return the object's connection, if it may use it."""
        namespace, key = memory.metadata.namespace, connection_of(memory)
        document = self._table.get(key)
        if document is None:
            raise SpecInvalid(
                "ConnectionNotFound",
                f"spec.connectionRef: there is no QdrantConnection {key.namespace}/{key.name}: create it, "
                f"or name another",
            )
        if key.namespace != namespace:
            await self._sharing.check(self._parse(key, document), namespace)
        return key, document

    def _parse(self, key: Key, document: Json) -> QdrantConnection:
        """Return the connection; a thousand objects ask for the same one."""
        known = self._parsed.get(key)
        if known is None or known[0] != document["spec"]:
            known = self._parsed[key] = document["spec"], parse_connection(document)
        return known[1]

    async def check_embedding_secret(self, memory: AgentMemory) -> None:
        """Pass unless the object's embedding names a Secret that is not there.

        Raises:
            SecretMissing: names it; the API could embed nothing.
        """
        ref = memory.spec.embedding.secret_ref if memory.spec.embedding else None
        if ref:
            await self._secrets.read(memory.metadata.namespace, ref.name, ref.key)

    async def probe(self, document: Json) -> tuple[Server, bool]:
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
        link = self._link(key)
        self._probed_at[key] = asyncio.get_running_loop().time()
        try:
            is_rotated = await link.renew(document)
            server = await link.use(document, lambda store: store.server())
            _check_version(server.version)
        except (SpecInvalid, StoreRejected, StoreUnavailable) as exc:
            self._faults[key] = exc
            is_away = isinstance(exc, StoreUnavailable) and not isinstance(exc, StoreUntrusted)
            self._failures[key] = self._failures[key] + 1 if is_away else 0
            raise
        self._failures.pop(key, None)
        self._servers[key] = server
        return server, self._faults.pop(key, None) is not None or is_rotated

    def is_away(self, key: Key | None) -> bool:
        """Tell whether the last probe of a connection found a fault, so that nobody asks its server."""
        return key in self._faults

    def failures(self, key: Key) -> int:
        """Return how many probes in a row found the server away; what a person corrects is looked at again soon."""
        return self._failures[key]

    def until_probe_s(self, key: Key) -> float:
        """Return how long a probe out of turn has to wait: many passes that fail at once ask for it."""
        last = self._probed_at.get(key)
        if last is None:
            return 0.0
        return max(0.0, last + LEAST_BETWEEN_PROBES_S - asyncio.get_running_loop().time())

    def forget(self, key: Key) -> None:
        """Drop what is known of a connection that is gone."""
        self._faults.pop(key, None)
        self._servers.pop(key, None)
        self._failures.pop(key, None)
        self._probed_at.pop(key, None)
        self._parsed.pop(key, None)
        link = self._links.pop(key, None)
        if link is not None:
            closing = asyncio.get_running_loop().create_task(link.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _link(self, key: Key) -> Link[CollectionStore]:
        if key not in self._links:
            self._links[key] = Link(self._secrets, self._open_store)
        return self._links[key]


def _check_version(version: str) -> None:
    minor = minor_of(version)
    if minor is not None and minor < MINIMUM_VERSION:
        minimum = ".".join(map(str, MINIMUM_VERSION))
        raise SpecInvalid("QdrantTooOld", f"Qdrant {version} is older than {minimum}: upgrade the server")
