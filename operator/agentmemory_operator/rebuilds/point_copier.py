"""Copy points from one collection into another, with vectors as the other collection requires.

Payloads are copied unchanged, including `rev` and `updatedAt`, by which both collections are compared. A write never
replaces newer data: missing points are inserted, and existing ones are replaced only by a higher `rev`, or if they have
none. So a step may be repeated, and a write of a delayed process does no harm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, effective_limits
from agentmemory_operator.connections.embedders import WrappedEmbedder
from agentmemory_operator.memories.rules.comparison import PointId, rev_of, vectors_of
from agentmemory_operator.memories.rules.filters import Filter, narrow
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.memories.rules.record import is_emptied
from agentmemory_operator.memories.tombstone_writes import delete_vectors_operation
from agentmemory_operator.ports.base import Json, Vector
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.rebuilds.point_conversion import CopyEnd, PointConverter, payload_of_point
from agentmemory_operator.rebuilds.task import RebuildRun

# Points in a call with vectors. Searches wait while Qdrant stores them, and four times as many are copied no faster.
MAX_COPIED_POINTS = 32
# Points in a call if they are embedded. Fewer would need more calls of the provider, which take most of the time.
MAX_EMBEDDED_POINTS = 128

_BOUNDS = frozenset({"max_query_limit", "upsert_max_batchsize"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCounts:
    """Numbers of points that a call of `PointCopier.update` wrote, by the target's state before the writes.

    Attributes:
        inserted: Number of points that the target lacked.
        replaced: Number of points that the target had with a lower `rev` or none.
    """

    inserted: int = 0
    replaced: int = 0

    def __add__(self, other: "CopyCounts") -> "CopyCounts":
        return CopyCounts(inserted=self.inserted + other.inserted, replaced=self.replaced + other.replaced)

    def __bool__(self) -> bool:
        return self.inserted + self.replaced > 0


class PointCopier:
    """Copies points from `source` to `target`, both on one server.

    `read` returns points of the source. `insert` and `update` write such points to the target.

    Args:
        embedder: Embedder for the target; None to copy the source's vectors.
    """

    def __init__(
        self, points: PointStore, source: CopyEnd, target: CopyEnd, *, embedder: Embedder | None = None
    ) -> None:
        self._points = points
        self._source = source
        self._target = target
        self._reshaping = PointConverter(points, source, target, embedder=embedder)

    @property
    def page(self) -> int:
        """Maximum number of points in a call, within the limits of both collections' strict mode."""
        limits = [effective_limits(side.collection.strict_mode) for side in (self._source, self._target)]
        base = MAX_EMBEDDED_POINTS if self._reshaping.embeds else MAX_COPIED_POINTS
        return int(min([base, *(bound for mode in limits for name, bound in mode.items() if name in _BOUNDS)]))

    async def read(
        self, filter_: Filter | None = None, *, offset: PointId | None = None, limit: int | None = None
    ) -> tuple[list[Json], Any]:
        """Return points of the source for `insert` and `update`, and the offset of the next page or None.

        Args:
            filter_: Points to return; None for all.
            offset: Offset that the last call returned; None for the first page.
            limit: Maximum number, at most `page`. None is `page`.
        """
        body: Json = {"limit": limit or self.page, "with_payload": True, "with_vector": self._reshaping.read_vectors}
        options = {name: value for name, value in (("filter", filter_), ("offset", offset)) if value is not None}
        return await self._points.scroll(self._source.physical, body | options)

    async def insert(self, points: Sequence[Json]) -> None:
        """Write the points that the target lacks. Existing points are not changed.

        Raises:
            RebuildPaused: If a user must fix something before a point can be embedded.
            TransientError: If the points cannot be embedded or written now. Some of them may have been written.
        """
        for chunk in chunks_of(points, self.page):
            # Look up existing points only if the points are embedded: an embedding may cost money, a write only a call.
            missing = await self._missing(chunk) if self._reshaping.embeds else chunk
            if target_points := await self._reshaping.convert(missing, max_points=self.page):
                await self._points.upsert(self._target.physical, target_points, insert_only=True, strong=True)

    async def update(self, points: Sequence[Json], *, before_ms: int | None = None) -> CopyCounts:
        """Write the points that the target lacks, or has with a lower `rev` or none; return their numbers.

        Only points that must be written are embedded.

        Args:
            before_ms: Unix milliseconds. Points that changed in the target since then are not replaced. None for no
                such limit.

        Raises:
            RebuildPaused: If a user must fix something before a point can be embedded.
            TransientError: If the points cannot be embedded or written now. Some of them may have been written.
        """
        counts = CopyCounts()
        for chunk in chunks_of(points, self.page):
            counts += await self._update(chunk, before_ms)
        return counts

    async def _update(self, points: Sequence[Json], before_ms: int | None) -> CopyCounts:
        existing = await self._read_existing(points)
        missing = [point for point in points if point["id"] not in existing]
        outdated = [
            point
            for point in points
            if point["id"] in existing and _is_older(existing[point["id"]], rev_of(payload_of_point(point)), before_ms)
        ]
        for rev, group in _by_rev(await self._reshaping.convert([*missing, *outdated], max_points=self.page)).items():
            await self._replace(group, replaceable_by(rev, before_ms), are_there=bool(outdated))
        return CopyCounts(inserted=len(missing), replaced=len(outdated))

    async def _replace(self, points: Sequence[Json], replaceable: Filter, *, are_there: bool) -> None:
        """Write points. Vectors that they lack are deleted by name, because an upsert may keep them.

        Args:
            replaceable: Existing points that may be replaced.
            are_there: False if none of the points exists, so that there are no vectors to delete.
        """
        tombstones = [point["id"] for point in points if is_emptied(payload_of_point(point))]
        memories = [point for point in points if not is_emptied(payload_of_point(point))]
        operations = [
            {"delete_vectors": {"filter": narrow(replaceable, {"has_id": ids}), "vector": [name]}}
            for name in self._names
            if (ids := [point["id"] for point in memories if name not in point["vector"]])
        ]
        if operations and are_there:
            await self._points.batch(self._target.physical, operations, strong=True)
        # Repeat the check as a filter in Qdrant, because another process may have written since the read.
        await self._points.upsert(self._target.physical, points, update_filter=replaceable, inserts=True, strong=True)
        if tombstones and are_there:
            await self._points.batch(
                self._target.physical, [delete_vectors_operation(self._names, tombstones)], strong=True
            )

    @property
    def _names(self) -> tuple[str, ...]:
        return ("", KEYWORD_VECTOR) if self._target.collection.has_keyword else ("",)

    async def _missing(self, points: Sequence[Json]) -> list[Json]:
        existing = await self._read_existing(points)
        return [point for point in points if point["id"] not in existing]

    async def _read_existing(self, points: Sequence[Json]) -> Mapping[PointId, Mapping[str, Any]]:
        """Return `rev` and `updatedAt` of the points that exist in the target, by id."""
        ids = [point["id"] for point in points]
        rows = await self._points.retrieve(self._target.physical, ids, keys=["rev", "updatedAt"])
        return {row["id"]: payload_of_point(row) for row in rows}


