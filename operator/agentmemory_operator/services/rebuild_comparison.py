"""Compares a rebuild's target with its source while writers go on, as `domain/rebuild_verification.py` says."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agentmemory_operator.domain.carried_vectors import CarriedVectors
from agentmemory_operator.domain.collection import Observed
from agentmemory_operator.domain.divergence import VERSION_KEYS
from agentmemory_operator.domain.rebuild_verification import (
    CHECKED,
    SKEW_MS,
    Behind,
    Counted,
    is_alike,
    judge_counts,
    judge_embeddings,
    judge_missing,
    judge_points,
    judge_settings,
)
from agentmemory_operator.domain.recall_probes import probes_among
from agentmemory_operator.domain.samples import Lots, PointId
from agentmemory_operator.domain.verification import Finding, Verdict
from agentmemory_operator.ports import Embedder, Json
from agentmemory_operator.services.catching_up import carry_all
from agentmemory_operator.services.changes_since import count_changed, count_deleted
from agentmemory_operator.services.rebuild_tasks import Task
from agentmemory_operator.services.walks import Rows, aligned, page_of, rows_of, walk

# Points of a page with their vectors: 64 of 1,536 numbers are some 1.3 MB of text.
SAMPLE_PAGE = 64


@dataclass(slots=True)
class RebuildComparison:
    """One comparison under way.

    Attributes:
        target: as it was seen when it began.
        embedder: of the target's vectors; None where they were copied.
        sources: the points drawn by lot, of the source, with payload and vectors.
        alike: ids that are of one revision in both.
    """

    task: Task
    target: Observed
    embedder: Embedder | None
    sources: list[Json] = field(default_factory=list)
    alike: set[PointId] = field(default_factory=set)

    @property
    def vectors(self) -> CarriedVectors:
        """What vectors may have become."""
        is_embedded = self.embedder is not None
        return CarriedVectors(self.task.source.collection, self.target.collection, is_embedded=is_embedded)

    async def verdict(self) -> Verdict:
        """Return what it comes to.

        Raises:
            TransientError: one of both collections cannot be read, or nothing be embedded, for now.
        """
        findings = [judge_settings(self.target, self.task.desired), await self._missing(), await self._counts()]
        return Verdict((*findings, *await self._contents()))

    async def _missing(self) -> Finding:
        """Walk both collections, and draw the sample on the way; what is behind is carried, and looked for again."""
        behind, lots = Behind(), Lots(self.task.target_name)
        points, page = self.task.server.points, self._page
        names = (self.task.source_name, self.task.target_name)
        async for source, target in aligned(*(walk(points, name, page, keys=VERSION_KEYS) for name in names)):
            await self.task.check()
            lots.offer(behind.take(source, target))
        self.sources = await self._points(self.task.source_name, lots.drawn)
        if not behind.revisions and not behind.extra:
            return judge_missing(behind, (), ())
        await carry_all(self.task)
        left = behind.left(await self._rows(self.task.target_name, behind.revisions))
        gone = await self._rows(self.task.source_name, left)
        extra = await self._rows(self.task.target_name, behind.extra)
        come = await self._rows(self.task.source_name, extra)
        return judge_missing(behind, [id_ for id_ in left if id_ in gone], sorted(extra.keys() - come.keys(), key=str))

    async def _counts(self) -> Finding:
        since_ms = self.task.clock.now_ms() - SKEW_MS
        before = await self._counted(self.task.source_name)
        found = await self._counted(self.task.target_name)
        after = await self._counted(self.task.source_name)
        changed = await count_changed(self.task.server.points, self.task.source_name, since_ms)
        counts = [
            Counted(what=what, before=before[what], after=after[what], found=found[what])
            for what in ("memories", "tombstones")
        ]
        return judge_counts(counts, changed=changed)

    async def _counted(self, name: str) -> Mapping[str, int]:
        living = await self.task.server.collections.count(name)
        return {"memories": living, "tombstones": await count_deleted(self.task.server.points, name, 0)}

    async def _contents(self) -> list[Finding]:
        drawn = [point["id"] for point in self.sources]
        targets = await self._points(self.task.target_name, drawn)
        finding = judge_points(targets, self.sources, self.vectors)
        self.alike = _alike(self.sources, targets)
        return [finding, *await self._embeddings(targets)]

    async def _embeddings(self, targets: Sequence[Json]) -> list[Finding]:
        """Embed a few texts once more; the first that would be searched for."""
        if self.embedder is None:
            return []
        some = probes_among(targets, self.alike, needs_content=True)[:CHECKED]
        embedded = await self.embedder.embed([point["payload"]["content"] for point in some]) if some else []
        return [judge_embeddings(some, embedded, self.vectors)]

    @property
    def _page(self) -> int:
        return page_of(self.task.source.collection, self.target.collection)

    async def _points(self, name: str, ids: Sequence[PointId]) -> list[Json]:
        """Return points with payload and vectors, in the order of their ids."""
        found: dict[PointId, Json] = {}
        for part in _parts(ids, min(SAMPLE_PAGE, self._page)):
            body = {"filter": {"must": [{"has_id": list(part)}]}, "limit": len(part)}
            rows, _ = await self.task.server.points.scroll(name, body | {"with_payload": True, "with_vector": True})
            found |= {row["id"]: row | {"payload": row.get("payload") or {}} for row in rows}
        return [found[id_] for id_ in ids if id_ in found]

    async def _rows(self, name: str, ids: Iterable[PointId]) -> Rows:
        return await rows_of(self.task.server.points, name, ids, self._page, keys=VERSION_KEYS)


def _alike(sources: Sequence[Json], targets: Sequence[Json]) -> set[PointId]:
    by_id = {point["id"]: point["payload"] for point in targets}
    return {point["id"] for point in sources if is_alike(point["payload"], by_id.get(point["id"]))}


def _parts(ids: Sequence[PointId], size: int) -> Iterable[Sequence[PointId]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))
