"""Chains of versions: new.supersedesId = old, old.supersededById = new; only the head answers.

Nothing in the engine spans two points, so each change to a chain is a row of steps that may stop after any of them:

    supersede   1 insert new, pending   2 old.supersededById = new, if old is still a head   3 new is no longer pending
    merge       the same, with several old versions: 2 links one after the other; where one is taken, all answer again
    delete      1 head becomes a tombstone, pending   2 predecessor.supersededById is cleared   3 no longer pending
    take out    1 an earlier version becomes a tombstone, pending   2 its neighbours are linked   3 no longer pending

Every change to a point that exists is a compare-and-set on its `rev`, so whoever meets a pending row (a read, the
sweep, a repeated request, on any replica) may finish it. The link on the old version decides; `supersedesId` of a
pending row says only where it wants to go. Who finds his predecessor taken gives up, or, where the memory has an
identity, goes on to the head that there is now, unless a model made it. Two rules keep a late writer of step 2 from
linking to what is gone: he reads the old version, then his own row, then links; and who gives a row up makes it a
tombstone first, then changes the old version's `rev`. The old version is durable throughout; between steps 2 and 3
neither version answers.
Two that merge the same link in one order, so that one of them gets all (`memories/predecessors.py`).

The first memory of an identity has an id made of it. Its point, be it a memory or a tombstone, is where the chain
begins: two that find no head meet there. So it is never removed while others follow it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import CollectionMoved, OutcomeUnknown, StoreUnavailable
from agentmemory_operator.memories.point_pages import change_row, read_pages, read_row
from agentmemory_operator.memories.rules.filters import IS_PENDING, NOT_DELETED, NOT_SUPERSEDED, Condition, equals
from agentmemory_operator.memories.rules.links import is_merged, links_to, predecessors, replaced, successors
from agentmemory_operator.memories.rules.record import (
    CHANGED_KEY,
    GIVES_WAY_KEY,
    LOGGED_KEY,
    STATED_END_KEY,
    TOLD_AT_KEY,
    TOMBSTONE_KEY,
    Payload,
    root_of,
    tombstone_of,
    window_mark,
)
from agentmemory_operator.memories.tombstone_writes import entomb, grave_of, read_emptied

SWEEP_AFTER_MS = 10_000
SWEEP_PAGE = 100
# Only other writers to the same memory make an attempt fail; each failure means that one of them got on.
MAX_ATTEMPTS = 100
# The same for an identity, which many may want to write at once.
MAX_TURNS = 400

_Row = Mapping[str, Any]


async def join(agent: Agent, row: _Row) -> bool:
    """Make a pending row the head after the versions that it supersedes, or give it up.

    Returns:
        Whether it is stored, though it may have been deleted since; False means that a predecessor is gone or
        superseded by another.
    """
    for _ in range(MAX_TURNS if "identityId" in row else MAX_ATTEMPTS + len(predecessors(row))):
        rows = await read_rows(agent, (*predecessors(row), row["id"]))
        now = rows.get(row["id"])
        if now is None or TOMBSTONE_KEY in now or not now.get("pending"):
            return now is not None and was_shown(now)
        if predecessors(now) == predecessors(row):
            await _advance(agent, now, rows)
        row = now
    raise contended(row["id"])


def was_shown(row: _Row) -> bool:
    """Whether a row that is not pending was ever seen: the change log has it, but not what was given up."""
    return TOMBSTONE_KEY not in row or LOGGED_KEY in row


async def head(agent: Agent, identity_id: str) -> Payload | None:
    """The newest version of an identity.

    Returns:
        None where there is none, or for a moment none to be seen: the identity's first point decides.
    """
    rows = await _scroll(agent, equals("lookupIds", identity_id), NOT_SUPERSEDED, NOT_DELETED)
    # What was found may have been deleted or superseded by the time that it was read.
    rows = [row for row in rows if row.get("identityId") == identity_id and _is_last(row)]
    if settled := [row for row in rows if not row.get("pending")]:
        return max(settled, key=lambda row: (row["createdAt"], row["id"]))
    for taken in await _linked(agent, rows):
        return taken
    return None


async def begin(agent: Agent, identity_id: str) -> Payload | None:
    """An identity's first point, once its chain does not end in what was deleted or is not there."""
    first = row = await read_row(agent, identity_id)
    while row and (successor := row.get("supersededById")):
        following = await read_row(agent, successor)
        if following is None:
            await _unlink(agent, row)
        elif TOMBSTONE_KEY in following and following.get("pending"):
            await complete(agent, following)
        row = following
    return first


