"""Roll a restore by swap back, by moving the alias to the replaced collection again."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agentmemory_operator.collections.announce import AliasLocks, AliasSwitch, MoveAnnouncer, release_writers
from agentmemory_operator.collections.replaced_collection import find_live, mark_previous
from agentmemory_operator.collections.rules.announcement import MOVING_KEY
from agentmemory_operator.collections.rules.collection import PREVIOUS_KEY, is_placeholder
from agentmemory_operator.collections.rules.epochs import CLOSED_KEY
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.lifecycle.erasure_restore import (
    RestoredErasureReplay,
    repair_late_links,
    resolve_pending_chains,
)
from agentmemory_operator.memories.point_scan import count_changed
from agentmemory_operator.ports.collections import observe_physical
from agentmemory_operator.restores.job import RestoreJob
from agentmemory_operator.restores.precedence import undoing_message
from agentmemory_operator.restores.rules.status import rolled_back_status, rolling_back_status
from agentmemory_operator.restores.rules.swap_checks import mark_rolled_back, parse_records, records_to_json
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.naming import alias_of
from agentmemory_operator.spec.times import parse_time


@dataclass(slots=True)
class Rollback:
    """Rolls restores by swap back.

    Attributes:
        locks: Locks of the aliases, shared by all modules that move aliases.
        erasures: Repeats erasures in the collection that becomes live again.
    """

    locks: AliasLocks
    erasures: RestoredErasureReplay
    announcer: MoveAnnouncer = field(default_factory=MoveAnnouncer)

    async def run(
        self, job: RestoreJob, server: Server, memory: AgentMemory, check_target: Callable[[], Awaitable[None]]
    ) -> None:
        """Roll a restore back, and record the result in its status. After a crash, another call continues.

        Raises:
            SpecInvalid, NotOwned: If it cannot be rolled back, or `check_target` raised. The alias was not moved.
            TransientError: If Qdrant is unavailable, or the outcome of a write is unknown. Call again to continue.
        """
        restored, alias = str(job.physical), alias_of(memory.slug)
        previous = await self._check_replaced(job, server, memory)
        is_moved = await self._check_live(server, alias, restored, previous)
        await job.write(rolling_back_status(job.status, job.stamp))
        await self._reapply(server, restored, previous, memory)
        # After the move the pending versions are those of live writers.
        if not is_moved:
            await resolve_pending_chains(server, previous, memory, job.book.clock)
        records = mark_rolled_back(parse_records(await server.snapshots.metadata(restored)), job.identity)
        # Remove the marks that the previous collection got when it was replaced.
        changes = records_to_json(records) | dict.fromkeys((PREVIOUS_KEY, MOVING_KEY, CLOSED_KEY))
        await server.snapshots.write_metadata(previous, changes)

        async def check() -> None:
            await check_target()
            await self._check_live(server, alias, restored, previous)

        switch = AliasSwitch(
            server=server,
            slug=memory.slug,
            alias=alias,
            target=previous,
            now_ms=lambda: job.now_ms,
            check=check,
            min_epoch=job.min_epoch,
        )
        await switch.run(self.locks, self.announcer, expected_target=restored)
        await self._settle(job, server, memory, previous)

    async def _check_replaced(self, job: RestoreJob, server: Server, memory: AgentMemory) -> str:
        """Return the replaced collection if this agent has it. Its name comes from the status, which tenants can write.

        Raises:
            NotOwned: If the collection belongs to another namespace.
            SpecInvalid: If it no longer exists, belongs to another agent of the namespace, or was closed by a restore
                that is not undone.
        """
        previous = job.previous
        if previous is None:
            raise SpecInvalid(Reason.PREVIOUS_GONE, "the replaced collection no longer exists")
        if undoing := undoing_message(job.target_key, job.book.table, waiting=job.key, closed=previous):
            raise SpecInvalid(Reason.WAITS_FOR_RESTORE, undoing)
        found = await server.snapshots.metadata(previous)
        if found is None or is_placeholder(found):
            raise SpecInvalid(Reason.PREVIOUS_GONE, f"{previous} no longer exists")
        observed = await observe_physical(server.collections, previous)
        marker, metadata = observed.collection.marker if observed else None, memory.metadata
        if marker is not None and (marker.namespace, marker.name) != (metadata.namespace, metadata.name):
            raise SpecInvalid(
                Reason.PREVIOUS_GONE,
                f"{previous} was not replaced by this restore: it belongs to another agent. Nothing was changed; "
                f"restore from a snapshot instead",
            )
        return previous

    async def _check_live(self, server: Server, alias: str, restored: str, previous: str) -> bool:
        """Return whether the alias was moved back already.

        Raises:
            SpecInvalid: If it points to neither of the two collections.
        """
        live = await find_live(server, alias, restored)
        if live is not None and live.physical not in (restored, previous):
            raise SpecInvalid(Reason.NOT_LIVE, f"{alias} points to {live.physical} now: roll back that change first")
        return live is not None and live.physical == previous

    async def _reapply(self, server: Server, source: str, target: str, memory: AgentMemory) -> None:
        if await server.snapshots.metadata(source) is not None:
            await self.erasures.replay_collection(server, source, target, memory, since_ms=0)

    async def _settle(self, job: RestoreJob, server: Server, memory: AgentMemory, previous: str) -> None:
        restored = str(job.physical)
        await self._reapply(server, restored, previous, memory)
        await self.announcer.wait_for_late_writes(server)
        await repair_late_links(server, previous, memory, job.book.clock)
        until, changed = job.keep_until, 0
        if await server.snapshots.metadata(restored) is not None:
            end_time = job.status.get("endTime")
            changed = await count_changed(server.points, restored, parse_time(end_time)) if end_time else 0
            await release_writers(server, restored)
            await mark_previous(
                server, restored, since=job.stamp.now, removal_time=until, reference={"restore": str(job.key)}
            )
        message = (
            f"rolled back: {previous} is live again; {restored} is kept until {until}, {changed} memories changed in "
            f"it since the restore"
        )
        status = rolled_back_status(
            job.status, message, job.stamp, restored=restored, removal_time=until, writes_since=changed
        )
        await job.write(status)
        await job.post_event("Normal", Reason.ROLLED_BACK, message)
