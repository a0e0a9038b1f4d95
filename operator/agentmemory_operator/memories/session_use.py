"""Record when a session was last used, on each of its memories of a type that ends with the session.

One point per session would not suffice, because a filter of Qdrant cannot span two points. A point is stamped at
most once per minute of use, by compare-and-set on its `rev`. A memory that has expired by the time of a use is not
stamped, so that no use restores it. A point that another writer changes concurrently gets the next stamp instead.
"""

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories.point_pages import read_pages
from agentmemory_operator.memories.rules.expiry import EXPIRY_KEYS, is_expired_by_type, ttl_of
from agentmemory_operator.memories.rules.filters import NOT_DELETED, equals, equals_any
from agentmemory_operator.memories.rules.record import MemoryRecord
from agentmemory_operator.spec.memory_types import SESSION_USED_KEY

log = logging.getLogger(__name__)

# Milliseconds within which several uses count as one.
STAMP_PERIOD_MS = 60_000
PAGE = 500

_KEYS = ("rev", *EXPIRY_KEYS)
_Row = Mapping[str, Any]


def is_due(agent: Agent, row: _Row, at_ms: int) -> bool:
    """Return whether a use of the session at `at_ms` must be recorded on a memory.

    True if the memory's type ends with its session, and the recorded use is missing or more than a minute older.
    """
    if not row.get("sessionId") or row.get("type") not in agent.settings.session_types:
        return False
    return (row.get(SESSION_USED_KEY) or 0) < at_ms - STAMP_PERIOD_MS


async def note_use(
    agent: Agent, user_id: str, session_id: str, *, at_ms: int, now_ms: int, joined: Collection[str] = ()
) -> None:
    """Stamp a time of use on the memories of a session whose type ends with the session, except expired ones.

    If memories join with an `at_ms` more than a minute ago, and a later use of the session is recorded, stamp the time
    of that use.

    Args:
        at_ms: Time of use, Unix milliseconds, not in the future.
        now_ms: Current time, written as `updatedAt`.
        joined: Ids of memories just stored in the session. They are stamped even if they would have expired by their
            `createdAt`.

    Raises:
        StoreUnavailable, OutcomeUnknown: If some memories may be stamped. The same call again stamps the rest.
    """
    session, used_ms = (user_id, session_id), at_ms
    if joined and at_ms < now_ms - STAMP_PERIOD_MS:
        # Use the latest recorded time for backdated memories, because the session may have been used since.
        async for rows in _rows(agent, *session):
            used_ms = max([used_ms, *(_used_ms(row, now_ms) for row in rows.values() if _is_live(agent, row, at_ms))])
    async for rows in _rows(agent, *session):
        of_rev: defaultdict[int, list[str]] = defaultdict(list)
        for id_, row in rows.items():
            is_stale = (row.get(SESSION_USED_KEY) or 0) < used_ms - STAMP_PERIOD_MS
            if is_stale and (id_ in joined or _is_live(agent, row, at_ms)):
                of_rev[row["rev"]].append(id_)
        for rev, ids in of_rev.items():
            payload = {SESSION_USED_KEY: used_ms, "rev": rev + 1, "updatedAt": now_ms}
            unchanged = {"must": [{"has_id": ids}, equals("rev", rev)]}
            await agent.store.set_payload(agent.alias, payload, unchanged, strong=True)


async def note_read(agent: Agent, rows: Iterable[_Row], *, now_ms: int) -> None:
    """Stamp the session of rows that were read, all of one session, if a stamp is due for one of them (`is_due`).

    An error is only logged: the read has succeeded.
    """
    due_row = next((row for row in rows if is_due(agent, row, now_ms)), None)
    if due_row is None:
        return
    try:
        await note_use(agent, due_row["userId"], due_row["sessionId"], at_ms=now_ms, now_ms=now_ms)
    except AgentMemoryError as error:
        log.info("could not mark a session of agent %s as used after a read: %s", agent.settings.slug, error)


async def note_stored(agent: Agent, records: Iterable[MemoryRecord], *, now_ms: int) -> None:
    """Stamp the sessions of stored memories, each with the latest `session_used_at` of its memories in `records`.

    An error is only logged. Memories without a session, or without that time, are skipped.
    """
    stored: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for record in records:
        if record.session_id and record.session_used_at is not None:
            stored[record.user_id, record.session_id][record.id] = record.session_used_at
    for (user_id, session_id), times in stored.items():
        try:
            await note_use(agent, user_id, session_id, at_ms=max(times.values()), now_ms=now_ms, joined=times.keys())
        except AgentMemoryError as error:
            log.info("could not mark a session of agent %s as used after a write: %s", agent.settings.slug, error)


async def _rows(agent: Agent, user_id: str, session_id: str) -> AsyncIterator[dict[str, _Row]]:
    of_type = equals_any("type", agent.settings.session_types)
    filter_ = {"must": [equals("userId", user_id), equals("sessionId", session_id), of_type, NOT_DELETED]}
    body = {"filter": filter_, "limit": PAGE, "with_payload": list(_KEYS), "with_vector": False}
    async for points in read_pages(agent, body):
        yield {point["id"]: point["payload"] for point in points}


def _is_live(agent: Agent, row: _Row, at_ms: int) -> bool:
    return not is_expired_by_type(row, ttl_of(row, agent.settings.ranking.endings), at_ms)


def _used_ms(row: _Row, now_ms: int) -> int:
    used_ms = row.get(SESSION_USED_KEY)
    return min(row["createdAt"], now_ms) if used_ms is None else int(used_ms)
