"""Compare the points of a live collection with those of a copy on the same server, while writers continue.

`memories/rules/comparison.py` defines the differences; the callers decide which of them fail a verification.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from agentmemory_operator.memories.point_scan import read_rows_by_id, walk_pair
from agentmemory_operator.memories.rules.comparison import (
    VERSION_KEYS,
    Equality,
    Json,
    PointId,
    Rows,
    SampleResult,
    compare_points,
    find_score_differences,
    is_unchanged,
)
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.ports.points import PointStore

# Points per page with vectors: 64 vectors of 1,536 numbers are about 1.3 MB of JSON.
SAMPLE_PAGE = 64

CONFIRMING_READS, CONFIRMING_READ_DELAY_S = 2, 0.5
"""Number of repeated reads before a difference counts, and the seconds before each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Points of both collections with payload and vectors, each list in the order of the requested ids."""

    live_points: Sequence[Json]
    copies: Sequence[Json]
    compared: SampleResult


@dataclass(frozen=True, slots=True, kw_only=True)
class PointComparer:
    """Comparison of the points of two collections of one server.

    Attributes:
        live, copy: Names of the collections. Concurrent writes change the live one first.
        page: Maximum number of points per call; `SAMPLE_PAGE` is a further limit for calls that return vectors.
    """

    points: PointStore
    live: str
    copy: str
    page: int
    equality: Equality

    def walk_pair(self, keys: Sequence[str] = ()) -> AsyncIterator[tuple[Rows, Rows]]:
        """Yield all points of the live collection and of the copy, by ranges of ids, with the payload keys `keys`."""
        return walk_pair(self.points, self.live, self.copy, self.page, keys=keys)

    async def read_versions(self, collection: str, ids: Iterable[PointId]) -> Rows:
        """Read revision and time of points (`VERSION_KEYS`) by id; the result lacks ids that do not exist."""
        return await read_rows_by_id(self.points, collection, ids, self.page, keys=VERSION_KEYS)

    async def compare_sample(self, ids: Sequence[PointId]) -> Sample:
        """Compare points by id. A point counts as differing only if two further reads still find a difference."""
        first = await self._once(ids)
        compared = first.compared
        for _ in range(CONFIRMING_READS):
            if not compared.differing:
                break
            # Read again after a delay, because only a persistent difference counts: the two reads of a point are at
            # different times, and maybe from different replicas.
            await asyncio.sleep(CONFIRMING_READ_DELAY_S)
            reread = await self._once([id_ for id_, _ in compared.differing])
            compared = compared.with_second_read(reread.compared)
        return Sample(live_points=first.live_points, copies=first.copies, compared=compared)

    async def compare_searches(self, sample: Sample, searches: Sequence[Json]) -> set[PointId]:
        """Run searches in both collections; return the sampled points that only one finds, or with another score.

        Points written since the sample are omitted. A difference counts only if two further searches confirm it.

        Raises:
            StoreRejected: If the server does not support such a search.
        """
        differing = await self._unchanged(sample, await self._search(searches))
        for _ in range(CONFIRMING_READS):
            if not differing:
                break
            await asyncio.sleep(CONFIRMING_READ_DELAY_S)
            differing = await self._unchanged(sample, differing & await self._search(searches))
        return differing

    async def _search(self, searches: Sequence[Json]) -> set[PointId]:
        results = [await self.points.query_batch(name, searches) for name in (self.copy, self.live)]
        return {id_ for pair in zip(*results, strict=True) for id_ in find_score_differences(*pair)}

    async def _unchanged(self, sample: Sample, ids: set[PointId]) -> set[PointId]:
        """Return those of `ids` whose points are in the copies of the sample and were not written since."""
        live_rows = await self.read_versions(self.live, ids) if ids else {}
        copied = {point["id"]: point["payload"] for point in sample.copies if point["id"] in live_rows}
        return {id_ for id_, payload in copied.items() if is_unchanged(payload, live_rows[id_])}

    async def _once(self, ids: Sequence[PointId]) -> Sample:
        copies, lives = await self._read(self.copy, ids), await self._read(self.live, ids)
        return Sample(live_points=lives, copies=copies, compared=compare_points(copies, lives, self.equality))

    async def _read(self, collection: str, ids: Sequence[PointId]) -> list[Json]:
        found: dict[PointId, Json] = {}
        for part in chunks_of(ids, min(SAMPLE_PAGE, self.page)):
            body = {"filter": {"must": [{"has_id": list(part)}]}, "limit": len(part)}
            rows, _ = await self.points.scroll(collection, body | {"with_payload": True, "with_vector": True})
            found |= {row["id"]: row | {"payload": row.get("payload") or {}} for row in rows}
        return [found[id_] for id_ in ids if id_ in found]
