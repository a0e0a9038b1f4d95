"""From a reference to a QdrantConnection to its server: found, allowed to the namespace, parsed once, linked to.

`Servers` is for work that needs more of a server than one agent's collection. Work for an object gets stores that touch
what its namespace may touch (`connections/reach.py`), whatever its status says.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from agentmemory_operator.connections.capacity import Capacity, CollectionWish
from agentmemory_operator.connections.guarded_stores import guarded_collections, guarded_points, guarded_snapshots
from agentmemory_operator.connections.link import Closable, Endpoint, Link
from agentmemory_operator.connections.reach import Marks, Reach
from agentmemory_operator.connections.rules.allowed_namespaces import asks_labels, check_allowed
from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, NotOwned, SpecInvalid, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.kubernetes import Namespaces, Secrets
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.ports.snapshots import SnapshotStore
from agentmemory_operator.runtime.cache import QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.parse import parse_connection

log = logging.getLogger(__name__)


def connection_missing(named: str) -> SpecInvalid:
    """The error for an object whose connection, NAMESPACE/NAME, does not exist."""
    return SpecInvalid(
        Reason.CONNECTION_NOT_FOUND,
        f"there is no QdrantConnection {named}: create it or use another in spec.connectionRef",
    )


LABELS_S = 30.0
"""For how many seconds labels are believed: one who takes a label away waits as long."""


class Sharing:
    """Decides whether a namespace may use a connection.

    Args:
        namespaces: where labels are read; None where no namespace has any.
    """

    def __init__(self, namespaces: Namespaces | None) -> None:
        self._namespaces = namespaces
        self._labels: dict[str, tuple[float, Mapping[str, str]]] = {}

    async def check(self, connection: QdrantConnection, namespace: str) -> None:
        """Pass where objects of the namespace may refer to the connection.

        Raises:
            SpecInvalid: they may not.
            TransientError: the namespace's labels cannot be read and never were.
        """
        labels = await self._labels_of(namespace) if asks_labels(connection, namespace) else {}
        check_allowed(connection, namespace, labels)

    async def _labels_of(self, namespace: str) -> Mapping[str, str]:
        now = asyncio.get_running_loop().time()
        read_at, labels = self._labels.get(namespace, (None, {}))
        if self._namespaces is None or (read_at is not None and now - read_at < LABELS_S):
            return labels
        try:
            labels = await self._namespaces.labels(namespace)
        except TransientError:
            # Kubernetes' own trouble takes no agent from service.
            if read_at is None:
                raise
        self._labels[namespace] = now, labels
        return labels


L = TypeVar("L", bound=Closable)
T = TypeVar("T")
Place = tuple[Key, str]
"""A connection, and whose Secrets open it: an agent's slug, or nothing where all share its own."""


