"""Keeps what one process reads and writes on the right side of a move of an agent's alias to another collection.

The operator announces a move in the metadata of the collection that the alias leads to, waits longer than a lease, says
that it is final, carries over what was written last, and moves the alias (`collections/rules/announcement.py`).
Nothing tells an API process of that. So it reads the metadata itself, and relies on a reading for no longer than a
lease from when that began. What ended within the lease of a reading without any announcement ended before the move was
final: nothing else is asked. Whatever else ended is followed by another reading (`agents/fenced_store.py`).

A reading also says whose the collection is, and whether it is closed. One that says it is another's, closed, of an
epoch that is over, or gone, ends what was known: nothing of it is answered, and nothing is written, until one says
otherwise. Whatever is read, of a move or not, counts only within the lease of a reading that says that the collection
is the agent's.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentmemory_operator.agents.collection_facts import Facts, Space, check_epoch
from agentmemory_operator.collections.rules.announcement import LEASE_S
from agentmemory_operator.errors import AgentClosed, AgentMemoryError, NotServed
from agentmemory_operator.runtime.leadership import monotonic_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds, and the clock that they are told by.

    Attributes:
        lease_s: for how long a reading is relied on; it is renewed beside requests after half of that.
        hold_s: for how long a write waits for a move that is final.
        poll_s: between two looks meanwhile.
        now_s: a clock that goes on while the machine sleeps.
    """

    lease_s: float = LEASE_S
    hold_s: float = 5.0
    poll_s: float = 0.03
    now_s: Callable[[], float] = monotonic_s

    @property
    def most_wait_s(self) -> float:
        """How much longer than its call to the server a write may take."""
        return self.hold_s + 1.0


TIMES = Times()


class Fence:
    """What is known of the collection behind one agent's alias.

    Args:
        read: reads what it says of itself.
    """

    def __init__(self, slug: str, read: Callable[[], Awaitable[Facts]], times: Times) -> None:
        self.slug = slug
        self.times = times
        self.facts: Facts | None = None
        self._read_facts = read
        self._begun_s = self._relied_on_until_s = self._kept_until_s = float("-inf")
        # What was seen to be closed opens with this epoch: an earlier one comes of the snapshot.
        self._least_epoch = 0
        # Readings are numbered as they begin; one runs at a time.
        self._begun = self._ended = 0
        self._reading: asyncio.Task[None] | None = None
        self._told: Facts | AgentMemoryError

    def vouches_for(self, space: Space) -> bool:
        """Whether what has ended now ended in this space, before any move was final."""
        if self.times.now_s() > self._relied_on_until_s or self.facts is None:
            return False
        return self.facts.space == space

    def read_ahead(self) -> None:
        """Read anew in the background where that will soon be needed."""
        if self._reading is None and self.times.now_s() - self._begun_s >= self.times.lease_s / 2:
            self._begin()

    async def has_contents(self, contents: int) -> bool:
        """Whether what has ended now was read of these contents, in the agent's own collection.

        Raises:
            StoreUnavailable: it is another's, closed, gone, or cannot be read.
        """
        if not self._vouches_for_contents(contents):
            # One that is under way, as it is begun beside a use, will do where it announces no others.
            await asyncio.shield(self._reading or self._begin())
            if isinstance(self._told, AgentMemoryError):
                raise self._told
        return self._vouches_for_contents(contents) or (await self.read()).contents == contents

    def _vouches_for_contents(self, contents: int) -> bool:
        is_known = self.times.now_s() <= self._kept_until_s and self.facts is not None
        return is_known and self.facts is not None and self.facts.contents == contents

    async def read(self) -> Facts:
        """What the collection says now: the reading begins no earlier than the call. Calls share readings.

        Raises:
            StoreUnavailable: it cannot be read, or is not to be used now.
        """
        wanted = self._begun + 1
        while self._ended < wanted:
            await asyncio.shield(self._reading or self._begin())
        if isinstance(self._told, AgentMemoryError):
            raise self._told
        return self._told

    def _begin(self) -> asyncio.Task[None]:
        self._reading = asyncio.create_task(self._read())
        return self._reading

    async def _read(self) -> None:
        """Read once; an error is for those who wait, if anybody does."""
        self._begun += 1
        begun_s = self.times.now_s()
        try:
            facts = await self._read_facts()
            check_epoch(facts, self.slug, self._least_epoch)
        except AgentMemoryError as error:
            self._told = error
            if isinstance(error, AgentClosed):
                self._least_epoch = max(self._least_epoch, error.until)
            if isinstance(error, NotServed | AgentClosed):
                # What was opened of it is not used again.
                self.facts, self._relied_on_until_s, self._kept_until_s = None, float("-inf"), float("-inf")
        else:
            self._told = self.facts = facts
            self._begun_s, until_s = begun_s, begun_s + self.times.lease_s
            self._kept_until_s = until_s if facts.keeps_contents else float("-inf")
            self._relied_on_until_s = until_s if facts.phase is None else float("-inf")
        finally:
            self._ended, self._reading = self._begun, None
