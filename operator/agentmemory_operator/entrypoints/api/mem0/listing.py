"""Lists, searches and entities: which owners a request reads, and pages by number."""

from collections.abc import Sequence
from dataclasses import dataclass

from agentmemory_operator.agents.authorisation import AgentRights
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entrypoints.api.mem0.filter_reader import ANY_VALUE, FilterPart, filter_error
from agentmemory_operator.errors import Forbidden, RequestInvalid
from agentmemory_operator.memories.point_pages import page_limit, read_without_tombstones
from agentmemory_operator.memories.rules.criteria import is_exact
from agentmemory_operator.memories.rules.filters import Selection, visible_filter
from agentmemory_operator.memories.rules.record import PUBLIC_PAYLOAD, MemoryRecord, record_of
from agentmemory_operator.search.counts import count_matching
from agentmemory_operator.search.eligible import find_eligible
from agentmemory_operator.search.users import list_users
from agentmemory_operator.spec.caller_rights import Verb

MAX_OWNERS = 100
"""Maximum number of users whose memories one request reads."""

MAX_OFFSET = 100_000
"""Maximum number of memories before a page: Qdrant reads all of them."""

MISSING_USER = 'required: name the user, for example {"user_id": "ada"}; except in deletions, a user token implies it'


@dataclass(frozen=True, slots=True)
class NumberedPage:
    """A page of a list, newest first.

    Attributes:
        total: Number of memories of the whole list.
        size: Number of memories per page that was used.
    """

    records: Sequence[MemoryRecord]
    total: int
    number: int
    size: int


class UserMissing(RequestInvalid):
    """A request names no user, and the caller's token is not limited to one."""


def user_missing() -> UserMissing:
    """Build the error of a request without a user."""
    [error] = filter_error("user_id", MISSING_USER).errors
    return UserMissing([error])


def owner_of(rights: AgentRights, user_id: str | None) -> str:
    """Return the user of a request: the named one, else that of the caller's user token.

    Raises:
        UserMissing: If neither names one.
        Forbidden: If the caller may not act for the named user.
    """
    token = rights.caller.delegation
    owner = user_id or (token.user_id if token else None)
    if owner is None:
        raise user_missing()
    if owner == ANY_VALUE:
        raise filter_error("user_id", "must be the name of one user")
    rights.check_users([owner])
    return owner


async def read_owners(agent: Agent, rights: AgentRights, part: FilterPart) -> tuple[str, ...]:
    """Return the owners whose memories a request reads, sorted.

    Raises:
        UserMissing: If the filters limit the owners neither by name nor by `*`, and the caller has no user token.
        Forbidden: If the caller may not act for one of them, or all users are requested without the verb admin.
        RequestInvalid: If there are more than `MAX_OWNERS`.
    """
    owners = part.owners
    if owners is None and (token := rights.caller.delegation):
        owners = frozenset({token.user_id})
    if owners is None and not part.names_everyone:
        raise user_missing()
    if owners is None:
        owners = rights.scopes.users if rights.scopes.users is not None else await _everyone(agent, rights)
    if len(owners) > MAX_OWNERS:
        raise _too_many()
    rights.check_users(owners)
    return tuple(sorted(owners))


async def _everyone(agent: Agent, rights: AgentRights) -> frozenset[str]:
    if not rights.has_verb(Verb.ADMIN):
        raise Forbidden("* reads the memories of all users, which needs the verb admin: name users", field="user_id")
    page = await list_users(agent, limit=MAX_OWNERS)
    if page.next_cursor is not None:
        raise _too_many()
    return frozenset(user.user_id for user in page.users if rights.scopes.allows(user.user_id))


def _too_many() -> RequestInvalid:
    return filter_error("user_id", f"must be at most {MAX_OWNERS} users in one request: name fewer")


def selection_of(owners: Sequence[str], part: FilterPart) -> Selection:
    """Build the selection of the memories of at least one owner."""
    return Selection(user_id=owners[0], scopes=tuple(owners[1:]), criterion=part.criterion)


async def list_memories(agent: Agent, rights: AgentRights, part: FilterPart, *, number: int, size: int) -> NumberedPage:
    """Return a page of memories, newest first.

    Args:
        number: Number of the page, from 1.
        size: Memories per page; Qdrant's strict mode may lower it.

    Raises:
        RequestInvalid: If the page is too far from the start; errors of `read_owners` and `find_eligible`.
    """
    size = page_limit(agent, size)
    offset = (number - 1) * size
    if offset > MAX_OFFSET:
        raise filter_error("page", f"must be within the first {MAX_OFFSET:,} memories: narrow the filters")
    owners = await read_owners(agent, rights, part)
    if not owners:
        return NumberedPage((), 0, number, size)
    selection, now_ms = selection_of(owners, part), agent.clock.now_ms()
    criterion, indexes = part.criterion, agent.settings.indexes
    if criterion is not None and not is_exact(criterion, indexes):
        filter_, total = await find_eligible(agent, selection, now_ms)
    else:
        filter_ = visible_filter(selection, now_ms, agent.settings.ranking.endings, indexes=indexes)
        total = await count_matching(agent, filter_)
    body = {
        "query": {"order_by": {"key": "createdAt", "direction": "desc"}},
        "filter": filter_,
        "limit": size,
        "offset": offset,
        "with_payload": PUBLIC_PAYLOAD,
    }
    points = await read_without_tombstones(lambda: agent.store.query(agent.alias, body), lambda found: found)
    return NumberedPage([record_of(point["payload"]) for point in points], total, number, size)
