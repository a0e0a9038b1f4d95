"""Version chains: memories that supersede each other, linked by writes that survive a crash after any step.

Two links join an old and a new version: `old.supersededById` and `new.supersedesId`. The *head* has no successor; by
default, searches and lists return only heads. A *pending* row belongs to a change in progress and is never returned. A
*tombstone* is a deleted memory without content. It keeps its links as long as they are needed.

Qdrant has no transaction over two points, so each change is a sequence of writes to single points:

    supersede   1 insert `new` as pending   2 set `old.supersededById`, if `old` is a head   3 clear `new.pending`
    merge       as supersede, with several old versions, which step 2 links one by one
    delete      1 replace the head by a pending tombstone   2 unlink its predecessors: heads again   3 clear `pending`
    splice      1 replace an earlier version by a pending tombstone   2 link its neighbours   3 clear `pending`

Every write to an existing point is a compare-and-set on its `rev`. So any process that finds a pending row may complete
it (in a read, the sweep or a repeated request). Several processes may do so concurrently.

The link of step 2 decides which version supersedes `old`; `supersedesId` of a pending row only states the intention. If
another version has taken a predecessor, or the predecessor is deleted, the pending row is *abandoned*: it becomes a
tombstone, and the predecessors that it has linked become heads again. A row with an identity follows the current head
instead, unless a model derived it from earlier versions (`GIVES_WAY_KEY`).

Invariant: no link to an abandoned row remains. Writer W reads `old`, then its own row, then links by compare-and-set.
Process P, which abandons the row, first replaces it by a tombstone and then raises `old.rev` or clears the link.
- W reads its own row after the tombstone is written: W stops.
- W reads it before, and links after P has raised `old.rev`: the compare-and-set fails.
- W reads it before, and links earlier than that: P finds the link at its next read of `old` and clears it.

Between steps 2 and 3 of a supersede, and 1 and 2 of a delete, lists contain neither version; `old` stays stored. Merges
link in ascending id order, so of two merges of the same memories, one gets all of them (`memories/predecessors.py`).

The *root* of an identity is the point whose id is derived from the identity: a memory, or its tombstone. Two writers
that find no head meet at the root, so it is never removed while other versions follow it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import CollectionMoved, KeysUnavailable, OutcomeUnknown, StoreUnavailable
from agentmemory_operator.memories.point_pages import change_row, read_pages, read_row
from agentmemory_operator.memories.rules.filters import IS_PENDING, NOT_DELETED, NOT_SUPERSEDED, Condition, equals
from agentmemory_operator.memories.rules.links import is_merged, links_to, predecessors, replace_predecessor, successors
from agentmemory_operator.memories.rules.record import (
    CHANGED_KEY,
    GIVES_WAY_KEY,
    IMPORTED_SUPERSEDED_AT_KEY,
    LOGGED_KEY,
    STATED_END_KEY,
    TOMBSTONE_KEY,
    Payload,
    root_tombstone,
    tombstone_of,
    window_mark,
)
from agentmemory_operator.memories.tombstone_writes import read_confirmed, tombstone_write, write_tombstones

SWEEP_AFTER_MS = 10_000
SWEEP_PAGE = 100
# Attempts fail only if another writer changed the same memory, so the writers together make progress.
MAX_ATTEMPTS = 100
MAX_IDENTITY_ATTEMPTS = 400  # Many writers may change one identity concurrently.

_Row = Mapping[str, Any]


async def join(agent: Agent, row: _Row) -> bool:
    """Complete the supersede or merge of a pending row, or abandon the row.

    Returns:
        True once readers could see the row, even if it was deleted since. False if it was abandoned (a predecessor is
        deleted or has another successor), erased or removed.

    Raises:
        StoreUnavailable, OutcomeUnknown: If other writers changed the chain in every attempt, or Qdrant is unavailable.
            The row may stay pending until the sweep.
    """
    for _ in range(MAX_IDENTITY_ATTEMPTS if "identityId" in row else MAX_ATTEMPTS + len(predecessors(row))):
        rows = await read_rows(agent, (*predecessors(row), row["id"]))
        current = rows.get(row["id"])
        if current is None or TOMBSTONE_KEY in current or not current.get("pending"):
            return current is not None and was_ever_visible(current)
        if predecessors(current) == predecessors(row):
            await _advance(agent, current, rows)
        row = current
    raise contention_error(row["id"])


def was_ever_visible(row: _Row) -> bool:
    """Return whether readers could ever see a row that is not pending. The tombstone of an abandoned row was hidden."""
    return TOMBSTONE_KEY not in row or LOGGED_KEY in row


async def find_head(agent: Agent, identity_id: str) -> Payload | None:
    """Find the head of an identity. If every head is pending, first publish those that their predecessors link to.

    Of several heads, return the newest. None without a head, or if a change in progress hides it. The caller then
    starts at the root.
    """
    rows = await _scroll(agent, equals("lookupIds", identity_id), NOT_SUPERSEDED, NOT_DELETED)
    # Check the rows again, because a row may be deleted or superseded after Qdrant matches it and before it is read.
    rows = [row for row in rows if row.get("identityId") == identity_id and _is_head(row)]
    if completed := [row for row in rows if not row.get("pending")]:
        return max(completed, key=lambda row: (row["createdAt"], row["id"]))
    for published in await _publish_linked(agent, rows):
        return published
    return None


async def repair_root(agent: Agent, identity_id: str) -> Payload | None:
    """Repair each link of an identity, starting at its root; return the root as it was before, or None without one."""
    first = row = await read_row(agent, identity_id)
    while row and (successor := row.get("supersededById")):
        following = await read_row(agent, successor)
        if following is None:
            await _unlink(agent, row)
        elif TOMBSTONE_KEY in following and following.get("pending"):
            await complete(agent, following)
        row = following
    return first


async def tombstone_head(agent: Agent, row: _Row) -> Payload | None:
    """Replace a head by a tombstone, unless it changed; return the row stored now, or None if its point was removed."""
    await write_tombstones(agent, [tombstone_write(row, tombstone_of(row, agent.clock.now_ms()), NOT_SUPERSEDED)])
    with outcome_unknown_on_failure():
        return (await read_confirmed(agent, [row["id"]])).get(row["id"])


async def complete(agent: Agent, row: _Row) -> None:
    """Complete or abandon a pending row, whichever process wrote it. Raises the errors of `join`."""
    if TOMBSTONE_KEY in row and "supersededById" in row:
        await _splice(agent, row)
    elif TOMBSTONE_KEY in row:
        await _reactivate(agent, row)
    else:
        await join(agent, row)


async def read_completed(agent: Agent, memory_id: str) -> Payload | None:
    """Complete a row if it is pending, and return it; None if it does not exist."""
    row = await read_row(agent, memory_id)
    if row and row.get("pending"):
        await complete(agent, row)
        row = await read_row(agent, memory_id)
    return row


async def sweep(agent: Agent) -> int:
    """Complete or abandon every row that has been pending for 10 s without a change; return how many were found."""
    stale = {"key": "updatedAt", "range": {"lt": agent.clock.now_ms() - SWEEP_AFTER_MS}}
    body = {"filter": {"must": [IS_PENDING, stale]}, "limit": SWEEP_PAGE, "with_payload": True}
    completed = 0
    async for points in read_pages(agent, body):
        # Check the rows again, because a row may be completed after Qdrant matches it and before it is read.
        rows = [row for point in points if (row := point["payload"]).get("pending")]
        for row in rows:
            await complete(agent, row)
        completed += len(rows)
    return completed


async def _advance(agent: Agent, row: _Row, olds: Mapping[str, _Row]) -> None:
    """Take the next step of a pending row: link its next predecessor, retarget or abandon it, or publish it."""
    for predecessor_id in predecessors(row):
        old = olds.get(predecessor_id)
        successor = old and old.get("supersededById")
        if old is not None and successor == row["id"]:
            continue
        may_retarget = "identityId" in row and GIVES_WAY_KEY not in row
        is_root = may_retarget and predecessor_id == row["identityId"]
        is_current = old is not None and row.get(GIVES_WAY_KEY) in (None, old.get(CHANGED_KEY, 0))
        if old is not None and is_current and successor is None and (is_root or TOMBSTONE_KEY not in old):
            return await link(agent, old, row)
        return await _retarget(agent, row) if may_retarget else await abandon(agent, row)
    return await _change(agent, row, _live(agent), IS_PENDING)


async def link(agent: Agent, old: _Row, row: _Row) -> None:
    """Make `row` the successor of `old`, unless `old` has one, or either changed since its read; see the invariant."""
    current = await read_row(agent, row["id"])
    if current is None or current["rev"] != row["rev"]:
        return
    link: Payload = {"supersededById": row["id"]}
    if TOMBSTONE_KEY not in old:
        now_ms = agent.clock.now_ms()
        link |= {**_superseded(old, row, now_ms), **window_mark(old), **_validity_end(old, row), LOGGED_KEY: now_ms}
    await _change(agent, old, link, NOT_SUPERSEDED)


async def _retarget(agent: Agent, row: _Row) -> None:
    """Point a row that lost its predecessor to the head of its identity, else to the root, inserted if missing."""
    identity_id = row["identityId"]
    newest = await find_head(agent, identity_id)
    if newest is None and await repair_root(agent, identity_id) is None:
        root = root_tombstone(identity_id, row, agent.clock.now_ms())
        point = {"id": identity_id, "vector": {}, "payload": root}
        await agent.store.upsert(agent.alias, [point], insert_only=True, strong=True)
    target = newest["id"] if newest else identity_id
    if target != row["id"]:
        await _change(agent, row, {"supersedesId": target}, IS_PENDING)


async def _publish_linked(agent: Agent, rows: list[Payload]) -> list[Payload]:
    """Clear `pending` of the rows that a predecessor already links to; return those that are live."""
    if not rows:
        return []
    by_id = {row["id"]: row for row in rows}
    links = await _scroll(agent, {"key": "supersededById", "match": {"any": sorted(by_id)}})
    links = [old for old in links if old.get("supersededById") in by_id]
    for old in links:
        row = by_id[old["supersededById"]]
        await _change(agent, row, {"supersedesId": old["id"], **_live(agent)}, IS_PENDING)
    found = [await read_row(agent, old["supersededById"]) for old in links]
    return [row for row in found if row and not row.get("pending") and TOMBSTONE_KEY not in row]


async def abandon(agent: Agent, row: _Row) -> None:
    """Replace a pending row by a tombstone, and undo links to it, also those that concurrent writers add."""
    tombstone = tombstone_of(row, agent.clock.now_ms())
    del tombstone[LOGGED_KEY]
    await write_tombstones(agent, [tombstone_write(row, tombstone, IS_PENDING)])
    current = (await read_confirmed(agent, [row["id"]])).get(row["id"])
    if current and TOMBSTONE_KEY in current:
        await _reactivate(agent, current)


async def _reactivate(agent: Agent, tombstone: _Row) -> None:
    """Make the predecessors of a tombstone heads again, then clear its `pending`."""
    for predecessor_id in predecessors(tombstone):
        await _reactivate_predecessor(agent, predecessor_id, tombstone)
    await _change(agent, tombstone, {"pending": False}, IS_PENDING)


async def _reactivate_predecessor(agent: Agent, predecessor_id: str, tombstone: _Row) -> None:
    is_fenced = False
    for _ in range(MAX_ATTEMPTS):
        old = await read_row(agent, predecessor_id)
        successor = old and old.get("supersededById")
        if old is None or successor not in (None, tombstone["id"]) or (successor is None and is_fenced):
            return
        if successor is None:
            await _change(agent, old, {}, NOT_SUPERSEDED)
        else:
            await _unlink(agent, old)
        is_fenced = True
    raise contention_error(tombstone["id"])


async def _splice(agent: Agent, tombstone: _Row) -> None:
    """Link the neighbours of a tombstone, except tombstones other than an identity's root; then clear its `pending`."""
    root_id = tombstone.get("identityId")
    for _ in range(MAX_ATTEMPTS):
        older_rows = await _live_predecessors(agent, tombstone, root_id)
        if not older_rows and tombstone["id"] == root_id and (root := await read_row(agent, root_id)):
            older_rows = [root]
        ends: Sequence[Payload | None] = older_rows or [None]
        are_linked = [await _splice_link(agent, tombstone, older) for older in ends]
        if all(are_linked):
            current = await read_row(agent, tombstone["id"])
            return await _change(agent, current, {"pending": False}, IS_PENDING) if current else None
    raise contention_error(tombstone["id"])