async def bury(agent: Agent, row: _Row) -> Payload | None:
    """Turn a head into a tombstone, unless it changed meanwhile; return the row as it now is."""
    await entomb(agent, [grave_of(row, tombstone_of(row, agent.clock.now_ms()), NOT_SUPERSEDED)])
    with midway():
        return (await read_emptied(agent, [row["id"]])).get(row["id"])


async def complete(agent: Agent, row: _Row) -> None:
    """Finish the steps of a pending row, whoever began them."""
    if TOMBSTONE_KEY in row and "supersededById" in row:
        await _close_over(agent, row)
    elif TOMBSTONE_KEY in row:
        await _reactivate(agent, row)
    else:
        await join(agent, row)


async def settled_row(agent: Agent, memory_id: str) -> Payload | None:
    """A row, once the step that it may be in is finished."""
    row = await read_row(agent, memory_id)
    if row and row.get("pending"):
        await complete(agent, row)
        row = await read_row(agent, memory_id)
    return row


async def sweep(agent: Agent) -> int:
    """Finish every unfinished step older than 10 s; return how many there were."""
    stale = {"key": "updatedAt", "range": {"lt": agent.clock.now_ms() - SWEEP_AFTER_MS}}
    body = {"filter": {"must": [IS_PENDING, stale]}, "limit": SWEEP_PAGE, "with_payload": True}
    completed = 0
    async for points in read_pages(agent, body):
        # Its writer may have come to the end since it was found.
        rows = [row for point in points if (row := point["payload"]).get("pending")]
        for row in rows:
            await complete(agent, row)
        completed += len(rows)
    return completed


async def _advance(agent: Agent, row: _Row, olds: Mapping[str, _Row]) -> None:
    """Take the next step of a pending row that wants to follow others."""
    for before in predecessors(row):
        old = olds.get(before)
        successor = old and old.get("supersededById")
        if old is not None and successor == row["id"]:
            continue
        may_turn = "identityId" in row and GIVES_WAY_KEY not in row
        is_root = may_turn and before == row["identityId"]
        is_current = old is not None and row.get(GIVES_WAY_KEY) in (None, old.get(CHANGED_KEY, 0))
        if old is not None and is_current and successor is None and (is_root or TOMBSTONE_KEY not in old):
            return await link(agent, old, row)
        return await _turn(agent, row) if may_turn else await abandon(agent, row)
    return await _change(agent, row, _shown(agent), IS_PENDING)


async def link(agent: Agent, old: _Row, row: _Row) -> None:
    """Let a row follow an old version, if the row still wants to now that the old one has been read."""
    now = await read_row(agent, row["id"])
    if now is None or now["rev"] != row["rev"]:
        return
    link: Payload = {"supersededById": row["id"]}
    if TOMBSTONE_KEY not in old:
        now_ms = agent.clock.now_ms()
        link |= {**_superseded(old, row, now_ms), **window_mark(old), **_ended(old, row), LOGGED_KEY: now_ms}
    await _change(agent, old, link, NOT_SUPERSEDED)


async def _turn(agent: Agent, row: _Row) -> None:
    """Let a row that lost its predecessor want to follow the head, or the first point where there is no head."""
    identity_id = row["identityId"]
    newest = await head(agent, identity_id)
    if newest is None and await begin(agent, identity_id) is None:
        root = root_of(identity_id, row, agent.clock.now_ms())
        point = {"id": identity_id, "vector": {}, "payload": root}
        await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
    target = newest["id"] if newest else identity_id
    if target != row["id"]:
        await _change(agent, row, {"supersedesId": target}, IS_PENDING)


async def _linked(agent: Agent, rows: list[Payload]) -> list[Payload]:
    """Those of some pending rows that are heads already, once they are no longer pending."""
    if not rows:
        return []
    by_id = {row["id"]: row for row in rows}
    links = await _scroll(agent, {"key": "supersededById", "match": {"any": sorted(by_id)}})
    links = [old for old in links if old.get("supersededById") in by_id]
    for old in links:
        row = by_id[old["supersededById"]]
        await _change(agent, row, {"supersedesId": old["id"], **_shown(agent)}, IS_PENDING)
    found = [await read_row(agent, old["supersededById"]) for old in links]
    return [row for row in found if row and not row.get("pending") and TOMBSTONE_KEY not in row]


