"""Says in a collection's metadata that another will be behind its alias, and waits until every process knows of it.

One hand is on an alias at a time: within this process by a lock, and of several processes one leads.

Nobody watches, and clocks differ; so a process of the API relies on what the metadata said for `LEASE_S` at most, and
an announcement stands for longer than that before anything is done. `agents/fence.py` is the other side of it.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from agentmemory_operator.collections.previous import leads_to, live_behind
from agentmemory_operator.collections.rules.announcement import (
    ANNOUNCE_S,
    MOVING_KEY,
    Phase,
    announced,
    is_announced,
    phase_of,
)
from agentmemory_operator.collections.rules.changes import SetAlias
from agentmemory_operator.collections.rules.collection import embedding_to_json
from agentmemory_operator.collections.rules.epochs import epoch_in, epoch_to_json, next_epoch
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
    """Locks by slug: a pass that makes or deletes what an alias leads to, and a restore that moves it, take turns."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, slug: str) -> asyncio.Lock:
        """The lock of an agent's alias; held for moments, never for a copy's time."""
        lock = self._locks.get(slug)
        if lock is None:
            lock = self._locks[slug] = asyncio.Lock()
        return lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """An announcement, as long as nobody has taken it back.

    Attributes:
        source: the collection that says so.
        target: the one after it.
        token: tells it from every other announcement.
        known_s: from when on every process of the API knows of it, by the clock of this one.
        embedding: in force afterwards.
        carries: what is written in the source until then is in the target.
    """

    source: str
    target: str
    token: str
    known_s: float
    embedding: EmbeddingSource | None = None
    carries: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcing:
    """Announces.

    Attributes:
        announce_s: see ANNOUNCE_S.
        late_s: seconds that a write may take to arrive; None is the time limit of a call to the server.
        monotonic, sleep: seconds of this process.
    """

    announce_s: float = ANNOUNCE_S
    late_s: float | None = None
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def begin(
        self,
        server: Server,
        source: str,
        target: str,
        *,
        embedding: EmbeddingSource | None = None,
        carries: bool = False,
    ) -> Announcement:
        """Announce, in the place of what was announced before."""
        token = uuid.uuid4().hex
        made = Announcement(source=source, target=target, token=token, known_s=0, embedding=embedding, carries=carries)
        await say(server, made, Phase.ANNOUNCED)
        return replace(made, known_s=self.monotonic() + self.announce_s)

    async def wait_out(self, made: Announcement) -> None:
        """Wait until every process knows of it."""
        while (left_s := made.known_s - self.monotonic()) > 0:
            await self.sleep(left_s)

    async def wait_for_late_writes(self, server: Server) -> None:
        """Wait until a write that was sent before the change has arrived."""
        await self.sleep(server.endpoint.timeout_s if self.late_s is None else self.late_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Moves an alias to a collection that nothing is carried into: of a snapshot, or one that was replaced before.

    Attributes:
        check: passes while the move is wanted; asked right before it, when nobody of this process is between.
        least_epoch: see `SlugClaim`.
    """

    server: Server
    slug: str
    alias: str
    target: str
    now_ms: Callable[[], int]
    check: Callable[[], Awaitable[None]]
    least_epoch: int = 0

    async def run(self, locks: AliasLocks, announcing: Announcing, *, likely: str | None) -> None:
        """Announce the move, wait, hold the writers and move the alias.

        Args:
            likely: what the alias likely leads to.

        Raises:
            StoreUnavailable: it was not moved, and is to be tried again.
        """
        live = await live_behind(self.server, self.alias, likely)
        if live is not None and live.physical == self.target:
            return
        made = None if live is None else await announcing.begin(self.server, live.physical, self.target)
        try:
            if made is not None:
                await announcing.wait_out(made)
            async with locks.of(self.slug):
                await self._prepare(made)
                await self._move()
        except (AgentMemoryError, asyncio.CancelledError) as exc:
            # A call that nobody knows the end of may still move it: then writers wait until it is announced again.
            if made is not None and not isinstance(exc, OutcomeUnknown | LeadershipLost):
                await release_writers(self.server, made.source)
            raise

    async def _prepare(self, made: Announcement | None) -> None:
        """Give the target its epoch, and hold the writers."""
        await self.check()
        live = await live_behind(self.server, self.alias, made.source if made else self.target)
        if (live.physical if live else None) != (made.source if made else None):
            raise StoreUnavailable(f"{self.alias} points to another collection now: the switch is announced there")
        told = await check_stands(self.server, made) if made else {}
        epoch = next_epoch(epoch_in(told), self.now_ms(), carries=False, least=self.least_epoch)
        await self.server.snapshots.write_metadata(self.target, epoch_to_json(epoch))
        if made is not None:
            await say(self.server, made, Phase.FINAL)

    async def _move(self) -> None:
        try:
            await self.server.collections.apply(self.target, SetAlias(self.alias, self.target))
        except LeadershipLost:
            raise
        except TransientError as exc:
            # The answer may have been lost, not the move.
            if not await is_behind(self.server, self.alias, self.target):
                raise OutcomeUnknown(f"cannot tell whether {self.alias} points to {self.target}: {exc}") from exc


async def say(server: Server, made: Announcement, phase: Phase) -> None:
    """Write into the source how near the change is."""
    embedding = embedding_to_json(made.embedding) if made.embedding else None
    told = announced(made.source, made.target, made.token, phase, carries=made.carries, embedding=embedding)
    await server.snapshots.write_metadata(made.source, told)


async def check_stands(server: Server, made: Announcement) -> Json:
    """Pass if the announcement still stands; return what the source says of itself.

    Raises:
        StoreUnavailable: somebody has let the writers go on, who rely on that; it is to be made again.
    """
    metadata = await server.snapshots.metadata(made.source) or {}
    if not is_announced(metadata, made.token):
        raise StoreUnavailable(f"the announcement in {made.source} was removed and is repeated")
    return metadata


async def release_writers(server: Server, physical: str) -> None:
    """Let the writers of a collection go on, where a change was announced that is not under way."""
    if phase_of(await server.snapshots.metadata(physical)) is not None:
        await server.snapshots.write_metadata(physical, {MOVING_KEY: None})


async def is_behind(server: Server, alias: str, physical: str) -> bool:
    """Whether an alias leads to a collection; where that cannot be found out, it is taken not to."""
    try:
        return await leads_to(server, alias, physical)
    except AgentMemoryError:
        return False
