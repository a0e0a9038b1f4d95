"""The route that takes conversations."""

from typing import Annotated

from fastapi import Header
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.distillation.conversations import Conversation, store_conversation
from agentmemory_operator.entrypoints.api import answers
from agentmemory_operator.entrypoints.api.bodies import read_model
from agentmemory_operator.entrypoints.api.fields import HeaderName
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, rights_of
from agentmemory_operator.entrypoints.api.memories.conversation_requests import (
    ConversationIn,
    ConversationOut,
    conversation,
)
from agentmemory_operator.entrypoints.api.memory_spans import note_records
from agentmemory_operator.entrypoints.api.openapi import WRITE_PROBLEMS, describe, router_of
from agentmemory_operator.entrypoints.api.use_cases import services_of

router = router_of("Conversations", GuardedRoute)


@router.post(
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
    sent = await read_model(request, ConversationIn)
    said = sent.conversation(stored_by=rights_of(request).author, idempotency_key=idempotency_key)
    return await store(request, agent, said, 201)


async def store(request: Request, agent: str, said: Conversation, status: int) -> Response:
    """Store a conversation, and queue it for the language model if the agent has one."""
    services = services_of(request)
    stored = await store_conversation(await services.directory.open(agent), services.remember, said)
    note_records(request, sum(turn is not None for turn in stored.turns))
    if stored.run is not None:
        services.distilling.offer(agent, stored.last)
    return answers.json_response(conversation(stored), status)
