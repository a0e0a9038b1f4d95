"""Move an agent's alias from a rebuild's source to its target while the API serves.

API processes do not watch Qdrant, and clocks differ. So an API process relies on its last read of the source's metadata
for at most `LEASE_S`. Before writers are held (their requests wait), the move is announced there for longer than that:

1. Announced: a write is followed by a read of the metadata, and acknowledged unless the phase is Final by then. This
   phase starts when the verification of the target does, so most of it has passed when the move starts.
2. Final: writers wait. Every acknowledged write was completed before, so the last pass copies it.
3. The alias moves, and the writers continue in the target.

If anything fails before the alias has moved, writers continue immediately. Unless the rebuild must stop, the move then
starts again. The same applies if another process releases the writers. The writers of a plain collection that may be
deleted wait until the alias exists: `rebuilds/plain_swap.py`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agentmemory_operator.collections.announce import (
    AliasLocks,
    Announcement,
    MoveAnnouncer,
    alias_certainly_points_to,
    check_announced,
    release_writers,
    write_phase,
)
from agentmemory_operator.collections.replaced_collection import alias_points_to
from agentmemory_operator.collections.rules.announcement import ANNOUNCE_S, Phase
from agentmemory_operator.collections.rules.changes import SetAlias
from agentmemory_operator.collections.rules.collection import ORIGIN_KEY
from agentmemory_operator.collections.rules.epochs import epoch_to_json, next_epoch, read_epoch
from agentmemory_operator.errors import RebuildCancelled, StoreUnavailable
from agentmemory_operator.rebuilds.catch_up import copy_changed, copy_differences
from agentmemory_operator.rebuilds.converge import await_replicas
from agentmemory_operator.rebuilds.copy import build_budgeted_embedder
from agentmemory_operator.rebuilds.plain_swap import record_replaced, replace_by_alias, way_back_runs
from agentmemory_operator.rebuilds.rules.plain_swap_steps import is_plain_deleted, replaces_plain_collection
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.restores.rules.swap_checks import RECORDS_KEY

MAX_LAST_PASS_S = 3.0
"""Maximum duration of the last pass in seconds. The API rejects held writes later (`FenceTiming.hold_s`, 5 s)."""

PASS_S = 1.0
"""Seconds between two passes while a move is announced, so that the last pass is short."""


@dataclass(slots=True)
class MoveStep:
    """Step Move: moves the alias from the source to the target.

    Attributes:
        locks: Locks of the aliases, shared by all modules that move aliases.
        is_cleanup_running: Returns whether a cleanup of the agent is in progress, which writes through the alias
            without a fence.
        announce_s: Wait between the announcement and the final phase, in seconds; see ANNOUNCE_S.
        hold_s: Maximum duration of the last pass, in seconds; see MAX_LAST_PASS_S.
        monotonic, sleep: Clock and sleep of this process, in seconds.
    """

    locks: AliasLocks
    is_cleanup_running: Callable[[RebuildRun], bool]
    announce_s: float = ANNOUNCE_S
    hold_s: float = MAX_LAST_PASS_S
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def with_announcement(self, step: Callable[[RebuildRun], Awaitable[str]]) -> Callable[[RebuildRun], Awaitable[str]]:
        """Return a step that announces the move and then runs `step`, which is Verify.

        If the returned step raises, the caller must call `withdraw_announcement`. The move of a plain collection is not
        announced here, but by step Move.
        """

        async def announce_and_run(task: RebuildRun) -> str:
            # Announce the move of a plain collection later, because the copy that follows takes long.
            if not replaces_plain_collection(task.record, task.alias):
                await self._announce(task)
            return await step(task)

        return announce_and_run

    async def __call__(self, task: RebuildRun) -> str:
        """Move the alias; return the result for users.

        Raises:
            RebuildPaused, RebuildCancelled: If the alias must not be moved any more.
            SpecInvalid, StoreRejected, NotFound, ChecksumMismatch: If the alias cannot be moved, or the way back of a
                plain collection cannot be created.
            TransientError: If the step must be repeated. The alias may have been moved.
        """
        if task.announcement is None:
            await withdraw_announcement(task)
        if self.is_cleanup_running(task):
            raise StoreUnavailable("waiting for a cleanup of the agent before the switch")
        runs = [task, *await way_back_runs(task)]
        try:
            await self._announce(task)
            await self._prepare(task, runs)
            pause_s: float | None = await self._pause_and_move(task, runs)
        except BaseException:
            if not await alias_certainly_points_to(task.server, task.alias, task.target_name):
                await withdraw_announcement(task)
                raise
            # The alias was moved, and only the response was lost: do not release the writers of the source.
            pause_s = None
        task.announcement = None
        await record_replaced(task)
        if pause_s is None:
            return "moved"
        return f"{task.alias} points to {task.target_name}; writes were paused for {pause_s * 1000:.0f} ms"

    async def _announce(self, task: RebuildRun) -> None:
        """Announce the move in the source, unless this run has announced it or may have deleted the source."""
        if task.announcement is None and not is_plain_deleted(task.record, task.alias):
            marker, source, target = task.desired.marker, task.source_name, task.target_name
            announcer = MoveAnnouncer(announce_s=self.announce_s, monotonic=self.monotonic, sleep=self.sleep)
            task.announcement = await announcer.announce(
                *(task.server, source, target), embedding=marker.embedding if marker else None, copies_writes=True
            )

    @staticmethod
    def _unpublished(task: RebuildRun) -> Announcement:
        """Return an announcement for a move whose source has no writers. It has not been written to Qdrant."""
        marker = task.desired.marker
        return Announcement(
            source=task.source_name,
            target=task.target_name,
            token="",
            effective_at_s=0,
            embedding=marker.embedding if marker else None,
            copies_writes=True,
        )

    async def _prepare(self, task: RebuildRun, runs: Sequence[RebuildRun]) -> None:
        """Copy changes and metadata until the announcement is effective: no API process relies on older reads then.

        After the comparison of all points, embedding calls are neither limited nor counted: writers are about to wait.
        """
        for run in runs:
            embedder = build_budgeted_embedder(run)
            await copy_differences(run, embedder=embedder)
            if embedder is not None:
                await run.update_record(calls=embedder.calls)
        await _copy_metadata(task)
        if task.announcement is None:
            return
        while (remaining_s := task.announcement.effective_at_s - self.monotonic()) > 0:
            for run in runs:
                await copy_changed(run)
            await self.sleep(min(remaining_s, PASS_S))
        for run in runs:
            await copy_changed(run)

    async def _pause_and_move(self, task: RebuildRun, runs: Sequence[RebuildRun]) -> float:
        """Hold the writers, copy the remaining changes and move the alias; return how many seconds writers waited."""
        async with self.locks.lock_for(task.slug):
            # Check right before the move and under the lock, because no alias may be created for a deleted object.
            await task.check()
            # Fail before writers are held if a Qdrant peer has failed since the step started.
            await await_replicas(task, patience_s=0)
            if not await alias_points_to(task.server, task.alias, task.source_name):
                raise RebuildCancelled(f"{task.alias} no longer points to {task.source_name}")
            await task.update_record(moved_ms=task.clock.now_ms())
            started_s = self.monotonic()
            if task.announcement is not None:
                await check_announced(task.server, task.announcement)
            await write_phase(task.server, task.announcement or self._unpublished(task), Phase.FINAL)
            try:
                async with asyncio.timeout(self.hold_s):
                    if task.source.points == 0:
                        # Check again now that all acknowledged writes are stored: an empty source needed no approval,
                        # and may have got its first memories since.
                        await task.check()
                    for run in runs:
                        await copy_changed(run, is_last=True)
            except TimeoutError as exc:
                raise StoreUnavailable(
                    f"copying the remaining writes took longer than {self.hold_s:g} s, the limit for pausing writes; "
                    f"retrying"
                ) from exc
            if replaces_plain_collection(task.record, task.alias):
                await replace_by_alias(task)
            else:
                await task.server.collections.apply(task.target_name, SetAlias(task.alias, task.target_name))
            return self.monotonic() - started_s


async def withdraw_announcement(task: RebuildRun) -> None:
    """Release the writers of the source, which continue there. `task.announcement` becomes None.

    The writers of a plain collection that may be deleted are not released: their writes would be lost.
    """
    task.announcement = None
    if not is_plain_deleted(task.record, task.alias):
        await release_writers(task.server, task.source_name)


async def _copy_metadata(task: RebuildRun) -> None:
    """Write the next epoch, and the source's origin and restore records, into the target's metadata."""
    metadata = await task.server.snapshots.metadata(task.source_name)
    if metadata is None:
        # An earlier run has deleted the plain collection, after it copied the metadata.
        return
    fields = {key: metadata.get(key) for key in (ORIGIN_KEY, RECORDS_KEY)}
    epoch = epoch_to_json(next_epoch(read_epoch(metadata), task.clock.now_ms(), copies_writes=True))
    await task.server.snapshots.write_metadata(task.target_name, fields | epoch)