async def _splice_link(agent: Agent, tombstone: _Row, older: _Row | None) -> bool:
    """Link one version before a tombstone with the next live version; return whether both links existed already."""
    newer = await find_next_live(agent, older or tombstone, tombstone.get("identityId"))
    is_linked = not older or await relink(agent, older, newer)
    if newer is None:
        return is_linked
    expected, is_stored = await _links_of(agent, tombstone, older, newer)
    if list(predecessors(newer)) == expected:
        return is_linked
    links = links_to(expected)
    if not is_merged(newer) and links["supersedesIds"] is None:
        del links["supersedesIds"]
    # If all links are stored, the version is visible, so clear `pending` too. A merge in progress is not visible.
    await _change(agent, newer, {**links, **(_live(agent) if is_stored else {})})
    return False


async def _links_of(agent: Agent, tombstone: _Row, older: _Row | None, newer: _Row) -> tuple[list[str], bool]:
    """Return the ids that `newer` must follow after the splice, and whether all remaining predecessors link to it."""
    prior = [older["id"]] if older else []
    if "identityId" in newer:
        # Use only `prior`: a version with an identity has one predecessor, and its `supersedesId` may still be from its
        # writer's first attempt.
        return prior, True
    rows = await read_rows(agent, [id_ for id_ in predecessors(newer) if id_ not in (tombstone["id"], *prior)])
    rest = [id_ for id_, row in rows.items() if _follows(newer, row)]
    ids = [id_ for id_ in predecessors(newer) if id_ in (*rest, tombstone["id"], *prior)]
    return replace_predecessor(ids, tombstone["id"], prior), all(newer["id"] in successors(rows[id_]) for id_ in rest)


