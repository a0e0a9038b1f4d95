"""Brings a rebuild's target to what the object asks for now, and waits until the engine has indexed it.

Searches of the target are as fast as they will be only once its graph is there; before that each would read it whole.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentmemory_operator.domain.changes import ChangeClass, WakeOptimizers, class_of
from agentmemory_operator.domain.collection import GREEN, GREY, RED, Observed
from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.domain.planning import plan_changes, without_wake
from agentmemory_operator.errors import RebuildUnwanted, SpecInvalid, StoreUnavailable
from agentmemory_operator.services.rebuild_tasks import Task

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

    async def __call__(self, task: Task) -> str:
        """Do the step.

        Raises:
            SpecInvalid: the server calls the target red.
            StoreUnavailable: it shows no progress; to be looked at again.
        """
        changed = await self._bring_in_line(task)
        observed = await self._indexed(task)
        told = f"changed {', '.join(changed)}" if changed else "as the object asks"
        return f"{told}; {observed.indexed} of {observed.points} vectors are in the graph"

    @staticmethod
    async def _bring_in_line(task: Task) -> list[str]:
        observed = await observed_target(task)
        plan = without_wake(plan_changes(task.desired, observed, alias=observed.physical, physical=observed.physical))
        if any(class_of(change) is ChangeClass.REBUILD for change in plan.changes):
            raise RebuildUnwanted(f"{observed.physical} is not what the object asks for any more")
        for change in plan.changes:
            await task.check()
            await task.server.collections.apply(observed.physical, change)
        return [type(change).__name__ for change in plan.changes]

    async def _indexed(self, task: Task) -> Observed:
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
                raise StoreUnavailable(f"{told}, and no more for {self.patience_s:g} s: see the server's log")
            if not quiet:
                await task.tell(told)
            await self.sleep(self.look_s)

    @staticmethod
    async def _looked(task: Task) -> Observed:
        """Look at the target; one that was left unfinished by a restart of the server is woken."""
        observed = await observed_target(task)
        if observed.state == RED:
            message = f"Qdrant cannot optimize {observed.physical}: {observed.fault or 'see its log'}"
            raise SpecInvalid(Reason.COLLECTION_RED, message)
        if observed.state == GREY:
            await task.server.collections.apply(observed.physical, WakeOptimizers())
        return observed


async def observed_target(task: Task) -> Observed:
    """Return the target as it is.

    Raises:
        RebuildUnwanted: it is gone.
    """
    name = task.target_name
    observed = await task.server.collections.observe(name, name, is_linked=True)
    if observed is None:
        raise RebuildUnwanted(f"{name} is gone from Qdrant: somebody deleted it")
    return observed
