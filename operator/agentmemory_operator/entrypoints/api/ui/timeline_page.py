"""The timeline of a user: memories by day, as they are now or as they were at a time."""

from collections.abc import Sequence
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
    detail, can = await view.get(), view.can()
    at_time = to_time(query.get("at", ""))
    values: dict[str, Any] = {
        "agent": view.agent,
        "can": can,
        "user_id": user_id,
        "query": {name: query.get(name, "") for name in (*_FILTERS, "at", "superseded")},
        "types": [type_["name"] for type_ in detail["types"]],
        "days": [],
        "next_cursor": None,
        "stats": None,
        "scrubber": None,
    }
    if user_id:
        page = await view.get(
            "/memories",
            user_id=user_id,
            limit=PAGE_SIZE,
            cursor=query.get("cursor"),
            at_time=at_time,
            include_superseded="true" if query.get("superseded") else None,
            **{name: query.get(name) for name in _FILTERS},
        )
        stats, _ = await view.try_get("/stats", user_id=user_id)
        values |= {"days": group_by_day(page["results"]), "next_cursor": page["next_cursor"], "stats": stats}
        values["scrubber"] = build_scrubber(stats, query.get("at", "")) if stats else None
        view.record_look(user_id, len(page["results"]))
    return render_page(request, "timeline.html", values)


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
