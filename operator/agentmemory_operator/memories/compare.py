"""Reads the points of a live collection and of a copy side by side, while writers go on.

What they come to is told in `memories/rules/comparison.py`; what that means, by whoever has a copy to verify.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from agentmemory_operator.memories.point_scan import rows_of, side_by_side
from agentmemory_operator.memories.rules.comparison import (
    VERSION_KEYS,
    Compared,
    Equality,
    Json,
    PointId,
    Rows,
    compare_points,
    is_unchanged,
    score_differences,
)
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.ports.points import PointStore

# Points of a page with their vectors: 64 of 1,536 numbers are some 1.3 MB of text.
SAMPLE_PAGE = 64

LOOKS_AGAIN, LOOK_S = 2, 0.5
"""How often what differs is looked at again before it counts, and the seconds before each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Points with payload and vectors that were compared, each collection's in the order that was asked for."""

    lives: Sequence[Json]
    copies: Sequence[Json]
    compared: Compared


@dataclass(frozen=True, slots=True, kw_only=True)
class PointComparison:
    """Compares the points of two collections of one server.

    Attributes:
        live, copy: names; what is written meanwhile comes to the live one first.
        page: points that a call may ask either for.
    """

    points: PointStore
    live: str
    copy: str
    page: int
    equality: Equality

    def stretches(self, keys: Sequence[str] = ()) -> AsyncIterator[tuple[Rows, Rows]]:
        """Yield all points of the live collection and of the copy, stretch by stretch of ids."""
        return side_by_side(self.points, self.live, self.copy, self.page, keys=keys)

    async def rows(self, collection: str, ids: Iterable[PointId]) -> Rows:
        """The versions of those points that are there; by name, so in whatever order a server lists its own."""
        return await rows_of(self.points, collection, ids, self.page, keys=VERSION_KEYS)

    async def sample(self, ids: Sequence[PointId]) -> Sample:
        """Compare some points; of those that differ, each is read again before it counts."""
        first = await self._once(ids)
        compared = first.compared
        for _ in range(LOOKS_AGAIN):
            if not compared.differing:
                break
            # Each was read once, at two times and maybe from two replicas: only what stays so differs.
            await asyncio.sleep(LOOK_S)
            again = await self._once([id_ for id_, _ in compared.differing])
            compared = compared.reread(again.compared)
        return Sample(lives=first.lives, copies=first.copies, compared=compared)

    async def search(self, sample: Sample, searches: Sequence[Json]) -> set[PointId]:
        """Make searches in both; return the points of a sample that come out differently, though nobody wrote them.

        Raises:
            StoreRejected: the server makes no such search.
        """
        off = await self._unchanged(sample, await self._search(searches))
        for _ in range(LOOKS_AGAIN):
            if not off:
                break
            await asyncio.sleep(LOOK_S)
            off = await self._unchanged(sample, off & await self._search(searches))
        return off

    async def _search(self, searches: Sequence[Json]) -> set[PointId]:
        answers = [await self.points.query_batch(name, searches) for name in (self.copy, self.live)]
        return {id_ for pair in zip(*answers, strict=True) for id_ in score_differences(*pair)}

    async def _unchanged(self, sample: Sample, ids: set[PointId]) -> set[PointId]:
        """Those that nobody wrote between the sample and the search."""
        now = await self.rows(self.live, ids) if ids else {}
        before = {point["id"]: point["payload"] for point in sample.copies if point["id"] in now}
        return {id_ for id_, payload in before.items() if is_unchanged(payload, now[id_])}

    async def _once(self, ids: Sequence[PointId]) -> Sample:
        copies, lives = await self._read(self.copy, ids), await self._read(self.live, ids)
        return Sample(lives=lives, copies=copies, compared=compare_points(copies, lives, self.equality))

    async def _read(self, collection: str, ids: Sequence[PointId]) -> list[Json]:
        found: dict[PointId, Json] = {}
        for part in chunks_of(ids, min(SAMPLE_PAGE, self.page)):
            body = {"filter": {"must": [{"has_id": list(part)}]}, "limit": len(part)}
            rows, _ = await self.points.scroll(collection, body | {"with_payload": True, "with_vector": True})
            found |= {row["id"]: row | {"payload": row.get("payload") or {}} for row in rows}
        return [found[id_] for id_ in ids if id_ in found]
