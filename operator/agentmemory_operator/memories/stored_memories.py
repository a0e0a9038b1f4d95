"""Read, list, count, change and delete stored memories.

A change in place by a caller covers only the fields in `CHANGEABLE_KEYS`.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentmemory_operator.agents.checks import check_deletable, is_immutable
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import (
    Conflict,
    FieldError,
    NotFound,
    OutcomeUnknown,
    RequestInvalid,
)
from agentmemory_operator.memories import chains, session_keywords
from agentmemory_operator.memories.chains import outcome_unknown_on_failure
from agentmemory_operator.memories.incoming import scrub_metadata
from agentmemory_operator.memories.point_pages import (
    change_row,
    page_limit,
    read_memories,
    read_row,
)
from agentmemory_operator.memories.rules.expiry import is_expired
from agentmemory_operator.memories.rules.filters import (
    NOT_DELETED,
    NOT_SUPERSEDED,
    STORED_FILTER,
    Condition,
    Filter,
    Selection,
    equals,
    narrow,
    visible_filter,
)
from agentmemory_operator.memories.rules.ids import decode_cursor, encode_cursor, is_id
from agentmemory_operator.memories.rules.item_rules import append_mark, has_all_marks_since, marks_of
from agentmemory_operator.memories.rules.links import predecessors
from agentmemory_operator.memories.rules.preconditions import (
    Precondition,
    append_request,
    check_precondition,
    is_repeated,
    request_mark,
    tagged_record,
)
from agentmemory_operator.memories.rules.record import (
    CHANGED_KEY,
    EDIT_MARK_KEY,
    LOGGED_KEY,
    PUBLIC_PAYLOAD,
    REQUEST_MARKS_KEY,
    TOMBSTONE_KEY,
    WRITE_MARKS_KEY,
    MemoryRecord,
    Payload,
    hash_content,
    record_of,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.tasks import update
from agentmemory_operator.zones.rules.sealing import ZONE_KEY

CHANGEABLE_KEYS = ("importance", "tags", "metadata", "expiresAt", "pinned")
"""Payload keys that a caller may change in place, because no vector is computed from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """Request for a page of a user's memories.

    Attributes:
        selection: Memories to list.
        created_before: Unix milliseconds; only memories created before. None is any.
        limit: 1..1,000.
        cursor: Cursor of the previous page; None starts with the newest memory.
    """

    selection: Selection
    created_before: int | None = None
    limit: int = 50
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryPage:
    """One page, newest first. `next_cursor` is None on the last page."""

    records: tuple[MemoryRecord, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class _Position:
    """Last memory of a page. The next page starts after this memory."""

    created_at: int
    id: str

    def encode(self, agent: Agent, request: ListRequest) -> str:
        """Return the cursor, with a checksum over the list it belongs to, so a cursor of another list is rejected.

        The checksum contains no secret: a forged cursor reads only memories of the same list.
        """
        before = () if request.created_before is None else (request.created_before,)
        checked = repr((agent.settings.slug, request.selection, self.created_at, self.id, *before))
        return encode_cursor(self.created_at, self.id, hash_content(checked))


async def read_memory(agent: Agent, memory_id: str, *, user_id: str) -> MemoryRecord:
    """Read a memory, superseded or not.

    Raises:
        NotFound: If the memory is unknown, expired, deleted, or of another user.
    """
    return tagged_record(await read_own_row(agent, memory_id, user_id=user_id))


async def list_page(agent: Agent, request: ListRequest) -> MemoryPage:
    """Return a page of memories by createdAt, newest first, then by id (keyset pagination).

    Raises:
        RequestInvalid: If the cursor does not belong to this list.
    """
    after = None if request.cursor is None else _position_of(request.cursor, agent, request)
    # Reserve two rows: one shows whether there is a next page, and `_rows_of_time` reads one for its offset.
    limit = page_limit(agent, request.limit, beyond=2)
    filter_ = visible_filter(request.selection, agent.clock.now_ms(), agent.settings.ranking.endings)
    rows = await _newest(agent, filter_, after, before=request.created_before, limit=limit + 1)
    records = tuple(map(record_of, rows[:limit]))
    is_last = len(rows) <= limit
    last = None if is_last else _Position(records[-1].created_at, records[-1].id)
    return MemoryPage(records, last.encode(agent, request) if last else None)


async def change_head(
    agent: Agent,
    memory_id: str,
    changes: Mapping[str, Any],
    *,
    user_id: str,
    precondition: Precondition | None = None,
    idempotency_key: str | None = None,
) -> MemoryRecord:
    """Change a memory in place; return it as it is stored now.

    Args:
        changes: Values by payload key, only those in `CHANGEABLE_KEYS`; None deletes the value.
        precondition: Condition on the stored version; None for none.
        idempotency_key: A repeated request with the same key and changes changes nothing. None: each is a new change.

    Raises:
        NotFound: If the memory is unknown, expired, deleted, or of another user.
        PreconditionFailed: If the stored version does not meet the precondition.
        Conflict: If it is superseded, because earlier versions are not changed, or its type is immutable. Also if the
            idempotency key was used with other changes.
        KeysUnavailable: If a changed field is encrypted in its zone, and its key is unavailable or deleted.
        StoreUnavailable: If writers changed it in every attempt, or Qdrant is unavailable.
        OutcomeUnknown: If it may have been changed.
    """
    if metadata := changes.get("metadata"):
        changes = {**changes, "metadata": await scrub_metadata(agent, metadata)}

    async def write(row: Payload) -> Payload | None:
        request = _request_mark(row, changes, idempotency_key)
        if is_repeated(request, marks_of(row, REQUEST_MARKS_KEY)):
            return row
        check_precondition(precondition, row)
        _check_changeable(agent, row)
        return await _edit(agent, row, changes, request)

    read = partial(read_own_row, agent, memory_id, user_id=user_id)
    changed = await update(read, write, busy=chains.contention_error(memory_id))
    agent.sizes.forget(user_id)
    return tagged_record(changed)


def _request_mark(row: Payload, changes: Mapping[str, Any], idempotency_key: str | None) -> str | None:
    # Store no hash of the changes in a zone: guesses of encrypted metadata could be tested against it.
    body = "" if row.get(ZONE_KEY) else repr(sorted(changes.items()))
    return request_mark(idempotency_key, body) if idempotency_key else None


def _check_changeable(agent: Agent, row: Payload) -> None:
    if successor := row.get("supersededById"):
        raise Conflict(f"memory {row['id']} is superseded by {successor}: change its newest version")
    if is_immutable(agent, row):
        rule = f"memories of type {row['type']!r} are immutable (types[].immutable)"
        raise Conflict(f"memory {row['id']} cannot be changed: {rule}: store a new memory instead")


async def _edit(agent: Agent, row: Payload, changes: Mapping[str, Any], request: str | None) -> Payload | None:
    """Change a head in place; return the stored row, or None if it was not changed, or was deleted since.

    Args:
        request: Request mark of the change; None without one.
    """
    now_ms = agent.clock.now_ms()
    edit = {**changes, CHANGED_KEY: now_ms, LOGGED_KEY: now_ms, EDIT_MARK_KEY: (mark := secrets.token_hex(8))}
    edit |= {WRITE_MARKS_KEY: append_mark(row, mark)}
    edit |= {REQUEST_MARKS_KEY: append_request(row, request)} if request else {}
    await change_row(agent, row, edit, NOT_SUPERSEDED, NOT_DELETED, now_ms=now_ms)
    with outcome_unknown_on_failure():
        after = await read_row(agent, row["id"])
    if mark in marks_of(after) or has_all_marks_since(row, after):
        return after if after and mark in marks_of(after) and TOMBSTONE_KEY not in after else None
    raise OutcomeUnknown(f"memory {row['id']} was changed concurrently: read before retrying")


async def delete_head(
    agent: Agent, memory_id: str, *, user_id: str, is_admin: bool = False, precondition: Precondition | None = None
) -> None:
    """Delete the head of a chain; its predecessors become heads again.

    Args:
        is_admin: True if a memory of an immutable type may be deleted.
        precondition: Condition on the stored version; None for none.

    Raises:
        NotFound: If the memory is unknown, expired, of another user, or already deleted.
        Forbidden: If its type is immutable and `is_admin` is false.
        PreconditionFailed: If the stored version does not meet the precondition.
        Conflict: If it is superseded; delete the head first.
        StoreUnavailable: If writers changed it in every attempt, or Qdrant is unavailable.
        OutcomeUnknown: If it may have been deleted.
    """

    async def write(row: Payload) -> Payload | None:
        check_precondition(precondition, row)
        if successor := row.get("supersededById"):
            raise Conflict(f"memory {memory_id} is superseded by {successor}: delete its newest version first")
        check_deletable(agent, row, is_admin=is_admin)
        return row if await _try_delete(agent, row) else None

    read = partial(read_own_row, agent, memory_id, user_id=user_id)
    row = await update(read, write, busy=chains.contention_error(memory_id))
    await session_keywords.update_stale_texts(agent, [memory_id, *predecessors(row)])
    agent.sizes.forget(user_id)


async def count_stored(agent: Agent) -> int:
    """Return the number of memories of the agent, including superseded and expired ones, without pending ones."""
    return await agent.store.count(agent.alias, STORED_FILTER)


async def read_own_row(agent: Agent, memory_id: str, *, user_id: str) -> Payload:
    """Read a memory of a user, after completing its write if that is pending.

    Raises:
        NotFound: If the memory is unknown, expired, deleted, or of another user.
    """
    row = await chains.read_completed(agent, memory_id) if is_id(memory_id) else None
    if row is None or TOMBSTONE_KEY in row or row["userId"] != user_id or _is_expired(agent, row):
        raise NotFound(f"this user has no memory {memory_id}")
    return row


async def change_and_confirm(
    agent: Agent, row: Payload, changes: Mapping[str, Any], *conditions: Condition
) -> Payload | None:
    """Change a row if it is as read and the conditions hold; return the stored row once the change is confirmed.

    None if the row was not changed, or if another edit followed before the confirming read.

    Raises:
        KeysUnavailable: As in `change_row`.
        OutcomeUnknown: If the change may have been written, for example because the confirming read failed.
    """
    marked = {**changes, EDIT_MARK_KEY: (mark := secrets.token_hex(8))}
    await change_row(agent, row, marked, *conditions, now_ms=agent.clock.now_ms())
    return await read_if_marked(agent, row["id"], mark)


async def read_if_marked(agent: Agent, memory_id: str, mark: str) -> Payload | None:
    """Read a row after a write; return None if it lacks the mark of the write, or does not exist.

    Raises:
        OutcomeUnknown: If the read fails, because the write may have taken effect.
    """
    with outcome_unknown_on_failure():
        row = await read_row(agent, memory_id)
    return row if row and row.get(EDIT_MARK_KEY) == mark else None


async def _try_delete(agent: Agent, row: Payload) -> bool:
    """Delete a head and make its predecessors heads again. False if the head changed; True also if it was removed."""
    tombstone = await chains.tombstone_head(agent, row)
    if tombstone is None or TOMBSTONE_KEY not in tombstone:
        return tombstone is None
    if tombstone["pending"]:
        with outcome_unknown_on_failure():
            await chains.complete(agent, tombstone)
    return True


def _is_expired(agent: Agent, row: Payload) -> bool:
    return is_expired(row, agent.settings.ranking.endings, agent.clock.now_ms())


async def _newest(
    agent: Agent, filter_: Filter, after: _Position | None, *, before: int | None, limit: int
) -> list[Payload]:
    """Return rows by createdAt, newest first, then by id. The last of `limit` rows is any row of its time.

    Qdrant orders by createdAt only and has no cursor for it, but it can page rows of one time by id. So the rows
    with the createdAt at which the previous page ended, and at which this page ends, are read by id.

    Args:
        before: Unix milliseconds; only rows with an earlier createdAt. With a cursor, that is earlier anyway.
    """
    rows: list[Payload] = []
    if after:
        rows = await _rows_of_time(agent, filter_, after.created_at, limit=limit, after_id=after.id)
        before = after.created_at
    remaining = limit - len(rows)
    if remaining == 0:
        return rows
    # Not a condition: Qdrant would collect and sort all rows that meet it, which takes 15 times longer for 100,000.
    start = {} if before is None else {"start_from": before - 1}
    order: Json = {"order_by": {"key": "createdAt", "direction": "desc", **start}}
    older = await _scroll(agent, filter_, limit=remaining, **order)
    last = older[-1]["createdAt"] if older else 0
    if len(older) == remaining and remaining > 1 and older[-2]["createdAt"] == last:
        older = [row for row in older if row["createdAt"] > last]
        older += await _rows_of_time(agent, filter_, last, limit=remaining - len(older))
    return rows + sorted(older, key=lambda row: (-row["createdAt"], row["id"]))


async def _rows_of_time(
    agent: Agent, filter_: Filter, created_at: int, *, limit: int, after_id: str | None = None
) -> list[Payload]:
    """Return rows of exactly one createdAt by id, after `after_id`. None starts at the first."""
    same_time = narrow(filter_, equals("createdAt", created_at))
    if after_id is None:
        return await _scroll(agent, same_time, limit=limit)
    # Request one more row, because the first row returned may be that of the offset, which is dropped.
    rows = await _scroll(agent, same_time, limit=limit + 1, offset=after_id)
    return [row for row in rows if row["id"] != after_id][:limit]


async def _scroll(agent: Agent, filter_: Filter, *, limit: int, **options: object) -> list[Payload]:
    body = {"filter": filter_, "limit": limit, "with_payload": PUBLIC_PAYLOAD, "with_vector": False, **options}
    points, _ = await read_memories(agent, body)
    return [point["payload"] for point in points]


def _position_of(cursor: str, agent: Agent, request: ListRequest) -> _Position:
    match decode_cursor(cursor):
        case [created_at, memory_id, _] if _Position(created_at, memory_id).encode(agent, request) == cursor:
            return _Position(created_at, memory_id)
    raise _bad_cursor(cursor)


def _bad_cursor(cursor: str) -> RequestInvalid:
    message = (
        f"{cursor!r} is not a next_cursor of this list: start without one, or repeat the parameters of the first page"
    )
    return RequestInvalid([FieldError("cursor", message)])
