"""The routes of erasures and their receipts."""

from typing import Annotated

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.bodies import read_model
from agentmemory_operator.entrypoints.api.fields import HeaderName
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, rights_of
from agentmemory_operator.entrypoints.api.memories import forget_requests
from agentmemory_operator.entrypoints.api.memories.forget_requests import (
    ForgetIn,
    ForgottenOut,
    ReceiptParameters,
    ReceiptsOut,
)
from agentmemory_operator.entrypoints.api.memory_spans import record_result
from agentmemory_operator.entrypoints.api.openapi import READ_PROBLEMS, WRITE_PROBLEMS, build_router, describe
from agentmemory_operator.entrypoints.api.response_views import json_response
from agentmemory_operator.entrypoints.api.use_cases import services_of

router = build_router("Erasure", GuardedRoute)


@router.post(
    "/{agent}/forget", summary="Erase memories", **describe(ForgottenOut, problems=WRITE_PROBLEMS, body=ForgetIn)
)
async def forget_memories(
    agent: str, request: Request, idempotency_key: Annotated[HeaderName | None, Header()] = None
) -> Response:
    """Erase the selected memories and everything derived from them. The response is a receipt.

    A repeated request with the same Idempotency-Key and body returns the same receipt.
    """
    services = services_of(request)
    body = await read_model(request, ForgetIn)
    if body.user_id is None:
        rights_of(request).check_all_users()
    forget_request = body.forget_request(idempotency_key)
    opened = await services.directory.open(agent)
    if body.dry_run:
        preview = await services.forgetting.preview(opened, forget_request)
        record_result(request, 0)
        return json_response(forget_requests.render_preview(preview))
    receipt = await services.forgetting.forget(opened, forget_request)
    record_result(request, receipt.counts.total)
    return json_response(forget_requests.render_receipt(receipt))


@router.get("/{agent}/receipts", summary="List receipts", **describe(ReceiptsOut, problems=READ_PROBLEMS))
async def list_receipts(agent: str, request: Request, parameters: Annotated[ReceiptParameters, Query()]) -> Response:
    """List what was erased and when, newest first. Receipts contain no erased content."""
    services = services_of(request)
    opened = await services.directory.open(agent)
    page = await services.forgetting.list_receipts(
        opened, limit=parameters.limit, before=parameters.before, user_id=parameters.user_id
    )
    return json_response(forget_requests.render_receipts(page))
