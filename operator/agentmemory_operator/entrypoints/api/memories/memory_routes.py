"""The routes of search, memories, erasures, agents and tool schemas."""

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Header, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.agents.authorisation import check_rights, readable_agents
from agentmemory_operator.entrypoints.api import response_views
from agentmemory_operator.entrypoints.api.agent_schemas import AgentDetailOut, AgentsOut, StatsOut
from agentmemory_operator.entrypoints.api.bodies import (
    MAX_BATCH_BYTES,
    ParsedBody,
    check_named_users,
    read_body,
    read_model,
    reserve_parts,
    validate_body,
)
from agentmemory_operator.entrypoints.api.edge import REQUEST_ID
from agentmemory_operator.entrypoints.api.fields import MAX_TIME_ZONE_CHARS, TIME_ZONE_HEADER, Body, HeaderName, Id
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, PlainRoute, caller_of, rights_of
from agentmemory_operator.entrypoints.api.inner_requests import LOOKS
from agentmemory_operator.entrypoints.api.mcp.tool_calls import build_offered_tools
from agentmemory_operator.entrypoints.api.memories import forget_requests, session_routes
from agentmemory_operator.entrypoints.api.memories.batches import BatchReader, render_results
from agentmemory_operator.entrypoints.api.memories.conversation_requests import (
    ConversationIn,
    ConversationOut,
    choose_model,
)
from agentmemory_operator.entrypoints.api.memories.forget_requests import (
    ForgetIn,
    ForgottenOut,
    ReceiptParameters,
    ReceiptsOut,
)
from agentmemory_operator.entrypoints.api.memory_requests import (
    BatchEnvelope,
    BatchIn,
    ListParameters,
    MemoryIn,
    MemoryParameters,
    Parameters,
    SearchIn,
    StatsParameters,
    UserParameters,
)
from agentmemory_operator.entrypoints.api.memory_schemas import (
    BatchOut,
    MemoryOut,
    PageOut,
    SearchOut,
    StoredOut,
    ToolsOut,
)
from agentmemory_operator.entrypoints.api.memory_spans import record_result
from agentmemory_operator.entrypoints.api.openapi import (
    ETAG_HEADER,
    READ_PROBLEMS,
    SEARCH_PROBLEMS,
    WRITE_PROBLEMS,
    build_router,
    describe,
    with_header,
    with_preconditions,
)
from agentmemory_operator.entrypoints.api.preconditions import etag_header, read_precondition
from agentmemory_operator.entrypoints.api.response_views import json_response
from agentmemory_operator.entrypoints.api.shown_schemas import ShownMemoryOut, ShownPageOut, ShownSearchOut
from agentmemory_operator.entrypoints.api.state_routes import find_state
from agentmemory_operator.entrypoints.api.use_cases import Services, open_agent, parse_id, services_of
from agentmemory_operator.errors import AgentMemoryError, FieldError, RequestInvalid
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.rules.model_tools import PREFERRED_TYPE, render_mcp_tools, render_openai_tools
from agentmemory_operator.memories.stored_memories import count_stored, delete_head, list_page, read_memory
from agentmemory_operator.runtime.tasks import gather_bounded, run_in_slices
from agentmemory_operator.search.counts import count_memories, count_periods
from agentmemory_operator.spec.caller_rights import Verb
from agentmemory_operator.spec.cron import zone_fault
from agentmemory_operator.spec.effective.settings import AgentSettings

GENERATION_HEADER = "X-AgentMemory-Generation"
DESCRIBED_GENERATION = {
    GENERATION_HEADER: {
        "description": "Generation of the AgentMemory object whose settings were used.",
        "schema": {"type": "integer"},
    }
}
# Maximum number of agents to count concurrently for the list of agents.
MAX_CONCURRENT_COUNTS = 8

searching = build_router("Search", PlainRoute)
agents = build_router("Agents", GuardedRoute)
router = build_router("Memories", GuardedRoute)
tools = build_router("Tools", GuardedRoute, prefix="/v1")

