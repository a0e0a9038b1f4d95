"""Read the change log of an agent: the last change of each memory, in order and without gaps.

The time of a change is a key of the changed point, written by the request that makes the change. So no crash separates
a change from its entry, and writes need no extra call.

Writers take that time before they send the write, each from its own clock. So an entry may appear before others that
readers already have. An acknowledged write ends within `Agent.write_s` of its start (`FencedStore`), and clocks must
not differ by more than `MAX_CLOCK_DIFFERENCE_MS`. So the log is complete up to now minus both, and later entries are
read with `rules/log_read.py`, which misses none and repeats none.
"""

import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import FieldError, RequestInvalid, StoreRejected, StoreUnavailable
from agentmemory_operator.lifecycle.rules.erasure import user_receipts_condition
from agentmemory_operator.memories.point_pages import page_limit
from agentmemory_operator.memories.rules.change_entries import (
    LOG_PAYLOAD_KEYS,
    Change,
    Position,
    build_change,
    changes_at_filter,
    changes_filter,
    decode_position,
    find_move,
    logged_at_ms,
)
from agentmemory_operator.memories.rules.filters import Condition, Filter, equals
from agentmemory_operator.memories.rules.log_read import LogRead
from agentmemory_operator.memories.rules.log_times import MAX_CLOCK_DIFFERENCE_MS
from agentmemory_operator.memories.rules.recent_entries import SALT_BYTES
from agentmemory_operator.memories.rules.record import LOGGED_KEY
from agentmemory_operator.ports.base import Json

NO_INDEX_RETRY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesRequest:
    """Part of the log to read.

    Attributes:
        limit: Maximum number of entries.
        cursor: Cursor of the previous page; None starts after `since_ms`.
        since_ms: Unix milliseconds; 0 starts with the oldest entry.
        user_id: Only changes of this user, and changes of the agent as a whole; None is all.
    """

    limit: int
    cursor: str | None = None
    user_id: str | None = None
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class ChangePage:
    """A part of the log, oldest first, and the cursor to continue with."""

    changes: tuple[Change, ...]
    next_cursor: str


async def read_changes(agent: Agent, request: ChangesRequest) -> ChangePage:
    """Return at most `limit` entries that a reader with this cursor lacks, oldest first; empty if nothing changed.

    The time of a move of the alias determines its place, because a restored collection also has older entries, and
    receipts. A move that a wrong clock dated into the future follows the existing entries.

    Raises:
        RequestInvalid: If the cursor is malformed or belongs to another agent.
        StoreUnavailable: If Qdrant is unavailable, or has no index on the log yet.
    """
    begin = Position(agent.epoch, request.since_ms) if request.cursor is None else _position(request.cursor, agent)
    limit = page_limit(agent, request.limit, beyond=1)
    part = _part(agent, request, limit + len(begin.recent.marks))
    read = LogRead(begin, part.complete_until_ms, secrets.token_bytes(SALT_BYTES))
    move, changes = find_move(begin, agent.epoch), list[Change]()
    async for entry in _entries(agent, begin, part):
        if move is not None and entry.at > move.at:
            changes.append(read.cross(move))
            move = None
        if len(changes) < limit and (change := read.take(entry)):
            changes.append(change)
        if len(changes) == limit or read.is_full:
            break
    else:
        changes += [] if move is None else [read.cross(move)]
        read.end(part.until_ms)
    return ChangePage(tuple(changes), read.position.encode(agent.settings.slug))


def complete_until_ms(agent: Agent) -> int:
    """Return the time up to which the log is complete, Unix milliseconds."""
    return agent.clock.now_ms() - round(agent.write_s * 1000) - MAX_CLOCK_DIFFERENCE_MS


@dataclass(frozen=True, slots=True)
class _Part:
    """Restriction of one read.

    Attributes:
        of_user: Condition on the user of the entries; None reads those of all users.
        limit: Maximum number of entries of one call.
        until_ms: Time up to which entries are read, Unix milliseconds. A wrong clock may date entries later.
        complete_until_ms: Time up to which the log is complete, Unix milliseconds.
    """

    of_user: Condition | None
    limit: int
    until_ms: int
    complete_until_ms: int


