"""The pages of an agent's records: changes, receipts of erasures, and the graph of names."""

import asyncio
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.inner_requests import ApiRequest
from agentmemory_operator.entrypoints.api.ui.api_view import ApiView, Json
from agentmemory_operator.entrypoints.api.ui.graph_layout import lay_out
from agentmemory_operator.entrypoints.api.ui.pages import render_page
from agentmemory_operator.entrypoints.api.ui.user_pages import PassedResponse

PAGE_SIZE = 50
MAX_NAMES = 40


async def list_changes(request: Request) -> Response:
    """Show a page of the change log, oldest first; a script adds further changes as they happen."""
    view, query = ApiView(request), request.query_params
    user_id = query.get("user_id", "")
    page, problem = await view.try_get("/changes", user_id=user_id, cursor=query.get("cursor"), limit=PAGE_SIZE)
    view.record_look(user_id or None, len(page["results"]) if page else 0)
    values = {"agent": view.agent, "can": view.can(), "user_id": user_id, "page": page, "problem": problem}
    return render_page(request, "changes.html", values)


async def stream_changes(request: Request) -> Response:
    """Stream the changes after a cursor as server-sent events."""
    view, query = ApiView(request), request.query_params
    sent = {name: query[name] for name in ("user_id", "cursor") if query.get(name)}
    headers = [("accept", "text/event-stream")]
    if last := request.headers.get("last-event-id"):
        headers.append(("last-event-id", last))
    inner = ApiRequest("GET", view.path("/changes"), None, urlencode(sent), tuple(headers))
    return PassedResponse(view, inner, sent.get("user_id"))


async def list_receipts(request: Request) -> Response:
    """Show the receipts of erasures, newest first."""
    view, query = ApiView(request), request.query_params
    user_id = query.get("user_id", "")
    page, problem = await view.try_get("/receipts", user_id=user_id, before=query.get("before"), limit=PAGE_SIZE)
    view.record_look(user_id or None, 0)
    values = {"agent": view.agent, "can": view.can(), "user_id": user_id, "page": page, "problem": problem}
    return render_page(request, "receipts.html", values)


async def show_graph(request: Request) -> Response:
    """Show the names in a user's memories and their relations, as a picture and as a list."""
    view, query = ApiView(request), request.query_params
    user_id, problem = query.get("user_id", ""), None
    nodes: list[Json] = []
    edges: list[Json] = []
    if user_id:
        page, problem = await view.try_get("/entities", user_id=user_id, limit=MAX_NAMES)
        names = [entity["name"] for entity in page["results"]] if page else []
        details = [await view.get(f"/entities/{quote(name, safe='')}", user_id=user_id) for name in names]
        nodes, edges = await asyncio.to_thread(lay_out, details)
        view.record_look(user_id, len(nodes))
    values = {"agent": view.agent, "can": view.can(), "user_id": user_id, "problem": problem}
    return render_page(request, "graph.html", values | {"nodes": nodes, "edges": edges})