class Resolver(Generic[L]):
    """Finds connections, and keeps the links to their servers until they are gone.

    Args:
        table: the objects as they last came.
        namespaces: where labels are read; None where no namespace has any.
    """

    def __init__(self, table: ObjectTable, namespaces: Namespaces | None) -> None:
        self._table = table
        self._sharing = Sharing(namespaces)
        self._parsed: dict[Key, tuple[Json, QdrantConnection]] = {}
        self._links: dict[Place, L] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def forget(self, connection: Key) -> None:
        """Drop what is known of a connection that is gone; its links are closed after their last use."""
        self._parsed.pop(connection, None)
        self._drop(*[place for place in self._links if place[0] == connection])

    def _find(self, connection: Key) -> Json:
        document = self._table.get(connection)
        if document is None:
            raise connection_missing(f"{connection.namespace}/{connection.name}")
        return document

    async def _find_allowed(self, connection: Key, namespace: str) -> Json:
        """A connection that objects of the namespace may refer to.

        Raises:
            SpecInvalid: there is none, or it is not for this namespace.
            TransientError: the namespace's labels cannot be read and never were.
        """
        document = self._find(connection)
        if connection.namespace != namespace:
            await self._sharing.check(self._parse(connection, document), namespace)
        return document

    def _parse(self, connection: Key, document: Json) -> QdrantConnection:
        """The connection; a thousand objects ask for the same one."""
        known = self._parsed.get(connection)
        if known is None or known[0] != document.get("spec"):
            parsed = parse_connection(document)
            known = self._parsed[connection] = document["spec"], parsed
        return known[1]

    def _drop(self, *places: Place) -> None:
        """Close links after their last use; one that is not there is no error."""
        for link in [self._links.pop(place) for place in places if place in self._links]:
            closing = asyncio.get_running_loop().create_task(link.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


@dataclass(frozen=True, slots=True)
class Server:
    """Everything of one Qdrant server, under one key.

    Attributes:
        endpoint: how it is reached; its key is never logged.
        reach: what its stores touch; None is everything.
    """

    endpoint: Endpoint
    collections: CollectionStore
    snapshots: SnapshotStore
    points: PointStore
    reach: Reach | None = None

    async def close(self) -> None:
        """Close the connections."""
        await self.collections.close()
        await self.snapshots.close()
        await self.points.close()

    def guarded(self, reach: Reach) -> "Server":
        """The server whose stores touch no more than that."""
        return replace(
            self,
            collections=guarded_collections(self.collections, reach),
            snapshots=guarded_snapshots(self.snapshots, reach),
            points=guarded_points(self.points, reach),
            reach=reach,
        )

    def grant(self, physical: str) -> None:
        """Let a name be used that the operator's own code has chosen, or whose owner it has judged itself."""
        if self.reach is not None:
            self.reach.grant(physical)

    async def may_use(self, physical: str) -> bool:
        """Whether a collection may be used."""
        try:
            if self.reach is not None:
                await self.reach.check(physical)
        except NotOwned:
            return False
        return True


class Servers(Resolver[Link[Server]]):
    """Gives the server of a connection; a Secret that was rotated is read again when the server refuses the old key.

    Args:
        secrets: where keys and certificates are read.
        open_server: opens the server of an endpoint.
        cluster_id: asks which cluster this is.
        capacity: what room there is on each server; None begins to know it.
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
        """What `work` makes of the server of a connection, of which it touches what the namespace may.

        Args:
            work: runs once more if the server refused its key and another one has come.
            namespace: of the object that it is done for.

        Raises:
            SpecInvalid: there is no such connection, it is not for this namespace, or its Secret is missing.
        """
        document = await self._find_allowed(connection, namespace)
        parsed = self._parse(connection, document)

        async def guarded(server: Server) -> T:
            reach = self._reach(connection, namespace, server)
            reach.making = partial(self.capacity.for_existing, parsed, server.collections)
            return await work(server.guarded(reach))

        return await self._link(connection).use(document, guarded)

    async def survey(self, connection: Key, work: Callable[[Server], Awaitable[T]]) -> T:
        """What the operator's own work makes of a whole server; nothing that it does goes by an object.

        Args:
            work: as of `use`.

        Raises:
            SpecInvalid: there is no such connection, or its Secret is missing.
        """
        return await self._link(connection).use(self._find(connection), work)

    async def sweep(self, connection: Key, work: Callable[[Server], Awaitable[Sequence[str]]], *, what: str) -> None:
        """Remove what is left over on a whole server; one that is away is swept another time.

        Args:
            work: removes it; the names of what it has removed.
            what: it is, for the log.
        """
        try:
            removed = await self.survey(connection, work)
        except LeadershipLost:
            raise
        except AgentMemoryError as exc:
            log.info("cannot look for %s on %s, retrying later: %s", what, connection, exc)
        else:
            if removed:
                log.info("%s on %s: removed %s", what, connection, ", ".join(removed))

    async def check_room(self, connection: Key, wish: CollectionWish) -> None:
        """Pass where a new agent may get a collection; raises as `Capacity.for_new_agent`."""
        parsed = self._parse(connection, self._find(connection))

        async def look(whole: Server) -> None:
            async with self.capacity.for_new_agent(parsed, whole.collections, wish):
                pass

        await self.survey(connection, look)

    def _link(self, connection: Key) -> Link[Server]:
        return self._links.setdefault((connection, ""), Link(self._secrets, self._open_server))

    def _reach(self, connection: Key, namespace: str, server: Server) -> Reach:
        return Reach(
            namespace=namespace,
            namespace_of=self._table.namespace_of,
            is_settled=lambda: self._table.claims.is_complete,
            marks=Marks(server.snapshots.metadata, self._cluster_id, server.collections.target),
            made=self._made.setdefault((connection, namespace), set()),
        )

    def forget(self, connection: Key) -> None:
        """Drop what is known of a connection that is gone; its server is closed after its last use."""
        super().forget(connection)
        for place in [place for place in self._made if place[0] == connection]:
            del self._made[place]


def connection_of(memory: AgentMemory) -> Key:
    """The connection that an AgentMemory names."""
    ref = memory.spec.connection_ref
    return Key(QDRANT_CONNECTION, ref.namespace or memory.metadata.namespace, ref.name)