def build_copier(task: RebuildRun, *, embedder: Embedder | None = None) -> PointCopier:
    """Build the copier of a rebuild.

    Args:
        embedder: Embedder to use instead of `task.embedder`; None uses that.
    """
    source, target = ends_of(task)
    return PointCopier(task.server.points, source, target, embedder=embedder or task.embedder)


def ends_of(task: RebuildRun) -> tuple[CopyEnd, CopyEnd]:
    """Return the source and target of a rebuild, the target with its required settings."""
    source = CopyEnd(physical=task.source_name, collection=task.source.collection)
    return source, CopyEnd(physical=task.target_name, collection=task.desired)


def replaceable_by(rev: int, before_ms: int | None = None) -> Filter:
    """Return the filter of points that a revision may replace: with a lower `rev`, or without one.

    Args:
        before_ms: Unix milliseconds. Points that changed since then are excluded; None excludes none.
    """
    bounds = [("rev", rev)] + ([("updatedAt", before_ms)] if before_ms is not None else [])
    return {"must": [{"should": [{"key": key, "range": {"lt": bound}}, _is_missing(key)]} for key, bound in bounds]}


def _is_missing(key: str) -> Filter:
    return {"is_empty": {"key": key}}


def _is_older(existing: Mapping[str, Any], rev: int, before_ms: int | None) -> bool:
    """Return whether a revision may replace an existing point that was read: the condition of `replaceable_by`.

    `rev` is 0 for a point without a revision. Such a point replaces no existing point.
    """
    if rev_of(existing) >= rev:
        return False
    return before_ms is None or existing.get("updatedAt", before_ms - 1) < before_ms


def _by_rev(points: Sequence[Json]) -> Mapping[int, list[Json]]:
    """Group points by revision, because one call can write all points of the same revision."""
    by_rev: dict[int, list[Json]] = {}
    for point in points:
        by_rev.setdefault(rev_of(payload_of_point(point)), []).append(point)
    return by_rev


class VectorReuse(WrappedEmbedder):
    """Implements ports.Embedder: reuses the vectors that `prefetch` has found for a text, and embeds only other texts.

    Args:
        inner: Embedder for the other texts.
        target: Collection with vectors of the same embedder.
    """

    def __init__(self, inner: Embedder, points: PointStore, target: str) -> None:
        super().__init__(inner)
        self._points = points
        self._target = target
        self._cached: Mapping[str, Vector] = {}

    async def prefetch(self, ids: Sequence[PointId]) -> None:
        """Cache the target's vectors of these points by their text. Vectors of earlier calls are dropped."""
        body = {"filter": {"must": [{"has_id": list(ids)}]}, "limit": max(len(ids), 1)}
        found, _ = await self._points.scroll(self._target, body | {"with_payload": ["content"], "with_vector": True})
        vectors = {(point.get("payload") or {}).get("content"): vectors_of(point).get("") for point in found}
        self._cached = {content: vector for content, vector in vectors.items() if content is not None and vector}

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector for each text, in order. Errors of `inner` pass through."""
        new_texts = [text for text in texts if text not in self._cached]
        embedded = dict(zip(new_texts, await self._inner.embed(new_texts), strict=True)) if new_texts else {}
        return [self._cached[text] if text in self._cached else embedded[text] for text in texts]