erasure = build_router("Erasure", GuardedRoute)


@agents.get("", summary="List agents", **describe(AgentsOut, problems=(401, 429, 500, 503)))
async def list_agents(request: Request) -> Response:
    """List every agent that the caller may read, by name."""
    services, caller = services_of(request), caller_of(request)
    readable = readable_agents(services.directory, caller)

    async def line(settings: AgentSettings) -> dict[str, Any]:
        memories, state = await _count(services, settings.slug), find_state(settings, services.objects, caller)
        return response_views.render_agent_line(settings, memories=memories, state=state)

    return response_views.json_response(
        {"results": await gather_bounded(map(line, readable), concurrency=MAX_CONCURRENT_COUNTS)}
    )


@agents.get("/{agent}", summary="Read an agent's settings", **describe(AgentDetailOut, problems=READ_PROBLEMS))
async def get_agent(agent: str, request: Request) -> Response:
    """Read the types, weights, thresholds and embedding in effect. 503 until the agent is ready."""
    opened = await open_agent(request, agent)
    memories = await count_stored(opened)
    state = find_state(opened.settings, services_of(request).objects, caller_of(request))
    return response_views.json_response(response_views.render_agent_detail(opened, memories=memories, state=state))


@agents.get("/{agent}/stats", summary="Count memories", **describe(StatsOut, problems=READ_PROBLEMS))
async def get_stats(agent: str, request: Request, parameters: Annotated[StatsParameters, Query()]) -> Response:
    """Count the memories of a user, or of the whole agent, by type and state."""
    opened = await open_agent(request, agent)
    user_id, max_periods = parameters.user_id, parameters.periods
    found = await count_memories(opened, user_id)
    periods = await count_periods(opened, user_id, found, max_periods) if max_periods else None
    return response_views.json_response(response_views.render_stats(found, user_id, periods))


@router.post(
    "/{agent}/memories",
    summary="Store a memory",
    **describe((StoredOut, ConversationOut), problems=WRITE_PROBLEMS, status=201, body=(MemoryIn, ConversationIn)),
)
async def store_memory(
    agent: str, request: Request, idempotency_key: Annotated[HeaderName | None, Header()] = None
) -> Response:
    """Store one memory durably. A repeated request with the same Idempotency-Key and body returns the same memory.

    A body with `messages` is a conversation, as in `POST .../messages`.
    """
    services = services_of(request)
    rights = rights_of(request)
    body = await read_model(request, Body, choose=choose_model)
    if isinstance(body, ConversationIn):
        conversation = body.conversation(stored_by=rights.author, idempotency_key=idempotency_key)
        return await session_routes.store_and_queue(request, agent, conversation, 201)
    assert isinstance(body, MemoryIn)
    memory = body.new_memory(
        default_type=default_type_of(rights.settings), stored_by=rights.author, idempotency_key=idempotency_key
    )
    [result] = await services.remember.store(await services.directory.open(agent), [memory])
    if isinstance(result, AgentMemoryError):
        raise result
    record_result(request, 1, id=result.id)
    return response_views.json_response(response_views.render_stored(result), 201)


@router.post(
    "/{agent}/memories/batch", summary="Store memories", **describe(BatchOut, problems=WRITE_PROBLEMS, body=BatchIn)
)
async def store_memories(
    agent: str, request: Request, idempotency_key: Annotated[HeaderName | None, Header()] = None
) -> Response:
    """Store up to 1,000 memories. An invalid item does not affect the others.

    A repeated request with the same Idempotency-Key and body returns the same memories.
    """
    services = services_of(request)
    rights = rights_of(request)
    body = await read_body(request, max_bytes=MAX_BATCH_BYTES)

    def read_item(document: ParsedBody, key: str | None) -> IncomingMemory:
        parsed = validate_body(MemoryIn, document)
        check_named_users(rights, parsed)
        return parsed.new_memory(
            default_type=default_type_of(rights.settings), stored_by=rights.author, idempotency_key=key
        )

    reader = BatchReader(BatchEnvelope, read_item, partial(reserve_parts, request), idempotency_key)
    items = await run_in_slices(reader.read(body))
    memories = [item for item in items if isinstance(item, IncomingMemory)]
    stored = await services.remember.store(await services.directory.open(agent), memories) if memories else []
    record_result(request, sum(not isinstance(result, AgentMemoryError) for result in stored))
    results = render_results(items, stored, response_views.render_stored, request_id=request.scope[REQUEST_ID])
    return response_views.json_response({"results": results})