async def abandon(agent: Agent, row: _Row) -> None:
    """Make a pending row a tombstone, and take back what late writers may still do with its predecessor.

    Nobody has seen it, so the change log does not have it either.
    """
    tombstone = tombstone_of(row, agent.clock.now_ms())
    del tombstone[LOGGED_KEY]
    await entomb(agent, [grave_of(row, tombstone, IS_PENDING)])
    now = (await read_emptied(agent, [row["id"]])).get(row["id"])
    if now and TOMBSTONE_KEY in now:
        await _reactivate(agent, now)


async def _reactivate(agent: Agent, tombstone: _Row) -> None:
    """Let the predecessors of what became a tombstone answer again, and nothing follow the tombstone."""
    # One whose head was deleted too has no neighbour left, if that was settled first.
    for before in predecessors(tombstone):
        await _let_answer(agent, before, tombstone)
    await _change(agent, tombstone, {"pending": False}, IS_PENDING)


async def _let_answer(agent: Agent, before: str, tombstone: _Row) -> None:
    is_fenced = False
    for _ in range(MAX_ATTEMPTS):
        old = await read_row(agent, before)
        successor = old and old.get("supersededById")
        if old is None or successor not in (None, tombstone["id"]) or (successor is None and is_fenced):
            return
        if successor is None:
            await _change(agent, old, {}, NOT_SUPERSEDED)
        else:
            await _unlink(agent, old)
        is_fenced = True
    raise contended(tombstone["id"])


async def _close_over(agent: Agent, tombstone: _Row) -> None:
    """Link the neighbours of an earlier version that was taken out.

    Beside it there may be others that were: a link to one leads on to the nearest version that lives. The first
    point of an identity stays in its chain, as a tombstone too.
    """
    root_id = tombstone.get("identityId")
    for _ in range(MAX_ATTEMPTS):
        olders = await _standing_before(agent, tombstone, root_id)
        if not olders and tombstone["id"] == root_id and (root := await read_row(agent, root_id)):
            olders = [root]
        around: Sequence[Payload | None] = olders or [None]
        closed = [await _pass_over(agent, tombstone, older) for older in around]
        if all(closed):
            now = await read_row(agent, tombstone["id"])
            return await _change(agent, now, {"pending": False}, IS_PENDING) if now else None
    raise contended(tombstone["id"])


async def _pass_over(agent: Agent, tombstone: _Row, older: _Row | None) -> bool:
    """Link one version before a tombstone with what lives after it; tell whether they were."""
    newer = await next_live(agent, older or tombstone, tombstone.get("identityId"))
    is_led = not older or await relink(agent, older, newer)
    if newer is None:
        return is_led
    wanted, is_stored = await _wanted(agent, tombstone, older, newer)
    if list(predecessors(newer)) == wanted:
        return is_led
    links = links_to(wanted)
    if not is_merged(newer) and links["supersedesIds"] is None:
        del links["supersedesIds"]
    # A link leads to it, so it is stored, if its writer has not come to say so yet; but for one that is still merged.
    await _change(agent, newer, {**links, **(_shown(agent) if is_stored else {})})
    return False


async def _wanted(agent: Agent, tombstone: _Row, older: _Row | None, newer: _Row) -> tuple[list[str], bool]:
    """What a version follows once a tombstone before it is passed over, and whether all of that leads to it."""
    before = [older["id"]] if older else []
    if "identityId" in newer:
        # It follows one, and may name another that its writer wanted it to follow at first.
        return before, True
    rows = await read_rows(agent, [id_ for id_ in predecessors(newer) if id_ not in (tombstone["id"], *before)])
    kept = [id_ for id_, row in rows.items() if _follows(newer, row)]
    ids = [id_ for id_ in predecessors(newer) if id_ in (*kept, tombstone["id"], *before)]
    return replaced(ids, tombstone["id"], before), all(newer["id"] in successors(rows[id_]) for id_ in kept)


