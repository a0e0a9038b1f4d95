"""Handlers of the platform dialect, which mem0's clients and CLI use. Each takes the agent's name and the request."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entrypoints.api.bodies import read_model, request_invalid
from agentmemory_operator.entrypoints.api.identity.rights import rights_of
from agentmemory_operator.entrypoints.api.mem0 import erasing, memory_actions
from agentmemory_operator.entrypoints.api.mem0.entity_lists import list_entities
from agentmemory_operator.entrypoints.api.mem0.filter_reader import filter_error, read_filter
from agentmemory_operator.entrypoints.api.mem0.listing import (
    list_memories,
    owner_of,
    read_owners,
    selection_of,
)
from agentmemory_operator.entrypoints.api.mem0.mem0_requests import (
    DEFAULT_PAGE_SIZE,
    Mem0AddIn,
    Mem0BatchIn,
    Mem0Body,
    Mem0ListIn,
    Mem0PageParameters,
    Mem0QueryParameters,
    Mem0SearchIn,
    Mem0UpdateIn,
)
from agentmemory_operator.entrypoints.api.mem0.memory_actions import AddedMemories, check_id, find_memory
from agentmemory_operator.entrypoints.api.mem0.memory_views import (
    relevance,
    render_history,
    render_memory,
    score_of,
    select_fields,
)
from agentmemory_operator.entrypoints.api.memories.memory_routes import default_type_of
from agentmemory_operator.entrypoints.api.memory_spans import record_result
from agentmemory_operator.entrypoints.api.response_views import json_response
from agentmemory_operator.entrypoints.api.use_cases import open_agent, services_of
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories.history import read_history
from agentmemory_operator.runtime.tasks import gather_bounded
from agentmemory_operator.search.requests import SearchRequest

Json = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)

INFER_HEADER, WITHOUT_EFFECT_HEADER = "X-AgentMemory-Infer", "X-AgentMemory-Without-Effect"
"""What was done to infer memories, and the options of the request that have no effect."""

# Name that clients show, and send to mem0's telemetry as the id of the account: the same for every installation.
ACCOUNT = "agentmemory"
MAX_CONCURRENT_CHANGES = 4


async def ping(agent: str, request: Request) -> Response:
    """Confirm that the key is valid for the agent."""
    names = {"org_id": ACCOUNT, "project_id": ACCOUNT, "user_email": ACCOUNT}
    return json_response({"status": "ok", "message": f"agent {agent}", **names})


async def store_messages(agent: str, request: Request) -> tuple[Mem0AddIn, AddedMemories, dict[str, str]]:
    """Store the messages of a request; return its body, the result, and headers that tell what was done."""
    body, rights, services = await read_model(request, Mem0AddIn), rights_of(request), services_of(request)
    owner = owner_of(rights, body.named_entities.get("user_id"))
    default_type = default_type_of(rights.settings)
    added = await memory_actions.add_memories(
        services, await open_agent(request, agent), rights, body, user_id=owner, default_type=default_type
    )
    record_result(request, len(added.results))
    headers = without_effect(body)
    if body.infer is not False:
        headers[INFER_HEADER] = "distilling" if added.is_distilling else _reason(added.warnings)
    return body, added, headers


def _reason(warnings: Sequence[str]) -> str:
    reason = next((warning for warning in warnings if "not distilled" in warning), "turns stored but not distilled")
    return reason.encode("ascii", "replace").decode()


def without_effect(body: Mem0Body) -> dict[str, str]:
    """Return the header that names the options without effect; empty if there are none."""
    return {WITHOUT_EFFECT_HEADER: ", ".join(names)} if (names := body.without_effect) else {}


async def add(agent: str, request: Request) -> Response:
    """Store messages. With a language model, memories follow later; the event shows when."""
    _, added, headers = await store_messages(agent, request)
    return json_response(_added(added), headers=headers)


def _added(added: AddedMemories) -> Json:
    if added.is_distilling:
        return {"message": "Memories are being extracted", "status": "PENDING", "event_id": added.event_id}
    return {
        "message": "Memories stored",
        "status": "SUCCEEDED",
        "event_id": added.event_id,
        "results": added.results,
    }


async def add_by_v1(agent: str, request: Request) -> Response:
    """Store messages, for clients of v1: the response is a list, or with `output_format` v1.1 an object."""
    body, added, headers = await store_messages(agent, request)
    content = _added(added)
    results = content.get("results", [content])
    return json_response({"results": results} if body.output_format == "v1.1" else results, headers=headers)


async def search(agent: str, request: Request) -> Response:
    """Search memories."""
    body, results = await search_results(agent, request)
    return json_response({"results": results}, headers=without_effect(body))


async def search_by_v1(agent: str, request: Request) -> Response:
    """Search memories, for clients of v1 and v2: the response is a list, or with `output_format` v1.1 an object."""
    body, results = await search_results(agent, request)
    content = {"results": results} if body.output_format == "v1.1" else results
    return json_response(content, headers=without_effect(body))


async def search_results(
    agent: str, request: Request, *, takes_any_key: bool = False
) -> tuple[Mem0SearchIn, list[Json]]:
    """Execute a search; return its body and the rendered results."""
    body, rights, services = await read_model(request, Mem0SearchIn), rights_of(request), services_of(request)
    part = read_filter(body.documents(), takes_any_key=takes_any_key)
    opened = await open_agent(request, agent)
    owners = await read_owners(opened, rights, part)
    if not owners:
        return body, []
    search_request = SearchRequest(
        selection=selection_of(owners, part),
        query=body.query,
        top_k=body.top_k or body.limit,
        threshold=None if body.threshold is None else score_of(body.threshold),
        reference_time=body.reference_date,
    )
    answer = await services.recall.search(opened, search_request)
    services.meter.candidates.observe(answer.total_candidates)
    record_result(request, len(answer.results), top_k=body.top_k)
    memories = [render_memory(hit.record, opened) | {"score": relevance(hit.score)} for hit in answer.results]
    return body, [select_fields(memory, body.fields) for memory in memories]


async def list_paged(agent: str, request: Request) -> Response:
    """List memories, newest first, with the number of all and the addresses of the neighbouring pages."""
    body, page = await read_page(agent, request)
    return json_response(page.envelope(request), headers=without_effect(body))


async def list_by_v2(agent: str, request: Request) -> Response:
    """List memories, for clients of v2: a list, or an object if the request names a page."""
    body, page = await read_page(agent, request)
    is_paged = body.page is not None or "page" in request.query_params
    return json_response(page.envelope(request) if is_paged else page.results)


async def list_by_query(agent: str, request: Request) -> Response:
    """List memories by query parameters, for clients of v1."""
    body = read_query(request, Mem0ListIn)
    page = await _read_page(request, await open_agent(request, agent), body, read_query(request, Mem0PageParameters))
    return json_response(page.results if body.page is None else page.envelope(request))


async def read_page(agent: str, request: Request) -> tuple[Mem0ListIn, "RenderedPage"]:
    """Read the page that a request with a body names. The query parameters take precedence."""
    body, position = await read_model(request, Mem0ListIn), read_query(request, Mem0PageParameters)
    return body, await _read_page(request, await open_agent(request, agent), body, position)


async def _read_page(request: Request, opened: Agent, body: Mem0ListIn, position: Mem0PageParameters) -> "RenderedPage":
    page = await list_memories(
        opened,
        rights_of(request),
        read_filter(body.documents()),
        number=position.page or body.page or 1,
        size=position.page_size or body.page_size or DEFAULT_PAGE_SIZE,
    )
    record_result(request, len(page.records))
    results = [select_fields(render_memory(record, opened), body.fields) for record in page.records]
    return RenderedPage(results, total=page.total, number=page.number, size=page.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPage:
    """A page of a list.

    Attributes:
        total: Number of entries of the whole list.
        number: Number of the page, from 1.
        size: Number of entries per page.
    """

    results: Sequence[Json] = field(kw_only=False)
    total: int
    number: int
    size: int

    def envelope(self, request: Request) -> Json:
        """Build the object of the page: the total, the addresses of its neighbours, and its results."""

        def address(number: int) -> str:
            return str(request.url.include_query_params(page=number, page_size=self.size))

        return {
            "count": self.total,
            "next": address(self.number + 1) if self.number * self.size < self.total else None,
            "previous": address(self.number - 1) if self.number > 1 else None,
            "results": self.results,
        }


def read_query(request: Request, model: type[Model]) -> Model:
    """Parse the query parameters.

    Raises:
        RequestInvalid: If one is invalid.
    """
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise request_invalid(error.errors(include_url=False)) from None


async def get(agent: str, request: Request) -> Response:
    """Read a memory."""
    opened = await open_agent(request, agent)
    found = await find_memory(opened, rights_of(request), request.path_params["id"])
    record_result(request, 1, id=found.head.id)
    return json_response(render_memory(found.head, opened, id=found.sent_id))


async def history(agent: str, request: Request) -> Response:
    """List the versions of a memory, oldest first."""
    opened = await open_agent(request, agent)
    found = await find_memory(opened, rights_of(request), request.path_params["id"])
    versions = await read_history(opened, found.head.id, user_id=found.head.user_id)
    return json_response(render_history(versions.records, found.sent_id))


async def update(agent: str, request: Request) -> Response:
    """Change a memory; return it."""
    found = await change_memory(agent, request)
    opened = await open_agent(request, agent)
    return json_response(render_memory(found.head, opened, id=found.sent_id) | {"event": "UPDATE"})


async def change_memory(agent: str, request: Request) -> memory_actions.FoundMemory:
    """Change the memory of the path as the body says; return it."""
    body = await read_model(request, Mem0UpdateIn)
    if body.model_fields_set.isdisjoint(Mem0UpdateIn.model_fields):
        raise filter_error("text", "send at least one of text, metadata and expiration_date")
    opened, sent_id = await open_agent(request, agent), request.path_params["id"]
    found = await memory_actions.update_memory(services_of(request), opened, rights_of(request), sent_id, body)
    record_result(request, 1, id=found.head.id)
    return found


async def delete(agent: str, request: Request) -> Response:
    """Delete a memory with all its versions."""
    await erasing.delete_memory(await open_agent(request, agent), rights_of(request), request.path_params["id"])
    record_result(request, 1)
    return json_response({"message": "Memory deleted successfully!"})


async def delete_all(agent: str, request: Request) -> Response:
    """Delete the memories of a user, or with `*` of all users."""
    deleted = await delete_selected(agent, request)
    message = deleted.describe("Memories deleted successfully!")
    return json_response({"message": message, "deleted": deleted.memories, "receipt_id": deleted.receipt_id})


async def delete_selected(agent: str, request: Request) -> erasing.Deleted:
    """Delete the memories that the query parameters select."""
    parameters = read_query(request, Mem0QueryParameters)
    deleted = await erasing.delete_all(
        services_of(request),
        await open_agent(request, agent),
        rights_of(request),
        parameters.entities,
        parameters.metadata,
    )
    record_result(request, deleted.memories)
    return deleted


async def update_batch(agent: str, request: Request) -> Response:
    """Change several memories."""
    body, rights, services = await read_model(request, Mem0BatchIn), rights_of(request), services_of(request)
    ids, opened = [check_id(item.memory_id) for item in body.memories], await open_agent(request, agent)

    async def change(place: int) -> AgentMemoryError | None:
        try:
            await memory_actions.update_memory(services, opened, rights, ids[place], body.memories[place])
        except AgentMemoryError as error:
            return error
        return None

    return await _run_batch(request, ids, change, "updated")


async def delete_batch(agent: str, request: Request) -> Response:
    """Delete several memories."""
    body, rights = await read_model(request, Mem0BatchIn), rights_of(request)
    ids, opened = [check_id(item.memory_id) for item in body.memories], await open_agent(request, agent)

    async def delete_one(place: int) -> AgentMemoryError | None:
        try:
            await erasing.delete_memory(opened, rights, ids[place])
        except AgentMemoryError as error:
            return error
        return None

    return await _run_batch(request, ids, delete_one, "deleted")


async def _run_batch(request: Request, ids: Sequence[str], change: Any, done: str) -> Response:
    """Change each memory; the response lists those that failed. If all failed, raise the first error."""
    outcomes = await gather_bounded(map(change, range(len(ids))), concurrency=MAX_CONCURRENT_CHANGES)
    errors = [(memory_id, error) for memory_id, error in zip(ids, outcomes, strict=True) if error is not None]
    if len(errors) == len(ids):
        raise errors[0][1]
    record_result(request, len(ids) - len(errors))
    content: Json = {"message": f"Successfully {done} {len(ids) - len(errors)} memories"}
    if errors:
        content["errors"] = [{"memory_id": memory_id, "error": str(error)} for memory_id, error in errors]
    return json_response(content)


async def entities(agent: str, request: Request) -> Response:
    """List the users that have memories."""
    position = read_query(request, Mem0PageParameters)
    number, size = position.page or 1, position.page_size or DEFAULT_PAGE_SIZE
    found = await list_entities(await open_agent(request, agent), rights_of(request), number=number, size=size)
    page = RenderedPage(found.entities, total=found.total, number=number, size=size)
    return json_response(page.envelope(request))
