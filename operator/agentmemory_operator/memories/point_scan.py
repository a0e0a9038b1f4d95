"""Walk all points of a collection page by page, or two collections in step by ranges of ids.

Also read points by id, and count or find those that were changed or deleted after a time.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.memories.rules.comparison import PointId, Rows
from agentmemory_operator.memories.rules.filters import Filter
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.points import PointStore

# Points per page. Concurrent searches wait for one page.
PAGE = 2_000


def page_size(*collections: Collection) -> int:
    """Return the page size for a walk over all these collections, at most their strict mode limits."""
    return min([PAGE, *(limit for collection in collections if (limit := _max_query_limit(collection)))])


def _max_query_limit(collection: Collection) -> int | None:
    limits = dict(collection.strict_mode or ())
    limit = limits.get("max_query_limit") if limits.get("enabled") else None
    return int(limit) if limit else None


async def walk(
    points: PointStore, collection: str, page: int, *, keys: Sequence[str] = (), filter_: Filter | None = None
) -> AsyncIterator[Rows]:
    """Yield all points in the server's order, numbers before UUIDs, page by page.

    Args:
        page: Number of points per page.
        keys: Payload keys to read; () reads no payload.
        filter_: Filter of the points; None yields all.
    """
    body: Json = {"limit": page, "with_payload": list(keys) or False, "with_vector": False}
    body |= {"filter": filter_} if filter_ is not None else {}
    while True:
        found, following = await points.scroll(collection, body)
        yield {point["id"]: point.get("payload") or {} for point in found}
        if following is None:
            return
        body = body | {"offset": following}


async def read_rows_by_id(
    points: PointStore, collection: str, ids: Iterable[PointId], page: int, *, keys: Sequence[str]
) -> Rows:
    """Read the payloads of points by id; the result lacks ids that do not exist.

    Args:
        page: Number of points per call.
        keys: Payload keys to read.
    """
    rows = Rows()
    for part in chunks_of(sorted(ids, key=str), page):
        # Cast, because a collection that another tool created may have numeric ids.
        found = await points.retrieve(collection, cast("Sequence[str]", part), keys=keys)
        rows |= {point["id"]: point.get("payload") or {} for point in found}
    return rows


async def walk_pair(
    points: PointStore, first: str, second: str, page: int, *, keys: Sequence[str] = ()
) -> AsyncIterator[tuple[Rows, Rows]]:
    """Yield the rows of two collections in pairs. Both parts of a pair cover the same range of ids completely.

    The first page of `first` is read before that of `second`.
    """
    left, right = (_Walk(walk(points, name, page, keys=keys)) for name in (first, second))
    while await left.fill() | await right.fill():
        # Ignore an exhausted walk, which sets no bound.
        bound = min(side.bound for side in (left, right) if side.rows)
        yield left.take(bound), right.take(bound)


@dataclass(slots=True)
class _Walk:
    pages: AsyncIterator[Rows]
    rows: Rows = field(default_factory=dict)

    @property
    def bound(self) -> tuple[bool, int, str]:
        return max(map(_place, self.rows))

    async def fill(self) -> bool:
        """Read the next page if no rows remain; return whether there are rows."""
        while not self.rows:
            page = await anext(self.pages, None)
            if page is None:
                return False
            self.rows = page
        return True

    def take(self, bound: tuple[bool, int, str]) -> Rows:
        rows = {id_: row for id_, row in self.rows.items() if _place(id_) <= bound}
        self.rows = {id_: row for id_, row in self.rows.items() if id_ not in rows}
        return rows


def _place(id_: PointId) -> tuple[bool, int, str]:
    """Return the sort key of an id in the server's order."""
    return (True, 0, id_) if isinstance(id_, str) else (False, id_, "")


MAX_DELETED = 10_000
"""Maximum number of tombstones returned by `read_deleted_after`."""

_LATEST_MS = 2**43
"""Upper bound of the binary search, after the year 2200."""


async def count_changed(points: PointStore, collection: str, since_ms: int) -> int:
    """Return how many points have an `updatedAt` after a time, including tombstones."""
    return await points.count(collection, changed_after_filter(since_ms))


async def count_deleted(points: PointStore, collection: str, since_ms: int) -> int:
    """Return how many tombstones of memories deleted after a time are stored."""
    return await points.count(collection, _after(TOMBSTONE_KEY, since_ms))


async def find_newest_change(points: PointStore, collection: str) -> int | None:
    """Return the time of the newest change, rounded up to a full second, in Unix milliseconds.

    None if no point has `updatedAt`. A binary search by counts takes about thirty requests, and needs no index.
    """
    if not await count_changed(points, collection, 0):
        return None
    low, high = 0, _LATEST_MS // 1000
    while low < high:
        middle = (low + high) // 2
        if await count_changed(points, collection, middle * 1000):
            low = middle + 1
        else:
            high = middle
    return low * 1000


async def read_deleted_after(points: PointStore, collection: str, since_ms: int, page: int) -> Rows | None:
    """Return the tombstones of deletions after a time, with `deletedAt`; None if there are more than `MAX_DELETED`.

    Args:
        page: Number of points per call.
    """
    found = Rows()
    async for rows in walk(points, collection, page, keys=[TOMBSTONE_KEY], filter_=_after(TOMBSTONE_KEY, since_ms)):
        found |= rows
        if len(found) > MAX_DELETED:
            return None
    return found


def changed_after_filter(since_ms: int) -> Json:
    """Return the filter for points with an `updatedAt` after a time, including tombstones."""
    return _after("updatedAt", since_ms)


def _after(key: str, since_ms: int) -> Json:
    return {"must": [{"key": key, "range": {"gt": since_ms}}]}