def _follows(newer: _Row, before: _Row) -> bool:
    """Whether a version that another names lives and leads to it, or is still to be joined to it."""
    if TOMBSTONE_KEY in before:
        return False
    return bool(newer.get("pending")) or newer["id"] in successors(before)


async def relink(agent: Agent, older: _Row, newer: _Row | None) -> bool:
    """Let a version be followed by the next that lives; tell whether it was."""
    if older.get("supersededById") == (newer and newer["id"]):
        return True
    if newer is None:
        await _unlink(agent, older)
    else:
        await _change(agent, older, {"supersededById": newer["id"], **window_mark(older)})
    return False


async def _unlink(agent: Agent, old: _Row) -> None:
    """Make a superseded version the head again."""
    unlinked = {"supersededById": None, "supersededAt": None, STATED_END_KEY: None, **window_mark(old)}
    answers = {"validTo": old.get(STATED_END_KEY), LOGGED_KEY: agent.clock.now_ms()}
    await _change(agent, old, unlinked | ({} if TOMBSTONE_KEY in old else answers))


def _shown(agent: Agent) -> Payload:
    """What makes a pending row one that is seen, and logged."""
    return {"pending": False, LOGGED_KEY: agent.clock.now_ms()}


async def _change(agent: Agent, row: _Row, changes: Payload, *conditions: Condition) -> None:
    await change_row(agent, row, changes, *conditions, now_ms=agent.clock.now_ms())


@contextmanager
def midway() -> Iterator[None]:
    """Turn StoreUnavailable into OutcomeUnknown: a step before was written, and the sweep may finish the row."""
    try:
        yield
    except CollectionMoved:
        # Of which `FencedStore` knows that no step before was.
        raise
    except StoreUnavailable as error:
        message = f"Qdrant became unavailable during the write ({error}): read before retrying"
        raise OutcomeUnknown(message, retry_after_s=error.retry_after_s) from error


async def next_live(agent: Agent, row: _Row, root_id: str | None) -> Payload | None:
    """The nearest version after a row that lives; the root of an identity stands for ever."""
    while next_id := row.get("supersededById"):
        found = await read_row(agent, next_id)
        if found is None or TOMBSTONE_KEY not in found or next_id == root_id:
            return found
        row = found
    return None


async def _standing_before(agent: Agent, row: _Row, root_id: str | None) -> list[Payload]:
    """The nearest versions before a row that live, in order; the root of an identity stands for ever."""
    standing: dict[str, Payload] = {}
    wanted = [*reversed(predecessors(row))]
    while wanted:
        before = wanted.pop()
        found = await read_row(agent, before)
        if found is not None and (TOMBSTONE_KEY not in found or before == root_id):
            standing[before] = found
        elif found is not None:
            wanted.extend(reversed(predecessors(found)))
    return list(standing.values())


async def read_rows(agent: Agent, ids: Sequence[str]) -> dict[str, Payload]:
    """Read the rows that exist, by id."""
    points = await agent.store.retrieve(agent.alias, ids) if ids else []
    return {point["id"]: point["payload"] for point in points}


async def _scroll(agent: Agent, *conditions: Condition) -> list[Payload]:
    body = {"filter": {"must": list(conditions)}, "limit": SWEEP_PAGE, "with_payload": True}
    points, _ = await agent.store.scroll(agent.alias, body)
    return [point["payload"] for point in points]


def _is_last(row: _Row) -> bool:
    return TOMBSTONE_KEY not in row and not row.get("supersededById")


def _ended(old: _Row, new: _Row) -> Payload:
    """The old version's validity: until the new one begins, or earlier where it said so itself."""
    stated, begin = old.get("validTo"), new.get("validFrom", new["createdAt"])
    return {"validTo": begin if stated is None else min(stated, begin), STATED_END_KEY: stated}


def _superseded(old: _Row, new: _Row, now_ms: int) -> Payload:
    """Since when the old version has a successor: now, or, of two that are imported, when its line says."""
    told = old.get(TOLD_AT_KEY)
    if told is None:
        return {"supersededAt": now_ms}
    # What is stored only now is another successor than the one that was told of.
    return {"supersededAt": told if told >= new["createdAt"] else now_ms, TOLD_AT_KEY: None}


def contended(memory_id: str) -> StoreUnavailable:
    """The error of a change that other writers prevented time and again."""
    return StoreUnavailable(f"memory {memory_id} is being changed concurrently: retry")
