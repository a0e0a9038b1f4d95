"""Run a cleanup: count the removals first, and withhold a run that would remove too large a share until it is approved.

1. Find and count all removals. If those that the limit applies to exceed it, return a digest for the approval and
   change nothing.
2. For each phase (`lifecycle/removals.py`), replace the rows by tombstones, in batches of about 100. Earlier versions
   precede their head, so that none becomes visible.
3. Complete the chains over the tombstones and update the keyword texts of the sessions.

All state is in Qdrant: a run that is killed at any step and repeated has the same result. Each removal is a
compare-and-set on `rev`, so a memory that changed in the meantime is left to a later round or run. Tombstones within a
chain are pending until the chain is completed; any process that finds one may complete it.

`purge_tombstones` deletes tombstones that no copy needs any more, in small batches, because searches wait meanwhile.
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
from agentmemory_operator.lifecycle.removals import PHASES, Phase, RemovalBatch, RemovalTally, find_removals
from agentmemory_operator.lifecycle.rules.cleanup_rules import (
    CleanupRules,
    RemovalReason,
    Row,
    count_limited,
    removal_allowance,
)
from agentmemory_operator.lifecycle.rules.tombstone_retention import PURGEABLE_KEYS, is_purgeable, purgeable_filter
from agentmemory_operator.memories import chains, session_keywords
from agentmemory_operator.memories.point_pages import read_pages
from agentmemory_operator.memories.rules.filters import NOT_SUPERSEDED, STORED_FILTER, narrow
from agentmemory_operator.memories.rules.record import EXPIRED_KEY, LONG_CHAIN, UPDATES_KEY, Payload, tombstone_of
from agentmemory_operator.memories.tombstone_writes import BATCH, tombstone_rows
from agentmemory_operator.ports.base import Clock, Json

log = logging.getLogger(__name__)

# Maximum number of rounds of a phase. A round after the first means that memories changed in the meantime.
MAX_ROUNDS = 10
# Searches wait while Qdrant writes. So a cleanup pauses after each batch of about 100 for as long as the batch took, at
# least this long. It removes at most about 1,000 memories a second.
MIN_REST_S = 0.1

# Tombstones deleted in one request.
TOMBSTONES_PER_DELETE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupApproval:
    """Approval of a withheld run.

    Attributes:
        as_of_ms: Time for which the run was planned, Unix milliseconds. The approved run uses it as the current time.
        max_removals: Number of removals in the plan. It replaces the limit of the approved run, if larger.
    """

    as_of_ms: int
    max_removals: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupResult:
    """Result of a run.

    Attributes:
        counts: Removals by reason. If the run is withheld, they are planned removals.
        total: Number of the agent's memories before the run.
        as_of_ms: Time for which the run was planned, Unix milliseconds.
        long_chains: Number of memories with 20 or more versions; 0 if the run is withheld, or Qdrant cannot count them.
        approval_digest: Digest that approves a withheld run. None if the run was carried out.
    """

    counts: Counter[RemovalReason]
    total: int
    as_of_ms: int
    long_chains: int = 0
    approval_digest: str | None = None

    @property
    def removed(self) -> int:
        """Number of memories that the run removed; 0 if the run is withheld."""
        return 0 if self.approval_digest else self.counts.total()


class Cleanup:
    """Removes the memories that the lifecycle rules of an agent's object select.

    Concurrent runs on one agent are safe but waste work.

    Args:
        min_pause_s: Minimum pause after each batch in seconds. 0 makes no pause, even after a slow batch.
    """

    def __init__(self, clock: Clock, *, min_pause_s: float = MIN_REST_S) -> None:
        self._clock = clock
        self._least_rest_s = min_pause_s

    async def preview(self, agent: Agent, rules: CleanupRules) -> AsyncIterator[tuple[Row, RemovalReason]]:
        """Yield the rows that a run would remove now, with their reasons. Changes nothing."""
        async for batch in find_removals(agent, rules, RemovalTally()):
            for entry in batch.rows:
                yield entry

    async def run(self, agent: Agent, rules: CleanupRules, approval: CleanupApproval | None = None) -> CleanupResult:
        """Remove the memories that the rules select. If they exceed the limit of a run, remove none; return a digest.

        Args:
            rules: Rules at the time `approval.as_of_ms` if there is an approval, else at the current time.
            approval: Approval of an earlier run, which raises the limit to its number. None without one.

        Raises:
            NotFound: If the collection does not exist.
            StoreRejected: If Qdrant rejects a call.
            TransientError: If Qdrant became unavailable. The next run removes the rest.
        """
        planned = RemovalTally()
        async for _ in find_removals(agent, rules, planned):
            pass
        total = await agent.store.count(agent.alias, STORED_FILTER)
        max_removals = max(removal_allowance(total, rules.lifecycle), approval.max_removals if approval else 0)
        result = CleanupResult(counts=planned.counts, total=total, as_of_ms=rules.now_ms)
        if count_limited(planned.counts) > max_removals:
            digest = approval_digest(agent.settings.slug, result)
            return CleanupResult(counts=planned.counts, total=total, as_of_ms=rules.now_ms, approval_digest=digest)
        removed: Counter[RemovalReason] = Counter()
        if planned.counts:
            for phase in PHASES:
                removed += await self._execute(agent, rules, phase)
        long_chains = await count_long_chains(agent)
        return CleanupResult(counts=removed, total=total, as_of_ms=rules.now_ms, long_chains=long_chains)

    async def _execute(self, agent: Agent, rules: CleanupRules, phase: Phase) -> Counter[RemovalReason]:
        """Run a phase until a round removes all rows that it found, but at most 10 rounds.

        A round can miss rows, because completing a chain changes its neighbours.
        """
        removed: Counter[RemovalReason] = Counter()
        for _ in range(MAX_ROUNDS):
            is_complete = True
            async for units in _batches(phase(agent, rules, RemovalTally(is_dry=False))):
                counts = await self._take_out_and_rest(agent, units)
                is_complete = is_complete and counts.total() == len(
                    {row["id"] for unit in units for row, _ in unit.rows}
                )
                removed += counts
            if is_complete:
                break
        return removed

    async def _take_out_and_rest(self, agent: Agent, units: Sequence[RemovalBatch]) -> Counter[RemovalReason]:
        started_s = time.monotonic()
        removed = await self.remove_units(agent, units)
        await asyncio.sleep(max(time.monotonic() - started_s, self._least_rest_s) if self._least_rest_s else 0)
        return removed

    async def remove_units(self, agent: Agent, units: Sequence[RemovalBatch]) -> Counter[RemovalReason]:
        """Replace the rows of batches by tombstones, heads after their earlier versions; return the removals by reason.

        A head stays if one of its earlier versions changed in the meantime: that version would become visible.

        Raises:
            TransientError: If Qdrant is unavailable. Some rows may be tombstones already.
        """
        # Collect earlier versions by id, because one may be found twice: on its own, and in the unit of its head.
        earlier = {row["id"]: row for unit in units for row, _ in unit.rows if row.get("supersededById")}
        tombstones = await self._bury(agent, list(earlier.values()))
        heads = [
            unit.rows[-1][0]
            for unit in units
            if not unit.rows[-1][0].get("supersededById") and all(row["id"] in tombstones for row, _ in unit.rows[:-1])
        ]
        tombstones |= await self._bury(agent, heads)
        await self._close_chains(agent, tombstones.values())
        await session_keywords.update_stale_texts(agent, tombstones)
        return Counter(
            {row["id"]: reason for unit in units for row, reason in unit.rows if row["id"] in tombstones}.values()
        )

    async def _bury(self, agent: Agent, rows: Sequence[Row]) -> dict[str, Payload]:
        return await tombstone_rows(
            agent, rows, lambda row: tombstone_of(row, self._clock.now_ms()) | {EXPIRED_KEY: True}
        )

    async def _close_chains(self, agent: Agent, tombstones: Iterable[Payload]) -> None:
        for tombstone in tombstones:
            if tombstone.get("pending"):
                try:
                    await chains.complete(agent, tombstone)
                except TransientError as error:
                    # Only log the error: the sweep of the API or the next run completes the pending tombstone.
                    log.info("removing a chain of agent %s is postponed: %s", agent.settings.slug, error)


async def _batches(batches: AsyncIterator[RemovalBatch]) -> AsyncIterator[list[RemovalBatch]]:
    """Yield lists of removal batches that have at least `BATCH` memories together, except the last list."""
    units: list[RemovalBatch] = []
    async for batch in batches:
        units.append(batch)
        if sum(len(unit.rows) for unit in units) >= BATCH:
            yield units
            units = []
    if units:
        yield units


async def count_long_chains(agent: Agent) -> int:
    """Count the memories with 20 or more versions; 0 if Qdrant rejects the count, as without an index on the key."""
    many_updates = {"key": UPDATES_KEY, "range": {"gte": LONG_CHAIN - 1}}
    try:
        return await agent.store.count(
            agent.alias, narrow(STORED_FILTER, NOT_SUPERSEDED, many_updates), exact=agent.allows_exact
        )
    except StoreRejected:
        return 0


def approval_digest(slug: str, outcome: CleanupResult) -> str:
    """Return the digest that approves a withheld run: 12 hex digits over slug, time and counts."""
    parts = (slug, outcome.as_of_ms, sorted((str(reason), number) for reason, number in outcome.counts.items()))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


async def read_first_rebuild_ms(agent: Agent) -> int | None:
    """Return the start of the earliest rebuild whose source collection still exists, in Unix milliseconds, or None.

    Each collection's metadata names the source of its rebuild, so the search follows these names.
    """
    started_ms: dict[str, int] = {}
    record = record_from_json(await _metadata(agent, agent.alias))
    while record is not None and record.source not in started_ms:
        metadata = await _metadata(agent, record.source)
        if metadata is None:
            break
        # End at the first repeated name: after a rollback, each of two collections names the other as its source.
        started_ms[record.source] = record.started_ms
        record = record_from_json(metadata)
    return min(started_ms.values(), default=None)


async def purge_tombstones(agent: Agent, before_ms: int, *, pause_s: float = MIN_REST_S) -> int:
    """Delete the tombstones that match `purgeable_filter`; return the number of those found.

    Each delete repeats the filter, so a point that was written again in the meantime stays.

    Args:
        before_ms: Only tombstones older than this are deleted, Unix milliseconds.
        pause_s: Pause in seconds after each delete, of at most 500 tombstones: searches wait while Qdrant writes.
    """
    filter_, count = purgeable_filter(before_ms), 0
    body = {
        "filter": filter_,
        "limit": TOMBSTONES_PER_DELETE,
        "with_payload": list(PURGEABLE_KEYS),
        "with_vector": False,
    }
    async for points in read_pages(agent, body):
        ids = [point["id"] for point in points if is_purgeable(point["payload"], before_ms)]
        if ids:
            await agent.store.delete(agent.alias, narrow(filter_, {"has_id": ids}))
            await asyncio.sleep(pause_s)
        count += len(ids)
    return count


async def _metadata(agent: Agent, collection: str) -> Json | None:
    try:
        metadata: Json = (await agent.store.describe(collection))["config"].get("metadata") or {}
    except NotFound:
        return None
    return None if is_placeholder(metadata) else metadata
