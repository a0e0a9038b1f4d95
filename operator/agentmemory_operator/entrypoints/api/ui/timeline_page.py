"""The timeline of a user: memories by day, as they are now or as they were at a time."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.ui.api_view import ApiView, Json
from agentmemory_operator.entrypoints.api.ui.pages import render_page, to_time

PAGE_SIZE = 50
_FILTERS = ("type", "tag", "session_id")


async def show_timeline(request: Request) -> Response:
    """Show a page of a user's memories, newest first, with the slider for the day of the view."""
    view, query = ApiView(request), dict(request.query_params)
    user_id = query.get("user_id", "")
    values: dict[str, Any] = {
        "agent": view.agent,
        "can": view.can(),
        "user_id": user_id,
        "query": {name: query.get(name, "") for name in (*_FILTERS, "at", "superseded")},
        "days": [],
        "next_cursor": None,
        "scrubber": None,
    }
    if not user_id:
        detail = await view.get()
    else:
        detail, page, (stats, _) = await asyncio.gather(
            view.get(), _read_page(view, query), view.try_get("/stats", user_id=user_id)
        )
        values |= {"days": group_by_day(page["results"]), "next_cursor": page["next_cursor"]}
        values["scrubber"] = build_scrubber(stats, query.get("at", "")) if stats else None
        view.record_look(user_id, len(page["results"]))
    types = [type_["name"] for type_ in detail["types"]]
    return render_page(request, "timeline.html", values | {"types": types})


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


def build_scrubber(stats: Json, at: str) -> Json | None:
    """Return range and position of the slider in days since the year 1; None without active memories.

    The slider sends a number of days. `at` may be a day or a time, whose day is the position.
    """
    if stats["oldest"] is None:
        return None
    first, last = (datetime.fromisoformat(stats[name]).date() for name in ("oldest", "newest"))
    try:
        position = datetime.fromisoformat(at).date() if at else last
    except ValueError:
        position = last
    return {"first": first.isoformat(), "last": last.isoformat(), "at": min(max(position, first), last).isoformat()}
