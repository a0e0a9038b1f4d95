"""A cleanup: what it would remove is counted first, and where that is too large a share, it waits for an approval.

Everything that it knows lies in the engine: killed at any step and run again, it ends the same. A memory is taken out
by a compare-and-set on its `rev`, so one that changed meanwhile is left to the next run; it leaves a tombstone, as
every deletion does. Tombstones within a chain are pending until the chain is closed over them; whoever meets one may do
that. Tombstones that no copy needs any more are removed a few at a time: searches wait while the engine writes.
"""

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.rules.collection import is_placeholder
from agentmemory_operator.collections.rules.rebuild_record import record_from_json
from agentmemory_operator.errors import NotFound, StoreRejected, TransientError
from agentmemory_operator.lifecycle.removals import PHASES, Going, Phase, RemovalTally, find
from agentmemory_operator.lifecycle.rules.cleanup import CleanupRules, Removal, Row, allowance, braked
from agentmemory_operator.lifecycle.rules.tombstones import PURGEABLE_KEYS, is_purgeable, purgeable
from agentmemory_operator.memories import chains, session_keywords
from agentmemory_operator.memories.point_pages import read_pages
from agentmemory_operator.memories.rules.filters import NOT_SUPERSEDED, STORED, both
from agentmemory_operator.memories.rules.record import EXPIRED_KEY, LONG_CHAIN, UPDATES_KEY, Payload, tombstone_of
from agentmemory_operator.memories.tombstone_writes import BATCH, bury
from agentmemory_operator.ports.base import Clock, Json

log = logging.getLogger(__name__)

# Each round but the first means that something changed meanwhile.
MAX_ROUNDS = 10
# Searches wait while the engine writes: it has as long for itself, and takes at most 1,000 memories a second.
LEAST_REST_S = 0.1

