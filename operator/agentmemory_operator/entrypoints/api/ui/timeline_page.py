"""The timeline of a user: memories by day, as they are now or as they were at a time."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.ui.api_view import ApiView, Json
from agentmemory_operator.entrypoints.api.ui.pages import render_page, to_time
from agentmemory_operator.spec.caller_rights import Verb

PAGE_SIZE = 50
MAX_PERIODS = 60
STATES = {
    "": "valid",
    "all": "valid and superseded",
    "superseded": "superseded by now",
    "pinned": "pinned",
}
"""Label of each choice of the state. No request returns deleted and expired memories; the change log has their ids."""
LIST_ID = "list"
"""Id of the element that a script replaces when the day of the view or a filter changes."""
_FILTERS = ("type", "tag", "session_id", "state")


async def show_timeline(request: Request) -> Response:
    """Show a page of a user's memories, newest first, with the slider for the day of the view.

    If a script replaces only the list, the slider and the numbers by day stay as they are, and are not read again.
    """
    view, query = ApiView(request), dict(request.query_params)
    user_id = query.get("user_id", "")
    rights = view.rights()
    values: dict[str, Any] = {
        "agent": view.agent,
        "can": view.can(),
        "user_id": user_id,
        "query": {name: query.get(name, "") for name in (*_FILTERS, "at")},
        "days": [],
        "next_cursor": None,
        "scrubber": None,
        "periods": [],
        "states": STATES,
        # Without the verb read, the API does not tell the types either.
        "types": [type_.name for type_ in rights.settings.ranking.types] if rights.has_verb(Verb.READ) else [],
    }
    if user_id:
        has_form = request.headers.get("hx-target") != LIST_ID
        page, stats = await asyncio.gather(_read_page(view, query), _read_stats(view, user_id, has_form))
        values |= {"days": group_by_day(page["results"]), "next_cursor": page["next_cursor"]}
        if stats:
            values |= {"scrubber": build_scrubber(stats, query.get("at", "")), "periods": list_periods(stats)}
        view.record_look(user_id, len(page["results"]))
    return render_page(request, "timeline.html", values)


async def _read_stats(view: ApiView, user_id: str, is_needed: bool) -> Json | None:
    if not is_needed:
        return None
    stats, _ = await view.try_get("/stats", user_id=user_id, periods=MAX_PERIODS)
    return stats


async def _read_page(view: ApiView, query: Mapping[str, str]) -> Json:
    at_time, state = to_time(query.get("at", "")), query.get("state")
    filters = {name: query.get(name) for name in _FILTERS}
    if state == "all":
        filters |= {"state": None, "include_superseded": "true"}
    return await view.get(
        "/memories",
        user_id=query["user_id"],
        limit=PAGE_SIZE,
        cursor=query.get("cursor"),
        at_time=at_time,
        # What was valid then but stored later, the agent did not know.
        created_before=at_time,
        **filters,
    )


def group_by_day(memories: Sequence[Json]) -> list[tuple[str, list[Json]]]:
    """Group memories by the day of their creation in UTC; the order stays."""
    return [(day, list(group)) for day, group in groupby(memories, lambda memory: str(memory["created_at"])[:10])]


def build_scrubber(stats: Json, at: str) -> Json | None:
    """Return the first day, the last day and the position of the slider; None without active memories.

    `at` may be a day or a time, whose day is the position.
    """
    if stats["oldest"] is None:
        return None
    first, last = (datetime.fromisoformat(stats[name]).date() for name in ("oldest", "newest"))
    try:
        position = datetime.fromisoformat(at).date() if at else last
    except ValueError:
        position = last
    return {"first": first.isoformat(), "last": last.isoformat(), "at": min(max(position, first), last).isoformat()}


def list_periods(stats: Json) -> list[Json]:
    """Return the numbers of active memories by day of creation, each with the first and the last day of its period."""
    periods = []
    for period in stats["periods"]:
        first = datetime.fromisoformat(period["start"]).date()
        # The last period may end after the last date that there is.
        last = date.fromordinal(min(first.toordinal() + period["days"] - 1, date.max.toordinal()))
        periods.append({"first": first, "last": last, "number": _day_number(first), "memories": period["memories"]})
    return periods


def _day_number(day: date) -> int:
    return (datetime(day.year, day.month, day.day, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days
