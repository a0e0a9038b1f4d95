"""List who has memories: the engine counts by user, and says of each on a page the first and the last time."""

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.memories.point_pages import read_whole
from agentmemory_operator.memories.rules.filters import Filter, both, equals, equals_any
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.ports.base import Json
from agentmemory_operator.search.rules.counts import state_filters

# Users in one answer of the engine: with names of any length it stays below what is read of one.
COUNTED_AT_ONCE = 5_000
# Of more, those with the most memories are listed.
USERS_MAX = 50_000
# Questions in one request.
ASKED_AT_ONCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCount:
    """A user or scope with memories that a search can find.

    Attributes:
        oldest, newest: createdAt, Unix milliseconds.
    """

    user_id: str
    memories: int
    oldest: int
    newest: int


@dataclass(frozen=True, slots=True)
class UserPage:
    """One page, by name.

    Attributes:
        next_cursor: None on the last.
        is_truncated: there are more users than are listed.
    """

    users: tuple[UserCount, ...]
    next_cursor: str | None
    is_truncated: bool


async def list_users(agent: Agent, *, limit: int, cursor: str | None = None) -> UserPage:
    """A page of the users and scopes that have memories which a search can find.

    Raises:
        RequestInvalid: the cursor is not one of ours.
    """
    after = "" if cursor is None else _name_in(cursor)
    active = state_filters(None, agent.settings.ranking.endings, agent.clock.now_ms())["active"]
    counts, is_truncated = await _counts(agent, active)
    names = sorted(name for name in counts if name > after)
    page = names[:limit]
    times = [
        (name, times)
        for start in range(0, len(page), ASKED_AT_ONCE // 2)
        for name, times in await _times(agent, active, page[start : start + ASKED_AT_ONCE // 2])
    ]
    users = tuple(
        UserCount(user_id=name, memories=counts[name], oldest=oldest, newest=newest) for name, (oldest, newest) in times
    )
    return UserPage(users, _cursor_of(page[-1]) if len(names) > limit else None, is_truncated)


async def _counts(agent: Agent, active: Filter) -> tuple[dict[str, int], bool]:
    """How many memories each user has, and whether there are users beside those."""
    most = agent.settings.ranking.max_query_limit
    limit = min(COUNTED_AT_ONCE, most or COUNTED_AT_ONCE)
    counts: dict[str, int] = {}
    while len(counts) < USERS_MAX:
        others = {"must_not": [equals_any("userId", list(counts))]}
        found = await agent.store.facet(agent.alias, "userId", both(active, others) if counts else active, limit=limit)
        counts |= found
        if len(found) < limit:
            return counts, False
    return counts, True


async def _times(agent: Agent, active: Filter, names: Sequence[str]) -> list[tuple[str, tuple[int, int]]]:
    """The first and the last createdAt of each user that still has a memory."""
    asked = [_edge(active, name, direction) for name in names for direction in ("asc", "desc")]
    answers = await read_whole(
        lambda: agent.store.query_batch(agent.alias, asked),
        lambda found: [point for answer in found for point in answer],
    )
    edges = [answer[0]["payload"]["createdAt"] if answer else None for answer in answers]
    return [
        (name, (oldest, newest))
        for name, oldest, newest in zip(names, edges[::2], edges[1::2], strict=True)
        if oldest is not None and newest is not None
    ]


def _edge(active: Filter, name: str, direction: str) -> Json:
    return {
        "query": {"order_by": {"key": "createdAt", "direction": direction}},
        "filter": both(active, equals("userId", name)),
        "limit": 1,
        "with_payload": ["createdAt", TOMBSTONE_KEY],
    }


def _cursor_of(name: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([name], ensure_ascii=False).encode()).decode()


def _name_in(cursor: str) -> str:
    try:
        [name] = json.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (binascii.Error, ValueError, TypeError):
        name = None
    if not isinstance(name, str):
        raise RequestInvalid([FieldError("cursor", f"{cursor[:64]!r} is not a next_cursor of a list of users")])
    return name
