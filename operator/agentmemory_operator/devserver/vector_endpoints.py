"""Endpoints that add and drop named vectors."""

from collections.abc import Callable

from starlette.requests import Request

from agentmemory_operator.devserver.collection_endpoints import collection_of, state_of, update_result
from agentmemory_operator.devserver.fields import Document
from agentmemory_operator.devserver.requests import read_body, read_wait
from agentmemory_operator.devserver.updates import write_access
from agentmemory_operator.devserver.vector_names import add_vector, drop_vector, put_in_force


async def create_vector(request: Request) -> Document:
    """PUT /collections/{name}/vectors/{vector}."""
    read_wait(request)
    body = await read_body(request)
    return await _change_vector(request, lambda stored, name: add_vector(stored, name, body))


async def delete_vector(request: Request) -> Document:
    """DELETE /collections/{name}/vectors/{vector}."""
    read_wait(request)
    return await _change_vector(request, drop_vector)


async def _change_vector(request: Request, change: Callable[[Document, str], Document]) -> Document:
    state, collection, name = state_of(request), collection_of(request), request.path_params["vector"]
    async with write_access(collection):
        changed = change(collection.record.configuration, name)
        if changed != collection.record.configuration:
            put_in_force(state.shards, collection, changed, name)
        number = collection.next_operation()
    state.optimizations.wake(collection)
    return update_result(request, number)
