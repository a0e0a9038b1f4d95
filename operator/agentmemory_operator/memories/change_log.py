"""Read the change log of an agent: what was changed, in order, each change once and none left out.

A change lies in the log in the request that makes it: its time is a key of the point that changes. So a kill parts no
change from its entry, and no call is added to a write.

Writers take the time of a change before they send it, each by its own clock. So the log is read up to a time that no
write can fall behind: a write that was acknowledged ended within `Agent.write_s` of its beginning (`FencedStore`), and
clocks differ by `CLOCKS_MS` at most. What is later is read the next time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import FieldError, RequestInvalid, StoreRejected, StoreUnavailable
from agentmemory_operator.lifecycle.rules.erasure import receipts_of
from agentmemory_operator.memories.rules.change_log import (
    CLOCKS_MS,
    KEYS,
    Change,
    Position,
    change_of,
    logged,
    logged_at,
    moved,
    position_of,
    time_of,
)
from agentmemory_operator.memories.rules.filters import Condition, Filter, equals
from agentmemory_operator.memories.rules.record import LOGGED_KEY
from agentmemory_operator.ports.base import Json

NO_INDEX_RETRY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesRequest:
    """Which part of the log to read.

    Attributes:
        cursor: of the page before; None begins with the oldest entry.
        user_id: only what is this user's, and what concerns the agent as a whole.
    """

    limit: int
    cursor: str | None = None
    user_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChangePage:
    """A part of the log, oldest first, and from where to read on."""

    changes: tuple[Change, ...]
    next_cursor: str


async def read_changes(agent: Agent, request: ChangesRequest) -> ChangePage:
    """The entries after a cursor; none where nothing was changed since, but for what is too new yet.

    Raises:
        RequestInvalid: the cursor is not one of this agent's log.
        StoreUnavailable: Qdrant is away, or has no index on the log yet.
    """
    begin = Position(agent.epoch) if request.cursor is None else _position(request.cursor, agent)
    part = _Part(_of_user(agent, request.user_id), _within(agent, request.limit), settled_ms(agent))
    move = moved(begin, agent.epoch)
    is_told = move is not None and not part.until_ms < move.at <= agent.clock.now_ms() + CLOCKS_MS
    changes = await (_read_across(agent, begin, move, part) if move and is_told else _read(agent, begin, part))
    last = changes[-1].position if changes else begin
    return ChangePage(tuple(changes), last.encode(agent.settings.slug))


def settled_ms(agent: Agent) -> int:
    """Up to which time the log is complete, Unix milliseconds."""
    return agent.clock.now_ms() - round(agent.write_s * 1000) - CLOCKS_MS


@dataclass(frozen=True, slots=True)
class _Part:
    """What is read of the log at a time.

    Attributes:
        until_ms: up to which time, Unix milliseconds.
    """

    of_user: Condition | None
    limit: int
    until_ms: int


async def _read_across(agent: Agent, begin: Position, move: Change, part: _Part) -> list[Change]:
    """The entries on both sides of a move.

    Its time tells its place: what is restored holds changes from before the move too, as receipts are. One that a wrong
    clock has put into the future follows what is there.
    """
    before = await _read(agent, begin, replace(part, until_ms=min(move.at, part.until_ms)))
    if (rest := part.limit - len(before)) == 0:
        return before
    last = before[-1].position if before else begin
    move = replace(move, position=replace(last, epoch=move.position.epoch))
    after = await _read(agent, move.position, replace(part, limit=rest - 1)) if rest > 1 else []
    return [*before, move, *after]


async def _read(agent: Agent, since: Position, part: _Part) -> list[Change]:
    """The entries after a position."""
    points = await _read_points(agent, since, part)
    return [change_of(point["id"], point["payload"], since.epoch) for point in points]


async def _read_points(agent: Agent, since: Position, part: _Part) -> Sequence[Json]:
    """Points by time, then by id.

    The engine orders by the time alone; those of one time it gives by id. So where a page begins or ends between points
    of one time, these are read by id.
    """
    points: list[Json] = []
    if since.id is not None:
        points = await _read_time(agent, logged_at(since.at, part.of_user), limit=part.limit, after=since.id)
    if (wanted := part.limit - len(points)) == 0:
        return points
    order: Json = {"order_by": {"key": LOGGED_KEY, "direction": "asc"}}
    later = await _scroll(agent, logged(since, part.until_ms, part.of_user), limit=wanted, **order)
    if len(later) == wanted:
        last = time_of(later[-1]["payload"])
        later = [point for point in later if time_of(point["payload"]) < last]
        later += await _read_time(agent, logged_at(last, part.of_user), limit=wanted - len(later))
    return points + sorted(later, key=lambda point: (time_of(point["payload"]), str(point["id"])))


async def _read_time(agent: Agent, at: Filter, *, limit: int, after: str | int | None = None) -> list[Json]:
    """Points of exactly one time by id."""
    if after is None:
        return await _scroll(agent, at, limit=limit)
    # The offset is the first id returned: one more, for the id itself where it is still there.
    points = await _scroll(agent, at, limit=limit + 1, offset=after)
    return [point for point in points if point["id"] != after][:limit]


async def _scroll(agent: Agent, filter_: Filter, *, limit: int, **more: object) -> list[Json]:
    body = {"filter": filter_, "limit": limit, "with_payload": list(KEYS), "with_vector": False, **more}
    try:
        points, _ = await agent.store.scroll(agent.alias, body)
    except StoreRejected as error:
        if LOGGED_KEY in error.words:
            raise StoreUnavailable(
                f"the collection of agent {agent.settings.slug!r} has no index on {LOGGED_KEY!r} yet: the operator"
                " adds it. If it does not, see the object's Synced condition",
                retry_after_s=NO_INDEX_RETRY_S,
            ) from error
        raise
    return points


def _of_user(agent: Agent, user_id: str | None) -> Condition | None:
    """The condition of being a user's: a receipt is the user's too, though only who knows the name can tell."""
    if user_id is None:
        return None
    return {"should": [equals("userId", user_id), receipts_of(agent.settings.slug, user_id)]}


def _within(agent: Agent, limit: int) -> int:
    """The page's size, smaller where the engine's limit leaves no room for the one read beyond it."""
    most = agent.settings.ranking.max_query_limit
    return limit if most is None else max(1, min(limit, most - 1))


def _position(cursor: str, agent: Agent) -> Position:
    position = position_of(cursor, agent.settings.slug)
    if position is None:
        message = f"{cursor[:64]!r} is not a cursor of this agent's changes: start without one, or send a next_cursor"
        raise RequestInvalid([FieldError("cursor", message)])
    return position
