"""Request and response models of erasures."""

from typing import Any

from pydantic import Field, RootModel, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from agentmemory_operator.entrypoints.api.fields import Body, Filters, Time, UserId, ZoneName
from agentmemory_operator.entrypoints.api.memory_requests import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, Parameters
from agentmemory_operator.entrypoints.api.memory_schemas import Answer
from agentmemory_operator.lifecycle.erase import ErasurePreview
from agentmemory_operator.lifecycle.forget import ForgetRequest, ReceiptPage
from agentmemory_operator.lifecycle.rules.erasure import ORGANISATION_OWNER, ErasureReceipt, ErasureScope, MemoryCounts
from agentmemory_operator.memories.rules.criteria_json import parse_filters
from agentmemory_operator.spec.times import render_time
from agentmemory_operator.zones.rules.sealing import PROFESSIONAL

Json = dict[str, Any]

CONDITIONS = ("filters", "older_than", "zone")
ERASE_A_USER = "to erase the whole user, send everything: true and no condition"


class ForgetIn(Body):
    """Memories to erase for a user: those that a condition selects, or with `everything` the whole user.

    The conditions are `filters`, `older_than` and `zone`. A condition that is present and empty is an error.
    """

    user_id: UserId | None = Field(
        default=None,
        description="Owner of the memories: a user, `group:NAME` or `global`. Required except for the key of an"
        " organisation (`zone: PROFESSIONAL` with `crypto`).",
    )
    everything: StrictBool = Field(
        default=False, description="Erase all memories of the user. Required without a condition, invalid with one."
    )
    filters: Filters = Field(default={}, description="Conditions on memories, as in a search; at least one field.")
    older_than: Time | None = Field(default=None, description="Only memories created before this time.")
    zone: ZoneName | None = Field(default=None, description="Only memories in this zone; with `crypto`.")
    crypto: StrictBool = Field(
        default=False,
        description="Delete the zone keys first: memories encrypted with them can no longer be read in any copy.",
    )
    dry_run: StrictBool = Field(default=False, description="Return the memories to erase, without erasing them.")

    @model_validator(mode="after")
    def _check_crypto_scope(self) -> "ForgetIn":
        if self.crypto and not self.model_fields_set.isdisjoint({"filters", "older_than"}):
            raise _wrong("crypto", "a zone's key covers all its memories: remove filters and older_than")
        if self.zone is not None and not self.crypto:
            raise _wrong(
                "zone", "is only valid with crypto: true; to choose memories of a zone, use filters: {zone: ...}"
            )
        is_shared = self.zone == PROFESSIONAL
        if is_shared and self.user_id is not None:
            raise _wrong("user_id", "must be omitted: the key of zone PROFESSIONAL belongs to the organisation")
        if self.user_id is None and not is_shared:
            raise _wrong("user_id", "required: whose memories are erased")
        return self

    @model_validator(mode="after")
    def _require_selection(self) -> "ForgetIn":
        conditions = [name for name in CONDITIONS if name in self.model_fields_set]
        for name in conditions:
            if getattr(self, name) in (None, {}):
                raise _wrong(name, f"is empty: give a condition, or omit {name}; {ERASE_A_USER}")
        if self.everything and conditions:
            raise _wrong("everything", f"cannot be combined with {', '.join(conditions)}: send one or the other")
        if not self.everything and not conditions:
            raise _wrong("everything", f"required without a condition ({', '.join(CONDITIONS)}): {ERASE_A_USER}")
        return self

    def forget_request(self, idempotency_key: str | None) -> ForgetRequest:
        """Convert to the `ForgetRequest` of the use case.

        Args:
            idempotency_key: Key from the request header; None if the client sends none.

        Raises:
            RequestInvalid: If `filters` are invalid.
        """
        scope = ErasureScope(
            user_id=ORGANISATION_OWNER if self.user_id is None else self.user_id,
            criterion=parse_filters(self.filters),
            older_than=self.older_than,
            zone=self.zone,
            is_whole=self.everything,
        )
        return ForgetRequest(
            scope=scope, filters=self.filters, idempotency_key=idempotency_key, deletes_keys_first=self.crypto
        )


class ReceiptParameters(Parameters):
    """Query parameters for listing receipts, newest first, page by page."""

    user_id: UserId | None = Field(default=None, description="Only receipts of this user. Default: all.")
    limit: int = Field(default=DEFAULT_PAGE_SIZE, ge=1, le=MAX_PAGE_SIZE, description="Receipts per page.")
    before: Time | None = Field(default=None, description="`next_before` of the previous page: only earlier receipts.")


class ErasedCountsOut(Answer):
    """Number of memories, in total and by type."""

    total: int
    types: dict[str, int]


class ReceiptOut(Answer):
    """Receipt of an erasure."""

    id: str
    counts: ErasedCountsOut
    keys_deleted: list[ZoneName] = Field(
        description="Zones whose keys were deleted: no copy of memories encrypted with them can be read."
    )
    sha256: str = Field(description="SHA-256 of the sorted IDs of the erased memories, each followed by a line feed.")
    at: Time


class WouldForgetOut(Answer):
    """Result of a dry run: the memories that the request would erase."""

    dry_run: bool
    counts: ErasedCountsOut
    ids: list[str] = Field(description="IDs of at most 100 of the memories, sorted.")
    more: int = Field(description="Number of memories that `ids` does not list.")


class ForgottenOut(RootModel[ReceiptOut | WouldForgetOut]):
    """A receipt, or the result of a dry run."""


class ListedReceiptOut(ReceiptOut):
    """A receipt, with the kind of condition that selected the memories."""

    scope: str = Field(description="`user`: all memories of a user; `zone`, `older_than` or `filters`: a part of them.")


class ReceiptsOut(Answer):
    """Receipts, newest first."""

    results: list[ListedReceiptOut]
    next_before: Time | None


def render_receipt(issued: ErasureReceipt) -> Json:
    """Render the JSON of `ReceiptOut`."""
    times = {"at": render_time(issued.at)}
    return {
        "id": issued.id,
        "counts": _counts(issued.counts),
        "keys_deleted": issued.keys_deleted,
        "sha256": issued.sha256,
        **times,
    }


def render_preview(preview: ErasurePreview) -> Json:
    """Render the JSON of `WouldForgetOut`."""
    return {"dry_run": True, "counts": _counts(preview.counts), "ids": preview.ids, "more": preview.unlisted_count}


def render_receipts(page: ReceiptPage) -> Json:
    """Render the JSON of `ReceiptsOut`."""
    results = [render_receipt(issued) | {"scope": issued.scope_name} for issued in page.receipts]
    return {"results": results, "next_before": None if page.next_before is None else render_time(page.next_before)}


def _wrong(field: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("forget", "{message}", {"message": message, "field": field})


def _counts(counts: MemoryCounts) -> Json:
    return {"total": counts.total, "types": counts.types}
