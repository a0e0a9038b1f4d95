"""Step Verify: compare a rebuild's target with its source while writers continue, as in `rebuilds/rules/verdict.py`."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentmemory_operator.collections.rules.collection import Observed
from agentmemory_operator.collections.rules.rebuild_record import ProbeRecall, RebuildKind, RebuildRecord
from agentmemory_operator.errors import RebuildHeld, SpecInvalid
from agentmemory_operator.memories.compare import PointComparison
from agentmemory_operator.memories.point_scan import changed_after, count_changed, count_deleted, page_of, walk
from agentmemory_operator.memories.rules.comparison import VERSION_KEYS, Draw, PointId, Rows, is_alike
from agentmemory_operator.memories.rules.findings import (
    CheckFinding,
    VerificationVerdict,
    judge_missing,
    judge_sample,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.catch_up import carry_all, catch_up, writers_behind_ms
from agentmemory_operator.rebuilds.converge import observed_target
from agentmemory_operator.rebuilds.copy import embedding_of
from agentmemory_operator.rebuilds.probe import RecallProbing
from agentmemory_operator.rebuilds.rules.carried_vectors import CarriedVectors
from agentmemory_operator.rebuilds.rules.probes import approval_of, described, held_message, probes_among, worst_drop
from agentmemory_operator.rebuilds.rules.verdict import (
    CHECKED,
    REMEMBERED,
    Behind,
    Counted,
    equality_of,
    judge_counts,
    judge_embeddings,
    judge_settings,
)
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.effective.policies import rebuild_settings
from agentmemory_operator.spec.kinds.agent_memory import APPROVE_PLAN
from agentmemory_operator.spec.kinds.conditions import Reason


@dataclass(slots=True)
class RebuildComparison:
    """One comparison in progress.

    Attributes:
        target: Target as observed at the start.
        embedder: Embedder of the target's vectors; None if they were copied.
        vectors: Tolerances for vectors.
        pair: Compares the source's points (live) with the target's (copy).
        draw: Sampler of points.
        sources: Sampled points of the source, with payload and vectors.
        alike: Ids of sampled points with the same revision in both.
    """

    task: RebuildRun
    target: Observed
    embedder: Embedder | None
    vectors: CarriedVectors = field(init=False)
    pair: PointComparison = field(init=False)
    draw: Draw = field(init=False)
    sources: Sequence[Json] = ()
    alike: set[PointId] = field(default_factory=set)

    def __post_init__(self) -> None:
        task, both = self.task, (self.task.source.collection, self.target.collection)
        self.vectors = CarriedVectors(*both, is_embedded=self.embedder is not None)
        self.pair = PointComparison(
            points=task.server.points,
            live=task.source_name,
            copy=task.target_name,
            page=page_of(*both),
            equality=equality_of(self.vectors),
        )
        self.draw = Draw(task.target_name)

    async def verdict(self) -> VerificationVerdict:
        """Run all checks; return the verdict.

        Raises:
            TransientError: If a collection cannot be read, or texts cannot be embedded, now.
        """
        since_ms = self.task.clock.now_ms() - writers_behind_ms(self.task)
        recent, before = await self._read_recent(since_ms), await self._count_points(self.task.source_name)
        findings = [judge_settings(self.target, self.task.desired), await self._missing()]
        found, after = await self._count_points(self.task.target_name), await self._count_points(self.task.source_name)
        counts = [
            Counted(what=what, before=before[what], after=after[what], found=found[what])
            for what in ("memories", "tombstones")
        ]
        findings.append(judge_counts(counts, changed=await self._count_changed(recent, since_ms)))
        return VerificationVerdict((*findings, *await self._compare_contents()))

    async def _read_recent(self, since_ms: int) -> Rows | None:
        """Return the versions of the source's points that changed since a time; None if they exceed `REMEMBERED`."""
        recent = Rows()
        filter_ = changed_after(since_ms)
        source, points = self.task.source_name, self.task.server.points
        async for rows in walk(points, source, self.pair.page, keys=VERSION_KEYS, filter_=filter_):
            recent |= rows
            if len(recent) > REMEMBERED:
                return None
        return recent

    async def _count_changed(self, before: Rows | None, since_ms: int) -> int:
        """Return the number of the source's points that were written since `before` was read.

        Points written shortly before that have a recent time too. They are not counted, because their versions are
        equal.
        """
        now = None if before is None else await self._read_recent(since_ms)
        if before is None or now is None:
            return await count_changed(self.task.server.points, self.task.source_name, since_ms)
        return sum(before.get(id_) != now.get(id_) for id_ in before.keys() | now.keys())

    async def _missing(self) -> CheckFinding:
        """Walk both collections to find missing points, and draw the sample.

        Points that are behind are copied and checked again.
        """
        behind, pair = Behind(), self.pair
        async for source, target in pair.stretches(VERSION_KEYS):
            await self.task.check()
            self.draw.offer(behind.take(source, target))
        if not behind.revisions and not behind.extra:
            return judge_missing(behind.both, {})
        await carry_all(self.task)
        remaining = behind.left(await pair.rows(pair.copy, behind.revisions))
        existing = await pair.rows(pair.live, remaining)
        extra = await pair.rows(pair.copy, behind.extra)
        now_existing = await pair.rows(pair.live, extra)
        faults = {
            "are missing or older in the new collection": [id_ for id_ in remaining if id_ in existing],
            "are only in the new collection": sorted(extra.keys() - now_existing.keys(), key=str),
        }
        return judge_missing(behind.both, faults)

    async def _count_points(self, name: str) -> Mapping[str, int]:
        living = await self.task.server.collections.count(name)
        return {"memories": living, "tombstones": await count_deleted(self.task.server.points, name, 0)}

    async def _compare_contents(self) -> list[CheckFinding]:
        sample = await self.pair.sample(self.draw.drawn)
        targets = {point["id"]: point["payload"] for point in sample.copies}
        self.sources = sample.lives
        self.alike = {point["id"] for point in sample.lives if is_alike(point["payload"], targets.get(point["id"]))}
        finding = judge_sample(sample.compared, how=self.pair.equality.described)
        return [finding, *await self._check_embeddings(sample.copies)]

    async def _check_embeddings(self, targets: Sequence[Json]) -> list[CheckFinding]:
        """Embed a few texts again and compare: the first ones that would be searched for."""
        if self.embedder is None:
            return []
        checked = probes_among(targets, self.alike, needs_content=True)[:CHECKED]
        embedded = await self.embedder.embed([point["payload"]["content"] for point in checked]) if checked else []
        return [judge_embeddings(checked, embedded, self.vectors)]