def _follows(newer: _Row, predecessor: _Row) -> bool:
    if TOMBSTONE_KEY in predecessor:
        return False
    return bool(newer.get("pending")) or newer["id"] in successors(predecessor)


async def relink(agent: Agent, older: _Row, newer: _Row | None) -> bool:
    """Link a version to `newer`, or make it a head if `newer` is None; return True if it needed no change."""
    if older.get("supersededById") == (newer and newer["id"]):
        return True
    if newer is None:
        await _unlink(agent, older)
    else:
        await _change(agent, older, {"supersededById": newer["id"], **window_mark(older)})
    return False


async def _unlink(agent: Agent, old: _Row) -> None:
    unlinked = {"supersededById": None, "supersededAt": None, STATED_END_KEY: None, **window_mark(old)}
    answers = {"validTo": old.get(STATED_END_KEY), LOGGED_KEY: agent.clock.now_ms()}
    await _change(agent, old, unlinked | ({} if TOMBSTONE_KEY in old else answers))


def _live(agent: Agent) -> Payload:
    return {"pending": False, LOGGED_KEY: agent.clock.now_ms()}


async def _change(agent: Agent, row: _Row, changes: Payload, *conditions: Condition) -> None:
    await change_row(agent, row, changes, *conditions, now_ms=agent.clock.now_ms())


