"""Brings a rebuild's target to what the object asks for now, and waits until the engine has indexed it.

Searches of the target are as fast as they will be only once its graph is there; before that each would read it whole.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentmemory_operator.collections.rules.changes import ChangeClass, WakeOptimizers, class_of
from agentmemory_operator.collections.rules.collection import GREEN, GREY, RED, Observed
from agentmemory_operator.collections.rules.plan import plan_changes, without_wake
from agentmemory_operator.collections.rules.replicas import (
    unsettled,
)
from agentmemory_operator.errors import NotFound, RebuildUnwanted, SpecInvalid, StoreUnavailable
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.kinds.conditions import Reason

QUIET_LOOKS = 2
"""Looks that find the engine at rest: right after a change it may not be seen to work yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """Brings targets in line.

    Attributes:
        look_s: between two looks at the engine.
        patience_s: for which it may show no progress.
        monotonic, sleep: seconds of this process.
    """

    look_s: float = 1.0
    patience_s: float = 600.0
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def __call__(self, task: RebuildRun) -> str:
        """Do the step.

        Raises:
            SpecInvalid: the server calls the target red.
            StoreUnavailable: it shows no progress; to be looked at again.
        """
        changed = await self._bring_in_line(task)
        observed = await self._indexed(task)
        told = f"changed {', '.join(changed)}" if changed else "matches the spec"
        return f"{told}; {observed.indexed} of {observed.points} vectors are indexed"

    @staticmethod
    async def _bring_in_line(task: RebuildRun) -> list[str]:
        observed = await observed_target(task)
        plan = without_wake(plan_changes(task.desired, observed, alias=observed.physical, physical=observed.physical))
        if any(class_of(change) is ChangeClass.REBUILD for change in plan.changes):
            raise RebuildUnwanted(f"{observed.physical} no longer matches the object")
        for change in plan.changes:
            await task.check()
            await task.server.collections.apply(observed.physical, change)
        return [type(change).__name__ for change in plan.changes]

    async def _indexed(self, task: RebuildRun) -> Observed:
        """Wait for the engine; return what it came to."""
        quiet, moved_s = 0, self.monotonic()
        last: tuple[int, str] | None = None
        while True:
            await task.check()
            observed = await self._looked(task)
            quiet = quiet + 1 if observed.state == GREEN and not observed.is_busy else 0
            if quiet >= QUIET_LOOKS:
                return observed
            if (observed.indexed, observed.state) != last:
                last, moved_s = (observed.indexed, observed.state), self.monotonic()
            told = f"Qdrant indexes {observed.physical}: {observed.indexed} of {observed.points} vectors"
            if self.monotonic() - moved_s > self.patience_s:
                raise StoreUnavailable(f"{told}, without progress for {self.patience_s:g} s: see the server's log")
            if not quiet:
                await task.tell(told)
            await self.sleep(self.look_s)

    @staticmethod
    async def _looked(task: RebuildRun) -> Observed:
        """Look at the target; one that was left unfinished by a restart of the server is woken."""
        observed = await observed_target(task)
        if observed.state == RED:
            message = f"Qdrant cannot optimize {observed.physical}: {observed.fault or 'see its log'}"
            raise SpecInvalid(Reason.COLLECTION_RED, message)
        if observed.state == GREY:
            await task.server.collections.apply(observed.physical, WakeOptimizers())
        return observed


async def observed_target(task: RebuildRun) -> Observed:
    """The target as it is.

    Raises:
        RebuildUnwanted: it is gone.
    """
    name = task.target_name
    observed = await task.server.collections.observe(name, name, is_linked=True)
    if observed is None:
        raise RebuildUnwanted(f"{name} was deleted in Qdrant")
    return observed


LOOK_S, PATIENCE_S = 0.5, 20.0
"""Between two looks at a target's replicas, and for how long a step waits for them before it is tried again later."""


async def await_replicas(task: RebuildRun, *, look_s: float = LOOK_S, patience_s: float = PATIENCE_S) -> None:
    """Wait until every replica of a rebuild's target is active; a server that is alone is asked nothing.

    Counts of a target with others are too small, and searches would find too little.

    Raises:
        StoreUnavailable: they are not for now; names them.
        RebuildUnwanted: the target is gone.
    """
    ends_s, target = time.monotonic() + patience_s, task.target_name
    while waits := await _unsettled(task):
        message = f"replicas of {target} are not all active: {waits}"
        if time.monotonic() >= ends_s:
            raise StoreUnavailable(message)
        await task.check()
        await task.tell(message)
        await asyncio.sleep(look_s)


async def _unsettled(task: RebuildRun) -> str:
    if task.source.placement is None:
        return ""
    try:
        placement = await task.server.collections.placement(task.target_name)
    except NotFound as exc:
        raise RebuildUnwanted(f"{task.target_name} was deleted in Qdrant") from exc
    return unsettled(placement) if placement else ""