@router.get("/{agent}/memories", summary="List memories", **describe((PageOut, ShownPageOut), problems=READ_PROBLEMS))
async def list_memories(agent: str, request: Request, parameters: Annotated[ListParameters, Query()]) -> Response:
    """List a user's memories, newest first, page by page."""
    opened = await open_agent(request, agent)
    page = await list_page(opened, parameters.list_request())
    record_result(request, len(page.records))
    return response_views.json_response(response_views.render_page(page, opened, parameters))


@router.get(
    "/{agent}/memories/{id}",
    summary="Read a memory",
    **describe((MemoryOut, ShownMemoryOut), problems=READ_PROBLEMS, headers=ETAG_HEADER),
)
async def get_memory(
    agent: str, id: str, request: Request, parameters: Annotated[MemoryParameters, Query()]
) -> Response:
    """Read one memory, superseded or not. Another user's memory is a 404."""
    services = services_of(request)
    memory_id = parse_id(id)
    opened = await services.directory.open(agent)
    record = await read_memory(opened, memory_id, user_id=parameters.user_id)
    record_result(request, 1, id=memory_id)
    if record.type in opened.settings.session_types and not request.scope.get(LOOKS):
        await services.working.mark_used(opened, record)
    memory = parameters.apply_format(parameters.render(record, opened))
    return response_views.json_response(memory, headers=etag_header(record.etag))


@router.delete(
    "/{agent}/memories/{id}",
    summary="Delete a memory",
    **with_preconditions(describe(None, problems=(*READ_PROBLEMS, 409, 412, 504), status=204)),
)
async def delete_memory(
    agent: str, id: str, request: Request, parameters: Annotated[UserParameters, Query()]
) -> Response:
    """Delete the newest version of a memory. The version before it becomes the newest.

    With `If-Match` it deletes only this version, otherwise the response is a 412.
    """
    memory_id, precondition = parse_id(id), read_precondition(request)
    opened = await open_agent(request, agent)
    is_admin = rights_of(request).has_verb(Verb.ADMIN)
    await delete_head(opened, memory_id, user_id=parameters.user_id, is_admin=is_admin, precondition=precondition)
    record_result(request, 1, id=memory_id)
    return Response(status_code=204)


@searching.post(
    "/{agent}/search",
    summary="Search memories",
    **with_header(
        describe(
            (SearchOut, ShownSearchOut),
            problems=SEARCH_PROBLEMS,
            body=SearchIn,
            headers=DESCRIBED_GENERATION,
        ),
        TIME_ZONE_HEADER,
        {"type": "string", "minLength": 1, "maxLength": MAX_TIME_ZONE_CHARS},
    ),
)
async def search_memories(agent: str, request: Request) -> Response:
    """Return the memories that rank best by the agent's scoring settings."""
    services = services_of(request)
    body = await read_model(request, SearchIn)
    opened = await services.directory.open(agent)
    scopes = rights_of(request).default_scopes
    search_request = body.search_request(default_scopes=scopes, default_time_zone=time_zone_of(request))
    search = services.recall.find if request.scope.get(LOOKS) else services.recall.search
    result = await search(opened, search_request)
    services.meter.candidates.observe(result.total_candidates)
    record_result(request, len(result.results), top_k=body.top_k)
    content = response_views.render_search(result, opened, body)
    return response_views.json_response(content, headers={GENERATION_HEADER: str(result.generation)})


