"""Carries points from one collection into another, as the other one's vectors are made.

Payloads go as they are, `rev` and `updatedAt` too: by them both sides are compared. Nothing is written that could take
back something newer: what is missing is inserted, what is there gives way to a higher `rev` only. So a step that is
done twice, or late by a process that slept, does no harm.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.domain.filters import Filter
from agentmemory_operator.domain.limits import limits_in_force
from agentmemory_operator.ports import Embedder, Json, PointStore
from agentmemory_operator.services.rebuild_tasks import Task
from agentmemory_operator.services.reshaping import End, PointId, Reshaping, payload_of_point

# Points of one call with their vectors: searches wait while they are taken in, and four times as many copy no faster.
PAGE = 32
# Points that are embedded together: fewer would be more calls of the provider, which takes most of the time.
EMBEDDED_PAGE = 128

_BOUNDS = frozenset({"max_query_limit", "upsert_max_batchsize"})
# Stands for the revision of what none of our writers wrote; theirs begin at 1.
_NO_REV = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What a call of `update` found to be done, and did.

    Attributes:
        inserted: points that the target lacked.
        replaced: points whose `rev` in the target was lower.
    """

    inserted: int = 0
    replaced: int = 0

    def __add__(self, other: "Carried") -> "Carried":
        return Carried(inserted=self.inserted + other.inserted, replaced=self.replaced + other.replaced)

    def __bool__(self) -> bool:
        return self.inserted + self.replaced > 0


class Carrying:
    """Carries points of `source` into `target`, both of one server.

    Args:
        embedder: of the target's vectors; None where they are the source's own, which are copied.
    """

    def __init__(self, points: PointStore, source: End, target: End, *, embedder: Embedder | None = None) -> None:
        self._points = points
        self._source = source
        self._target = target
        self._reshaping = Reshaping(points, source, target, embedder=embedder)

    @property
    def page(self) -> int:
        """How many points a call reads or writes at most; no more than the strict mode of either collection lets it."""
        limits = [limits_in_force(end.collection.strict_mode) for end in (self._source, self._target)]
        most = EMBEDDED_PAGE if self._reshaping.embeds else PAGE
        return int(min([most, *(bound for each in limits for name, bound in each.items() if name in _BOUNDS)]))

    async def read(
        self, filter_: Filter | None = None, *, offset: PointId | None = None, limit: int | None = None
    ) -> tuple[list[Json], Any]:
        """Return points of the source as `insert` and `update` take them, and the next page's offset, None at the end.

        Args:
            limit: how many, at most `page`; None is `page`.
        """
        body: Json = {"limit": limit or self.page, "with_payload": True, "with_vector": self._reshaping.read_vectors}
        asked = {name: value for name, value in (("filter", filter_), ("offset", offset)) if value is not None}
        return await self._points.scroll(self._source.physical, body | asked)

    async def insert(self, points: Sequence[Json]) -> None:
        """Write the points that the target lacks.

        Raises:
            RebuildPaused: a point cannot be embedded before somebody has mended something.
            EmbedderUnavailable: they cannot be embedded for now.
        """
        for part in self._parts(points):
            # To write what is there already costs nothing but a call; to embed it may cost money.
            missing = await self._missing(part) if self._reshaping.embeds else part
            if made := await self._reshaping.made(missing, most=self.page):
                await self._points.upsert(self._target.physical, made, insert_only=True, strong=True)

    async def update(self, points: Sequence[Json], *, before_ms: int | None = None) -> Carried:
        """Write the points that the target lacks, or has with a lower `rev` or none.

        Nothing is embedded but what has to be written.

        Args:
            before_ms: Unix milliseconds; what was changed in the target since then stays as it is.

        Raises:
            RebuildPaused: a point cannot be embedded before somebody has mended something.
            EmbedderUnavailable: they cannot be embedded for now.
        """
        carried = Carried()
        for part in self._parts(points):
            carried += await self._update(part, before_ms)
        return carried

    async def _update(self, points: Sequence[Json], before_ms: int | None) -> Carried:
        there = await self._there(points)
        missing = [point for point in points if point["id"] not in there]
        newer = [
            point for point in points if point["id"] in there and _gives_way(there[point["id"]], _rev(point), before_ms)
        ]
        for rev, same in _by_rev(await self._reshaping.made([*missing, *newer], most=self.page)).items():
            # The engine looks once more: somebody may have written since.
            await self._points.upsert(
                self._target.physical, same, update_filter=older_than(rev, before_ms), inserts=True, strong=True
            )
        return Carried(inserted=len(missing), replaced=len(newer))

    async def _missing(self, points: Sequence[Json]) -> list[Json]:
        there = await self._there(points)
        return [point for point in points if point["id"] not in there]

    async def _there(self, points: Sequence[Json]) -> Mapping[PointId, Mapping[str, Any]]:
        """Return what of the target's points decides whether they give way, by id."""
        ids = [point["id"] for point in points]
        rows = await self._points.retrieve(self._target.physical, ids, keys=["rev", "updatedAt"])
        return {row["id"]: payload_of_point(row) for row in rows}

    def _parts(self, points: Sequence[Json]) -> Iterator[Sequence[Json]]:
        size = self.page
        return (points[start : start + size] for start in range(0, len(points), size))


def carrying_of(task: Task, *, embedder: Embedder | None = None) -> Carrying:
    """Return what carries points of a rebuild.

    Args:
        embedder: in the place of the task's.
    """
    source, target = ends_of(task)
    return Carrying(task.server.points, source, target, embedder=embedder or task.embedder)


def ends_of(task: Task) -> tuple[End, End]:
    """Return a rebuild's source and target."""
    source = End(physical=task.source_name, collection=task.source.collection)
    return source, End(physical=task.target_name, collection=task.desired)


def older_than(rev: int, before_ms: int | None = None) -> Filter:
    """Return the filter of what gives way to a revision.

    Args:
        before_ms: Unix milliseconds; what was changed since then does not.
    """
    bounds = [("rev", rev)] + ([("updatedAt", before_ms)] if before_ms is not None else [])
    return {"must": [{"should": [{"key": key, "range": {"lt": bound}}, _lacks(key)]} for key, bound in bounds]}


def _lacks(key: str) -> Filter:
    return {"is_empty": {"key": key}}


def _gives_way(there: Mapping[str, Any], rev: int, before_ms: int | None) -> bool:
    """Tell what `older_than` tells the engine, and that what has no revision replaces nothing."""
    if there.get("rev", _NO_REV) >= rev:
        return False
    return before_ms is None or there.get("updatedAt", before_ms - 1) < before_ms


def _rev(point: Json) -> int:
    rev: int = payload_of_point(point).get("rev", _NO_REV)
    return rev


def _by_rev(points: Sequence[Json]) -> Mapping[int, list[Json]]:
    """Return points by revision: one filter serves all of one."""
    by_rev: dict[int, list[Json]] = {}
    for point in points:
        by_rev.setdefault(_rev(point), []).append(point)
    return by_rev
