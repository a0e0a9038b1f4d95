"""The route for signed memories and conversations. The signature authenticates the caller."""

from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.agents.authorisation import AgentRights
from agentmemory_operator.entrypoints.api import response_views
from agentmemory_operator.entrypoints.api.bodies import (
    MAX_BODY_BYTES,
    check_named_users,
    parse_json,
    read_body,
    reserve_parsed_body,
    validate_body,
)
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute
from agentmemory_operator.entrypoints.api.memories import session_routes
from agentmemory_operator.entrypoints.api.memories.conversation_requests import (
    ConversationIn,
    ConversationOut,
    HookIn,
    is_conversation,
)
from agentmemory_operator.entrypoints.api.memories.memory_routes import default_type_of
from agentmemory_operator.entrypoints.api.memory_schemas import StoredOut
from agentmemory_operator.entrypoints.api.memory_spans import record_result
from agentmemory_operator.entrypoints.api.openapi import WRITE_PROBLEMS, build_router, describe
from agentmemory_operator.entrypoints.api.use_cases import services_of
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.spec.caller_rights import Caller, Scopes, Verb

router = build_router("Webhooks", GuardedRoute)


@router.post(
    "/{agent}/hooks/{name}",
    summary="Receive a signed memory",
    **describe((StoredOut, ConversationOut), problems=WRITE_PROBLEMS, status=202, body=(HookIn, ConversationIn)),
)
async def receive_hook(agent: str, name: str, request: Request) -> Response:
    """Store one memory or conversation that is signed with the hook's key.

    A repeated request with the same webhook-id and body stores nothing more.
    """
    services = services_of(request)
    settings, hook = services.hooks.find(agent, name)
    body = await read_body(request, max_bytes=MAX_BODY_BYTES)
    await services.hooks.check(settings, hook, request.headers, body)
    await reserve_parsed_body(request, body)
    rights = AgentRights(Caller(hook=name), settings, Scopes(), frozenset({Verb.WRITE}))
    key = f"hook:{name}:{request.headers['webhook-id']}"
    document = parse_json(body)
    if is_conversation(document.value):
        conversation_body = validate_body(ConversationIn, document)
        check_named_users(rights, conversation_body)
        conversation = conversation_body.conversation(stored_by=rights.author, idempotency_key=key)
        return await session_routes.store_and_queue(request, agent, conversation, 202)
    parsed = validate_body(HookIn, document).memory
    check_named_users(rights, parsed)
    memory = parsed.new_memory(default_type=default_type_of(settings), stored_by=rights.author, idempotency_key=key)
    [result] = await services.remember.store(await services.directory.open(agent), [memory])
    if isinstance(result, AgentMemoryError):
        raise result
    record_result(request, 1, id=result.id)
    return response_views.json_response(response_views.render_stored(result), 202)
