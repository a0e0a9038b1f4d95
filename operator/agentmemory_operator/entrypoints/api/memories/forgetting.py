"""The routes of forgetting, and of what tells of it afterwards."""

from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.answers import json_response
from agentmemory_operator.entrypoints.api.bodies import read_model
from agentmemory_operator.entrypoints.api.fields import Id
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, rights_of
from agentmemory_operator.entrypoints.api.memories import forget_requests
from agentmemory_operator.entrypoints.api.memories.forget_requests import (
    ForgetIn,
    ForgottenOut,
    ReceiptParameters,
    ReceiptsOut,
)
from agentmemory_operator.entrypoints.api.openapi import READ_PROBLEMS, WRITE_PROBLEMS, describe
from agentmemory_operator.entrypoints.api.use_cases import services_of

router = APIRouter(prefix="/v1/agents", redirect_slashes=False, route_class=GuardedRoute)


@router.post(
    "/{agent}/forget",
    summary="Erase memories of a user",
    **describe(ForgottenOut, problems=WRITE_PROBLEMS, body=ForgetIn),
)
async def forget(agent: str, request: Request, idempotency_key: Annotated[Id | None, Header()] = None) -> Response:
    """Erase what was stored before, and what was made of it; the answer is a receipt.

    The same Idempotency-Key and body again give the same receipt.
    """
    services = services_of(request)
    sent = await read_model(request, ForgetIn)
    if sent.user_id is None:
        rights_of(request).check_all_users()
    wanted = sent.forget_request(idempotency_key)
    opened = await services.directory.open(agent)
    if sent.dry_run:
        return json_response(forget_requests.would_forget(await services.forgetting.would_forget(opened, wanted)))
    return json_response(forget_requests.receipt(await services.forgetting.forget(opened, wanted)))


@router.get("/{agent}/receipts", summary="List receipts", **describe(ReceiptsOut, problems=READ_PROBLEMS))
async def list_receipts(agent: str, request: Request, parameters: Annotated[ReceiptParameters, Query()]) -> Response:
    """What was erased and when, newest first: nothing of what it was."""
    services = services_of(request)
    opened = await services.directory.open(agent)
    page = await services.forgetting.receipts(
        opened, limit=parameters.limit, before=parameters.before, user_id=parameters.user_id
    )
    return json_response(forget_requests.receipts(page))
