"""Request and response models of the change log."""

from typing import Any, Literal

from pydantic import Field

from agentmemory_operator.entrypoints.api.fields import Time, UserId
from agentmemory_operator.entrypoints.api.memory_requests import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, Parameters
from agentmemory_operator.entrypoints.api.memory_schemas import Answer
from agentmemory_operator.memories.change_log import ChangePage, ChangesRequest
from agentmemory_operator.memories.rules.change_entries import Change
from agentmemory_operator.spec.times import render_time

Json = dict[str, Any]

MAX_CURSOR_CHARS = 4_096


class ChangesParameters(Parameters):
    """Query parameters for reading the change log."""

    user_id: UserId | None = Field(
        default=None,
        description="Only changes of this user and of the whole agent. Without it, the verb admin is required.",
    )
    cursor: str | None = Field(
        default=None,
        max_length=MAX_CURSOR_CHARS,
        description="`next_cursor`, or the cursor of an entry. Default: the start of the log.",
    )
    since: Time | None = Field(
        default=None, description="Without a cursor: only changes after this time. Default: the start of the log."
    )
    limit: int = Field(default=DEFAULT_PAGE_SIZE, ge=1, le=MAX_PAGE_SIZE, description="Entries per page.")

    def changes_request(self, *, cursor: str | None) -> ChangesRequest:
        """Convert to the `ChangesRequest` of the use case.

        Args:
            cursor: Replaces the parameter `cursor`, because a stream sends its position in a header or moves on. None
                starts with the oldest entry.
        """
        return ChangesRequest(limit=self.limit, cursor=cursor, user_id=self.user_id, since_ms=self.since or 0)


class ChangeOut(Answer):
    """One entry of the change log. It contains no text of a memory."""

    cursor: str = Field(description="Cursor to continue after this entry.")
    at: Time
    kind: Literal["stored", "superseded", "deleted", "expired", "forgotten", "consolidated", "restored", "rebuilt"] = (
        Field(description="`stored`: new, changed in place, or active again.")
    )
    id: str = Field(
        description="ID of the memory; for `forgotten` of the receipt; for `restored` and `rebuilt` a number that"
        " identifies the change."
    )
    user_id: str | None = Field(description="null if the change has no user.")


class ChangesOut(Answer):
    """A page of the change log, oldest first."""

    results: list[ChangeOut]
    next_cursor: str = Field(description="Cursor to continue from; set even if there are no results.")


def render_change(change: Change, slug: str) -> Json:
    """Render the JSON of `ChangeOut`."""
    return {
        "cursor": change.position.encode(slug),
        "at": render_time(change.at),
        "kind": change.kind,
        "id": change.id,
        "user_id": change.user_id,
    }


def render_changes(page: ChangePage, slug: str) -> Json:
    """Render the JSON of `ChangesOut`."""
    return {"results": [render_change(found, slug) for found in page.changes], "next_cursor": page.next_cursor}
