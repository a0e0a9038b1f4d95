"""Announce a move of an alias in the metadata of its current target, and move the alias.

Actors: the operator, and API processes that read and write through the alias. API processes do not watch the metadata,
and clocks are not synchronised. So an API process relies on the metadata for LEASE_S (5 s) at most, and the operator
waits ANNOUNCE_S (7 s) after the announcement. `agents/fence.py` has the steps of API processes and the invariant.

Steps of `AliasSwitch`, which replaces the contents (a restore and its rollback). For a rebuild see `rebuilds/move.py`.
1. Write phase `Announced` into the source. Wait ANNOUNCE_S.
2. Under the lock of the alias: check that the move is still required, that the alias still points to the source and
   that the announcement is still there. Write the next epoch into the target.
3. Write phase `Final` into the source: writers wait.
4. Point the alias to the target.

At most one move of an alias is in progress: `AliasLocks` serialises moves in this process, and the leader lease
excludes other operators. An error before step 4 removes the announcement, and writers continue. If the result of step 4
is unknown, or the leader lease is lost, the announcement stays: writers wait until the move is repeated.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from agentmemory_operator.collections.replaced_collection import alias_points_to, find_live
from agentmemory_operator.collections.rules.announcement import (
    ANNOUNCE_S,
    MOVING_KEY,
    Phase,
    build_announcement,
    is_announced,
    phase_of,
)
from agentmemory_operator.collections.rules.changes import SetAlias
from agentmemory_operator.collections.rules.collection import embedding_to_json
from agentmemory_operator.collections.rules.epochs import epoch_to_json, next_epoch, read_epoch
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import (
    AgentMemoryError,
    LeadershipLost,
    OutcomeUnknown,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.effective.embedding import EmbeddingSource


class AliasLocks:
    """Locks by slug. They serialise passes that create or delete an alias's target, and moves of the alias."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock_for(self, slug: str) -> asyncio.Lock:
        """Return the lock of an agent's alias. Hold it only for short calls, never while points are copied."""
        return self._locks.setdefault(slug, asyncio.Lock())


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """An announcement of a move, valid until it is removed from the metadata.

    Attributes:
        source: Collection that contains the announcement: the current target of the alias.
        target: Next target of the alias.
        token: Unique id of the announcement.
        effective_at_s: Monotonic time from which every API process has read the announcement, or has no valid lease.
        embedding: Embedding after the move. None if it does not change.
        copies_writes: True if everything written to the source before the move is copied to the target.
    """

    source: str
    target: str
    token: str
    effective_at_s: float
    embedding: EmbeddingSource | None = None
    copies_writes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveAnnouncer:
    """Writes announcements and waits for them.

    Attributes:
        announce_s: Minimum seconds from an announcement to the move; see ANNOUNCE_S.
        late_s: Seconds that a write may take to arrive at Qdrant. None uses the timeout of calls to the server.
        monotonic, sleep: Clock and sleep function of this process, in seconds.
    """

    announce_s: float = ANNOUNCE_S
    late_s: float | None = None
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def announce(
        self,
        server: Server,
        source: str,
        target: str,
        *,
        embedding: EmbeddingSource | None = None,
        copies_writes: bool = False,
    ) -> Announcement:
        """Announce a move in `source`, replacing an earlier announcement there; see `Announcement`.

        Args:
            embedding, copies_writes: Values of the fields of `Announcement`.

        Raises:
            TransientError: If the metadata cannot be written now. The announcement may have been written.
        """
        token = uuid.uuid4().hex
        announcement = Announcement(
            source=source,
            target=target,
            token=token,
            effective_at_s=0,
            embedding=embedding,
            copies_writes=copies_writes,
        )
        await write_phase(server, announcement, Phase.ANNOUNCED)
        return replace(announcement, effective_at_s=self.monotonic() + self.announce_s)

    async def wait_until_effective(self, announcement: Announcement) -> None:
        """Wait until no API process relies on metadata that was read before the announcement."""
        while (remaining_s := announcement.effective_at_s - self.monotonic()) > 0:
            await self.sleep(remaining_s)

    async def wait_for_late_writes(self, server: Server) -> None:
        """Wait until every write that was sent before the move has arrived or timed out."""
        await self.sleep(server.endpoint.timeout_s if self.late_s is None else self.late_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasSwitch:
    """Moves an alias to a collection into which no writes are copied: a restored or a previously replaced one.

    Attributes:
        now_ms: Returns the time, Unix milliseconds.
        check: Raises if the move is no longer required. Called right before the move, under the alias's lock.
        min_epoch: Minimum number of the target's epoch; see `SlugClaim`.
    """

    server: Server
    slug: str
    alias: str
    target: str
    now_ms: Callable[[], int]
    check: Callable[[], Awaitable[None]]
    min_epoch: int = 0

    async def run(self, locks: AliasLocks, announcer: MoveAnnouncer, *, expected_target: str | None) -> None:
        """Announce the move, wait, pause the writers, and move the alias.

        Does nothing if the alias already points to `target`. If it has no target, nothing is announced.

        Args:
            expected_target: Expected current target of the alias. If it is right, not all aliases are listed. None if
                unknown.

        Raises:
            StoreUnavailable: If the alias was not moved. The call can be repeated.
            OutcomeUnknown: If the alias may have been moved. The announcement stays, so that writers wait until the
                call is repeated. A cancellation during the move keeps it too.
            LeadershipLost: If this process may no longer write. The announcement stays.
            AgentMemoryError: Errors of `check`. The alias was not moved.
        """
        live = await find_live(self.server, self.alias, expected_target)
        if live is not None and live.physical == self.target:
            return
        announcement = None if live is None else await announcer.announce(self.server, live.physical, self.target)
        unknown: tuple[type[BaseException], ...] = (OutcomeUnknown, LeadershipLost)
        try:
            if announcement is not None:
                await announcer.wait_until_effective(announcement)
            async with locks.lock_for(self.slug):
                await self._prepare(announcement)
                unknown += (asyncio.CancelledError,)
                await self._move()
        except (AgentMemoryError, asyncio.CancelledError) as exc:
            # Keep the writers waiting if the outcome is unknown: the move may still take effect.
            if announcement is not None and not isinstance(exc, unknown):
                await release_writers(self.server, announcement.source)
            raise

    async def _prepare(self, announcement: Announcement | None) -> None:
        """Check that the move is still valid, write the target's epoch, and pause the writers."""
        await self.check()
        live = await find_live(self.server, self.alias, announcement.source if announcement else self.target)
        if (live.physical if live else None) != (announcement.source if announcement else None):
            raise StoreUnavailable(f"{self.alias} points to another collection now: the switch is announced there")
        metadata = await check_announced(self.server, announcement) if announcement else {}
        epoch = next_epoch(read_epoch(metadata), self.now_ms(), copies_writes=False, min_number=self.min_epoch)
        await self.server.snapshots.write_metadata(self.target, epoch_to_json(epoch))
        if announcement is not None:
            await write_phase(self.server, announcement, Phase.FINAL)

    async def _move(self) -> None:
        try:
            await self.server.collections.apply(self.target, SetAlias(self.alias, self.target))
        except LeadershipLost:
            raise
        except TransientError as exc:
            # Check the alias: it may have been moved although the call failed, if the response was lost.
            if not await alias_certainly_points_to(self.server, self.alias, self.target):
                raise OutcomeUnknown(f"cannot tell whether {self.alias} points to {self.target}: {exc}") from exc


async def write_phase(server: Server, announcement: Announcement, phase: Phase) -> None:
    """Write an announcement with a phase into the source's metadata, replacing any earlier one."""
    embedding = embedding_to_json(announcement.embedding) if announcement.embedding else None
    document = build_announcement(
        announcement.source,
        announcement.target,
        announcement.token,
        phase,
        copies_writes=announcement.copies_writes,
        embedding=embedding,
    )
    await server.snapshots.write_metadata(announcement.source, document)


async def check_announced(server: Server, announcement: Announcement) -> Json:
    """Return the source's metadata, or raise if it does not contain the announcement any more.

    Raises:
        StoreUnavailable: If the announcement was removed, so that writers continue, or the source does not exist.
            Announce the move again.
    """
    metadata = await server.snapshots.metadata(announcement.source) or {}
    if not is_announced(metadata, announcement.token):
        raise StoreUnavailable(f"the announcement in {announcement.source} was removed and is repeated")
    return metadata


async def release_writers(server: Server, physical: str) -> None:
    """Remove an announcement from a collection, so that its writers continue. Does nothing if there is none."""
    if phase_of(await server.snapshots.metadata(physical)) is not None:
        await server.snapshots.write_metadata(physical, {MOVING_KEY: None})


async def alias_certainly_points_to(server: Server, alias: str, physical: str) -> bool:
    """Return whether an alias points to a collection; False if that cannot be read."""
    try:
        return await alias_points_to(server, alias, physical)
    except AgentMemoryError:
        return False
