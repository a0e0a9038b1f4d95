"""The pages of an agent's records: changes, receipts of erasures, and the graph of names."""

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentmemory_operator.entrypoints.api.identity.rights import caller_of
from agentmemory_operator.entrypoints.api.inner_requests import ApiRequest
from agentmemory_operator.entrypoints.api.load.request_slots import overload_problem
from agentmemory_operator.entrypoints.api.ui.api_view import ApiView, Json
from agentmemory_operator.entrypoints.api.ui.erasure_proof import build_proof
from agentmemory_operator.entrypoints.api.ui.graph_layout import lay_out
from agentmemory_operator.entrypoints.api.ui.pages import render_page, to_time
from agentmemory_operator.entrypoints.api.ui.user_pages import PassedResponse, file_headers, require_user

PAGE_SIZE = 50
MAX_NAMES = 40
FIRST_PERIOD = timedelta(days=1)
FIELD_TIME = "%Y-%m-%dT%H:%M"
# A stream takes one of the exports that the process has, so these leave most of them to other callers.
MAX_STREAMS, MAX_STREAMS_PER_CALLER = 12, 6
STREAMS: Counter[str] = Counter()
"""Number of streams of this process by caller."""


async def list_changes(request: Request) -> Response:
    """Show a page of the change log, oldest first; on its last page a script adds changes as they happen.

    It starts with the last day, or for one user with the oldest change.
    """
    view, query = ApiView(request), request.query_params
    user_id, cursor, since = (query.get(name, "") for name in ("user_id", "cursor", "since"))
    now = datetime.now(UTC)
    if not (since or user_id):
        since = (now - FIRST_PERIOD).strftime(FIELD_TIME)
    page, problem = await view.try_get(
        "/changes", user_id=user_id, cursor=cursor, since=to_time(since), limit=PAGE_SIZE
    )
    for change in page["results"] if page else ():
        # The page of receipts that begins with it.
        change["receipt_before"] = _next_ms(change["at"])
    view.record_look(user_id or None, len(page["results"]) if page else 0)
    values = {"agent": view.agent, "can": view.can(), "user_id": user_id, "page": page, "problem": problem}
    is_end = page is not None and len(page["results"]) < PAGE_SIZE
    times = {"since": since, "now": now.strftime(FIELD_TIME), "is_end": is_end}
    return render_page(request, "changes.html", values | times)


def _next_ms(time: str) -> str:
    return (datetime.fromisoformat(time) + timedelta(milliseconds=1)).isoformat()


async def stream_changes(request: Request) -> Response:
    """Stream the changes after a cursor as server-sent events.

    Raises:
        ProblemRaised: If the caller, or all callers together, have as many streams as they may.
    """
    view, query = ApiView(request), request.query_params
    caller = str(caller_of(request))
    if STREAMS[caller] >= MAX_STREAMS_PER_CALLER or STREAMS.total() >= MAX_STREAMS:
        raise overload_problem(f"{STREAMS[caller]} live pages of this caller ({STREAMS.total()} in total) are open")
    sent = {name: query[name] for name in ("user_id", "cursor") if query.get(name)}
    headers = [("accept", "text/event-stream")]
    if last := request.headers.get("last-event-id"):
        headers.append(("last-event-id", last))
    inner = ApiRequest("GET", view.path("/changes"), None, urlencode(sent), tuple(headers))
    return StreamResponse(view, inner, sent.get("user_id"), caller)


class StreamResponse(PassedResponse):
    """Passes a stream on, and counts it in `STREAMS` in the meantime."""

    def __init__(self, view: ApiView, inner: ApiRequest, user_id: str | None, caller: str) -> None:
        super().__init__(view, inner, user_id)
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream to its end."""
        STREAMS[self._caller] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            STREAMS[self._caller] -= 1
            if not STREAMS[self._caller]:
                del STREAMS[self._caller]


async def list_receipts(request: Request) -> Response:
    """Show the receipts of erasures, newest first."""
    view, query = ApiView(request), request.query_params
    user_id = query.get("user_id", "")
    page, problem = await view.try_get("/receipts", user_id=user_id, before=query.get("before"), limit=PAGE_SIZE)
    proof = await build_proof(view, user_id) if user_id and page and view.can()["read"] else None
    view.record_look(user_id or None, 0)
    values = {"agent": view.agent, "can": view.can(), "user_id": user_id, "page": page, "problem": problem}
    return render_page(request, "receipts.html", values | {"proof": proof})


async def send_proof(request: Request) -> Response:
    """Send as a file what is stored of a user, with the receipts."""
    view, user_id = ApiView(request), require_user(request)
    proof = await build_proof(view, user_id)
    view.record_look(user_id, 0)
    content = json.dumps(proof, indent=1, ensure_ascii=False)
    return Response(content, 200, file_headers("erasure.json"), "application/json")


async def show_graph(request: Request) -> Response:
    """Show the names in a user's memories and their relations, as a picture and as a list."""
    view, query = ApiView(request), request.query_params
    user_id, problem, has_more = query.get("user_id", ""), None, False
    nodes: list[Json] = []
    edges: list[Json] = []
    if user_id:
        page, problem = await view.try_get("/entities", user_id=user_id, limit=MAX_NAMES, details="true")
        # A thread, because the layout takes long enough to delay other requests.
        nodes, edges = await asyncio.to_thread(lay_out, page["results"] if page else [])
        has_more = bool(page and page["next_cursor"])
        view.record_look(user_id, len(nodes))
    values: Json = {"agent": view.agent, "can": view.can(), "user_id": user_id, "problem": problem}
    is_off = view.rights().settings.entities is None and problem is not None and problem["status"] == 422
    values |= {"nodes": nodes, "edges": edges, "has_more": has_more, "is_off": is_off}
    return render_page(request, "graph.html", values)
