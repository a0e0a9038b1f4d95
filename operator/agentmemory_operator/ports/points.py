"""Port for the points of Qdrant collections, and the base class of stores that wrap another store."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from agentmemory_operator.ports.base import Json

P = ParamSpec("P")
T = TypeVar("T")


class PointStore(Protocol):
    """Client for the points of one Qdrant server, on the hot path of the retrieval API.

    `collection` is an alias or a physical name. Filters, queries and points are Qdrant's REST bodies.

    Reads raise StoreUnavailable if the server is unavailable. A failed write raises StoreUnavailable if nothing was
    written, or OutcomeUnknown if it may have taken effect. Redirects and 4xx responses raise StoreRejected, except 404,
    408 and 429. A missing collection raises StoreUnavailable, because it may not be created yet. SpecInvalid is raised
    if the egress policy forbids the host.
    """

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""

    async def describe(self, collection: str, /) -> Json:
        """Return `result` of `GET /collections/{collection}`.

        Raises:
            NotFound: If there is no such collection.
        """

    async def query(self, collection: str, body: Json, /) -> list[Json]:
        """Return the scored points of `POST /points/query`, best first."""

    async def query_batch(self, collection: str, bodies: Sequence[Json], /) -> list[list[Json]]:
        """Return the scored points of each query of `POST /points/query/batch`, in order."""

    async def retrieve(
        self, collection: str, ids: Sequence[str], /, *, keys: Sequence[str] | None = None, vectors: bool = False
    ) -> list[Json]:
        """Return the existing points among `ids`, in any order.

        Args:
            keys: Payload keys to return; None returns the whole payload.
            vectors: True also returns the vectors.
        """

    async def scroll(self, collection: str, body: Json, /) -> tuple[list[Json], Any]:
        """Return one page of `POST /points/scroll`, and the offset of the next page, or None at the end."""

    async def count(self, collection: str, filter_: Json | None, /, *, exact: bool = True) -> int:
        """Return the number of points that match a filter; None matches all.

        Args:
            exact: False uses estimates of the server. True is slow if strict mode forbids exact counts: all matching
                points are listed instead.
        """

    async def facet(self, collection: str, key: str, filter_: Json, /, *, limit: int) -> dict[str, int]:
        """Count matching points for each of the `limit` most frequent values of an indexed keyword.

        Slow if strict mode forbids exact counts: all matching points are listed instead.
        """

    async def upsert(
        self,
        collection: str,
        points: Sequence[Json],
        /,
        *,
        insert_only: bool = False,
        update_filter: Json | None = None,
        inserts: bool = False,
        strong: bool = False,
    ) -> None:
        """Write points durably (`wait=true`).

        Args:
            insert_only: True leaves existing points unchanged. The server does not report which: read back.
            update_filter: Only existing points that match this filter are replaced. The server does not report which:
                read back. None replaces every existing point, unless `insert_only` is True.
            inserts: With `update_filter`, True inserts missing points, and False does not. Ignored without it.
            strong: True uses `ordering=strong`, which a compare-and-set needs if there are several replicas.
        """

    async def set_payload(self, collection: str, payload: Json, filter_: Json, /, *, strong: bool = False) -> None:
        """Merge `payload` into every matching point, durably; atomic per point.

        Args:
            strong: True uses `ordering=strong`, which a compare-and-set needs if there are several replicas.
        """

    async def batch(
        self, collection: str, operations: Sequence[Json], /, *, wait: bool = True, strong: bool = False
    ) -> None:
        """Run the operations of `POST /points/batch` in order; not atomic.

        Args:
            wait: False returns before the operations are applied.
            strong: True uses `ordering=strong`, which a compare-and-set needs if there are several replicas.
        """

    async def delete(self, collection: str, filter_: Json, /) -> None:
        """Delete every matching point, durably."""


@dataclass(frozen=True, slots=True)
class PointCall(Generic[T]):
    """Method and arguments of one call of a PointStore. `make` may be called several times, to repeat the call.

    Attributes:
        method: Method of the `PointStore` protocol.
        args: Positional arguments: the collection, then the request, except for `describe`.
        options: Keyword arguments.
    """

    method: Callable[..., Coroutine[Any, Any, T]]
    args: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the method, such as `upsert`."""
        return self.method.__name__

    @property
    def collection(self) -> str:
        """Alias or physical name."""
        return str(self.args[0])

    @property
    def request(self) -> Any:
        """The second argument: body, bodies, ids, filter, key, points, payload or operations.

        `describe` has no second argument: IndexError.
        """
        return self.args[1]

    def with_request(self, request: Any) -> "PointCall[T]":
        """Return the same call with another second argument."""
        return replace(self, args=(self.args[0], request, *self.args[2:]))

    def not_covered_error(self, store: object) -> NotImplementedError:
        """Build the error for a wrapping store that has no rule for this method.

        Forwarding the call to the wrapped store could bypass the checks of the wrapper.
        """
        return NotImplementedError(f"{type(store).__name__} does not cover PointStore.{self.name}")

    def make(self, store: PointStore) -> Coroutine[Any, Any, T]:
        """Return the coroutine that makes the call on a store."""
        coroutine: Coroutine[Any, Any, T] = getattr(store, self.name)(*self.args, **self.options)
        return coroutine


Forwarded = Callable[Concatenate["ForwardingPoints", P], Coroutine[Any, Any, T]]


def _read(method: Callable[Concatenate[PointStore, P], Coroutine[Any, Any, T]]) -> Forwarded[P, T]:
    def forward(store: "ForwardingPoints", /, *args: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
        return store.read(PointCall(method, args, options))

    return forward


def _write(method: Callable[Concatenate[PointStore, P], Coroutine[Any, Any, None]]) -> Forwarded[P, None]:
    def forward(store: "ForwardingPoints", /, *args: P.args, **options: P.kwargs) -> Coroutine[Any, Any, None]:
        return store.write(PointCall(method, args, options))

    return forward


class ForwardingPoints(ABC):
    """Base class that routes every method of a PointStore except `close` through `read` or `write`."""

    describe = _read(PointStore.describe)
    query = _read(PointStore.query)
    query_batch = _read(PointStore.query_batch)
    retrieve = _read(PointStore.retrieve)
    scroll = _read(PointStore.scroll)
    count = _read(PointStore.count)
    facet = _read(PointStore.facet)
    upsert = _write(PointStore.upsert)
    set_payload = _write(PointStore.set_payload)
    batch = _write(PointStore.batch)
    delete = _write(PointStore.delete)

    @abstractmethod
    async def read(self, call: PointCall[T]) -> T:
        """Handle a call of a method that changes nothing; return its result."""

    @abstractmethod
    async def write(self, call: PointCall[None]) -> None:
        """Handle a call of a method that changes points."""
