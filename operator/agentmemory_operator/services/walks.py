"""Walks two collections side by side by the ids of their points, page by page, while writers go on."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from agentmemory_operator.domain.collection import Collection
from agentmemory_operator.domain.limits import limits_in_force
from agentmemory_operator.domain.samples import PointId
from agentmemory_operator.ports import Json, PointStore

PAGE = 10_000
"""Ids of a page; a million points are a hundred calls of some 20 ms."""

Rows = dict[PointId, Json]
"""Payloads by id, of them what was asked for."""


def page_of(*collections: Collection) -> int:
    """Return how many ids a page may have by the strict mode of the collections."""
    limits = [limits_in_force(collection.strict_mode) for collection in collections]
    return min([PAGE, *(int(limit["max_query_limit"]) for limit in limits if limit.get("max_query_limit"))])


async def pages(points: PointStore, collection: str, page: int, *, keys: Sequence[str] = ()) -> AsyncIterator[Rows]:
    """Yield all points in the server's order: numbers, then UUIDs."""
    body: Json = {"limit": page, "with_payload": list(keys) or False, "with_vector": False}
    while True:
        rows, following = await points.scroll(collection, body)
        yield {row["id"]: row.get("payload") or {} for row in rows}
        if following is None:
            return
        body = body | {"offset": following}


async def aligned(one: AsyncIterator[Rows], other: AsyncIterator[Rows]) -> AsyncIterator[tuple[Rows, Rows]]:
    """Yield what two walks have in the same stretch of ids, stretch by stretch."""
    left, right = _Walk(one), _Walk(other)
    while await left.fill() | await right.fill():
        bound = min(walk.bound for walk in (left, right) if walk.rows)
        # A walk at its end bounds nothing.
        yield left.take(bound), right.take(bound)


@dataclass(slots=True)
class _Walk:
    pages: AsyncIterator[Rows]
    rows: Rows = field(default_factory=dict)

    @property
    def bound(self) -> tuple[bool, int, str]:
        return _place(next(reversed(self.rows)))

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
