"""The point store of each agent's connection, shared by all agents of one connection."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from agentmemory_operator.domain.effective import AgentSettings
from agentmemory_operator.domain.manifests import parse_connection
from agentmemory_operator.domain.resources import QdrantConnection
from agentmemory_operator.errors import SpecInvalid, StoreUnavailable
from agentmemory_operator.ports import Json, Namespaces, PointStore, Secrets
from agentmemory_operator.services.links import Endpoint, Link
from agentmemory_operator.services.objects import QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.services.sharing import Sharing

T = TypeVar("T")


class PointStores:
    """Gives stores by connection, or where each agent has Secrets of its own, by agent.

    Args:
        table: the objects as they last came.
        secrets: where keys and certificates are read: once a change of the connection, and when the server refuses.
        open_store: makes the store of an endpoint.
        namespaces: where labels are read; None where no namespace has any.
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
        self._table = table
        self._secrets = secrets
        self._secrets_of = secrets_of
        self._open_store = open_store
        self._linked: dict[tuple[Key, str], LinkedPoints] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._sharing = Sharing(namespaces)
        self._parsed: dict[Key, tuple[Json, QdrantConnection]] = {}

    async def store_for(self, settings: AgentSettings) -> PointStore:
        """Return the store of the agent's connection: the same one until the connection's spec changes.

        Raises:
            StoreUnavailable: there is no such connection, it is not for this namespace, or its Secret is missing.
        """
        key = Key(QDRANT_CONNECTION, settings.connection_namespace, settings.connection)
        document = self._table.get(key)
        if document is not None and key.namespace != settings.namespace:
            await self._check_shared(key, document, settings.namespace)
        place = key, settings.slug if self._secrets_of else ""
        known = self._linked.get(place)
        if document is not None and known is not None and known.spec == document.get("spec"):
            return await known.opened()
        if known is not None:
            del self._linked[place]
            await known.close()
        if document is None:
            raise StoreUnavailable(f"the QdrantConnection {key.namespace}/{key.name} of this agent does not exist")
        secrets = self._secrets_of(settings.slug) if self._secrets_of else self._secrets
        linked = self._linked.setdefault(place, LinkedPoints(document, Link(secrets, self._open_store)))
        return await linked.opened()

    def capabilities_of(self, settings: AgentSettings) -> frozenset[str]:
        """Return what the server of the agent's connection can do, as the connection's status last said."""
        document = self._table.get(Key(QDRANT_CONNECTION, settings.connection_namespace, settings.connection))
        status = (document or {}).get("status") or {}
        return frozenset(status.get("capabilities") or ())

    def forget(self, slug: str) -> None:
        """Close the stores that an agent has to itself, after their last use."""
        for place in [place for place in self._linked if place[1] == slug]:
            closing = asyncio.get_running_loop().create_task(self._linked.pop(place).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _check_shared(self, key: Key, document: Json, namespace: str) -> None:
        """Pass where the connection is for the namespace; parsed once a change, because every request asks."""
        spec, connection = self._parsed.get(key, (None, None))
        with _unavailable():
            if connection is None or spec != document.get("spec"):
                connection = parse_connection(document)
                self._parsed[key] = document["spec"], connection
            await self._sharing.check(connection, namespace)


class LinkedPoints:
    """Implements ports.PointStore: each call goes to the link's store of the moment.

    A key that was rotated is read anew when the server refuses the old one, and the call is made once more: what is
    refused has changed nothing.
    """

    def __init__(self, document: Json, link: Link[PointStore]) -> None:
        self._document = document
        self._link = link

    @property
    def spec(self) -> Json:
        """The connection's, as it came."""
        spec: Json = self._document["spec"]
        return spec

    async def opened(self) -> Self:
        """Return itself once its Secrets were read.

        Raises:
            StoreUnavailable: they are missing, or the connection is not valid.
        """
        with _unavailable():
            await self._link.open(self._document)
        return self

    async def close(self) -> None:
        """Close the connections after their last use."""
        await self._link.close()

    async def describe(self, collection: str) -> Json:
        """Return `result` of `GET /collections/{collection}`."""
        return await self._use(lambda store: store.describe(collection))

    async def query(self, collection: str, body: Json) -> list[Json]:
        """Return the scored points of `POST /points/query`, best first."""
        return await self._use(lambda store: store.query(collection, body))

    async def query_batch(self, collection: str, bodies: Sequence[Json]) -> list[list[Json]]:
        """Return the scored points of each query of `POST /points/query/batch`, in order."""
        return await self._use(lambda store: store.query_batch(collection, bodies))

    async def retrieve(self, collection: str, ids: Sequence[str], *, keys: Sequence[str] | None = None) -> list[Json]:
        """Return the existing points among `ids` with payload (of it only `keys`), without vector, in any order."""
        return await self._use(lambda store: store.retrieve(collection, ids, keys=keys))

    async def scroll(self, collection: str, body: Json) -> tuple[list[Json], Any]:
        """Return points of `POST /points/scroll` and the next page's offset, None at the end."""
        return await self._use(lambda store: store.scroll(collection, body))

    async def count(self, collection: str, filter_: Json | None, *, exact: bool = True) -> int:
        """Return how many points match."""
        return await self._use(lambda store: store.count(collection, filter_, exact=exact))

    async def facet(self, collection: str, key: str, filter_: Json, *, limit: int) -> dict[str, int]:
        """Return how many points have each value."""
        return await self._use(lambda store: store.facet(collection, key, filter_, limit=limit))

    async def upsert(
        self,
        collection: str,
        points: Sequence[Json],
        *,
        insert_only: bool = False,
        update_filter: Json | None = None,
        inserts: bool = False,
        strong: bool = False,
    ) -> None:
        """Write points durably."""
        await self._use(
            lambda store: store.upsert(
                *(collection, points),
                insert_only=insert_only,
                update_filter=update_filter,
                inserts=inserts,
                strong=strong,
            )
        )

    async def set_payload(self, collection: str, payload: Json, filter_: Json, *, strong: bool = False) -> None:
        """Merge `payload` into every point that matches, durably; atomic per point."""
        await self._use(lambda store: store.set_payload(collection, payload, filter_, strong=strong))

    async def batch(
        self, collection: str, operations: Sequence[Json], *, wait: bool = True, strong: bool = False
    ) -> None:
        """Run operations of `POST /points/batch` in order; not atomic."""
        await self._use(lambda store: store.batch(collection, operations, wait=wait, strong=strong))

    async def delete(self, collection: str, filter_: Json) -> None:
        """Delete every point that matches, durably."""
        await self._use(lambda store: store.delete(collection, filter_))

    async def _use(self, work: Callable[[PointStore], Awaitable[T]]) -> T:
        with _unavailable():
            return await self._link.use(self._document, work)


@contextmanager
def _unavailable() -> Iterator[None]:
    """Turn what only the connection's author can mend into what a caller of the API may be told."""
    try:
        yield
    except SpecInvalid as exc:
        raise StoreUnavailable(f"the connection of this agent cannot be used: {exc}") from exc
