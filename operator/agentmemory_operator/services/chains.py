"""Chains of versions: new.supersedesId = old, old.supersededById = new; only the head answers.

Nothing in the engine spans two points, so each change to a chain is a row of steps that may stop after any of them:

    supersede   1 insert new, pending   2 old.supersededById = new, if old is still a head   3 new is no longer pending
    delete      1 head becomes a tombstone, pending   2 predecessor.supersededById is cleared   3 no longer pending
    take out    1 an earlier version becomes a tombstone, pending   2 its neighbours are linked   3 no longer pending

Every change to a point that exists is a compare-and-set on its `rev`, so whoever meets a pending row (a read, the
sweep, a repeated request, on any replica) may finish it. The link on the old version decides; `supersedesId` of a
pending row says only where it wants to go. Who finds his predecessor taken gives up, or, where the memory has an
identity, goes on to the head that there is now. Two rules keep a late writer of step 2 from linking to what is gone:
he reads the old version, then his own row, then links; and who gives a row up makes it a tombstone first, then
changes the old version's `rev`. The old version is durable throughout; between steps 2 and 3 neither version answers.

The first memory of an identity has an id made of it. Its point, be it a memory or a tombstone, is where the chain
begins: two that find no head meet there. So it is never removed while others follow it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agentmemory_operator.domain.filters import IS_PENDING, NOT_DELETED, NOT_SUPERSEDED, Condition, equals, only
from agentmemory_operator.domain.records import (
    STATED_END_KEY,
    TOLD_AT_KEY,
    TOMBSTONE_KEY,
    Payload,
    root_of,
    tombstone_of,
    window_mark,
)
from agentmemory_operator.errors import CollectionMoved, OutcomeUnknown, StoreUnavailable
from agentmemory_operator.ports import Clock
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.rows import change_row, read_pages, read_row

SWEEP_AFTER_MS = 10_000
SWEEP_PAGE = 100
# Only other writers to the same memory make an attempt fail; each failure means that one of them got on.
MAX_ATTEMPTS = 100
# The same for an identity, which many may want to write at once.
MAX_TURNS = 400

_Row = Mapping[str, Any]


class Chains:
    """Changes and repairs the chains of an agent; every method may run on several replicas at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def join(self, agent: Agent, row: _Row) -> bool:
        """Make a pending row the head after the version that it supersedes, or give it up.

        Returns:
            Whether it is stored; False means that its predecessor is gone or superseded by another.
        """
        for _ in range(MAX_TURNS if "identityId" in row else MAX_ATTEMPTS):
            old, now = await _read_two(agent, row["supersedesId"], row["id"])
            if now is None or TOMBSTONE_KEY in now:
                return False
            if not now.get("pending"):
                return True
            if now["supersedesId"] == row["supersedesId"]:
                await self._advance(agent, now, old)
            row = now
        raise _contended(row)

    async def head(self, agent: Agent, identity_id: str) -> Payload | None:
        """Return the newest version of an identity.

        Returns:
            None where there is none, or for a moment none to be seen: the identity's first point decides.
        """
        rows = await _scroll(agent, equals("lookupIds", identity_id), NOT_SUPERSEDED, NOT_DELETED)
        rows = [row for row in rows if row.get("identityId") == identity_id]
        if settled := [row for row in rows if not row.get("pending")]:
            return max(settled, key=lambda row: (row["createdAt"], row["id"]))
        for taken in await self._linked(agent, rows):
            return taken
        return None

    async def begin(self, agent: Agent, identity_id: str) -> Payload | None:
        """Return an identity's first point, once its chain does not end in what was deleted or is not there."""
        first = row = await read_row(agent, identity_id)
        while row and (successor := row.get("supersededById")):
            following = await read_row(agent, successor)
            if following is None:
                await self._unlink(agent, row)
            elif TOMBSTONE_KEY in following and following.get("pending"):
                await self.complete(agent, following)
            row = following
        return first

    async def bury(self, agent: Agent, row: _Row) -> Payload | None:
        """Turn a head into a tombstone, unless it changed meanwhile; return the row as it now is."""
        unchanged = only(row["id"], equals("rev", row["rev"]), NOT_SUPERSEDED, NOT_DELETED)
        point = {"id": row["id"], "vector": {}, "payload": tombstone_of(row, self._clock.now_ms())}
        await agent.store.upsert(agent.alias, [point], update_filter=unchanged, strong=True)
        with midway():
            return await read_row(agent, row["id"])

    async def complete(self, agent: Agent, row: _Row) -> None:
        """Finish the steps of a pending row, whoever began them."""
        if TOMBSTONE_KEY in row and "supersededById" in row:
            await self._close_over(agent, row)
        elif TOMBSTONE_KEY in row:
            await self._reactivate(agent, row)
        else:
            await self.join(agent, row)

    async def settled_row(self, agent: Agent, memory_id: str) -> Payload | None:
        """Return a row, once the step that it may be in is finished."""
        row = await read_row(agent, memory_id)
        if row and row.get("pending"):
            await self.complete(agent, row)
            row = await read_row(agent, memory_id)
        return row

    async def sweep(self, agent: Agent) -> int:
        """Finish every unfinished step older than 10 s; return how many there were."""
        stale = {"key": "updatedAt", "range": {"lt": self._clock.now_ms() - SWEEP_AFTER_MS}}
        body = {"filter": {"must": [IS_PENDING, stale]}, "limit": SWEEP_PAGE, "with_payload": True}
        completed = 0
        async for points in read_pages(agent, body):
            for point in points:
                await self.complete(agent, point["payload"])
            completed += len(points)
        return completed

    async def _advance(self, agent: Agent, row: _Row, old: _Row | None) -> None:
        """Take the next step of a pending row that wants to follow `old`."""
        successor = old and old.get("supersededById")
        is_root = old is not None and old["id"] == row.get("identityId")
        if old is not None and successor == row["id"]:
            await self._change(agent, row, {"pending": False}, IS_PENDING)
        elif old is not None and successor is None and (is_root or TOMBSTONE_KEY not in old):
            await self._link(agent, old, row)
        elif "identityId" in row:
            await self._turn(agent, row)
        else:
            await self._give_up(agent, row)

    async def _link(self, agent: Agent, old: _Row, row: _Row) -> None:
        """Let a row follow an old version, if the row still wants to now that the old one has been read."""
        now = await read_row(agent, row["id"])
        if now is None or now["rev"] != row["rev"]:
            return
        link: Payload = {"supersededById": row["id"]}
        if TOMBSTONE_KEY not in old:
            link |= {**_superseded(old, row, self._clock.now_ms()), **window_mark(old), **_ended(old, row)}
        await self._change(agent, old, link, NOT_SUPERSEDED)

    async def _turn(self, agent: Agent, row: _Row) -> None:
        """Let a row that lost its predecessor want to follow the head, or the first point where there is no head."""
        identity_id = row["identityId"]
        head = await self.head(agent, identity_id)
        if head is None and await self.begin(agent, identity_id) is None:
            root = root_of(identity_id, row, self._clock.now_ms())
            point = {"id": identity_id, "vector": {}, "payload": root}
            await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
        target = head["id"] if head else identity_id
        if target != row["id"]:
            await self._change(agent, row, {"supersedesId": target}, IS_PENDING)

    async def _linked(self, agent: Agent, rows: list[Payload]) -> list[Payload]:
        """Return those of some pending rows that are heads already, once they are no longer pending."""
        if not rows:
            return []
        by_id = {row["id"]: row for row in rows}
        links = await _scroll(agent, {"key": "supersededById", "match": {"any": sorted(by_id)}})
        for old in links:
            row = by_id[old["supersededById"]]
            await self._change(agent, row, {"supersedesId": old["id"], "pending": False}, IS_PENDING)
        found = [await read_row(agent, old["supersededById"]) for old in links]
        return [row for row in found if row and not row.get("pending") and TOMBSTONE_KEY not in row]

    async def _give_up(self, agent: Agent, row: _Row) -> None:
        """Make a pending row a tombstone, and take back what late writers may still do with its predecessor."""
        point = {"id": row["id"], "vector": {}, "payload": tombstone_of(row, self._clock.now_ms())}
        unchanged = only(row["id"], equals("rev", row["rev"]), IS_PENDING, NOT_DELETED)
        await agent.store.upsert(agent.alias, [point], update_filter=unchanged, strong=True)
        now = await read_row(agent, row["id"])
        if now and TOMBSTONE_KEY in now:
            await self._reactivate(agent, now)

    async def _reactivate(self, agent: Agent, tombstone: _Row) -> None:
        """Let the predecessor of what became a tombstone answer again, and nothing follow the tombstone."""
        is_fenced = False
        for _ in range(MAX_ATTEMPTS):
            # One whose head was deleted too has no neighbour left, if that was settled first.
            before = tombstone.get("supersedesId")
            old = await read_row(agent, before) if before else None
            successor = old and old.get("supersededById")
            if old is None or successor not in (None, tombstone["id"]) or (successor is None and is_fenced):
                return await self._change(agent, tombstone, {"pending": False}, IS_PENDING)
            if successor is None:
                await self._change(agent, old, {}, NOT_SUPERSEDED)
            else:
                await self._unlink(agent, old)
            is_fenced = True
        raise _contended(tombstone)

    async def _close_over(self, agent: Agent, tombstone: _Row) -> None:
        """Link the neighbours of an earlier version that was taken out.

        Beside it there may be others that were: a link to one leads on to the nearest version that lives. The first
        point of an identity stays in its chain, as a tombstone too.
        """
        root_id = tombstone.get("identityId")
        for _ in range(MAX_ATTEMPTS):
            older = await _standing(agent, tombstone, "supersedesId", root_id)
            if older is None and tombstone["id"] == root_id:
                older = await read_row(agent, root_id)
            newer = await _standing(agent, older or tombstone, "supersededById", root_id)
            is_closed = not older or await self._lead(agent, older, newer)
            if newer is not None and newer.get("supersedesId") != (older and older["id"]):
                is_closed = False
                # A link leads to it, so it is stored, if its writer has not come to say so yet.
                await self._change(agent, newer, {"supersedesId": older["id"] if older else None, "pending": False})
            if is_closed:
                now = await read_row(agent, tombstone["id"])
                return await self._change(agent, now, {"pending": False}, IS_PENDING) if now else None
        raise _contended(tombstone)

    async def _lead(self, agent: Agent, older: _Row, newer: _Row | None) -> bool:
        """Let a version be followed by the next that lives; tell whether it was."""
        if older.get("supersededById") == (newer and newer["id"]):
            return True
        if newer is None:
            await self._unlink(agent, older)
        else:
            await self._change(agent, older, {"supersededById": newer["id"], **window_mark(older)})
        return False

    async def _unlink(self, agent: Agent, old: _Row) -> None:
        """Make a superseded version the head again."""
        unlinked = {"supersededById": None, "supersededAt": None, STATED_END_KEY: None, **window_mark(old)}
        end = {} if TOMBSTONE_KEY in old else {"validTo": old.get(STATED_END_KEY)}
        await self._change(agent, old, unlinked | end)

    async def _change(self, agent: Agent, row: _Row, changes: Payload, *conditions: Condition) -> None:
        await change_row(agent, row, changes, *conditions, now_ms=self._clock.now_ms())


