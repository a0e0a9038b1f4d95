"""Chains of versions: new.supersedesId = old, old.supersededById = new; only the head answers.

Nothing in the engine spans two points, so each change to a chain is a row of steps that may stop after any of them:

    supersede   1 insert new, pending   2 old.supersededById = new, if old is still a head   3 new is no longer pending
    delete      1 head becomes a tombstone, pending   2 predecessor.supersededById is cleared   3 no longer pending

Step 2 of a supersession decides races: who finds the old version taken removes his own row. Every change to a point
that exists is a compare-and-set on its `rev`, so whoever meets a pending row (a read, the sweep, a repeated request, on
any replica) may finish it. The old version is durable throughout; between steps 2 and 3 neither version answers.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agentmemory_operator.domain.filters import IS_PENDING, NOT_DELETED, NOT_SUPERSEDED, Condition, equals, only
from agentmemory_operator.domain.records import STATED_END_KEY, TOMBSTONE_KEY, Payload, tombstone_of, window_mark
from agentmemory_operator.errors import OutcomeUnknown, StoreUnavailable
from agentmemory_operator.ports import Clock
from agentmemory_operator.services.directory import Agent

SWEEP_AFTER_MS = 10_000
SWEEP_PAGE = 100
# Only other writers to the same memory make an attempt fail; each failure means that one of them got on.
MAX_ATTEMPTS = 20


class Chains:
    """Changes and repairs the chains of an agent; every method may run on several replicas at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def join(self, agent: Agent, row: Mapping[str, Any]) -> bool:
        """Make a pending row the head after the version that it supersedes, or remove it.

        Returns:
            Whether it is stored; False means that its predecessor is gone or superseded by another.
        """
        for _ in range(MAX_ATTEMPTS):
            old = await read_row(agent, row["supersedesId"])
            successor = old and old.get("supersededById")
            if old is None or TOMBSTONE_KEY in old or successor not in (None, row["id"]):
                return await self._abandon(agent, row)
            if successor == row["id"]:
                await self._settle(agent, row)
                return True
            link = {"supersededById": row["id"], "supersededAt": self._clock.now_ms(), **window_mark(old)}
            await self._change(agent, old, link | _ended(old, row), NOT_SUPERSEDED, NOT_DELETED)
        if await self._abandon(agent, row):
            return True
        raise _contended(row)

    async def bury(self, agent: Agent, row: Mapping[str, Any]) -> Payload | None:
        """Turn a head into a tombstone, unless it changed meanwhile; return the row as it now is."""
        tombstone = tombstone_of(row, self._clock.now_ms())
        unchanged = only(row["id"], equals("rev", row["rev"]), NOT_SUPERSEDED, NOT_DELETED)
        point = {"id": row["id"], "vector": {}, "payload": tombstone}
        await agent.store.upsert(agent.alias, [point], update_filter=unchanged, strong=True)
        with midway():
            return await read_row(agent, row["id"])

    async def complete(self, agent: Agent, row: Mapping[str, Any]) -> None:
        """Finish the steps of a pending row, whoever began them."""
        if TOMBSTONE_KEY in row:
            await self._reactivate(agent, row)
        else:
            await self.join(agent, row)

    async def sweep(self, agent: Agent) -> int:
        """Finish every unfinished step older than 10 s; return how many there were."""
        stale = {"key": "updatedAt", "range": {"lt": self._clock.now_ms() - SWEEP_AFTER_MS}}
        body = {"filter": {"must": [IS_PENDING, stale]}, "limit": SWEEP_PAGE, "with_payload": True}
        completed, offset = 0, None
        while True:
            points, offset = await agent.store.scroll(agent.alias, body | ({"offset": offset} if offset else {}))
            for point in points:
                await self.complete(agent, point["payload"])
            completed += len(points)
            if offset is None:
                return completed

    async def _reactivate(self, agent: Agent, tombstone: Mapping[str, Any]) -> None:
        """Let the predecessor of a deleted head answer again."""
        for _ in range(MAX_ATTEMPTS):
            old = await read_row(agent, tombstone["supersedesId"])
            if old is None or old.get("supersededById") != tombstone["id"]:
                return await self._settle(agent, tombstone)
            unlinked = {"supersededById": None, "supersededAt": None, STATED_END_KEY: None, **window_mark(old)}
            await self._change(agent, old, unlinked | {"validTo": old.get(STATED_END_KEY)})
        raise _contended(tombstone)

    async def _settle(self, agent: Agent, row: Mapping[str, Any]) -> None:
        await self._change(agent, row, {"pending": False}, IS_PENDING)

    async def _abandon(self, agent: Agent, row: Mapping[str, Any]) -> bool:
        """Remove a pending row; return whether another finished it before."""
        await agent.store.delete(agent.alias, only(row["id"], IS_PENDING, NOT_DELETED))
        return await read_row(agent, row["id"]) is not None

    async def _change(self, agent: Agent, row: Mapping[str, Any], changes: Payload, *conditions: Condition) -> None:
        """Change a row if it still is as it was read; the caller reads back."""
        payload = changes | {"rev": row["rev"] + 1, "updatedAt": self._clock.now_ms()}
        unchanged = only(row["id"], equals("rev", row["rev"]), *conditions)
        await agent.store.set_payload(agent.alias, payload, unchanged, strong=True)


@contextmanager
def midway() -> Iterator[None]:
    """Turn StoreUnavailable into OutcomeUnknown: a step before was written, and the sweep may finish the row."""
    try:
        yield
    except StoreUnavailable as error:
        message = f"Qdrant went away midway ({error}): read before repeating"
        raise OutcomeUnknown(message, retry_after_s=error.retry_after_s) from error


async def read_row(agent: Agent, memory_id: str) -> Payload | None:
    """Return a point's payload, tombstones and pending rows included; None when there is no such point."""
    points = await agent.store.retrieve(agent.alias, [memory_id])
    payload: Payload | None = points[0]["payload"] if points else None
    return payload


def _ended(old: Mapping[str, Any], new: Mapping[str, Any]) -> Payload:
    """Return the old version's validity: until the new one begins, or earlier where it said so itself."""
    stated, begin = old.get("validTo"), new.get("validFrom", new["createdAt"])
    return {"validTo": begin if stated is None else min(stated, begin), STATED_END_KEY: stated}


def _contended(row: Mapping[str, Any]) -> StoreUnavailable:
    return StoreUnavailable(f"memory {row['id']} is being changed by many at once: try again")
