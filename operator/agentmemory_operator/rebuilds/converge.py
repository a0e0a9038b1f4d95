"""Step Converge: bring a rebuild's target to its required state (`RebuildRun.desired`), and wait until it is indexed.

Searches of the target are fast only once its graph is built. Before that, each would scan every point that matches its
filter.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentmemory_operator.collections.rules.changes import ChangeClass, WakeOptimizers, class_of
from agentmemory_operator.collections.rules.collection import GREEN, GREY, RED, Observation
from agentmemory_operator.collections.rules.plan import drop_wake, plan_changes
from agentmemory_operator.collections.rules.replicas import describe_unsettled
from agentmemory_operator.errors import NotFound, RebuildCancelled, SpecInvalid, StoreUnavailable
from agentmemory_operator.ports.collections import observe_physical
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.kinds.conditions import Reason

MIN_IDLE_READS = 2
"""Number of consecutive reads that must find Qdrant idle: right after a change, Qdrant may still report no work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergeStep:
    """Step Converge: applies the missing changes to the target, and waits until Qdrant has indexed it.

    Attributes:
        poll_s: Pause between two reads of the target's state, in seconds.
        patience_s: Maximum time without progress of the indexing, in seconds.
        monotonic, sleep: Clock and sleep of this process, in seconds.
    """

    poll_s: float = 1.0
    patience_s: float = 600.0
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def __call__(self, task: RebuildRun) -> str:
        """Run the step; return its result for users.

        Raises:
            SpecInvalid: If Qdrant reports the target as red.
            StoreRejected: If Qdrant rejects a change.
            TransientError: If Qdrant is unavailable, or makes no progress for `patience_s`. The step can be repeated.
            RebuildPaused, RebuildCancelled: If the rebuild must stop, its target was deleted, or another rebuild is
                needed now.
        """
        changed = await self._apply_changes(task)
        observed = await self._wait_until_indexed(task)
        result = f"changed {', '.join(changed)}" if changed else "matches the spec"
        return f"{result}; {observed.indexed} of {observed.points} vectors are indexed"

    @staticmethod
    async def _apply_changes(task: RebuildRun) -> list[str]:
        observed = await observe_target(task)
        plan = drop_wake(plan_changes(task.desired, observed, alias=observed.physical, physical=observed.physical))
        if any(class_of(change) is ChangeClass.REBUILD for change in plan.changes):
            raise RebuildCancelled(f"{observed.physical} no longer matches the object")
        for change in plan.changes:
            await task.check()
            await task.server.collections.apply(observed.physical, change)
        return [type(change).__name__ for change in plan.changes]

    async def _wait_until_indexed(self, task: RebuildRun) -> Observation:
        """Wait until two consecutive reads find Qdrant's optimizers idle; return the target as last observed."""
        idle_reads, progress_s = 0, self.monotonic()
        last: tuple[int, str] | None = None
        while True:
            await task.check()
            observed = await self._observe(task)
            idle_reads = idle_reads + 1 if observed.state == GREEN and not observed.is_busy else 0
            if idle_reads >= MIN_IDLE_READS:
                return observed
            if (observed.indexed, observed.state) != last:
                last, progress_s = (observed.indexed, observed.state), self.monotonic()
            progress = f"Qdrant indexes {observed.physical}: {observed.indexed} of {observed.points} vectors"
            if self.monotonic() - progress_s > self.patience_s:
                raise StoreUnavailable(f"{progress}, without progress for {self.patience_s:g} s: see the server's log")
            if not idle_reads:
                await task.report(progress)
            await self.sleep(self.poll_s)

    @staticmethod
    async def _observe(task: RebuildRun) -> Observation:
        """Observe the target; raise SpecInvalid if it is red. Wake optimizers that a restart of Qdrant has stopped."""
        observed = await observe_target(task)
        if observed.state == RED:
            message = f"Qdrant cannot optimize {observed.physical}: {observed.fault or 'see its log'}"
            raise SpecInvalid(Reason.COLLECTION_RED, message)
        if observed.state == GREY:
            await task.server.collections.apply(observed.physical, WakeOptimizers())
        return observed


async def observe_target(task: RebuildRun) -> Observation:
    """Observe a rebuild's target under its physical name.

    Raises:
        RebuildCancelled: If the target was deleted.
    """
    name = task.target_name
    observed = await observe_physical(task.server.collections, name)
    if observed is None:
        raise RebuildCancelled(f"{name} was deleted in Qdrant")
    return observed


REPLICA_POLL_S, MAX_REPLICA_WAIT_S = 0.5, 20.0
"""Pause between two reads of a target's replicas, and maximum wait of a step for them, in seconds."""


async def await_replicas(
    task: RebuildRun, *, poll_s: float = REPLICA_POLL_S, patience_s: float = MAX_REPLICA_WAIT_S
) -> None:
    """Wait until every replica of a rebuild's target is active. On a single server, return at once.

    With inactive replicas, counts would be too small and searches incomplete.

    Args:
        poll_s: Pause between two reads, in seconds.
        patience_s: Maximum wait in seconds; 0 reads once.

    Raises:
        StoreUnavailable: If some replicas are not active in time. The message names them.
        RebuildPaused, RebuildCancelled: If the rebuild must stop, or the target was deleted.
    """
    ends_s, target = time.monotonic() + patience_s, task.target_name
    while inactive := await _inactive_replicas(task):
        message = f"replicas of {target} are not all active: {inactive}"
        if time.monotonic() >= ends_s:
            raise StoreUnavailable(message)
        await task.check()
        await task.report(message)
        await asyncio.sleep(poll_s)


async def _inactive_replicas(task: RebuildRun) -> str:
    if task.source.placement is None:
        return ""
    try:
        placement = await task.server.collections.placement(task.target_name)
    except NotFound as exc:
        raise RebuildCancelled(f"{task.target_name} was deleted in Qdrant") from exc
    return describe_unsettled(placement) if placement else ""
