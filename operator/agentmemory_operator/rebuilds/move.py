"""Moves an agent's alias from a rebuild's source to its target, while the API goes on serving.

Nobody watches, and clocks differ; so a process of the API relies on what the source's metadata said for `LEASE_S` at
most, and the move is announced there for longer than that before writers are held:

1. Announced: writers look at the metadata again after each write, and are acknowledged if it is not Final by then. That
   begins while the target is verified, so that little or nothing of it is left to wait for.
2. Final: writers wait. What was acknowledged was written before that, so the last pass sees it.
3. The alias moves, and with it the writers.

Whatever fails before the alias has moved lets the writers go on at once, and the move begins anew; so it does where
somebody else has let them go on. A plain collection that may have gone holds them until the alias is there:
`rebuilds/plain.py`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agentmemory_operator.collections.announce import (
    AliasLocks,
    Announcement,
    Announcing,
    check_stands,
    is_behind,
    release_writers,
    say,
)
from agentmemory_operator.collections.previous import leads_to
from agentmemory_operator.collections.rules.announcement import ANNOUNCE_S, Phase
from agentmemory_operator.collections.rules.changes import SetAlias
from agentmemory_operator.collections.rules.collection import ORIGIN_KEY
from agentmemory_operator.collections.rules.epochs import epoch_in, epoch_to_json, next_epoch
from agentmemory_operator.errors import RebuildUnwanted, StoreUnavailable
from agentmemory_operator.rebuilds.catch_up import carry_all, carry_changed
from agentmemory_operator.rebuilds.converge import await_replicas
from agentmemory_operator.rebuilds.copy import embedding_of
from agentmemory_operator.rebuilds.plain import note_taken, take_place, way_back_of
from agentmemory_operator.rebuilds.rules.plain import is_of_plain, is_past_return
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.restores.rules.checks import RECORDS_KEY

HELD_S = 3.0
"""Seconds that the last pass may take while writers are held; the API refuses them after some more (`Times.hold_s`)."""

PASS_S = 1.0
"""Seconds between two passes while a move is announced: what is left over for the last one."""


@dataclass(slots=True)
class Move:
    """Moves aliases.

    Attributes:
        locks: of the aliases; one for all who move them.
        is_cleaned: tells whether the agent of a rebuild is being cleaned up: that writes by the alias, and unfenced.
        announce_s, held_s: seconds; see ANNOUNCE_S and HELD_S.
        monotonic, sleep: seconds of this process.
    """

    locks: AliasLocks
    is_cleaned: Callable[[RebuildRun], bool]
    announce_s: float = ANNOUNCE_S
    held_s: float = HELD_S
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def announced_beside(self, step: Callable[[RebuildRun], Awaitable[str]]) -> Callable[[RebuildRun], Awaitable[str]]:
        """The step before the move with the move announced as it begins: see `withdraw`."""

        async def work(task: RebuildRun) -> str:
            # What comes between is long where a copy of a plain collection is made.
            if not is_of_plain(task.record, task.alias):
                await self._announce(task)
            return await step(task)

        return work

    async def __call__(self, task: RebuildRun) -> str:
        """Move the alias.

        Raises:
            RebuildPaused, RebuildUnwanted: it is not to be moved any more.
            TransientError: it was not moved, and is to be tried again.
        """
        if task.announcement is None:
            await withdraw(task)
        if self.is_cleaned(task):
            raise StoreUnavailable("waiting for a cleanup of the agent before the switch")
        carried = [task, *await way_back_of(task)]
        try:
            await self._announce(task)
            await self._prepare(task, carried)
            held_s: float | None = await self._hold_and_move(task, carried)
        except BaseException:
            if not await is_behind(task.server, task.alias, task.target_name):
                await withdraw(task)
                raise
            # The answer was lost, not the move.
            held_s = None
        task.announcement = None
        await note_taken(task)
        if held_s is None:
            return "moved"
        return f"{task.alias} points to {task.target_name}; writes were paused for {held_s * 1000:.0f} ms"

    async def _announce(self, task: RebuildRun) -> None:
        """Announce the move, unless that was done, or there are no writers any more."""
        if task.announcement is None and not is_past_return(task.record, task.alias):
            marker, source, target = task.desired.marker, task.source_name, task.target_name
            announcing = Announcing(announce_s=self.announce_s, monotonic=self.monotonic, sleep=self.sleep)
            task.announcement = await announcing.begin(
                *(task.server, source, target), embedding=marker.embedding if marker else None, carries=True
            )

    @staticmethod
    def _unheard(task: RebuildRun) -> Announcement:
        """What is said of a move whose source has no writers any more."""
        marker = task.desired.marker
        return Announcement(
            source=task.source_name,
            target=task.target_name,
            token="",
            known_s=0,
            embedding=marker.embedding if marker else None,
            carries=True,
        )

    async def _prepare(self, task: RebuildRun, carried: Sequence[RebuildRun]) -> None:
        """Carry what is left, and written meanwhile, until every process knows of the move."""
        for each in carried:
            await carry_all(each, embedder=embedding_of(each))
        await _hand_over(task)
        if task.announcement is None:
            return
        while (left_s := task.announcement.known_s - self.monotonic()) > 0:
            for each in carried:
                await carry_changed(each)
            await self.sleep(min(left_s, PASS_S))
        for each in carried:
            await carry_changed(each)

    async def _hold_and_move(self, task: RebuildRun, carried: Sequence[RebuildRun]) -> float:
        """Hold the writers, carry what is left and move the alias; return for how many seconds they were held."""
        async with self.locks.of(task.slug):
            # Right before the move, and with nobody of this process between: what is deleted stays deleted.
            await task.check()
            # A peer may have left since the step began; nobody is held yet.
            await await_replicas(task, patience_s=0)
            if not await leads_to(task.server, task.alias, task.source_name):
                raise RebuildUnwanted(f"{task.alias} no longer points to {task.source_name}")
            await task.note(moved_ms=task.clock.now_ms())
            begun_s = self.monotonic()
            if task.announcement is not None:
                await check_stands(task.server, task.announcement)
            await say(task.server, task.announcement or self._unheard(task), Phase.FINAL)
            try:
                async with asyncio.timeout(self.held_s):
                    if task.source.points == 0:
                        # Nobody had to approve it while that is so: whoever was acknowledged has written by now.
                        await task.check()
                    for each in carried:
                        await carry_changed(each, is_last=True)
            except TimeoutError as exc:
                raise StoreUnavailable(
                    f"copying the remaining writes took longer than {self.held_s:g} s, the limit for pausing writes; "
                    f"retrying"
                ) from exc
            if is_of_plain(task.record, task.alias):
                await take_place(task)
            else:
                await task.server.collections.apply(task.target_name, SetAlias(task.alias, task.target_name))
            return self.monotonic() - begun_s


async def withdraw(task: RebuildRun) -> None:
    """Let the writers of the source go on, unless it may have gone: what they wrote would go with it."""
    task.announcement = None
    if not is_past_return(task.record, task.alias):
        await release_writers(task.server, task.source_name)


async def _hand_over(task: RebuildRun) -> None:
    """Give the target its epoch, and what the source says of where its memories come from."""
    told = await task.server.snapshots.metadata(task.source_name)
    if told is None:
        # A plain collection that has gone: it was done before that.
        return
    kept = {key: told.get(key) for key in (ORIGIN_KEY, RECORDS_KEY)}
    epoch = epoch_to_json(next_epoch(epoch_in(told), task.clock.now_ms(), carries=True))
    await task.server.snapshots.write_metadata(task.target_name, kept | epoch)
