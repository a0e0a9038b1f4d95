"""Walks over the points of collections: page by page, or two collections side by side, stretch by stretch of ids."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from agentmemory_operator.domain.collection import Collection
from agentmemory_operator.domain.filters import Filter
from agentmemory_operator.domain.samples import Json, PointId
from agentmemory_operator.ports import PointStore

# Points of a page: who searches meanwhile waits for one.
PAGE = 2_000

Rows = dict[PointId, Json]
"""Payloads by id, of each what was asked for."""


def page_of(*collections: Collection) -> int:
    """Return how many points a call of a walk asks for: no more than the strict mode of a collection allows."""
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
    """Return those of some points that are there.

    Args:
        page: how many a call asks for.
        keys: of the payload, what is wanted.
    """
    wanted, rows = sorted(ids, key=str), Rows()
    for start in range(0, len(wanted), page):
        # An adopted collection may have numbers for ids.
        part = cast("Sequence[str]", wanted[start : start + page])
        found = await points.retrieve(collection, part, keys=keys)
        rows |= {point["id"]: point.get("payload") or {} for point in found}
    return rows


async def aligned(one: AsyncIterator[Rows], other: AsyncIterator[Rows]) -> AsyncIterator[tuple[Rows, Rows]]:
    """Yield what two walks have in the same stretch of ids, stretch by stretch."""
    left, right = _Walk(one), _Walk(other)
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
    """Return where an id stands in the server's order."""
    return (True, 0, id_) if isinstance(id_, str) else (False, id_, "")
