"""The routes of conversations, and of a session's working memories and its end."""

from typing import Annotated

from fastapi import Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.distillation.conversations import Conversation, store_conversation
from agentmemory_operator.distillation.session_end import end_session as end_and_distil
from agentmemory_operator.entrypoints.api import response_views
from agentmemory_operator.entrypoints.api.bodies import read_model
from agentmemory_operator.entrypoints.api.fields import HeaderName, Id
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, rights_of
from agentmemory_operator.entrypoints.api.memories.conversation_requests import (
    ConversationIn,
    ConversationOut,
    render_conversation,
)
from agentmemory_operator.entrypoints.api.memory_requests import UserParameters, WorkingIn
from agentmemory_operator.entrypoints.api.memory_schemas import EndedOut, KeptOut, WorkingOut
from agentmemory_operator.entrypoints.api.memory_spans import record_result
from agentmemory_operator.entrypoints.api.openapi import READ_PROBLEMS, WRITE_PROBLEMS, build_router, describe
from agentmemory_operator.entrypoints.api.use_cases import services_of
from agentmemory_operator.memories.working_memory import Session

router = build_router("Sessions", GuardedRoute)
conversations = build_router("Conversations", GuardedRoute)

SessionId = Annotated[Id, Path()]
User = Annotated[UserParameters, Query()]


@router.get(
    "/{agent}/sessions/{session_id:path}/working",
    summary="List working memories",
    **describe(WorkingOut, problems=READ_PROBLEMS),
)
async def get_working_memory(agent: str, session_id: SessionId, request: Request, parameters: User) -> Response:
    """List the session's working memories, most recently used first."""
    services = services_of(request)
    opened = await services.directory.open(agent)
    records = await services.working.read(opened, Session(parameters.user_id, session_id))
    return response_views.json_response(response_views.render_working_memories(records, opened))


@router.put(
    "/{agent}/sessions/{session_id:path}/working",
    summary="Add a working memory",
    **describe(KeptOut, problems=WRITE_PROBLEMS, body=WorkingIn),
)
async def put_working_memory(agent: str, session_id: SessionId, request: Request, parameters: User) -> Response:
    """Add a working memory to the session. If all slots are in use, it replaces the least recently used one."""
    services = services_of(request)
    body = await read_model(request, WorkingIn)
    opened = await services.directory.open(agent)
    author = rights_of(request).author
    memory = body.new_memory(user_id=parameters.user_id, session_id=session_id, stored_by=author)
    stored = await services.working.store(opened, memory)
    record_result(request, 1, id=stored.record.id)
    return response_views.json_response(response_views.render_working_memory(stored, opened))


@router.post(
    "/{agent}/sessions/{session_id:path}/end",
    summary="End a session",
    **describe(EndedOut, problems=(*READ_PROBLEMS, 504)),
)
async def end_session(agent: str, session_id: SessionId, request: Request, parameters: User) -> Response:
    """Remove the session's working memories, and its memories of types that expire with a session.

    A repeated request removes nothing more. If the agent has a language model, a run distils the session afterwards.
    """
    services = services_of(request)
    opened = await services.directory.open(agent)
    ended = await end_and_distil(opened, services.working, Session(parameters.user_id, session_id))
    if ended.run is not None:
        services.distillation.enqueue(agent, ended.request_row_id)
    return response_views.json_response(response_views.render_session_end(ended))


@conversations.post(
    "/{agent}/messages",
    summary="Store a conversation",
    **describe(ConversationOut, problems=WRITE_PROBLEMS, status=201, body=ConversationIn),
)
async def store_messages(
    agent: str, request: Request, idempotency_key: Annotated[HeaderName | None, Header()] = None
) -> Response:
    """Store the turns durably. If the agent has a language model, memories are distilled from them afterwards.

    A repeated request with the same Idempotency-Key and body returns the same turns.
    """
    body = await read_model(request, ConversationIn)
    conversation = body.conversation(stored_by=rights_of(request).author, idempotency_key=idempotency_key)
    return await store_and_queue(request, agent, conversation, 201)


async def store_and_queue(request: Request, agent: str, sent: Conversation, status: int) -> Response:
    """Store a conversation, and queue it for distillation unless the result has a warning why there is no run.

    Args:
        status: HTTP status of the response.
    """
    services = services_of(request)
    stored = await store_conversation(await services.directory.open(agent), services.remember, sent)
    record_result(request, sum(turn is not None for turn in stored.turns))
    if stored.run is not None:
        services.distillation.enqueue(agent, stored.last_turn_id)
    return response_views.json_response(render_conversation(stored), status)
