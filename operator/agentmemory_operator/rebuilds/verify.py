"""Compares a rebuild's target with its source while writers go on, as `rebuilds/rules/verdict.py` says."""

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
    """One comparison under way.

    Attributes:
        target: as it was seen when it began.
        embedder: of the target's vectors; None where they were copied.
        vectors: what they may have become.
        pair: compares the target's points, as the copy, with the source's.
        draw: of the sample.
        sources: the sample, of the source, with payload and vectors.
        alike: ids of the sample that are of one revision in both.
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
        """What it comes to.

        Raises:
            TransientError: one of both collections cannot be read, or nothing be embedded, for now.
        """
        since_ms = self.task.clock.now_ms() - writers_behind_ms(self.task)
        fresh, before = await self._fresh(since_ms), await self._counted(self.task.source_name)
        findings = [judge_settings(self.target, self.task.desired), await self._missing()]
        found, after = await self._counted(self.task.target_name), await self._counted(self.task.source_name)
        counts = [
            Counted(what=what, before=before[what], after=after[what], found=found[what])
            for what in ("memories", "tombstones")
        ]
        findings.append(judge_counts(counts, changed=await self._changed(fresh, since_ms)))
        return VerificationVerdict((*findings, *await self._contents()))

    async def _fresh(self, since_ms: int) -> Rows | None:
        """The source's points that bear a time since then, by versions; None where they are too many."""
        fresh = Rows()
        filter_ = changed_after(since_ms)
        source, points = self.task.source_name, self.task.server.points
        async for rows in walk(points, source, self.pair.page, keys=VERSION_KEYS, filter_=filter_):
            fresh |= rows
            if len(fresh) > REMEMBERED:
                return None
        return fresh

    async def _changed(self, before: Rows | None, since_ms: int) -> int:
        """How many of the source's points were written since it was looked at first.

        What was written shortly before that bears a fresh time too, and did not change.
        """
        now = None if before is None else await self._fresh(since_ms)
        if before is None or now is None:
            return await count_changed(self.task.server.points, self.task.source_name, since_ms)
        return sum(before.get(id_) != now.get(id_) for id_ in before.keys() | now.keys())

    async def _missing(self) -> CheckFinding:
        """Walk both collections, and draw the sample on the way; what is behind is carried, and looked for again."""
        behind, pair = Behind(), self.pair
        async for source, target in pair.stretches(VERSION_KEYS):
            await self.task.check()
            self.draw.offer(behind.take(source, target))
        if not behind.revisions and not behind.extra:
            return judge_missing(behind.both, {})
        await carry_all(self.task)
        left = behind.left(await pair.rows(pair.copy, behind.revisions))
        there = await pair.rows(pair.live, left)
        extra = await pair.rows(pair.copy, behind.extra)
        come = await pair.rows(pair.live, extra)
        faults = {
            "are missing or older in the new collection": [id_ for id_ in left if id_ in there],
            "are only in the new collection": sorted(extra.keys() - come.keys(), key=str),
        }
        return judge_missing(behind.both, faults)

    async def _counted(self, name: str) -> Mapping[str, int]:
        living = await self.task.server.collections.count(name)
        return {"memories": living, "tombstones": await count_deleted(self.task.server.points, name, 0)}

    async def _contents(self) -> list[CheckFinding]:
        sample = await self.pair.sample(self.draw.drawn)
        targets = {point["id"]: point["payload"] for point in sample.copies}
        self.sources = sample.lives
        self.alike = {point["id"] for point in sample.lives if is_alike(point["payload"], targets.get(point["id"]))}
        finding = judge_sample(sample.compared, how=self.pair.equality.described)
        return [finding, *await self._embeddings(sample.copies)]

    async def _embeddings(self, targets: Sequence[Json]) -> list[CheckFinding]:
        """Embed a few texts once more; the first that would be searched for."""
        if self.embedder is None:
            return []
        some = probes_among(targets, self.alike, needs_content=True)[:CHECKED]
        embedded = await self.embedder.embed([point["payload"]["content"] for point in some]) if some else []
        return [judge_embeddings(some, embedded, self.vectors)]


@dataclass(frozen=True, slots=True)
class RebuildVerification:
    """Verifies targets.

    Attributes:
        converge: the step that brings a target to what its object asks for.
    """

    converge: Callable[[RebuildRun], Awaitable[str]]

    async def __call__(self, task: RebuildRun) -> str:
        """Do the step.

        Raises:
            SpecInvalid: the target differs from the source.
            RebuildHeld: searches find less than the object allows, and nobody has approved that.
            TransientError: to be done again.
        """
        recall = task.record.recall
        if recall is not None and (why := _why_held(task, recall)):
            # People are told why it stands, not how it keeps up.
            await catch_up(replace(task, show=_tell_nobody))
            raise RebuildHeld(why)
        embedder = embedding_of(task)
        compared, verdict = await self._compared(task, embedder)
        if recall is None:
            recall = await RecallProbing(task, compared.target, embedder).measure(compared.sources, compared.alike)
            await task.note(recall=recall, calls=embedder.calls if embedder else task.record.calls)
        if why := _why_held(task, recall):
            await task.tell(why)
            raise RebuildHeld(why)
        return f"{verdict.message}; {described(recall)}"

    async def _compared(
        self, task: RebuildRun, embedder: Embedder | None
    ) -> tuple[RebuildComparison, VerificationVerdict]:
        """The comparison that found nothing wrong.

        Raises:
            SpecInvalid: it found something, and once more after the target was brought in line.
        """
        compared, verdict = await _compare(task, embedder)
        if not verdict.is_good:
            await self.converge(task)
            compared, verdict = await _compare(task, embedder)
        if not verdict.is_good:
            raise SpecInvalid(
                Reason.COPY_DIFFERS,
                f"{task.target_name} differs from {task.source_name}, which keeps serving: {verdict.message}",
            )
        return compared, verdict


async def _tell_nobody(record: RebuildRecord, message: str) -> None:
    """Take in progress that nobody asks for."""


async def _compare(task: RebuildRun, embedder: Embedder | None) -> tuple[RebuildComparison, VerificationVerdict]:
    compared = RebuildComparison(task, await observed_target(task), embedder)
    return compared, await compared.verdict()


def _why_held(task: RebuildRun, recall: ProbeRecall) -> str | None:
    """Why the move waits for somebody, None where it does not; a way back is never held."""
    most_percent = rebuild_settings(task.memory.spec).max_recall_drop_percent
    drop, approval = worst_drop(recall, most_percent=most_percent), approval_of(task.record.digest)
    is_approved = task.memory.metadata.annotations.get(APPROVE_PLAN) == approval
    if drop is None or is_approved or task.record.kind is RebuildKind.ROLLBACK:
        return None
    return held_message(drop, recall, most_percent=most_percent, approval=approval)
