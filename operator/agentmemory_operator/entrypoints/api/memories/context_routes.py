"""The route of the context call."""

from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.bodies import read_model
from agentmemory_operator.entrypoints.api.fields import MAX_TIME_ZONE_CHARS, TIME_ZONE_HEADER
from agentmemory_operator.entrypoints.api.identity.rights import PlainRoute, rights_of
from agentmemory_operator.entrypoints.api.memories.context_requests import ContextIn, ContextOut, render_context
from agentmemory_operator.entrypoints.api.memories.memory_routes import (
    DESCRIBED_GENERATION,
    GENERATION_HEADER,
    time_zone_of,
)
from agentmemory_operator.entrypoints.api.memory_spans import record_result
from agentmemory_operator.entrypoints.api.openapi import SEARCH_PROBLEMS, build_router, describe, with_header
from agentmemory_operator.entrypoints.api.response_views import json_response
from agentmemory_operator.entrypoints.api.use_cases import services_of

router = build_router("Search", PlainRoute)


@router.post(
    "/{agent}/context",
    summary="Build a context",
    **with_header(
        describe(
            ContextOut,
            problems=SEARCH_PROBLEMS,
            body=ContextIn,
            headers=DESCRIBED_GENERATION,
        ),
        TIME_ZONE_HEADER,
        {"type": "string", "minLength": 1, "maxLength": MAX_TIME_ZONE_CHARS},
    ),
)
async def build_context(agent: str, request: Request) -> Response:
    """Return one text for a prompt, within a number of tokens: facts about the user, relevant memories, recent turns.

    The memories in it are marked as data, and none can end the text.
    """
    services = services_of(request)
    body = await read_model(request, ContextIn)
    opened = await services.directory.open(agent)
    scopes = rights_of(request).default_scopes
    sent = body.context_request(default_scopes=scopes, default_time_zone=time_zone_of(request))
    answer = await services.contexts.build(opened, sent)
    record_result(request, sum(map(len, answer.context.sections.values())))
    content = render_context(answer, body.budget_tokens)
    return json_response(content, headers={GENERATION_HEADER: str(answer.generation)})
