"""The route that takes conversations."""

from typing import Annotated

from fastapi import APIRouter, Header
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.distillation.conversations import Conversation, store_conversation
from agentmemory_operator.entrypoints.api import answers
from agentmemory_operator.entrypoints.api.bodies import read_model
from agentmemory_operator.entrypoints.api.fields import Id
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, rights_of
from agentmemory_operator.entrypoints.api.memories.conversation_requests import (
    ConversationIn,
    ConversationOut,
    conversation,
)
from agentmemory_operator.entrypoints.api.openapi import WRITE_PROBLEMS, describe
from agentmemory_operator.entrypoints.api.use_cases import Services, services_of

router = APIRouter(prefix="/v1/agents", redirect_slashes=False, route_class=GuardedRoute)


@router.post(
    "/{agent}/messages",
    summary="Store a conversation",
    **describe(ConversationOut, problems=WRITE_PROBLEMS, status=201, body=ConversationIn),
)
async def store_messages(
    agent: str, request: Request, idempotency_key: Annotated[Id | None, Header()] = None
) -> Response:
    """Store turns, durably; where the agent has a model, memories are made of them afterwards.

    The same Idempotency-Key and body again give the same turns.
    """
    sent = await read_model(request, ConversationIn)
    said = sent.conversation(stored_by=rights_of(request).author, idempotency_key=idempotency_key)
    return await store(services_of(request), agent, said, 201)


async def store(services: Services, agent: str, said: Conversation, status: int) -> Response:
    """Store a conversation, and have it distilled where the agent has a model."""
    stored = await store_conversation(await services.directory.open(agent), services.remember, said)
    if stored.run is not None:
        services.distilling.offer(agent, stored.last)
    return answers.json_response(conversation(stored), status)
