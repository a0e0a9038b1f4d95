"""Delete memories: one with all its versions, or by `forget` those of users, with a receipt for each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.agents.authorisation import AgentRights
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entrypoints.api.bodies import ParsedBody, parse_json
from agentmemory_operator.entrypoints.api.mem0.filter_reader import ANY_VALUE, filter_error, read_filter, read_user_id
from agentmemory_operator.entrypoints.api.mem0.listing import user_missing
from agentmemory_operator.entrypoints.api.mem0.mem0_requests import ENTITY_NAMES
from agentmemory_operator.entrypoints.api.mem0.memory_actions import find_memory
from agentmemory_operator.entrypoints.api.problems import ProblemRaised
from agentmemory_operator.entrypoints.api.use_cases import Services
from agentmemory_operator.errors import NotFound
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.history import read_version_ids
from agentmemory_operator.memories.point_pages import read_row
from agentmemory_operator.memories.rules.criteria import Criterion, compile_criterion
from agentmemory_operator.memories.rules.filters import STORED_FILTER, narrow
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.spec.caller_rights import Verb

Json = dict[str, Any]

MAX_USERS = 1_000
"""Maximum number of users whose memories one request deletes."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """Result of a deletion.

    Attributes:
        memories: Number of deleted memories, all versions counted.
        receipt_id: Id of the receipt if one user was named, else None.
        has_more: True if there are further users, so the request must be repeated.
    """

    memories: int
    receipt_id: str | None = None
    has_more: bool = False

    def describe(self, message: str) -> str:
        """Return the message of a response, with a note if the request must be repeated."""
        return f"{message}. There are more users: repeat the request" if self.has_more else message


async def delete_memory(agent: Agent, rights: AgentRights, sent_id: str) -> None:
    """Delete all versions of a memory, the newest first.

    If it fails midway, an earlier version is visible again; repeating the call deletes the rest.

    Raises:
        ProblemRaised, NotFound: As in `find_memory`.
        Forbidden: If its type is immutable and the caller lacks the verb admin.
        Conflict: If another writer adds a version at the same time.
    """
    found = await find_memory(agent, rights, sent_id)
    user_id, is_admin = found.head.user_id, rights.has_verb(Verb.ADMIN)
    row = await read_row(agent, found.head.id)
    version_ids = await read_version_ids(agent, row) if row else [found.head.id]
    for version_id in reversed(version_ids):
        try:
            await delete_head(agent, version_id, user_id=user_id, is_admin=is_admin)
        except NotFound:
            # Another request has deleted this version.
            continue


async def delete_all(
    services: Services, agent: Agent, rights: AgentRights, entities: Mapping[str, str], metadata: str | None = None
) -> Deleted:
    """Delete the memories with these entities. `*` as the user means all users; for another entity, any value.

    `*` for all four entities deletes everything, as on mem0's servers.

    Args:
        metadata: JSON object with values that the metadata must have; None is no condition.

    Raises:
        UserMissing: If no user is named.
        Forbidden: If the caller may not act for the user, or for all users.
        OutcomeUnknown: If some may be deleted. Repeating the call deletes the rest.
    """
    user_id = entities.get("user_id")
    if user_id is None:
        raise user_missing()
    document: Json = {name: value for name, value in entities.items() if name != "user_id"}
    if len(entities) == len(ENTITY_NAMES) and set(entities.values()) == {ANY_VALUE}:
        document = {}
    document |= {} if metadata is None else {"metadata": _object(metadata)}
    if user_id == ANY_VALUE:
        return await delete_of_everyone(services, agent, rights, document)
    owner = read_user_id(user_id)
    rights.check_users([owner])
    return await _forget(services, agent, owner, document)


async def delete_of_everyone(services: Services, agent: Agent, rights: AgentRights, document: Json) -> Deleted:
    """Delete the memories of all users that meet a filter; an empty one deletes everything.

    Shared scopes that the caller may not use are left out.

    Raises:
        Forbidden: If the caller is limited to some users.
        OutcomeUnknown: As in `delete_all`.
    """
    rights.check_all_users()
    criterion = read_filter([document]).criterion
    condition = [] if criterion is None else [compile_criterion(criterion, agent.settings.indexes)]
    owners = await agent.store.facet(agent.alias, "userId", narrow(STORED_FILTER, *condition), limit=MAX_USERS)
    count = 0
    for owner in filter(rights.scopes.allows, owners):
        count += (await _forget(services, agent, owner, document)).memories
    return Deleted(count, has_more=len(owners) == MAX_USERS)


async def _forget(services: Services, agent: Agent, owner: str, document: Json) -> Deleted:
    criterion: Criterion | None = read_filter([document]).criterion
    scope = ErasureScope(user_id=owner, criterion=criterion, is_whole=criterion is None)
    receipt = await services.forget.forget(agent, ForgetRequest(scope=scope, filters=document))
    return Deleted(receipt.counts.total, receipt.id)


def _object(text: str) -> Json:
    try:
        parsed = parse_json(text.encode())
    except ProblemRaised:
        parsed = ParsedBody(None)
    if parsed.faults or not isinstance(parsed.value, dict) or not parsed.value:
        raise filter_error("metadata", "must be a JSON object with at least one key, each once")
    return parsed.value
