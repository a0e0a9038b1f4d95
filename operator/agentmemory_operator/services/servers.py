"""Qdrant servers by connection, for work that needs more of a server than one agent's collection."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from agentmemory_operator.domain.manifests import parse_connection
from agentmemory_operator.domain.resources import AgentMemory
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports import CollectionStore, Namespaces, PointStore, Secrets
from agentmemory_operator.ports.snapshots import SnapshotStore
from agentmemory_operator.services.links import Endpoint, Link
from agentmemory_operator.services.objects import QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.services.sharing import Sharing

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Server:
    """Everything of one Qdrant server, under one key.

    Attributes:
        endpoint: how it is reached; its key is never logged.
    """

    endpoint: Endpoint
    collections: CollectionStore
    snapshots: SnapshotStore
    points: PointStore

    async def close(self) -> None:
        """Close the connections."""
        await self.collections.close()
        await self.snapshots.close()
        await self.points.close()


class Servers:
    """Gives the server of a connection; a Secret that was rotated is read anew when the server refuses the old key.

    Args:
        table: the objects as they last came.
        secrets: where keys and certificates are read.
        open_server: opens the server of an endpoint.
        namespaces: where labels are read; None where no namespace has any.
    """

    def __init__(
        self,
        table: ObjectTable,
        secrets: Secrets,
        open_server: Callable[[Endpoint], Server],
        *,
        namespaces: Namespaces | None = None,
    ) -> None:
        self._table = table
        self._secrets = secrets
        self._open_server = open_server
        self._sharing = Sharing(namespaces)
        self._links: dict[Key, Link[Server]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def use(self, connection: Key, work: Callable[[Server], Awaitable[T]], *, namespace: str) -> T:
        """Return what `work` makes of the server of a connection.

        Args:
            work: runs once more if the server refused its key and another one has come.
            namespace: of the object that it is done for.

        Raises:
            SpecInvalid: there is no such connection, it is not for this namespace, or its Secret is missing.
        """
        document = self._table.get(connection)
        if document is None:
            named = f"{connection.namespace}/{connection.name}"
            raise SpecInvalid("ConnectionNotFound", f"there is no QdrantConnection {named}: create it")
        if connection.namespace != namespace:
            await self._sharing.check(parse_connection(document), namespace)
        link = self._links.setdefault(connection, Link(self._secrets, self._open_server))
        return await link.use(document, work)

    def forget(self, connection: Key) -> None:
        """Drop the server of a connection that is gone, after its last use."""
        if link := self._links.pop(connection, None):
            closing = asyncio.get_running_loop().create_task(link.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def connection_of(memory: AgentMemory) -> Key:
    """Return the connection that an AgentMemory names."""
    ref = memory.spec.connection_ref
    return Key(QDRANT_CONNECTION, ref.namespace or memory.metadata.namespace, ref.name)
