"""Step Verify: compare a target with its source while writers continue, and compare their search results.

`rebuilds/rules/target_verdict.py` defines the checks, `rebuilds/rules/recall_probes.py` the recall. If the recall drops
by more than the object allows, the move waits for an approval.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentmemory_operator.collections.rules.collection import Observation
from agentmemory_operator.collections.rules.rebuild_record import ProbeRecall, RebuildKind, RebuildRecord
from agentmemory_operator.errors import RebuildAwaitsApproval, SpecInvalid
from agentmemory_operator.memories.point_comparer import PointComparer
from agentmemory_operator.memories.point_scan import changed_after_filter, count_changed, count_deleted, page_size, walk
from agentmemory_operator.memories.rules.comparison import VERSION_KEYS, BottomKSample, PointId, Rows, is_alike
from agentmemory_operator.memories.rules.findings import CheckFinding, VerificationVerdict, judge_missing, judge_sample
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.catch_up import catch_up, copy_differences, max_write_delay_ms
from agentmemory_operator.rebuilds.converge import observe_target
from agentmemory_operator.rebuilds.copy import build_budgeted_embedder
from agentmemory_operator.rebuilds.probe import RecallMeasurement
from agentmemory_operator.rebuilds.rules.recall_probes import (
    approval_value,
    choose_probes,
    describe_recall,
    find_blocking_drop,
    withheld_message,
)
from agentmemory_operator.rebuilds.rules.target_verdict import (
    MAX_CHECKED_TEXTS,
    MAX_RECORDED_POINTS,
    CopyGaps,
    PointCounts,
    build_equality,
    judge_counts,
    judge_embeddings,
    judge_settings,
)
from agentmemory_operator.rebuilds.rules.vector_tolerance import VectorTolerance
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.effective.policies import rebuild_settings
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_PLAN
from agentmemory_operator.spec.kinds.conditions import Reason


@dataclass(slots=True)
class RebuildComparison:
    """One comparison of a rebuild's target with its source.

    Attributes:
        target: Target as observed at the start.
        embedder: Embedder of the target's vectors; None if they were copied.
        pair: Compares the source's points (live) with the target's (copy).
        sampler: Draws a sample of the points that are alike in both.
        sources: Sampled points of the source, with payload and vectors; set by `run_checks`.
        alike: Ids of sampled points with the same revision in both collections; set by `run_checks`.
    """

    task: RebuildRun
    target: Observation
    embedder: Embedder | None
    vectors: VectorTolerance = field(init=False)
    pair: PointComparer = field(init=False)
    sampler: BottomKSample = field(init=False)
    sources: Sequence[Json] = ()
    alike: set[PointId] = field(default_factory=set)

    def __post_init__(self) -> None:
        task, collections = self.task, (self.task.source.collection, self.target.collection)
        self.vectors = VectorTolerance(*collections, is_embedded=self.embedder is not None)
        self.pair = PointComparer(
            points=task.server.points,
            live=task.source_name,
            copy=task.target_name,
            page=page_size(*collections),
            equality=build_equality(self.vectors),
        )
        self.sampler = BottomKSample(task.target_name)

    async def run_checks(self) -> VerificationVerdict:
        """Run all checks; return the verdict.

        Raises:
            RebuildPaused: If the rebuild is paused, or the embedding provider rejects key or model.
            RebuildCancelled: If the rebuild is no longer requested.
            RequestInvalid: If the embedding provider rejects a text.
            TransientError: If a collection cannot be read, or texts cannot be embedded, now.
        """
        since_ms = self.task.clock.now_ms() - max_write_delay_ms(self.task)
        recent, before = await self._read_recent(since_ms), await self._count_points(self.task.source_name)
        findings = [judge_settings(self.target, self.task.desired), await self._missing()]
        found, after = await self._count_points(self.task.target_name), await self._count_points(self.task.source_name)
        counts = [
            PointCounts(kind=kind, before=before[kind], after=after[kind], found=found[kind])
            for kind in ("memories", "tombstones")
        ]
        findings.append(judge_counts(counts, changed=await self._count_changed(recent, since_ms)))
        return VerificationVerdict((*findings, *await self._compare_contents()))

    async def _read_recent(self, since_ms: int) -> Rows | None:
        """Return the versions of the source's points that changed since a time; None if there are over 100,000."""
        recent = Rows()
        filter_ = changed_after_filter(since_ms)
        source, points = self.task.source_name, self.task.server.points
        async for rows in walk(points, source, self.pair.page, keys=VERSION_KEYS, filter_=filter_):
            recent |= rows
            if len(recent) > MAX_RECORDED_POINTS:
                return None
        return recent

    async def _count_changed(self, before: Rows | None, since_ms: int) -> int:
        """Return the number of the source's points that were written since `before` was read.

        Points written shortly before that read are in both reads with equal versions, and are not counted. If there
        were too many to read, all points written since `since_ms` are counted.
        """
        now = None if before is None else await self._read_recent(since_ms)
        if before is None or now is None:
            return await count_changed(self.task.server.points, self.task.source_name, since_ms)
        return sum(before.get(id_) != now.get(id_) for id_ in before.keys() | now.keys())

    async def _missing(self) -> CheckFinding:
        """Walk both collections to find missing and surplus points, and draw the sample; return the finding.

        If there are differences, `copy_differences` corrects the target, and the points concerned are checked again.
        """
        gaps, pair = CopyGaps(), self.pair
        async for source, target in pair.walk_pair(VERSION_KEYS):
            await self.task.check()
            self.sampler.add(gaps.record(source, target))
        if not gaps.revisions and not gaps.extra:
            return judge_missing(gaps.common, {})
        await copy_differences(self.task, embedder=self.embedder)
        remaining = gaps.find_remaining(await pair.read_versions(pair.copy, gaps.revisions))
        existing = await pair.read_versions(pair.live, remaining)
        extra = await pair.read_versions(pair.copy, gaps.extra)
        now_existing = await pair.read_versions(pair.live, extra)
        faults = {
            "are missing or older in the new collection": [id_ for id_ in remaining if id_ in existing],
            "are only in the new collection": sorted(extra.keys() - now_existing.keys(), key=str),
        }
        return judge_missing(gaps.common + len(gaps.revisions) - len(remaining), faults)

    async def _count_points(self, name: str) -> Mapping[str, int]:
        memory_count = await self.task.server.collections.count(name)
        return {"memories": memory_count, "tombstones": await count_deleted(self.task.server.points, name, 0)}

    async def _compare_contents(self) -> list[CheckFinding]:
        sample = await self.pair.compare_sample(self.sampler.ids)
        targets = {point["id"]: point["payload"] for point in sample.copies}
        self.sources = sample.live_points
        self.alike = {
            point["id"] for point in sample.live_points if is_alike(point["payload"], targets.get(point["id"]))
        }
        finding = judge_sample(sample.compared, equality=self.pair.equality.description)
        return [finding, *await self._check_embeddings(sample.copies)]

    async def _check_embeddings(self, targets: Sequence[Json]) -> list[CheckFinding]:
        """Embed at most 8 sampled texts again, and compare with the target's vectors. Return [] if all were copied."""
        if self.embedder is None:
            return []
        checked = choose_probes(targets, self.alike, needs_content=True)[:MAX_CHECKED_TEXTS]
        embedded = await self.embedder.embed([point["payload"]["content"] for point in checked]) if checked else []
        return [judge_embeddings(checked, embedded, self.vectors)]


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """Step Verify: compares the target with the source, and measures the recall of searches.

    Attributes:
        converge: Step Converge, which corrects the target's settings.
    """

    converge: Callable[[RebuildRun], Awaitable[str]]

    async def __call__(self, task: RebuildRun) -> str:
        """Run the step; return its result for users.

        If the recall of an earlier run still holds the move, only copy changes, and raise RebuildAwaitsApproval again.

        Raises:
            SpecInvalid: If the target differs from the source in two comparisons, or Qdrant reports the target as red.
            RequestInvalid: If the embedding provider rejects a text.
            RebuildAwaitsApproval: If the recall drops by more than the object allows, and that is not approved.
            RebuildPaused: If the rebuild is paused, or the embedding provider rejects key or model.
            RebuildCancelled: If the rebuild is no longer requested.
            TransientError: If the step must be repeated.
        """
        recall = task.record.recall
        if recall is not None and (reason := _refusal_message(task, recall)):
            # Report no progress, so that users see why the rebuild is held.
            await catch_up(replace(task, report_progress=_show_nothing))
            raise RebuildAwaitsApproval(reason)
        embedder = build_budgeted_embedder(task)
        compared, verdict = await self._compare_twice(task, embedder)
        if recall is None:
            recall = await RecallMeasurement(task, compared.target, embedder).measure(compared.sources, compared.alike)
        await task.update_record(recall=recall, calls=embedder.calls if embedder else task.record.calls)
        if reason := _refusal_message(task, recall):
            await task.report(reason)
            raise RebuildAwaitsApproval(reason)
        return f"{verdict.message}; {describe_recall(recall)}"

    async def _compare_twice(
        self, task: RebuildRun, embedder: Embedder | None
    ) -> tuple[RebuildComparison, VerificationVerdict]:
        """Compare; if a check fails, converge the target and compare again. Return a comparison without faults.

        Raises:
            SpecInvalid: If the second comparison fails too.
        """
        comparison, verdict = await _compare(task, embedder)
        if not verdict.is_good:
            await self.converge(task)
            comparison, verdict = await _compare(task, embedder)
        if not verdict.is_good:
            raise SpecInvalid(
                Reason.COPY_DIFFERS,
                f"{task.target_name} differs from {task.source_name}, which keeps serving: {verdict.message}",
            )
        return comparison, verdict


async def _show_nothing(record: RebuildRecord, message: str) -> None:
    """Discard a progress report."""


async def _compare(task: RebuildRun, embedder: Embedder | None) -> tuple[RebuildComparison, VerificationVerdict]:
    comparison = RebuildComparison(task, await observe_target(task), embedder)
    return comparison, await comparison.run_checks()


def _refusal_message(task: RebuildRun, recall: ProbeRecall) -> str | None:
    """Return the message of a held move. None if the recall suffices, the drop is approved, or this is a rollback."""
    max_percent = rebuild_settings(task.memory.spec).max_recall_drop_percent
    drop, approval = find_blocking_drop(recall, max_percent=max_percent), approval_value(task.record.digest)
    is_approved = task.memory.metadata.annotations.get(APPROVE_PLAN) == approval
    if drop is None or is_approved or task.record.kind is RebuildKind.ROLLBACK:
        return None
    return withheld_message(drop, recall, max_percent=max_percent, approval=approval)
