"""A restore taken back: the alias leads to the collection that it replaced again, in one move."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentmemory_operator.domain.changes import SetAlias
from agentmemory_operator.domain.collection import PREVIOUS_KEY, is_placeholder
from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.domain.naming import alias_of
from agentmemory_operator.domain.resources import AgentMemory
from agentmemory_operator.domain.restore_reporting import rolled_back_status, rolling_back_status
from agentmemory_operator.domain.restoring import records_from, records_to_json, rolled_back
from agentmemory_operator.domain.times import parse_time
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.services.aliases import AliasLocks
from agentmemory_operator.services.changes_since import count_changed
from agentmemory_operator.services.previous import live_behind, mark_previous
from agentmemory_operator.services.restore_jobs import RestoreJob
from agentmemory_operator.services.restored_erasures import RestoredErasures
from agentmemory_operator.services.servers import Server


@dataclass(slots=True)
class Rollback:
    """Takes restores back.

    Attributes:
        locks: of the aliases; one for all who move them.
    """

    locks: AliasLocks
    erasures: RestoredErasures

    async def run(
        self, job: RestoreJob, server: Server, memory: AgentMemory, check_target: Callable[[], Awaitable[None]]
    ) -> None:
        """Take a restore back; one that was begun is gone on with.

        Raises:
            SpecInvalid: it cannot be taken back; says why. Nothing was changed.
            TransientError: it is to be gone on with.
        """
        restored, previous, alias = str(job.physical), job.previous, alias_of(memory.slug)
        if previous is None:
            raise SpecInvalid(Reason.PREVIOUS_GONE, "the collection that was replaced is not there any more")
        metadata = await server.snapshots.metadata(previous)
        if metadata is None or is_placeholder(metadata):
            raise SpecInvalid(Reason.PREVIOUS_GONE, f"{previous} is not there any more")
        await self._check_live(server, alias, restored, previous)
        await job.job.write(rolling_back_status(job.status, job.moment))
        await self._reapply(server, restored, previous, memory)
        records = records_from(await server.snapshots.metadata(restored))
        taken_back = records_to_json(rolled_back(records, job.identity)) | {PREVIOUS_KEY: None}
        await server.snapshots.write_metadata(previous, taken_back)
        async with self.locks.of(memory.slug):
            await check_target()
            await self._check_live(server, alias, restored, previous)
            await server.collections.apply(previous, SetAlias(alias, previous))
        await self._settle(job, server, memory, previous)

    async def _check_live(self, server: Server, alias: str, restored: str, previous: str) -> None:
        live = await live_behind(server, alias, restored)
        if live is not None and live.physical not in (restored, previous):
            raise SpecInvalid(
                Reason.NOT_LIVE, f"{alias} leads to {live.physical} since: take back first what moved it there"
            )

    async def _reapply(self, server: Server, source: str, target: str, memory: AgentMemory) -> None:
        if await server.snapshots.metadata(source) is not None:
            await self.erasures.carry(server, source, target, memory, since_ms=0)

    async def _settle(self, job: RestoreJob, server: Server, memory: AgentMemory, previous: str) -> None:
        restored = str(job.physical)
        await self._reapply(server, restored, previous, memory)
        until, changed = job.keep_until, 0
        if await server.snapshots.metadata(restored) is not None:
            changed = await count_changed(server.points, restored, parse_time(job.status["endTime"]))
            await mark_previous(server, restored, since=job.moment.now, until=until, by={"restore": str(job.key)})
        message = (
            f"taken back: {previous} is live again; {restored} is kept until {until}, {changed} memories changed in it "
            f"since the restore"
        )
        status = rolled_back_status(job.status, message, job.moment, kept=restored, until=until, writes_since=changed)
        await job.job.write(status)
        await job.tell("Normal", Reason.ROLLED_BACK, message)