def _part(agent: Agent, request: ChangesRequest, limit: int) -> _Part:
    until_ms = agent.clock.now_ms() + MAX_CLOCK_DIFFERENCE_MS
    limit = page_limit(agent, limit, beyond=1)
    return _Part(_of_user(agent, request.user_id), limit, until_ms, complete_until_ms(agent))


async def _entries(agent: Agent, since: Position, part: _Part) -> AsyncIterator[Change]:
    """Yield the entries of points after a position, oldest first."""
    is_last = False
    while not is_last:
        points, is_last = await _read_points(agent, since, part)
        for point in points:
            change = build_change(point["id"], point["payload"], since.epoch)
            since = change.position
            yield change


async def _read_points(agent: Agent, since: Position, part: _Part) -> tuple[Sequence[Json], bool]:
    """Return points by time, then by id, and whether no others follow.

    Qdrant orders by time only. It returns points of the same time in the order of their ids if it is asked for one
    time. So if a page starts or ends between such points, they are read separately.

    Qdrant reads payloads after it has chosen the points. A point that has changed in between is left out, because it
    has a later time. One that was deleted is not returned, so a short page may not be the last one. Recent points are
    not deleted.
    """
    points: list[Json] = []
    if since.id is not None:
        points = await _read_time(agent, since.at, part.of_user, limit=part.limit, after=since.id)
    if (remaining := part.limit - len(points)) == 0:
        return points, False
    order: Json = {"order_by": {"key": LOGGED_KEY, "direction": "asc"}}
    later = await _scroll(agent, changes_filter(since, part.until_ms, part.of_user), limit=remaining, **order)
    last = later[-1]["order_value"] if later else part.until_ms
    is_last = len(later) < remaining and last > part.complete_until_ms
    unchanged = [point for point in later if point["payload"].get(LOGGED_KEY) == point["order_value"]]
    if not is_last:
        unchanged = [point for point in unchanged if point["order_value"] < last]
        unchanged += await _read_time(agent, last, part.of_user, limit=remaining - len(unchanged))
    return points + sorted(unchanged, key=lambda point: (logged_at_ms(point["payload"]), str(point["id"]))), is_last


async def _read_time(
    agent: Agent, at_ms: int, of_user: Condition | None, *, limit: int, after: str | int | None = None
) -> list[Json]:
    """Return points of exactly one time, by id, after the id `after`. None starts at the first."""
    filter_ = changes_at_filter(at_ms, of_user)
    # After an id, request one more point: the first one may be that of the offset, which is dropped.
    options: Json = {"limit": limit} if after is None else {"limit": limit + 1, "offset": after}
    points = await _scroll(agent, filter_, **options)
    points = [point for point in points if point["id"] != after][:limit]
    return [point for point in points if point["payload"].get(LOGGED_KEY) == at_ms]


async def _scroll(agent: Agent, filter_: Filter, **options: object) -> list[Json]:
    body = {"filter": filter_, "with_payload": list(LOG_PAYLOAD_KEYS), "with_vector": False, **options}
    try:
        points, _ = await agent.store.scroll(agent.alias, body)
    except StoreRejected as error:
        if LOGGED_KEY in error.server_message:
            raise StoreUnavailable(
                f"the collection of agent {agent.settings.slug!r} has no index on {LOGGED_KEY!r} yet: the operator"
                " adds it. If it does not, see the object's Synced condition",
                retry_after_s=NO_INDEX_RETRY_S,
            ) from error
        raise
    return points


def _of_user(agent: Agent, user_id: str | None) -> Condition | None:
    """Return the condition of belonging to a user; None for all. The user's receipts match by a hash of the id."""
    if user_id is None:
        return None
    return {"should": [equals("userId", user_id), user_receipts_condition(agent.settings.slug, user_id)]}


def _position(cursor: str, agent: Agent) -> Position:
    position = decode_position(cursor, agent.settings.slug)
    if position is None:
        message = f"{cursor[:64]!r} is not a cursor of this agent's changes: start without one, or send a next_cursor"
        raise RequestInvalid([FieldError("cursor", message)])
    return position