def time_zone_of(request: Request) -> str | None:
    """Return the time zone that the header names, or None.

    Raises:
        RequestInvalid: If it is not an IANA time zone.
    """
    name = request.headers.get(TIME_ZONE_HEADER)
    # A longer name is cut, because the error quotes it.
    if name is not None and (fault := zone_fault(name[: MAX_TIME_ZONE_CHARS + 1])):
        raise RequestInvalid([FieldError(TIME_ZONE_HEADER, fault)])
    return name


def default_type_of(settings: AgentSettings) -> str | None:
    """Return the type of memories that are sent without one: `PREFERRED_TYPE` if the agent has it, else None.

    With None, the use case takes the agent's first type.
    """
    return PREFERRED_TYPE if any(type_.name == PREFERRED_TYPE for type_ in settings.ranking.types) else None


async def _count(services: Services, slug: str) -> int | None:
    """Return the number of stored memories, or None if the agent cannot be opened or counted."""
    try:
        return await count_stored(await services.directory.open(slug, renews_lease=False))
    except AgentMemoryError:
        return None


class ToolsParameters(Parameters):
    """Query parameters for listing tool schemas."""

    format: Literal["openai", "mcp"] = Field(
        default="openai", description="openai: as `tools` of a chat completion. mcp: in the form of `tools/list`."
    )
    agent: Id | None = Field(default=None, description="Only this agent's types. Default: the types of all presets.")


@tools.get("/tools", summary="List tool schemas", **describe(ToolsOut, problems=(401, 403, 404, 422, 429)))
async def list_tools(request: Request, parameters: Annotated[ToolsParameters, Query()]) -> Response:
    """List the schemas of remember, search and upsertMemory, with the meaning of each type of memory."""
    directory, types = services_of(request).directory, None
    if parameters.agent is not None:
        rights = check_rights(directory, parameters.agent, caller=caller_of(request), verb=Verb.READ)
        types = rights.settings.ranking.endings
    render = render_openai_tools if parameters.format == "openai" else render_mcp_tools
    return response_views.json_response({"tools": render(build_offered_tools(types))})


@erasure.post(
    "/{agent}/forget", summary="Erase memories", **describe(ForgottenOut, problems=WRITE_PROBLEMS, body=ForgetIn)
)
async def forget_memories(
    agent: str, request: Request, idempotency_key: Annotated[HeaderName | None, Header()] = None
) -> Response:
    """Erase the selected memories and everything derived from them. The response is a receipt.

    With `dry_run`, nothing is erased, and the response counts the selected memories. A repeated request with the
    same Idempotency-Key and body returns the same receipt.
    """
    services = services_of(request)
    body = await read_model(request, ForgetIn)
    if body.user_id is None:
        rights_of(request).check_all_users()
    forget_request = body.forget_request(idempotency_key)
    opened = await services.directory.open(agent)
    if body.dry_run:
        preview = await services.forget.preview(opened, forget_request)
        record_result(request, 0)
        return json_response(forget_requests.render_preview(preview))
    receipt = await services.forget.forget(opened, forget_request)
    record_result(request, receipt.counts.total)
    return json_response(forget_requests.render_receipt(receipt))


@erasure.get("/{agent}/receipts", summary="List receipts", **describe(ReceiptsOut, problems=READ_PROBLEMS))
async def list_receipts(agent: str, request: Request, parameters: Annotated[ReceiptParameters, Query()]) -> Response:
    """List what was erased and when, newest first. Receipts contain no erased content."""
    services = services_of(request)
    opened = await services.directory.open(agent)
    page = await services.forget.list_receipts(
        opened, limit=parameters.limit, before=parameters.before, user_id=parameters.user_id
    )
    return json_response(forget_requests.render_receipts(page))
