"""List users and scopes with their numbers of memories, which Qdrant counts. Read and name a single user."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entities.user_points import UserPoint, change_point
from agentmemory_operator.errors import FieldError, NotFound, RequestInvalid
from agentmemory_operator.memories.point_pages import query_all, read_row, read_without_tombstones
from agentmemory_operator.memories.rules.filters import Filter, equals, equals_any, narrow
from agentmemory_operator.memories.rules.ids import decode_cursor, encode_cursor
from agentmemory_operator.memories.rules.profile import UserProfile, profile_from_payload, profile_id, profile_to_facts
from agentmemory_operator.memories.rules.record import PROFILE_KEY, TOMBSTONE_KEY, Payload
from agentmemory_operator.ports.base import Json
from agentmemory_operator.search.rules.memory_states import state_filters

# Users of the first request.
USERS_PER_REQUEST = 5_000
# Number of users after which no further counts are read. Qdrant returns users with the most memories first.
MAX_LISTED_USERS = 50_000
# Queries per request.
QUERIES_PER_REQUEST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCount:
    """A user or scope with memories that a search can find.

    Attributes:
        oldest, newest: Smallest and largest createdAt, Unix milliseconds.
    """

    user_id: str
    memories: int
    oldest: int
    newest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDetails:
    """A user or scope: its profile, and its memories that a search can find.

    Attributes:
        profile: None if the user has no name.
        oldest, newest: Smallest and largest createdAt, Unix milliseconds; None without memories.
    """

    user_id: str
    profile: UserProfile | None
    memories: int
    oldest: int | None
    newest: int | None


@dataclass(frozen=True, slots=True)
class UserPage:
    """Page of users and scopes, sorted by id.

    Attributes:
        next_cursor: None on the last page.
        is_truncated: True if there may be more than about 50,000 users; those with the most memories are listed.
        total: Number of users and scopes on all pages.
    """

    users: tuple[UserCount, ...]
    next_cursor: str | None
    is_truncated: bool
    total: int


async def list_users(agent: Agent, *, limit: int, cursor: str | None = None, prefix: str | None = None) -> UserPage:
    """Return a page of the users and scopes with memories that a search can find, sorted by id.

    Args:
        limit: Maximum number of users on the page.
        cursor: `next_cursor` of the previous page; None for the first.
        prefix: Start of the ids to return; None returns all.

    Raises:
        RequestInvalid: If the cursor is malformed.
        StoreUnavailable: If Qdrant is unavailable, or memories were deleted during each of 10 reads.
    """
    after = "" if cursor is None else _name_in(cursor)
    active = state_filters(None, agent.settings.ranking.endings, agent.clock.now_ms())["active"]
    counts, is_truncated = await _counts(agent, active)
    names = sorted(name for name in counts if name > after and name.startswith(prefix or ""))
    page = names[:limit]
    times = [
        (name, times)
        for start in range(0, len(page), QUERIES_PER_REQUEST // 2)
        for name, times in await _times(agent, active, page[start : start + QUERIES_PER_REQUEST // 2])
    ]
    users = tuple(
        UserCount(user_id=name, memories=counts[name], oldest=oldest, newest=newest) for name, (oldest, newest) in times
    )
    return UserPage(users, encode_cursor(page[-1]) if len(names) > limit else None, is_truncated, len(counts))


async def read_user(agent: Agent, user_id: str) -> UserDetails:
    """Read a user or scope.

    Raises:
        NotFound: If it has neither a name nor memories that a search can find.
        StoreUnavailable: If Qdrant is unavailable, or memories were deleted during each of 10 reads.
    """
    active = state_filters(None, agent.settings.ranking.endings, agent.clock.now_ms())["active"]
    profile = await read_profile(agent, user_id)
    memories = await agent.store.count(agent.alias, narrow(active, equals("userId", user_id)))
    times = dict(await _times(agent, active, [user_id])) if memories else {}
    if profile is None and not memories:
        raise NotFound(f"there is no user {user_id!r}: it has no memories, and PUT with a name creates it")
    oldest, newest = times.get(user_id, (None, None))
    return UserDetails(user_id=user_id, profile=profile, memories=memories, oldest=oldest, newest=newest)


async def name_user(agent: Agent, user_id: str, name: str) -> None:
    """Set the name of a user or scope. Store a profile if the user or scope has none.

    Raises:
        StoreUnavailable: If Qdrant is unavailable, or other writers changed the name in every attempt.
        OutcomeUnknown: If the name may have been changed.
    """

    def renamed(row: Payload | None) -> Json | None:
        before = profile_from_payload(row)
        after = UserProfile(name, before.created_at if before else agent.clock.now_ms())
        return None if after == before else profile_to_facts(after)

    await change_point(agent, _profile_of(agent, user_id), renamed)


async def import_profile(agent: Agent, user_id: str, profile: UserProfile) -> None:
    """Store the profile of an export, unless the user has one.

    Raises:
        StoreUnavailable, OutcomeUnknown: As in `name_user`.
    """

    def added(row: Payload | None) -> Json | None:
        return None if profile_from_payload(row) else profile_to_facts(profile)

    await change_point(agent, _profile_of(agent, user_id), added)


async def read_profile(agent: Agent, user_id: str) -> UserProfile | None:
    """Read the profile of a user or scope; None if it has none."""
    return profile_from_payload(await read_row(agent, profile_id(agent.id_slug, user_id)))


def _profile_of(agent: Agent, user_id: str) -> UserPoint:
    return UserPoint(id=profile_id(agent.id_slug, user_id), user_id=user_id, key=PROFILE_KEY, name="the name")


async def _counts(agent: Agent, active: Filter) -> tuple[dict[str, int], bool]:
    """Return the number of memories per user, and whether there may be further users."""
    max_limit = min(MAX_LISTED_USERS, agent.settings.ranking.max_query_limit or MAX_LISTED_USERS)
    limit = min(USERS_PER_REQUEST, max_limit)
    counts = await agent.store.facet(agent.alias, "userId", active, limit=limit)
    # Read all again with a higher limit: Qdrant takes seconds to leave out thousands of names.
    while len(counts) == limit < max_limit:
        limit = min(4 * limit, max_limit)
        counts = await agent.store.facet(agent.alias, "userId", active, limit=limit)
    size = len(counts)
    while size == limit and len(counts) < MAX_LISTED_USERS:
        uncounted = {"must_not": [equals_any("userId", list(counts))]}
        found = await agent.store.facet(agent.alias, "userId", narrow(active, uncounted), limit=limit)
        counts, size = counts | found, len(found)
    return counts, size == limit


async def _times(agent: Agent, active: Filter, names: Sequence[str]) -> list[tuple[str, tuple[int, int]]]:
    """Return the smallest and the largest createdAt of each of the users. Omit users that have no memory any more."""
    queries = [_edge(active, name, direction) for name in names for direction in ("asc", "desc")]
    results = await read_without_tombstones(
        lambda: query_all(agent, queries),
        lambda found: [point for result in found for point in result],
    )
    edges = [result[0]["payload"]["createdAt"] if result else None for result in results]
    return [
        (name, (oldest, newest))
        for name, oldest, newest in zip(names, edges[::2], edges[1::2], strict=True)
        if oldest is not None and newest is not None
    ]


def _edge(active: Filter, name: str, direction: str) -> Json:
    return {
        "query": {"order_by": {"key": "createdAt", "direction": direction}},
        "filter": narrow(active, equals("userId", name)),
        "limit": 1,
        "with_payload": ["createdAt", TOMBSTONE_KEY],
    }


def _name_in(cursor: str) -> str:
    match decode_cursor(cursor):
        case [str(name)]:
            return name
    raise RequestInvalid([FieldError("cursor", f"{cursor[:64]!r} is not a next_cursor of a list of users")])