@contextmanager
def midway() -> Iterator[None]:
    """Turn StoreUnavailable into OutcomeUnknown: a step before was written, and the sweep may finish the row."""
    try:
        yield
    except CollectionMoved:
        # Of which `FencedStore` knows that no step before was.
        raise
    except StoreUnavailable as error:
        message = f"Qdrant went away midway ({error}): read before repeating"
        raise OutcomeUnknown(message, retry_after_s=error.retry_after_s) from error


async def _standing(agent: Agent, row: _Row, link: str, root_id: str | None) -> Payload | None:
    """Return the nearest version that lives, following a link from a row; the root of an identity stands for ever."""
    while next_id := row.get(link):
        found = await read_row(agent, next_id)
        if found is None or TOMBSTONE_KEY not in found or next_id == root_id:
            return found
        row = found
    return None


async def _read_two(agent: Agent, first_id: str, second_id: str) -> tuple[Payload | None, Payload | None]:
    points = await agent.store.retrieve(agent.alias, [first_id, second_id])
    rows = {point["id"]: point["payload"] for point in points}
    return rows.get(first_id), rows.get(second_id)


async def _scroll(agent: Agent, *conditions: Condition) -> list[Payload]:
    body = {"filter": {"must": list(conditions)}, "limit": SWEEP_PAGE, "with_payload": True}
    points, _ = await agent.store.scroll(agent.alias, body)
    return [point["payload"] for point in points]


def _ended(old: _Row, new: _Row) -> Payload:
    """Return the old version's validity: until the new one begins, or earlier where it said so itself."""
    stated, begin = old.get("validTo"), new.get("validFrom", new["createdAt"])
    return {"validTo": begin if stated is None else min(stated, begin), STATED_END_KEY: stated}


def _superseded(old: _Row, new: _Row, now_ms: int) -> Payload:
    """Return since when the old version has a successor: now, or, of two that are imported, when its line says."""
    told = old.get(TOLD_AT_KEY)
    if told is None:
        return {"supersededAt": now_ms}
    # What is stored only now is another successor than the one that was told of.
    return {"supersededAt": told if told >= new["createdAt"] else now_ms, TOLD_AT_KEY: None}


def _contended(row: _Row) -> StoreUnavailable:
    return StoreUnavailable(f"memory {row['id']} is being changed by many at once: try again")
