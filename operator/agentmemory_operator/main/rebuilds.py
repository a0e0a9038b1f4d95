"""What carries rebuilds out, step by step."""

from collections.abc import Callable

from agentmemory_operator.domain.rebuilding import Record, Step
from agentmemory_operator.services.aliases import AliasLocks
from agentmemory_operator.services.catching_up import catch_up, restore_source
from agentmemory_operator.services.copying import Copying
from agentmemory_operator.services.draining import Drain
from agentmemory_operator.services.moving import Move
from agentmemory_operator.services.objects import Key, key_of_memory
from agentmemory_operator.services.plain_moves import keep
from agentmemory_operator.services.rebuild_convergence import Convergence
from agentmemory_operator.services.rebuild_verification import RebuildVerification
from agentmemory_operator.services.rebuilds import StepWork
from agentmemory_operator.services.servers import Server
from agentmemory_operator.services.settling import settle


def rebuild_steps(locks: AliasLocks, is_cleaned: Callable[[Key], bool]) -> dict[Step, StepWork]:
    """Return what is done in each step but the first."""
    converge = Convergence()
    move = Move(locks, lambda task: is_cleaned(key_of_memory(task.memory)))
    return {
        Step.COPY: Copying(),
        Step.CATCH_UP: catch_up,
        Step.CONVERGE: converge,
        Step.VERIFY: move.announced_beside(RebuildVerification(converge)),
        Step.KEEP: keep,
        Step.MOVE: move,
        Step.DRAIN: Drain(),
        Step.SETTLE: settle,
    }


async def abandon(server: Server, record: Record) -> None:
    """Take back what a rebuild that is given up did to its source."""
    await restore_source(server, record.source)
