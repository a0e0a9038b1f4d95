"""What callers send about forgetting, and what they get."""

from typing import Any

from pydantic import Field, RootModel, StrictBool

from agentmemory_operator.entrypoints.api.fields import Filters, Time, UserId
from agentmemory_operator.entrypoints.api.requests import LIST_LIMIT, LIST_LIMIT_MAX, Body, Parameters
from agentmemory_operator.entrypoints.api.schemas import Answer
from agentmemory_operator.lifecycle.erase import ErasurePreview
from agentmemory_operator.lifecycle.forget import ForgetRequest, Receipts
from agentmemory_operator.lifecycle.rules.erasure import Counts, ErasureReceipt, Scope
from agentmemory_operator.memories.rules.criteria_json import read_filters
from agentmemory_operator.spec.times import render_time

Json = dict[str, Any]


class ForgetIn(Body):
    """What to forget of a user; without `filters` and `older_than` everything: the user is erased."""

    user_id: UserId = Field(description="Whose memories: a user, `group:NAME` or `global`.")
    filters: Filters = Field(default={}, description="Only what meets these conditions, as in a search.")
    older_than: Time | None = Field(default=None, description="Only what was created before this time.")
    dry_run: StrictBool = Field(default=False, description="Tell what would be erased, and erase nothing.")

    def forget_request(self, idempotency_key: str | None) -> ForgetRequest:
        """What the use case takes.

        Raises:
            RequestInvalid: `filters` are wrong.
        """
        scope = Scope(user_id=self.user_id, criterion=read_filters(self.filters), older_than=self.older_than)
        return ForgetRequest(scope=scope, filters=self.filters, idempotency_key=idempotency_key)


class ReceiptParameters(Parameters):
    """Which receipts."""

    user_id: UserId | None = Field(default=None, description="Only those of this user.")
    limit: int = Field(default=LIST_LIMIT, ge=1, le=LIST_LIMIT_MAX, description="Receipts a page.")
    before: Time | None = Field(default=None, description="`next_before` of the page before: only earlier ones.")


class ErasedCountsOut(Answer):
    """How many memories."""

    total: int
    types: dict[str, int]


class ReceiptOut(Answer):
    """What an erasure came to."""

    id: str
    counts: ErasedCountsOut
    sha256: str = Field(description="Of the ids of the erased memories, sorted, each followed by a line feed.")
    at: Time


class WouldForgetOut(Answer):
    """What a dry run found."""

    dry_run: bool
    counts: ErasedCountsOut
    ids: list[str] = Field(description="Of at most 100 of them, sorted.")
    more: int = Field(description="How many are not named.")


class ForgottenOut(RootModel[ReceiptOut | WouldForgetOut]):
    """A receipt, or what a dry run found."""


class ListedReceiptOut(ReceiptOut):
    """A receipt in the list."""

    scope: str = Field(description="`user`: everything of one user; `older_than`, or `filters`: a part.")


class ReceiptsOut(Answer):
    """Receipts, newest first."""

    results: list[ListedReceiptOut]
    next_before: Time | None


def receipt(issued: ErasureReceipt) -> Json:
    """`ReceiptOut`."""
    times = {"at": render_time(issued.at)}
    return {"id": issued.id, "counts": _counts(issued.counts), "sha256": issued.sha256, **times}


def would_forget(found: ErasurePreview) -> Json:
    """`WouldForgetOut`."""
    return {"dry_run": True, "counts": _counts(found.counts), "ids": found.ids, "more": found.more}


def receipts(page: Receipts) -> Json:
    """`ReceiptsOut`."""
    results = [receipt(issued) | {"scope": issued.scope_name} for issued in page.receipts]
    return {"results": results, "next_before": None if page.next_before is None else render_time(page.next_before)}


def _counts(counts: Counts) -> Json:
    return {"total": counts.total, "types": counts.types}
