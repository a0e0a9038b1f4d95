"""Resolve references to QdrantConnections: find the object, check the namespace, and keep a link to its server.

A connection is parsed again only when its spec changes. `Servers.use` is for the work for one object: its stores accept
only collections of the object's namespace (`connections/collection_authorizer.py`), whatever its status contains.
`Servers.survey` and `Servers.sweep` give unrestricted stores to the operator's own work on a whole server.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from agentmemory_operator.connections.collection_authorizer import CollectionAuthorizer, OwnershipReader
from agentmemory_operator.connections.guarded_stores import guarded_collections, guarded_points, guarded_snapshots
from agentmemory_operator.connections.link import Closeable, Endpoint, Link
from agentmemory_operator.connections.rules.allowed_namespaces import check_allowed, needs_labels
from agentmemory_operator.connections.server_capacity import Capacity, CollectionRequest
from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, NotOwned, SpecInvalid, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.kubernetes import Namespaces, Secrets
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.ports.snapshots import SnapshotStore
from agentmemory_operator.runtime.object_table import QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.parse import parse_connection

log = logging.getLogger(__name__)


def connection_missing(reference: str) -> SpecInvalid:
    """Return the error for an object whose connection, NAMESPACE/NAME, does not exist."""
    return SpecInvalid(
        Reason.CONNECTION_NOT_FOUND,
        f"there is no QdrantConnection {reference}: create it or use another in spec.connectionRef",
    )


LABELS_TTL_S = 30.0
"""Seconds for which labels of a namespace are cached, or longer while they cannot be read. Removing a label takes
effect after that."""


class Sharing:
    """Checks whether a namespace may use a connection.

    Args:
        namespaces: Reads labels. None if namespaces have no labels.
    """

    def __init__(self, namespaces: Namespaces | None) -> None:
        self._namespaces = namespaces
        self._labels: dict[str, tuple[float, Mapping[str, str]]] = {}

    async def check(self, connection: QdrantConnection, namespace: str) -> None:
        """Raise unless objects of the namespace may refer to the connection.

        Raises:
            SpecInvalid: If they may not.
            TransientError: If the namespace's labels cannot be read and never were.
        """
        labels = await self._labels_of(namespace) if needs_labels(connection, namespace) else {}
        check_allowed(connection, namespace, labels)

    async def _labels_of(self, namespace: str) -> Mapping[str, str]:
        now_s = asyncio.get_running_loop().time()
        read_s, labels = self._labels.get(namespace, (None, {}))
        if self._namespaces is None or (read_s is not None and now_s - read_s < LABELS_TTL_S):
            return labels
        try:
            labels = await self._namespaces.labels(namespace)
        except TransientError:
            # Keep the old labels, because an outage of the Kubernetes API must not stop agents.
            if read_s is None:
                raise
        self._labels[namespace] = now_s, labels
        return labels


L = TypeVar("L", bound=Closeable)
T = TypeVar("T")
LinkKey = tuple[Key, str]
"""A connection, and the slug of the agent whose Secrets open it, or "" if all agents share the connection's own."""