@contextmanager
def outcome_unknown_on_failure(*further: type[Exception]) -> Iterator[None]:
    """After a write: turn StoreUnavailable (not CollectionMoved), KeysUnavailable and `further` into OutcomeUnknown."""
    kinds: tuple[type[Exception], ...] = (StoreUnavailable, KeysUnavailable, *further)
    try:
        yield
    except CollectionMoved:
        # Pass CollectionMoved through: `FencedStore` raises it only if no earlier step was written.
        raise
    except kinds as error:
        message = f"the write failed after its first part ({error}): read before retrying"
        raise OutcomeUnknown(message, retry_after_s=getattr(error, "retry_after_s", 0.0)) from error


async def find_next_live(agent: Agent, row: _Row, root_id: str | None) -> Payload | None:
    """Return the next live version, or None. The root of an identity counts as live, even as a tombstone."""
    while next_id := row.get("supersededById"):
        found = await read_row(agent, next_id)
        if found is None or TOMBSTONE_KEY not in found or next_id == root_id:
            return found
        row = found
    return None


async def _live_predecessors(agent: Agent, row: _Row, root_id: str | None) -> list[Payload]:
    """Return the nearest live versions before a row, in order. The root of an identity counts as live."""
    live: dict[str, Payload] = {}
    unread = [*reversed(predecessors(row))]
    while unread:
        predecessor_id = unread.pop()
        found = await read_row(agent, predecessor_id)
        if found is not None and (TOMBSTONE_KEY not in found or predecessor_id == root_id):
            live[predecessor_id] = found
        elif found is not None:
            unread.extend(reversed(predecessors(found)))
    return list(live.values())


async def read_rows(agent: Agent, ids: Sequence[str]) -> dict[str, Payload]:
    """Read rows by id; the result lacks ids that do not exist."""
    points = await agent.store.retrieve(agent.alias, ids) if ids else []
    return {point["id"]: point["payload"] for point in points}


async def _scroll(agent: Agent, *conditions: Condition) -> list[Payload]:
    body = {"filter": {"must": list(conditions)}, "limit": SWEEP_PAGE, "with_payload": True}
    points, _ = await agent.store.scroll(agent.alias, body)
    return [point["payload"] for point in points]


def _is_head(row: _Row) -> bool:
    return TOMBSTONE_KEY not in row and not row.get("supersededById")


def _validity_end(old: _Row, new: _Row) -> Payload:
    """Return the end of the old version's validity: the new version's start, or the old version's end if earlier."""
    stated_end, new_start = old.get("validTo"), new.get("validFrom", new["createdAt"])
    return {"validTo": new_start if stated_end is None else min(stated_end, new_start), STATED_END_KEY: stated_end}


def _superseded(old: _Row, new: _Row, now_ms: int) -> Payload:
    """Return `supersededAt`: now, or the imported value if that fits the new version."""
    imported_ms = old.get(IMPORTED_SUPERSEDED_AT_KEY)
    if imported_ms is None:
        return {"supersededAt": now_ms}
    # Ignore a value before the new version: it belongs to another successor, which was not imported.
    return {
        "supersededAt": imported_ms if imported_ms >= new["createdAt"] else now_ms,
        IMPORTED_SUPERSEDED_AT_KEY: None,
    }


def contention_error(memory_id: str) -> StoreUnavailable:
    """Return the error of a change that other writers prevented in every attempt."""
    return StoreUnavailable(f"memory {memory_id} is being changed concurrently: retry")
