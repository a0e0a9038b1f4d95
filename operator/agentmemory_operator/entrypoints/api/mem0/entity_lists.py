"""The entities and events of mem0: users with memories, their deletion, and the state of an addition."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.agents.authorisation import AgentRights
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entrypoints.api.bodies import request_invalid
from agentmemory_operator.entrypoints.api.fields import Id
from agentmemory_operator.entrypoints.api.identity.rights import rights_of
from agentmemory_operator.entrypoints.api.mem0 import erasing
from agentmemory_operator.entrypoints.api.mem0.filter_reader import ANY_VALUE, filter_error
from agentmemory_operator.entrypoints.api.mem0.memory_actions import check_id, read_allowed_row
from agentmemory_operator.entrypoints.api.mem0.memory_views import render_memory
from agentmemory_operator.entrypoints.api.memory_spans import record_result
from agentmemory_operator.entrypoints.api.response_views import json_response
from agentmemory_operator.entrypoints.api.use_cases import open_agent, services_of
from agentmemory_operator.errors import Forbidden, NotFound
from agentmemory_operator.memories.point_pages import read_memories
from agentmemory_operator.memories.rules.criteria import FIELDS, Equals
from agentmemory_operator.memories.rules.expiry import is_expired
from agentmemory_operator.memories.rules.filters import Selection, visible_filter
from agentmemory_operator.memories.rules.record import DISTIL_DUE_KEY, PUBLIC_PAYLOAD, Payload, record_of
from agentmemory_operator.search.users import list_users, read_user
from agentmemory_operator.spec.caller_rights import Verb
from agentmemory_operator.spec.times import render_time

Json = dict[str, Any]

ENTITY_KEYS = {"user": "user_id", "agent": "agent_id", "app": "app_id", "run": "run_id"}
MAX_EVENT_RESULTS = 100
_name = TypeAdapter(Id)


@dataclass(frozen=True, slots=True)
class ListedEntities:
    """A page of rendered entities, and the number of all."""

    entities: Sequence[Json]
    total: int


async def list_entities(agent: Agent, rights: AgentRights, *, number: int, size: int) -> ListedEntities:
    """Return a page of the users with memories. A caller who is limited to some users gets these.

    Raises:
        Forbidden: If the caller is not limited and lacks the verb admin.
    """
    token = rights.caller.delegation
    limited = frozenset({token.user_id}) if token else rights.scopes.users
    if limited is not None:
        return await _list_limited(agent, sorted(limited), number=number, size=size)
    if not rights.has_verb(Verb.ADMIN):
        raise Forbidden("listing the users of an agent needs the verb admin")
    page = await list_users(agent, limit=size)
    for _ in range(number - 1):
        if page.next_cursor is None:
            return ListedEntities((), page.total)
        page = await list_users(agent, limit=size, cursor=page.next_cursor)
    found = [_entity(user.user_id, user.memories, user.oldest, user.newest) for user in page.users]
    return ListedEntities(found, page.total)


async def _list_limited(agent: Agent, names: Sequence[str], *, number: int, size: int) -> ListedEntities:
    found = []
    for name in names[(number - 1) * size : number * size]:
        try:
            user = await read_user(agent, name)
        except NotFound:
            continue
        found.append(_entity(name, user.memories, user.oldest or 0, user.newest or 0))
    return ListedEntities(found, len(names))


def _entity(name: str, memories: int, oldest_ms: int, newest_ms: int) -> Json:
    times = {"created_at": render_time(oldest_ms), "updated_at": render_time(newest_ms)}
    return {"id": name, "name": name, "type": "user", "owner": "", "metadata": None, "total_memories": memories} | times


async def delete_entity(agent: str, request: Request) -> Response:
    """Delete the memories of an entity. That of a user deletes everything of the user, with a receipt."""
    kind, name = request.path_params["entity_type"], request.path_params["name"]
    # The route takes the last slash for that of the path, but here it belongs to the name.
    name = _checked_name(f"{name}/" if request.scope["raw_path"].lower().endswith(b"%2f") else name)
    if kind not in ENTITY_KEYS:
        raise filter_error("entity_type", f"must be one of {', '.join(ENTITY_KEYS)}")
    if name == ANY_VALUE:
        raise filter_error("name", f"must be the name of one {kind}")
    opened, rights, services = await open_agent(request, agent), rights_of(request), services_of(request)
    if kind == "user":
        deleted = await erasing.delete_all(services, opened, rights, {"user_id": name})
    else:
        deleted = await erasing.delete_of_everyone(services, opened, rights, {ENTITY_KEYS[kind]: name})
    record_result(request, deleted.memories)
    return json_response({"message": deleted.describe("Entity deleted successfully!"), "deleted": deleted.memories})


def _checked_name(sent: str) -> str:
    try:
        return _name.validate_python(sent)
    except ValidationError as error:
        raise request_invalid([{**item, "loc": ("name",)} for item in error.errors(include_url=False)]) from None


async def read_event(agent: str, request: Request) -> Response:
    """Return the state of an addition. Its id is that of the last memory that it stored."""
    opened, event_id = await open_agent(request, agent), check_id(request.path_params["id"])
    try:
        row = await read_allowed_row(opened, rights_of(request), event_id)
    except NotFound:
        raise NotFound("Event not found or you don't have permission to access it.") from None
    is_pending = bool(row.get(DISTIL_DUE_KEY)) and bool(row.get("undistilled"))
    times = {"created_at": render_time(row["createdAt"]), "updated_at": render_time(row["updatedAt"])}
    results = [] if is_pending else await _results_of(opened, row)
    status = "RUNNING" if is_pending else "SUCCEEDED"
    return json_response({"id": event_id, "event_type": "ADD", "status": status, "results": results, **times})


async def _results_of(agent: Agent, row: Payload) -> list[Json]:
    """Return the memories that a model has distilled from a conversation, or without one the memory itself."""
    if run := row.get("conversationId"):
        selection = Selection(user_id=row["userId"], criterion=Equals(FIELDS["run_id"], run))
        filter_ = visible_filter(selection, agent.clock.now_ms(), agent.settings.ranking.endings)
        body = {"filter": filter_, "limit": MAX_EVENT_RESULTS, "with_payload": PUBLIC_PAYLOAD, "with_vector": False}
        rows = [point["payload"] for point in (await read_memories(agent, body))[0]]
    else:
        rows = [] if is_expired(row, agent.settings.ranking.endings, agent.clock.now_ms()) else [row]
    memories = [render_memory(record_of(row), agent) for row in rows]
    return [memory | {"event": "ADD", "data": {"memory": memory["memory"]}} for memory in memories]
