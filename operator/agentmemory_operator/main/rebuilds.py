"""What carries rebuilds out, step by step."""

from collections.abc import Callable

from agentmemory_operator.collections.announce import AliasLocks
from agentmemory_operator.collections.previous import restore_source
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, RebuildStep
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.rebuilds.catch_up import catch_up
from agentmemory_operator.rebuilds.controller import StepWork
from agentmemory_operator.rebuilds.converge import Convergence
from agentmemory_operator.rebuilds.copy import Copying
from agentmemory_operator.rebuilds.drain import Drain, settle
from agentmemory_operator.rebuilds.move import Move
from agentmemory_operator.rebuilds.plain import keep
from agentmemory_operator.rebuilds.verify import RebuildVerification
from agentmemory_operator.runtime.cache import Key, key_of_memory


def rebuild_steps(locks: AliasLocks, *is_changed: Callable[[Key], bool]) -> dict[RebuildStep, StepWork]:
    """What is done in each step but the first.

    Args:
        is_changed: each tells whether memories of an object are being removed or merged: no alias moves meanwhile.
    """
    converge = Convergence()
    move = Move(locks, lambda task: any(is_busy(key_of_memory(task.memory)) for is_busy in is_changed))
    return {
        RebuildStep.COPY: Copying(),
        RebuildStep.CATCH_UP: catch_up,
        RebuildStep.CONVERGE: converge,
        RebuildStep.VERIFY: move.announced_beside(RebuildVerification(converge)),
        RebuildStep.KEEP: keep,
        RebuildStep.MOVE: move,
        RebuildStep.DRAIN: Drain(),
        RebuildStep.SETTLE: settle,
    }


async def abandon(server: Server, record: RebuildRecord) -> None:
    """Take back what a rebuild that is given up did to its source."""
    await restore_source(server, record.source)
