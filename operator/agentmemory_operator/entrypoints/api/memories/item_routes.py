"""The routes of items: memories under keys of namespaces."""

from typing import Annotated

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api import answers
from agentmemory_operator.entrypoints.api.bodies import read_model
from agentmemory_operator.entrypoints.api.fields import HeaderName
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, rights_of
from agentmemory_operator.entrypoints.api.memories.item_requests import (
    ItemIn,
    ItemParameters,
    KeysParameters,
    NamespacesParameters,
    PutParameters,
)
from agentmemory_operator.entrypoints.api.memory_spans import note_records
from agentmemory_operator.entrypoints.api.openapi import READ_PROBLEMS, WRITE_PROBLEMS, describe, router_of
from agentmemory_operator.entrypoints.api.schemas import ItemStoredOut, KeysOut, MemoryOut, NamespacesOut, VersionsOut
from agentmemory_operator.entrypoints.api.use_cases import services_of
from agentmemory_operator.spec.access import Verb

router = router_of("Items", GuardedRoute)


@router.put("/{agent}/items", summary="Put an item", **describe(ItemStoredOut, problems=WRITE_PROBLEMS, body=ItemIn))
async def put_item(
    agent: str,
    request: Request,
    parameters: Annotated[PutParameters, Query()],
    idempotency_key: Annotated[HeaderName | None, Header()] = None,
) -> Response:
    """Store an item durably under a key of a namespace. It replaces an existing item; the last write wins.

    A repeated request with the same Idempotency-Key and body does not replace a later write.
    """
    services = services_of(request)
    address = parameters.address_of(parameters.key or services.items.new_key(idempotency_key))
    sent = await read_model(request, ItemIn)
    item = sent.new_item(author=rights_of(request).author, idempotency_key=idempotency_key)
    put = await services.items.put(await services.directory.open(agent), address, item)
    note_records(request, 1, id=put.memory_id)
    return answers.json_response(answers.item_stored(put))


@router.get("/{agent}/items", summary="Read an item", **describe(MemoryOut, problems=READ_PROBLEMS))
async def get_item(agent: str, request: Request, parameters: Annotated[ItemParameters, Query()]) -> Response:
    """Read the item of a key. Another user's item is a 404."""
    services, address = services_of(request), parameters.address
    opened = await services.directory.open(agent)
    record = await services.items.get(opened, address)
    note_records(request, 1, id=record.id)
    return answers.json_response(answers.memory(record, opened))


@router.get(
    "/{agent}/items/versions", summary="List the versions of an item", **describe(VersionsOut, problems=READ_PROBLEMS)
)
async def list_item_versions(agent: str, request: Request, parameters: Annotated[ItemParameters, Query()]) -> Response:
    """List the replaced versions of an item, newest first; the object's `items.keepVersions` are kept."""
    services, address = services_of(request), parameters.address
    opened = await services.directory.open(agent)
    found = await services.items.versions(opened, address)
    return answers.json_response({"results": [answers.memory(record, opened) for record in found]})


@router.delete("/{agent}/items", summary="Delete an item", **describe(None, problems=(*READ_PROBLEMS, 504), status=204))
async def delete_item(agent: str, request: Request, parameters: Annotated[ItemParameters, Query()]) -> Response:
    """Delete the item of a key."""
    services, address = services_of(request), parameters.address
    is_admin = rights_of(request).may(Verb.ADMIN)
    await services.items.delete(await services.directory.open(agent), address, is_admin=is_admin)
    note_records(request, 1)
    return Response(status_code=204)


@router.get("/{agent}/keys", summary="List the keys of a namespace", **describe(KeysOut, problems=READ_PROBLEMS))
async def list_item_keys(agent: str, request: Request, parameters: Annotated[KeysParameters, Query()]) -> Response:
    """List the keys of exactly one namespace, page by page."""
    services, owner = services_of(request), parameters.owner
    found = await services.items.keys(
        await services.directory.open(agent),
        owner,
        namespace=tuple(parameters.namespace),
        limit=parameters.limit,
        cursor=parameters.cursor,
    )
    return answers.json_response({"results": found.keys, "next_cursor": found.next_cursor})


@router.get("/{agent}/namespaces", summary="List namespaces", **describe(NamespacesOut, problems=READ_PROBLEMS))
async def list_namespaces(
    agent: str, request: Request, parameters: Annotated[NamespacesParameters, Query()]
) -> Response:
    """List a user's namespaces that have items, by name."""
    services, owner = services_of(request), parameters.owner
    opened = await services.directory.open(agent)
    found = await services.items.namespaces(opened, owner, prefix=tuple(parameters.namespace))
    return answers.json_response({"results": [{"namespace": of.namespace, "items": of.items} for of in found]})