class Resolver(Generic[L]):
    """Finds connections, and keeps links to their servers. `forget` drops those of a deleted connection.

    Args:
        table: Latest objects from the watch.
        namespaces: Reads labels. None if namespaces have no labels.
    """

    def __init__(self, table: ObjectTable, namespaces: Namespaces | None) -> None:
        self._table = table
        self._sharing = Sharing(namespaces)
        self._parsed: dict[Key, tuple[Json, QdrantConnection]] = {}
        self._links: dict[LinkKey, L] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def forget(self, connection: Key) -> None:
        """Drop the state of a deleted connection. Close its links after their last use."""
        self._parsed.pop(connection, None)
        self._drop(*[link_key for link_key in self._links if link_key[0] == connection])

    def _find(self, connection: Key) -> Json:
        document = self._table.get(connection)
        if document is None:
            raise connection_missing(f"{connection.namespace}/{connection.name}")
        return document

    async def _find_allowed(self, connection: Key, namespace: str) -> Json:
        """Return a connection that objects of the namespace may refer to.

        Raises:
            SpecInvalid: If it does not exist, or may not be used from this namespace. In another namespace than its
                own, also if it is invalid.
            TransientError: If the namespace's labels cannot be read and never were.
        """
        document = self._find(connection)
        if connection.namespace != namespace:
            await self._sharing.check(self._parse(connection, document), namespace)
        return document

    def _parse(self, connection: Key, document: Json) -> QdrantConnection:
        """Return the parsed connection, cached until its spec changes: many objects refer to the same one."""
        cached = self._parsed.get(connection)
        if cached is None or cached[0] != document.get("spec"):
            parsed = parse_connection(document)
            cached = self._parsed[connection] = document["spec"], parsed
        return cached[1]

    def _drop(self, *link_keys: LinkKey) -> None:
        """Close links after their last use. Keys without a link are ignored."""
        for link in [self._links.pop(link_key) for link_key in link_keys if link_key in self._links]:
            task = asyncio.get_running_loop().create_task(link.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


@dataclass(frozen=True, slots=True)
class Server:
    """All stores of one Qdrant server, opened with one key.

    Attributes:
        endpoint: Address and key of the server; the key is never logged.
        authorizer: Restricts the collections of its stores. None permits everything.
    """

    endpoint: Endpoint
    collections: CollectionStore
    snapshots: SnapshotStore
    points: PointStore
    authorizer: CollectionAuthorizer | None = None

    async def close(self) -> None:
        """Close the connections of all three stores."""
        await self.collections.close()
        await self.snapshots.close()
        await self.points.close()

    def guarded(self, authorizer: CollectionAuthorizer) -> "Server":
        """Return the server with stores that accept only collections that `authorizer` allows."""
        return replace(
            self,
            collections=guarded_collections(self.collections, authorizer),
            snapshots=guarded_snapshots(self.snapshots, authorizer),
            points=guarded_points(self.points, authorizer),
            authorizer=authorizer,
        )

    def grant(self, physical: str) -> None:
        """Allow a name that operator code has chosen, or whose owner it has checked."""
        if self.authorizer is not None:
            self.authorizer.grant(physical)

    async def may_use(self, physical: str) -> bool:
        """Return whether `authorizer` allows a collection; True without `authorizer`.

        Raises:
            AgentMemoryError: Errors of `CollectionAuthorizer.check`, except NotOwned.
        """
        try:
            if self.authorizer is not None:
                await self.authorizer.check(physical)
        except NotOwned:
            return False
        return True


class Servers(Resolver[Link[Server]]):
    """Provides the server of a connection. A rotated Secret is read again when the server refuses the old key.

    Args:
        secrets: Reads keys and certificates.
        open_server: Opens the server of an endpoint.
        cluster_id: Returns the ID of this cluster.
        capacity: Capacity of each server, shared with `Connections`. None creates one that is not shared.
    """

    def __init__(
        self,
        table: ObjectTable,
        secrets: Secrets,
        open_server: Callable[[Endpoint], Server],
        *,
        cluster_id: Callable[[], Awaitable[str]],
        namespaces: Namespaces | None = None,
        capacity: Capacity | None = None,
    ) -> None:
        super().__init__(table, namespaces)
        self._secrets = secrets
        self._open_server = open_server
        self._cluster_id = cluster_id
        self.capacity = capacity or Capacity()
        self._made: dict[tuple[Key, str], set[str]] = {}

    async def use(self, connection: Key, work: Callable[[Server], Awaitable[T]], *, namespace: str) -> T:
        """Run `work` with the server of a connection, restricted to a namespace, and return its result.

        Args:
            work: Called a second time if the server refused the key and the Secret has a new one.
            namespace: Namespace of the object that `work` is done for.

        Raises:
            SpecInvalid: If the connection does not exist, is invalid, or may not be used from this namespace, or if one
                of its Secrets is missing or unusable.
            TransientError: If one of its Secrets or the namespace's labels cannot be read now.
            AgentMemoryError: Errors of `work`.
        """
        document = await self._find_allowed(connection, namespace)
        parsed = self._parse(connection, document)

        async def guarded(server: Server) -> T:
            authorizer = self._reach(connection, namespace, server)
            authorizer.reserve_capacity = partial(self.capacity.for_existing, parsed, server.collections)
            return await work(server.guarded(authorizer))

        return await self._link(connection).use(document, guarded)

    async def survey(self, connection: Key, work: Callable[[Server], Awaitable[T]]) -> T:
        """Run the operator's own work with a whole server, unrestricted, and return its result.

        `work` must not trust any object's fields.

        Args:
            work: Called a second time if the server refused the key and the Secret has a new one.

        Raises:
            SpecInvalid: If the connection does not exist or is invalid, or one of its Secrets is missing or unusable.
            TransientError: If one of its Secrets cannot be read now.
            AgentMemoryError: Errors of `work`.
        """
        return await self._link(connection).use(self._find(connection), work)

    async def sweep(self, connection: Key, work: Callable[[Server], Awaitable[Sequence[str]]], *, kind: str) -> None:
        """Remove leftovers on a whole, unrestricted server. Errors are logged, and the rest is left to the next sweep.

        Args:
            work: Removes them; returns their names.
            kind: Kind of leftovers, for the log.

        Raises:
            LeadershipLost: If this process may no longer write.
        """
        try:
            removed = await self.survey(connection, work)
        except LeadershipLost:
            raise
        except AgentMemoryError as exc:
            log.info("cannot look for %s on %s, retrying later: %s", kind, connection, exc)
        else:
            if removed:
                log.info("%s on %s: removed %s", kind, connection, ", ".join(removed))

    async def check_capacity(self, connection: Key, request: CollectionRequest) -> None:
        """Raise unless a new agent may get a collection. Nothing is reserved.

        Raises:
            ServerFull: If the server has no capacity.
            NamespaceFull: If the namespace has reached its limit of collections.
            AgentMemoryError: Errors of `survey`, if the connection or its server cannot be used.
        """
        parsed = self._parse(connection, self._find(connection))

        async def check(server: Server) -> None:
            async with self.capacity.for_new_agent(parsed, server.collections, request, creates=False):
                pass

        await self.survey(connection, check)

    def _link(self, connection: Key) -> Link[Server]:
        return self._links.setdefault((connection, ""), Link(self._secrets, self._open_server))

    def _reach(self, connection: Key, namespace: str, server: Server) -> CollectionAuthorizer:
        return CollectionAuthorizer(
            namespace=namespace,
            namespace_of=self._table.find_namespace,
            are_claims_complete=lambda: self._table.claims.is_complete,
            ownership=OwnershipReader(server.snapshots.metadata, self._cluster_id, server.collections.target),
            recovered=self._made.setdefault((connection, namespace), set()),
        )

    def forget(self, connection: Key) -> None:
        """Drop the state of a deleted connection. Close its server after the last use."""
        super().forget(connection)
        for tenant_key in [tenant_key for tenant_key in self._made if tenant_key[0] == connection]:
            del self._made[tenant_key]


def connection_of(memory: AgentMemory) -> Key:
    """Return the key of the connection that an AgentMemory refers to."""
    ref = memory.spec.connection_ref
    return Key(QDRANT_CONNECTION, ref.namespace or memory.metadata.namespace, ref.name)
