"""The calls about forgetting, without the waiting."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypedDict
from uuid import uuid4

from agentmemory_operator.client.exchange import Call, json_of, path_of
from agentmemory_operator.client.values import Preview, Receipt, ReceiptsPage, read_receipts, read_value

# A hundred thousand memories take a minute.
LONG_S = 900.0


class ForgetOptions(TypedDict, total=False):
    """What of a user is meant; without any, everything."""

    filters: Mapping[str, Any]
    older_than: datetime | str


class ReceiptOptions(TypedDict, total=False):
    """Which receipts."""

    user_id: str
    limit: int
    before: datetime | str


def forget(agent: str, user_id: str, *, key: str | None, options: ForgetOptions) -> Call[Receipt]:
    """Return the call that erases."""
    body = json_of({"user_id": user_id, **options})
    path = path_of(agent, "forget")
    return Call(
        method="POST",
        path=path,
        body=body,
        key=key or str(uuid4()),
        read=partial(read_value, Receipt),
        timeout_s=LONG_S,
    )


def would_forget(agent: str, user_id: str, *, options: ForgetOptions) -> Call[Preview]:
    """Return the call that tells what would be erased."""
    body = json_of({"user_id": user_id, **options, "dry_run": True})
    path = path_of(agent, "forget")
    return Call(method="POST", path=path, body=body, read=partial(read_value, Preview), timeout_s=LONG_S)


def list_receipts(agent: str, *, options: ReceiptOptions) -> Call[ReceiptsPage]:
    """Return the call that reads one page of receipts."""
    return Call(method="GET", path=path_of(agent, "receipts"), parameters=json_of(options), read=read_receipts)


def next_receipts(call: Call[ReceiptsPage], before: datetime) -> Call[ReceiptsPage]:
    """Return the call that reads the page after."""
    return replace(call, parameters={**(call.parameters or {}), "before": before.isoformat()})