# Tombstones that are removed at once.
PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A run that was held and may be made now: of the time it was planned for, and at most of its size."""

    as_of_ms: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupOutcome:
    """What a run came to.

    Attributes:
        counts: what was removed, or what would be where it is held.
        total: the agent's memories before it.
        long_chains: memories that have had 20 versions or more.
        held: digest to approve it by; None where it was made.
    """

    counts: Counter[Removal]
    total: int
    as_of_ms: int
    long_chains: int = 0
    held: str | None = None

    @property
    def removed(self) -> int:
        """How many memories were removed."""
        return 0 if self.held else self.counts.total()


class Cleanup:
    """Removes what has to go from an agent; several may run at once, to no use."""

    def __init__(self, clock: Clock, *, least_rest_s: float = LEAST_REST_S) -> None:
        self._clock = clock
        self._least_rest_s = least_rest_s

    async def would_remove(self, agent: Agent, rules: CleanupRules) -> AsyncIterator[tuple[Row, Removal]]:
        """Yield what a run would remove now, and why; nothing is changed."""
        async for going in find(agent, rules, RemovalTally()):
            for entry in going.rows:
                yield entry

    async def run(self, agent: Agent, rules: CleanupRules, approval: Approval | None = None) -> CleanupOutcome:
        """Remove what has to go, unless that is more than one run may remove.

        Args:
            rules: of the time that an approval names, where there is one.

        Raises:
            TransientError: Qdrant went away; what is not removed goes in the next run.
        """
        planned = RemovalTally()
        async for _ in find(agent, rules, planned):
            pass
        total = await agent.store.count(agent.alias, STORED)
        allowed = max(allowance(total, rules.lifecycle), approval.most if approval else 0)
        outcome = CleanupOutcome(counts=planned.counts, total=total, as_of_ms=rules.now_ms)
        if braked(planned.counts) > allowed:
            held = digest_of(agent.settings.slug, outcome)
            return CleanupOutcome(counts=planned.counts, total=total, as_of_ms=rules.now_ms, held=held)
        removed: Counter[Removal] = Counter()
        if planned.counts:
            for phase in PHASES:
                removed += await self._carry_out(agent, rules, phase)
        long = await count_long_chains(agent)
        return CleanupOutcome(counts=removed, total=total, as_of_ms=rules.now_ms, long_chains=long)

    async def _carry_out(self, agent: Agent, rules: CleanupRules, phase: Phase) -> Counter[Removal]:
        """Remove what a phase finds, and once more what changed meanwhile: to close a chain changes neighbours."""
        removed: Counter[Removal] = Counter()
        for _ in range(MAX_ROUNDS):
            is_whole = True
            async for units in _batches(phase(agent, rules, RemovalTally(is_dry=False))):
                counts = await self._take_out_and_rest(agent, units)
                is_whole = is_whole and counts.total() == len({row["id"] for unit in units for row, _ in unit.rows})
                removed += counts
            if is_whole:
                break
        return removed

    async def _take_out_and_rest(self, agent: Agent, units: Sequence[Going]) -> Counter[Removal]:
        started_s = time.monotonic()
        removed = await self.take_out(agent, units)
        await asyncio.sleep(max(time.monotonic() - started_s, self._least_rest_s) if self._least_rest_s else 0)
        return removed

    async def take_out(self, agent: Agent, units: Sequence[Going]) -> Counter[Removal]:
        """Remove what goes together, heads after their earlier versions, so that none of those ever answers again."""
        # An earlier version may stand by itself, and in the unit of its head.
        earlier = {row["id"]: row for unit in units for row, _ in unit.rows if row.get("supersededById")}
        dead = await self._bury(agent, list(earlier.values()))
        heads = [
            unit.rows[-1][0]
            for unit in units
            if not unit.rows[-1][0].get("supersededById") and all(row["id"] in dead for row, _ in unit.rows[:-1])
        ]
        dead |= await self._bury(agent, heads)
        await self._close_chains(agent, dead.values())
        await session_keywords.settle(agent, dead)
        return Counter({row["id"]: reason for unit in units for row, reason in unit.rows if row["id"] in dead}.values())

    async def _bury(self, agent: Agent, rows: Sequence[Row]) -> dict[str, Payload]:
        return await bury(agent, rows, lambda row: tombstone_of(row, self._clock.now_ms()) | {EXPIRED_KEY: True})

    async def _close_chains(self, agent: Agent, tombstones: Iterable[Payload]) -> None:
        for tombstone in tombstones:
            if tombstone.get("pending"):
                try:
                    await chains.complete(agent, tombstone)
                except TransientError as error:
                    # The sweep of the API, or the next run, meets it again.
                    log.info("removing a chain of agent %s is postponed: %s", agent.settings.slug, error)


async def _batches(found: AsyncIterator[Going]) -> AsyncIterator[list[Going]]:
    """Yield what goes in batches of about 100 memories; what goes together is never parted."""
    units: list[Going] = []
    async for going in found:
        units.append(going)
        if sum(len(unit.rows) for unit in units) >= BATCH:
            yield units
            units = []
    if units:
        yield units


async def count_long_chains(agent: Agent) -> int:
    """How many memories have had 20 versions or more; 0 where the engine lets nobody count what is not indexed."""
    often = {"key": UPDATES_KEY, "range": {"gte": LONG_CHAIN - 1}}
    try:
        return await agent.store.count(agent.alias, both(STORED, NOT_SUPERSEDED, often), exact=agent.allows_exact)
    except StoreRejected:
        return 0


def digest_of(slug: str, outcome: CleanupOutcome) -> str:
    """The digest that an approval of a held run names."""
    said = (slug, outcome.as_of_ms, sorted((str(reason), number) for reason, number in outcome.counts.items()))
    return hashlib.sha256(repr(said).encode()).hexdigest()[:12]


async def rebuilt_since_ms(agent: Agent) -> int | None:
    """When the earliest rebuild began whose source is still kept, Unix milliseconds; None without one.

    Each collection says what it was rebuilt from, and so does that one.
    """
    begun_ms: dict[str, int] = {}
    record = record_from_json(await _metadata(agent, agent.alias))
    while record is not None and record.source not in begun_ms:
        metadata = await _metadata(agent, record.source)
        if metadata is None:
            break
        # A rebuild that was taken back leads round in a circle.
        begun_ms[record.source] = record.begun_ms
        record = record_from_json(metadata)
    return min(begun_ms.values(), default=None)


async def purge_tombstones(agent: Agent, before_ms: int, *, rest_s: float = LEAST_REST_S) -> int:
    """Remove the tombstones from before a time that nothing leads to; return how many were found.

    One over which something is written meanwhile stays: the removal asks once more whether it is a tombstone.
    """
    filter_, count = purgeable(before_ms), 0
    body = {"filter": filter_, "limit": PAGE, "with_payload": list(PURGEABLE_KEYS), "with_vector": False}
    async for points in read_pages(agent, body):
        ids = [point["id"] for point in points if is_purgeable(point["payload"], before_ms)]
        if ids:
            await agent.store.delete(agent.alias, both(filter_, {"has_id": ids}))
            await asyncio.sleep(rest_s)
        count += len(ids)
    return count


async def _metadata(agent: Agent, collection: str) -> Json | None:
    try:
        metadata: Json = (await agent.store.describe(collection))["config"].get("metadata") or {}
    except NotFound:
        return None
    return None if is_placeholder(metadata) else metadata
