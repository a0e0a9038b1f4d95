"""Compares a rebuild's target with its source before the alias moves, and holds the move where searches find less.

A target that lacks something, or is not as the object asks, is brought in line once; what differs then is a fault, and
the rebuild fails. A drop of the recall is none: it may be what somebody wants, so it waits for an approval, and what is
written meanwhile goes on being carried.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.domain.rebuild_settings import rebuild_settings
from agentmemory_operator.domain.rebuilding import Kind, Record
from agentmemory_operator.domain.recall_figures import Recall
from agentmemory_operator.domain.recall_probes import approval_of, described, held_message, worst_drop
from agentmemory_operator.domain.resources import APPROVE_PLAN
from agentmemory_operator.domain.verification import Verdict
from agentmemory_operator.errors import RebuildHeld, SpecInvalid
from agentmemory_operator.ports import Embedder
from agentmemory_operator.services.catching_up import catch_up
from agentmemory_operator.services.copying import embedding_of
from agentmemory_operator.services.rebuild_comparison import RebuildComparison
from agentmemory_operator.services.rebuild_convergence import observed_target
from agentmemory_operator.services.rebuild_tasks import Task
from agentmemory_operator.services.recall_probing import RecallProbing


@dataclass(frozen=True, slots=True)
class RebuildVerification:
    """Verifies targets.

    Attributes:
        converge: the step that brings a target to what its object asks for.
    """

    converge: Callable[[Task], Awaitable[str]]

    async def __call__(self, task: Task) -> str:
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

    async def _compared(self, task: Task, embedder: Embedder | None) -> tuple[RebuildComparison, Verdict]:
        """Return the comparison that found nothing wrong.

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
                f"{task.target_name} is not what {task.source_name} is, which goes on serving: {verdict.message}",
            )
        return compared, verdict


async def _tell_nobody(record: Record, message: str) -> None:
    """Take in progress that nobody asks for."""


async def _compare(task: Task, embedder: Embedder | None) -> tuple[RebuildComparison, Verdict]:
    compared = RebuildComparison(task, await observed_target(task), embedder)
    return compared, await compared.verdict()


def _why_held(task: Task, recall: Recall) -> str | None:
    """Return why the move waits for somebody, None where it does not; a way back is never held."""
    most_percent = rebuild_settings(task.memory.spec).max_recall_drop_percent
    drop, approval = worst_drop(recall, most_percent=most_percent), approval_of(task.record.digest)
    is_approved = task.memory.metadata.annotations.get(APPROVE_PLAN) == approval
    if drop is None or is_approved or task.record.kind is Kind.ROLLBACK:
        return None
    return held_message(drop, recall, most_percent=most_percent, approval=approval)
