"""Moves an agent's alias from a rebuild's source to its target, while the API goes on serving.

Nobody watches, and clocks differ; so a process of the API relies on what the source's metadata said for `LEASE_S` at
most, and the move is announced there for longer than that before writers are held:

1. Announced: writers look at the metadata again after each write, and are acknowledged if it is not Final by then. That
   begins while the target is verified, so that little or nothing of it is left to wait for.
2. Final: writers wait. What was acknowledged was written before that, so the last pass sees it.
3. The alias moves, and with it the writers.

Whatever fails before the alias has moved lets the writers go on at once, and the move begins anew; so it does where
somebody else has let them go on. A plain collection that may have gone holds them until the alias is there:
`services/plain_moves.py`.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from agentmemory_operator.domain.changes import SetAlias
from agentmemory_operator.domain.collection import ORIGIN_KEY, embedding_to_json
from agentmemory_operator.domain.plain_moves import is_of_plain, is_past_return
from agentmemory_operator.domain.rebuilding import ANNOUNCE_S, MOVING_KEY, Phase, phase_of
from agentmemory_operator.domain.restoring import RECORDS_KEY
from agentmemory_operator.errors import AgentMemoryError, RebuildUnwanted, StoreUnavailable
from agentmemory_operator.ports import Json
from agentmemory_operator.services.aliases import AliasLocks
from agentmemory_operator.services.catching_up import carry_all, carry_changed
from agentmemory_operator.services.copying import embedding_of
from agentmemory_operator.services.plain_moves import note_taken, take_place, way_back_of
from agentmemory_operator.services.previous import leads_to
from agentmemory_operator.services.rebuild_tasks import Announcement, Task
from agentmemory_operator.services.replication import await_replicas
from agentmemory_operator.services.servers import Server

HELD_S = 3.0
"""For how long writers are held at most; the API refuses them after some more."""

PASS_S = 1.0
"""Seconds between two passes while a move is announced: what is left over for the last one."""

_log = logging.getLogger(__name__)


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
    is_cleaned: Callable[[Task], bool]
    announce_s: float = ANNOUNCE_S
    held_s: float = HELD_S
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def announced_beside(self, step: Callable[[Task], Awaitable[str]]) -> Callable[[Task], Awaitable[str]]:
        """Return the step before the move with the move announced as it begins: see `withdraw`."""

        async def work(task: Task) -> str:
            # What comes between is long where a copy of a plain collection is made.
            if not is_of_plain(task.record, task.alias):
                await self._announce(task)
            return await step(task)

        return work

    async def __call__(self, task: Task) -> str:
        """Move the alias.

        Raises:
            RebuildPaused, RebuildUnwanted: it is not to be moved any more.
            TransientError: it was not moved, and is to be tried again.
        """
        if task.announcement is None:
            await withdraw(task)
        if self.is_cleaned(task):
            raise StoreUnavailable("the agent is being cleaned up: its collection is moved afterwards")
        carried = [task, *await way_back_of(task)]
        try:
            await self._announce(task)
            await self._prepare(task, carried)
            held_s: float | None = await self._switch(task, carried)
        except BaseException:
            if not await _is_moved(task):
                await withdraw(task)
                raise
            # The answer was lost, not the move.
            held_s = None
        task.announcement = None
        await note_taken(task)
        if held_s is None:
            return "moved"
        return f"{task.alias} leads to {task.target_name}; writers were held for {held_s * 1000:.0f} ms"

    async def _announce(self, task: Task) -> None:
        """Announce the move, unless that was done, or there are no writers any more."""
        if task.announcement is None and not is_past_return(task.record, task.alias):
            token = uuid.uuid4().hex
            await _write(task, Phase.ANNOUNCED, token)
            task.announcement = Announcement(token, self.monotonic() + self.announce_s)

    async def _prepare(self, task: Task, carried: Sequence[Task]) -> None:
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

    async def _switch(self, task: Task, carried: Sequence[Task]) -> float:
        """Hold the writers, carry what is left and move the alias; return for how many seconds they were held."""
        async with self.locks.of(task.slug):
            # Right before the move, and with nobody of this process between: what is deleted stays deleted.
            await task.check()
            # A peer may have left since the step began; nobody is held yet.
            await await_replicas(task, patience_s=0)
            if not await leads_to(task.server, task.alias, task.source_name):
                raise RebuildUnwanted(f"{task.alias} leads to another collection than {task.source_name} since")
            await task.note(moved_ms=task.clock.now_ms())
            await _check_announced(task)
            begun_s = self.monotonic()
            await _write(task, Phase.FINAL, task.announcement.token if task.announcement else "")
            try:
                async with asyncio.timeout(self.held_s):
                    for each in carried:
                        await carry_changed(each, is_last=True)
            except TimeoutError as exc:
                raise StoreUnavailable(
                    f"what was left to carry took longer than {self.held_s:g} s: writers are not held for so long"
                ) from exc
            if is_of_plain(task.record, task.alias):
                await take_place(task)
            else:
                await task.server.collections.apply(task.target_name, SetAlias(task.alias, task.target_name))
            return self.monotonic() - begun_s


async def withdraw(task: Task) -> None:
    """Let the writers of the source go on, unless it may have gone: what they wrote would go with it."""
    task.announcement = None
    if not is_past_return(task.record, task.alias):
        await release_writers(task.server, task.source_name)


async def release_writers(server: Server, physical: str) -> None:
    """Let the writers of a collection go on, where a move of its alias was announced that is not under way."""
    if phase_of(await server.snapshots.metadata(physical)) is not None:
        await server.snapshots.write_metadata(physical, {MOVING_KEY: None})


async def _check_announced(task: Task) -> None:
    """Pass if the announcement still stands.

    Raises:
        StoreUnavailable: somebody has let the writers go on, who rely on that; it is to be made again.
    """
    if task.announcement is None:
        return
    told = (await task.server.snapshots.metadata(task.source_name) or {}).get(MOVING_KEY)
    if not isinstance(told, Mapping) or told.get("token") != task.announcement.token:
        raise StoreUnavailable(f"the announcement that {task.alias} moves was taken back: it is made again")


async def _write(task: Task, phase: Phase, token: str) -> None:
    marker = task.desired.marker
    moving: Json = {"from": task.source_name, "to": task.target_name, "phase": phase, "token": token}
    moving |= {"embedding": embedding_to_json(marker.embedding)} if marker else {}
    await task.server.snapshots.write_metadata(task.source_name, {MOVING_KEY: moving})


async def _hand_over(task: Task) -> None:
    """Give the target what else the source says of itself: whose memories they were, which restores it went through."""
    told = await task.server.snapshots.metadata(task.source_name) or {}
    kept = {key: told.get(key) for key in (ORIGIN_KEY, RECORDS_KEY)}
    await task.server.snapshots.write_metadata(task.target_name, kept)


async def _is_moved(task: Task) -> bool:
    """Tell whether the alias leads to the target; where that cannot be found out, it is taken not to."""
    try:
        return await leads_to(task.server, task.alias, task.target_name)
    except AgentMemoryError as exc:
        _log.warning("where %s leads is not known: %s", task.alias, exc)
        return False
