"""Carries points from one collection into another, as the other one's vectors are made.

Payloads go as they are, `rev` and `updatedAt` too: by them both sides are compared. Nothing is written that could take
back something newer: what is missing is inserted, what is there gives way to a higher `rev` only. So a step that is
done twice, or late by a process that slept, does no harm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, limits_in_force
from agentmemory_operator.connections.embedders import WrappedEmbedder
from agentmemory_operator.memories.rules.comparison import PointId, rev_of, vectors_of
from agentmemory_operator.memories.rules.filters import Filter, both
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.memories.rules.record import is_emptied
from agentmemory_operator.memories.tombstone_writes import emptying
from agentmemory_operator.ports.base import Json, Vector
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.rebuilds.reshape import Reshaping, Side, payload_of_point
from agentmemory_operator.rebuilds.task import RebuildRun

# Points of one call with their vectors: searches wait while they are taken in, and four times as many copy no faster.
PAGE = 32
# Points that are embedded together: fewer would be more calls of the provider, which takes most of the time.
EMBEDDED_PAGE = 128

_BOUNDS = frozenset({"max_query_limit", "upsert_max_batchsize"})


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

    def __init__(self, points: PointStore, source: Side, target: Side, *, embedder: Embedder | None = None) -> None:
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
        """Points of the source as `insert` and `update` take them, and the next page's offset, None at the end.

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
        for part in chunks_of(points, self.page):
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
        for part in chunks_of(points, self.page):
            carried += await self._update(part, before_ms)
        return carried

    async def _update(self, points: Sequence[Json], before_ms: int | None) -> Carried:
        there = await self._there(points)
        missing = [point for point in points if point["id"] not in there]
        newer = [
            point
            for point in points
            if point["id"] in there and _gives_way(there[point["id"]], rev_of(payload_of_point(point)), before_ms)
        ]
        for rev, same in _by_rev(await self._reshaping.made([*missing, *newer], most=self.page)).items():
            await self._replace(same, older_than(rev, before_ms), are_there=bool(newer))
        return Carried(inserted=len(missing), replaced=len(newer))

    async def _replace(self, made: Sequence[Json], gives_way: Filter, *, are_there: bool) -> None:
        """Write points; vectors that they leave out are deleted by name, because an upsert may keep them."""
        tombstones = [point["id"] for point in made if is_emptied(payload_of_point(point))]
        living = [point for point in made if not is_emptied(payload_of_point(point))]
        operations = [
            {"delete_vectors": {"filter": both(gives_way, {"has_id": ids}), "vector": [name]}}
            for name in self._names
            if (ids := [point["id"] for point in living if name not in point["vector"]])
        ]
        if operations and are_there:
            await self._points.batch(self._target.physical, operations, strong=True)
        # The engine looks once more: somebody may have written since.
        await self._points.upsert(self._target.physical, made, update_filter=gives_way, inserts=True, strong=True)
        if tombstones and are_there:
            await self._points.batch(self._target.physical, [emptying(self._names, tombstones)], strong=True)

    @property
    def _names(self) -> tuple[str, ...]:
        return ("", KEYWORD_VECTOR) if self._target.collection.has_keyword else ("",)

    async def _missing(self, points: Sequence[Json]) -> list[Json]:
        there = await self._there(points)
        return [point for point in points if point["id"] not in there]

    async def _there(self, points: Sequence[Json]) -> Mapping[PointId, Mapping[str, Any]]:
        """What of the target's points decides whether they give way, by id."""
        ids = [point["id"] for point in points]
        rows = await self._points.retrieve(self._target.physical, ids, keys=["rev", "updatedAt"])
        return {row["id"]: payload_of_point(row) for row in rows}


def carrying_of(task: RebuildRun, *, embedder: Embedder | None = None) -> Carrying:
    """What carries points of a rebuild.

    Args:
        embedder: in the place of the task's.
    """
    source, target = ends_of(task)
    return Carrying(task.server.points, source, target, embedder=embedder or task.embedder)


def ends_of(task: RebuildRun) -> tuple[Side, Side]:
    """A rebuild's source and target."""
    source = Side(physical=task.source_name, collection=task.source.collection)
    return source, Side(physical=task.target_name, collection=task.desired)


def older_than(rev: int, before_ms: int | None = None) -> Filter:
    """The filter of what gives way to a revision.

    Args:
        before_ms: Unix milliseconds; what was changed since then does not.
    """
    bounds = [("rev", rev)] + ([("updatedAt", before_ms)] if before_ms is not None else [])
    return {"must": [{"should": [{"key": key, "range": {"lt": bound}}, _lacks(key)]} for key, bound in bounds]}


def _lacks(key: str) -> Filter:
    return {"is_empty": {"key": key}}


def _gives_way(there: Mapping[str, Any], rev: int, before_ms: int | None) -> bool:
    """Tell what `older_than` tells the engine, and that what has no revision replaces nothing."""
    if rev_of(there) >= rev:
        return False
    return before_ms is None or there.get("updatedAt", before_ms - 1) < before_ms


def _by_rev(points: Sequence[Json]) -> Mapping[int, list[Json]]:
    """Points by revision: one filter serves all of one."""
    by_rev: dict[int, list[Json]] = {}
    for point in points:
        by_rev.setdefault(rev_of(payload_of_point(point)), []).append(point)
    return by_rev


class KeptVectors(WrappedEmbedder):
    """Implements ports.Embedder by what the target has of the same contents, else by another one.

    Args:
        target: a collection whose vectors are the other embedder's.
    """

    def __init__(self, inner: Embedder, points: PointStore, target: str) -> None:
        super().__init__(inner)
        self._points = points
        self._target = target
        self._kept: Mapping[str, Vector] = {}

    async def look_up(self, ids: Sequence[PointId]) -> None:
        """Remember the vectors of these points, and forget the others."""
        body = {"filter": {"must": [{"has_id": list(ids)}]}, "limit": max(len(ids), 1)}
        found, _ = await self._points.scroll(self._target, body | {"with_payload": ["content"], "with_vector": True})
        vectors = {(point.get("payload") or {}).get("content"): vectors_of(point).get("") for point in found}
        self._kept = {content: vector for content, vector in vectors.items() if content is not None and vector}

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One vector a text, in order."""
        new = [text for text in texts if text not in self._kept]
        made = dict(zip(new, await self._inner.embed(new), strict=True)) if new else {}
        return [self._kept[text] if text in self._kept else made[text] for text in texts]
