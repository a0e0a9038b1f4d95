"""Walks over the points of collections: page by page, or two collections side by side, stretch by stretch of ids."""

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

# Points of a page: who searches meanwhile waits for one.
PAGE = 2_000


def page_of(*collections: Collection) -> int:
    """How many points a call of a walk asks for: no more than the strict mode of a collection allows."""
    return min([PAGE, *(limit for collection in collections if (limit := _most(collection)))])


def _most(collection: Collection) -> int | None:
    limits = dict(collection.strict_mode or ())
    most = limits.get("max_query_limit") if limits.get("enabled") else None
    return int(most) if most else None


async def walk(
    points: PointStore, collection: str, page: int, *, keys: Sequence[str] = (), filter_: Filter | None = None
) -> AsyncIterator[Rows]:
    """Yield all points in the server's order, numbers before UUIDs, page by page.

    Args:
        keys: of the payload, what is wanted.
    """
    body: Json = {"limit": page, "with_payload": list(keys) or False, "with_vector": False}
    body |= {"filter": filter_} if filter_ is not None else {}
    while True:
        found, following = await points.scroll(collection, body)
        yield {point["id"]: point.get("payload") or {} for point in found}
        if following is None:
            return
        body = body | {"offset": following}


async def rows_of(
    points: PointStore, collection: str, ids: Iterable[PointId], page: int, *, keys: Sequence[str]
) -> Rows:
    """Those of some points that are there.

    Args:
        page: how many a call asks for.
        keys: of the payload, what is wanted.
    """
    rows = Rows()
    for part in chunks_of(sorted(ids, key=str), page):
        # An adopted collection may have numbers for ids.
        found = await points.retrieve(collection, cast("Sequence[str]", part), keys=keys)
        rows |= {point["id"]: point.get("payload") or {} for point in found}
    return rows


async def side_by_side(
    points: PointStore, one: str, other: str, page: int, *, keys: Sequence[str] = ()
) -> AsyncIterator[tuple[Rows, Rows]]:
    """Yield what two collections have in the same stretch of ids, stretch by stretch; `one` is read first."""
    left, right = (_Walk(walk(points, name, page, keys=keys)) for name in (one, other))
    while await left.fill() | await right.fill():
        # A walk at its end bounds nothing.
        bound = min(each.bound for each in (left, right) if each.rows)
        yield left.take(bound), right.take(bound)


@dataclass(slots=True)
class _Walk:
    pages: AsyncIterator[Rows]
    rows: Rows = field(default_factory=dict)

    @property
    def bound(self) -> tuple[bool, int, str]:
        return max(map(_place, self.rows))

    async def fill(self) -> bool:
        """Read on where nothing is left; tell whether there is anything."""
        while not self.rows:
            page = await anext(self.pages, None)
            if page is None:
                return False
            self.rows = page
        return True

    def take(self, bound: tuple[bool, int, str]) -> Rows:
        taken = {id_: row for id_, row in self.rows.items() if _place(id_) <= bound}
        self.rows = {id_: row for id_, row in self.rows.items() if id_ not in taken}
        return taken


def _place(id_: PointId) -> tuple[bool, int, str]:
    """Where an id stands in the server's order."""
    return (True, 0, id_) if isinstance(id_, str) else (False, id_, "")


MOST_DELETED = 10_000
"""Tombstones that are remembered at once."""

_LATEST_MS = 2**43
"""After the year 2200."""


async def count_changed(points: PointStore, collection: str, since_ms: int) -> int:
    """How many points were changed after a moment, deleted ones included."""
    return await points.count(collection, changed_after(since_ms))


async def count_deleted(points: PointStore, collection: str, since_ms: int) -> int:
    """How many memories were deleted after a moment, of those whose tombstones are there."""
    return await points.count(collection, _after(TOMBSTONE_KEY, since_ms))


async def newest_change(points: PointStore, collection: str) -> int | None:
    """The time of the newest change in a collection to the second, Unix milliseconds; None where none has one.

    By halving: no index is needed, and some thirty counts find it.
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


async def deleted_after(points: PointStore, collection: str, since_ms: int, page: int) -> Rows | None:
    """The tombstones of what was deleted after a moment, each with that time; None where they are too many.

    Args:
        page: how many a call asks for.
    """
    found = Rows()
    async for rows in walk(points, collection, page, keys=[TOMBSTONE_KEY], filter_=_after(TOMBSTONE_KEY, since_ms)):
        found |= rows
        if len(found) > MOST_DELETED:
            return None
    return found


def changed_after(since_ms: int) -> Json:
    """The filter for points that were changed after a moment."""
    return _after("updatedAt", since_ms)


def _after(key: str, since_ms: int) -> Json:
    return {"must": [{"key": key, "range": {"gt": since_ms}}]}
