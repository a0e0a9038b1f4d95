"""The timeline of a user: memories by day, as they are now or as they were at a time."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.ui.api_view import ApiView, Json
from agentmemory_operator.entrypoints.api.ui.pages import render_page, to_time
from agentmemory_operator.spec.caller_rights import Verb

PAGE_SIZE = 50
_FILTERS = ("type", "tag", "session_id")


async def show_timeline(request: Request) -> Response:
    """Show a page of a user's memories, newest first, with the slider for the day of the view."""
    view, query = ApiView(request), dict(request.query_params)
    user_id = query.get("user_id", "")
    rights = view.rights()
    values: dict[str, Any] = {
        "agent": view.agent,
        "can": view.can(),
        "user_id": user_id,
        "query": {name: query.get(name, "") for name in (*_FILTERS, "at", "superseded")},
        "days": [],
        "next_cursor": None,
        "scrubber": None,
        # Without the verb read, the API does not tell the types either.
        "types": [type_.name for type_ in rights.settings.ranking.types] if rights.has_verb(Verb.READ) else [],
    }
    if user_id:
        user_path = "/users/" + quote(user_id, safe="")
        page, (user, _) = await asyncio.gather(_read_page(view, query), view.try_get(user_path))
        values |= {"days": group_by_day(page["results"]), "next_cursor": page["next_cursor"]}
        values["scrubber"] = build_scrubber(user, query.get("at", "")) if user else None
        view.record_look(user_id, len(page["results"]))
    return render_page(request, "timeline.html", values)


async def _read_page(view: ApiView, query: Mapping[str, str]) -> Json:
    at_time = to_time(query.get("at", ""))
    return await view.get(
        "/memories",
        user_id=query["user_id"],
        limit=PAGE_SIZE,
        cursor=query.get("cursor"),
        at_time=at_time,
        # What was valid then but stored later, the agent did not know.
        created_before=at_time,
        include_superseded="true" if query.get("superseded") else None,
        **{name: query.get(name) for name in _FILTERS},
    )


def group_by_day(memories: Sequence[Json]) -> list[tuple[str, list[Json]]]:
    """Group memories by the day of their creation in UTC; the order stays."""
    return [(day, list(group)) for day, group in groupby(memories, lambda memory: str(memory["created_at"])[:10])]


def build_scrubber(user: Json, at: str) -> Json | None:
    """Return the first day, the last day and the position of the slider; None without active memories.

    `at` may be a day or a time, whose day is the position.
    """
    if user["oldest"] is None:
        return None
    first, last = (datetime.fromisoformat(user[name]).date() for name in ("oldest", "newest"))
    try:
        position = datetime.fromisoformat(at).date() if at else last
    except ValueError:
        position = last
    return {"first": first.isoformat(), "last": last.isoformat(), "at": min(max(position, first), last).isoformat()}
