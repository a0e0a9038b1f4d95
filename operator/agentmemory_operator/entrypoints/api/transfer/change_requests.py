"""What callers send about the change log, and what they get."""

from typing import Any, Literal

from pydantic import Field

from agentmemory_operator.entrypoints.api.fields import Time, UserId
from agentmemory_operator.entrypoints.api.requests import LIST_LIMIT, LIST_LIMIT_MAX, Parameters
from agentmemory_operator.entrypoints.api.schemas import Answer
from agentmemory_operator.memories.change_log import ChangePage, ChangesRequest
from agentmemory_operator.memories.rules.change_log import Change
from agentmemory_operator.spec.times import render_time

Json = dict[str, Any]

CURSOR_MAX = 512


class ChangesParameters(Parameters):
    """Which part of the log."""

    user_id: UserId | None = Field(
        default=None, description="Only this user's changes, and what concerns the agent as a whole; else `admin`."
    )
    cursor: str | None = Field(
        default=None, max_length=CURSOR_MAX, description="`next_cursor`, or the cursor of an entry. Default: all."
    )
    limit: int = Field(default=LIST_LIMIT, ge=1, le=LIST_LIMIT_MAX, description="Entries a page.")

    def changes_request(self, *, cursor: str | None) -> ChangesRequest:
        """What the use case takes."""
        return ChangesRequest(limit=self.limit, cursor=cursor, user_id=self.user_id)


class ChangeOut(Answer):
    """One entry of the log."""

    cursor: str = Field(description="From where to read on after it.")
    at: Time
    kind: Literal["stored", "superseded", "deleted", "expired", "forgotten", "consolidated", "restored", "rebuilt"] = (
        Field(description="`stored`: it is new, was changed in place, or answers again.")
    )
    id: str = Field(
        description="Of the memory; of `forgotten` the receipt's; of `restored` and `rebuilt` a number that tells one"
        " from the other."
    )
    user_id: str | None = Field(description="null: it names no user.")


class ChangesOut(Answer):
    """A part of the log, oldest first."""

    results: list[ChangeOut]
    next_cursor: str = Field(description="From where to read on, also where nothing was found.")


def change(found: Change, slug: str) -> Json:
    """`ChangeOut`."""
    return {
        "cursor": found.position.encode(slug),
        "at": render_time(found.at),
        "kind": found.kind,
        "id": found.id,
        "user_id": found.user_id,
    }


def changes(page: ChangePage, slug: str) -> Json:
    """`ChangesOut`."""
    return {"results": [change(found, slug) for found in page.changes], "next_cursor": page.next_cursor}
