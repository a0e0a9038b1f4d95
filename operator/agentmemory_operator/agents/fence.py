"""Fence one API process against moves of an agent's alias to another collection.

The operator moves the alias; API processes read and write through it. Their only channel is the metadata of the
collection behind the alias: nothing is pushed to an API process, and clocks are not synchronised.

Operator (`rebuilds/move.py`, `collections/announce.py`):
1. Write phase `Announced` into the metadata of the source collection.
2. Wait ANNOUNCE_S (7 s), longer than LEASE_S (5 s).
3. Write phase `Final`, which holds back new writes. (An in-place restore closes the collection instead, then recovers a
   snapshot into it.)
4. Rebuild only: copy the remaining writes. Then point the alias to the target.

API process (this module, `agents/fenced_store.py`):
1. Read the metadata. A read that finds no announcement grants a lease of LEASE_S, counted from the start of the read.
2. Accept a call that completes within the lease.
3. Follow any other call by a new read, and accept or reject the call by the result of that read.

Invariant: a call that completes within a lease completes before `Final`. The announcement was written after the read
started, so `Final` follows that start by at least ANNOUNCE_S. The margin of 2 s absorbs clock drift.

There are two leases. The *space* lease covers writes and vector searches, which depend on the collection and its
embedding. The *contents* lease covers other lookups; an announced move that copies all data does not end it.

A read that finds the collection deleted, closed, of an outdated epoch or owned by another object revokes both leases:
no data is returned or written until a later read succeeds. After any other error the leases expire on their own.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentmemory_operator.agents.collection_facts import CollectionFacts, Space, check_epoch
from agentmemory_operator.collections.rules.announcement import LEASE_S
from agentmemory_operator.errors import AgentClosed, AgentMemoryError, CollectionUnavailable
from agentmemory_operator.runtime.leadership import monotonic_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceTiming:
    """Durations of a fence in seconds, and the clock that measures them.

    Attributes:
        lease_s: Validity of a read, counted from its start. `renew_if_due` renews it in the background after half of
            it.
        hold_s: Longest single wait of a write: for a final move to end, or for the move to copy it.
        poll_s: Pause between two reads during that wait.
        now_s: Monotonic clock that also counts the time in which the machine sleeps.
    """

    lease_s: float = LEASE_S
    hold_s: float = 5.0
    poll_s: float = 0.03
    now_s: Callable[[], float] = monotonic_s

    @property
    def max_wait_s(self) -> float:
        """Maximum seconds that a write waits before its call to Qdrant: `hold_s`, and 1 s to read the metadata."""
        return self.hold_s + 1.0


DEFAULT_TIMING = FenceTiming()


class Fence:
    """Leases on the collection behind one agent's alias. Concurrent callers share reads; at most one is in flight.

    Args:
        slug: Slug of the agent, for error messages.
        read: Reads the collection's metadata; see `collection_facts.read_facts`.
        times: Durations of the leases and waits, and their clock.

    Attributes:
        facts: Result of the last successful read. None before the first, and after a read that revoked the leases.
    """

    def __init__(self, slug: str, read: Callable[[], Awaitable[CollectionFacts]], times: FenceTiming) -> None:
        self.slug = slug
        self.timing = times
        self.facts: CollectionFacts | None = None
        self._read_facts = read
        self._last_read_s = self._space_lease_until_s = self._contents_lease_until_s = float("-inf")
        # Epoch with which a closed collection reopens. A lower epoch comes from the snapshot that is being restored.
        self._min_epoch = 0
        # Numbers of the reads that were started and finished. One read runs at a time.
        self._started = self._finished = 0
        self._in_flight: asyncio.Task[None] | None = None
        self._last_result: CollectionFacts | AgentMemoryError

    def has_space_lease(self, space: Space) -> bool:
        """Return whether the space lease is valid and covers `space`.

        If so, a call that has just completed used `space` before a move was final.
        """
        if self.timing.now_s() > self._space_lease_until_s or self.facts is None:
            return False
        return self.facts.space == space

    def renew_if_due(self) -> None:
        """Start a background read if none is in flight and no successful one has started in the last half lease."""
        if self._in_flight is None and self.timing.now_s() - self._last_read_s >= self.timing.lease_s / 2:
            self._start_read()

    async def has_contents(self, contents: int) -> bool:
        """Return whether a call that has just completed read the expected contents. Read the metadata if needed.

        Args:
            contents: Expected `CollectionFacts.contents_number`.

        Raises:
            TransientError: If the collection is deleted, closed, owned by another object, or cannot be read now.
            StoreRejected: If Qdrant rejected the read.
        """
        if not self._has_contents_lease(contents):
            # A background read that is already in flight may renew the contents lease. If it does not, a new read
            # decides.
            await asyncio.shield(self._in_flight or self._start_read())
            if isinstance(self._last_result, AgentMemoryError):
                raise self._last_result
        return self._has_contents_lease(contents) or (await self.read()).contents_number == contents

    def _has_contents_lease(self, contents: int) -> bool:
        is_known = self.timing.now_s() <= self._contents_lease_until_s and self.facts is not None
        return is_known and self.facts is not None and self.facts.contents_number == contents

    async def read(self) -> CollectionFacts:
        """Return the result of a read that starts no earlier than this call.

        Raises:
            TransientError: If the collection is deleted, closed, owned by another object, or cannot be read now.
            StoreRejected: If Qdrant rejected the read.
        """
        number = self._started + 1
        while self._finished < number:
            await asyncio.shield(self._in_flight or self._start_read())
        if isinstance(self._last_result, AgentMemoryError):
            raise self._last_result
        return self._last_result

    def _start_read(self) -> asyncio.Task[None]:
        self._in_flight = asyncio.create_task(self._read())
        return self._in_flight

    async def _read(self) -> None:
        self._started += 1
        started_s = self.timing.now_s()
        try:
            facts = await self._read_facts()
            check_epoch(facts, self.slug, self._min_epoch)
        except AgentMemoryError as error:
            self._last_result = error
            if isinstance(error, AgentClosed):
                self._min_epoch = max(self._min_epoch, error.reopening_epoch)
            if isinstance(error, CollectionUnavailable | AgentClosed):
                # Force `AgentDirectory` to open the agent again.
                self.facts, self._space_lease_until_s, self._contents_lease_until_s = None, float("-inf"), float("-inf")
        else:
            self._last_result = self.facts = facts
            self._last_read_s, lease_until_s = started_s, started_s + self.timing.lease_s
            self._contents_lease_until_s = lease_until_s if facts.keeps_contents else float("-inf")
            self._space_lease_until_s = lease_until_s if facts.phase is None else float("-inf")
        finally:
            self._finished, self._in_flight = self._started, None