@dataclass(frozen=True, slots=True)
class RebuildVerification:
    """Step Verify.

    Attributes:
        converge: Step that brings a target to the state that its object specifies.
    """

    converge: Callable[[RebuildRun], Awaitable[str]]

    async def __call__(self, task: RebuildRun) -> str:
        """Run the step; return its result for users.

        Raises:
            SpecInvalid: If the target differs from the source.
            RebuildHeld: If searches find less than the object allows, and that is not approved.
            TransientError: If the step must be repeated.
        """
        recall = task.record.recall
        if recall is not None and (reason := _why_held(task, recall)):
            # Users see why the rebuild is held, not the progress of its passes.
            await catch_up(replace(task, show=_show_nothing))
            raise RebuildHeld(reason)
        embedder = embedding_of(task)
        outcome, verdict = await self._compare_twice(task, embedder)
        if recall is None:
            recall = await RecallProbing(task, outcome.target, embedder).measure(outcome.sources, outcome.alike)
            await task.note(recall=recall, calls=embedder.calls if embedder else task.record.calls)
        if reason := _why_held(task, recall):
            await task.tell(reason)
            raise RebuildHeld(reason)
        return f"{verdict.message}; {described(recall)}"

    async def _compare_twice(
        self, task: RebuildRun, embedder: Embedder | None
    ) -> tuple[RebuildComparison, VerificationVerdict]:
        """Compare; if that fails, converge the target and compare again. Return a comparison without faults.

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
    comparison = RebuildComparison(task, await observed_target(task), embedder)
    return comparison, await comparison.verdict()


def _why_held(task: RebuildRun, recall: ProbeRecall) -> str | None:
    """Return the message of a held move, or None. A rollback is never held."""
    most_percent = rebuild_settings(task.memory.spec).max_recall_drop_percent
    drop, approval = worst_drop(recall, most_percent=most_percent), approval_of(task.record.digest)
    is_approved = task.memory.metadata.annotations.get(APPROVE_PLAN) == approval
    if drop is None or is_approved or task.record.kind is RebuildKind.ROLLBACK:
        return None
    return held_message(drop, recall, most_percent=most_percent, approval=approval)
