"""The routes of items: memories with a namespace and a key."""

from functools import partial
from typing import Annotated

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api import response_views
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
from agentmemory_operator.entrypoints.api.fields import HeaderName
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, rights_of
from agentmemory_operator.entrypoints.api.memories.batches import BatchReader, render_results
from agentmemory_operator.entrypoints.api.memories.item_requests import (
    ItemIn,
    ItemParameters,
    ItemsEnvelope,
    ItemsIn,
    KeysParameters,
    NamespacesParameters,
    PlacedItemIn,
    PutParameters,
)
from agentmemory_operator.entrypoints.api.memory_schemas import (
    ItemsStoredOut,
    ItemStoredOut,
    KeysOut,
    MemoryOut,
    NamespacesOut,
    VersionsOut,
)
from agentmemory_operator.entrypoints.api.memory_spans import record_result
from agentmemory_operator.entrypoints.api.openapi import (
    ETAG_HEADER,
    READ_PROBLEMS,
    WRITE_PROBLEMS,
    build_router,
    describe,
    with_preconditions,
)
from agentmemory_operator.entrypoints.api.preconditions import etag_header, forbid_preconditions, read_precondition
from agentmemory_operator.entrypoints.api.use_cases import services_of
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories.item_store import PlacedItem, StoredItem
from agentmemory_operator.memories.rules.item_rules import owner_in_namespace
from agentmemory_operator.runtime.tasks import run_in_slices
from agentmemory_operator.spec.caller_rights import Verb

router = build_router("Items", GuardedRoute)


@router.put(
    "/{agent}/items",
    summary="Put an item",
    **with_preconditions(describe(ItemStoredOut, problems=(*WRITE_PROBLEMS, 412), body=ItemIn), can_create=True),
)
async def put_item(
    agent: str,
    request: Request,
    parameters: Annotated[PutParameters, Query()],
    idempotency_key: Annotated[HeaderName | None, Header()] = None,
) -> Response:
    """Store an item durably under a key of a namespace. It replaces an existing item; the last write wins.

    A repeated request with the same Idempotency-Key and body does not replace a later write. With `If-Match` only this
    version is replaced, with `If-None-Match: *` none; otherwise the response is a 412.
    """
    services, precondition = services_of(request), read_precondition(request, can_create=True)
    address = parameters.address_of(parameters.key or services.items.new_key(idempotency_key))
    body = await read_model(request, ItemIn)
    author = rights_of(request).author
    item = body.new_item(author=author, idempotency_key=idempotency_key, precondition=precondition)
    put = await services.items.put(await services.directory.open(agent), address, item)
    record_result(request, 1, id=put.memory_id)
    return response_views.json_response(response_views.render_stored_item(put), headers=etag_header(put.etag))


@router.post(
    "/{agent}/items/batch", summary="Put items", **describe(ItemsStoredOut, problems=WRITE_PROBLEMS, body=ItemsIn)
)
async def put_items(
    agent: str, request: Request, idempotency_key: Annotated[HeaderName | None, Header()] = None
) -> Response:
    """Store up to 1,000 items as single PUTs do. An invalid item does not affect the others.

    Items of the same key are put in their order. A repeated request with the same Idempotency-Key and body does not
    replace later writes.
    """
    services, rights = services_of(request), rights_of(request)
    forbid_preconditions(request, "not for a batch: set if_match or if_none_match of its items")

    def read_item(document: ParsedBody, key: str | None) -> PlacedItem:
        parsed = validate_body(PlacedItemIn, document)
        check_named_users(rights, parsed)
        owner = owner_in_namespace(parsed.namespace, has_user=parsed.user_id is not None)
        rights.check_users([owner] if owner else [], field="namespace")
        address = parsed.address_of(parsed.key or services.items.new_key(key))
        return address, parsed.new_item(author=rights.author, idempotency_key=key, precondition=parsed.precondition)

    body = await read_body(request, max_bytes=MAX_BATCH_BYTES)
    reader = BatchReader(ItemsEnvelope, read_item, partial(reserve_parts, request), idempotency_key)
    items = await run_in_slices(reader.read(body))
    valid_items = [item for item in items if not isinstance(item, AgentMemoryError)]
    stored = await services.items.put_many(await services.directory.open(agent), valid_items) if valid_items else []
    record_result(request, sum(isinstance(result, StoredItem) for result in stored))
    results = render_results(items, stored, response_views.render_stored_item, request_id=request.scope[REQUEST_ID])
    return response_views.json_response({"results": results})


@router.get(
    "/{agent}/items",
    summary="Read an item",
    **describe(MemoryOut, problems=READ_PROBLEMS, headers=ETAG_HEADER),
)
async def get_item(agent: str, request: Request, parameters: Annotated[ItemParameters, Query()]) -> Response:
    """Read the item of a key. Another user's item is a 404."""
    services, address = services_of(request), parameters.address
    opened = await services.directory.open(agent)
    record = await services.items.get(opened, address)
    record_result(request, 1, id=record.id)
    return response_views.json_response(response_views.render_memory(record, opened), headers=etag_header(record.etag))


@router.get(
    "/{agent}/items/versions", summary="List the versions of an item", **describe(VersionsOut, problems=READ_PROBLEMS)
)
async def list_item_versions(agent: str, request: Request, parameters: Annotated[ItemParameters, Query()]) -> Response:
    """List the replaced versions of an item, newest first; the object's `items.keepVersions` are kept."""
    services, address = services_of(request), parameters.address
    opened = await services.directory.open(agent)
    found = await services.items.versions(opened, address)
    return response_views.json_response({"results": [response_views.render_memory(record, opened) for record in found]})


@router.delete(
    "/{agent}/items",
    summary="Delete an item",
    **with_preconditions(describe(None, problems=(*READ_PROBLEMS, 409, 412, 504), status=204)),
)
async def delete_item(
    agent: str,
    request: Request,
    parameters: Annotated[ItemParameters, Query()],
    idempotency_key: Annotated[HeaderName | None, Header()] = None,
) -> Response:
    """Delete the item of a key; with `If-Match` only this version, otherwise the response is a 412.

    A repeated request with the same Idempotency-Key deletes nothing more.
    """
    services, address = services_of(request), parameters.address
    await services.items.delete(
        await services.directory.open(agent),
        address,
        is_admin=rights_of(request).has_verb(Verb.ADMIN),
        precondition=read_precondition(request),
        idempotency_key=idempotency_key,
    )
    record_result(request, 1)
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
    return response_views.json_response({"results": found.keys, "next_cursor": found.next_cursor})


@router.get("/{agent}/namespaces", summary="List namespaces", **describe(NamespacesOut, problems=READ_PROBLEMS))
async def list_namespaces(
    agent: str, request: Request, parameters: Annotated[NamespacesParameters, Query()]
) -> Response:
    """List a user's namespaces that have items, by name."""
    services, owner = services_of(request), parameters.owner
    opened = await services.directory.open(agent)
    rows = await services.items.namespaces(opened, owner, prefix=tuple(parameters.namespace))
    return response_views.json_response({"results": [{"namespace": row.namespace, "items": row.items} for row in rows]})
