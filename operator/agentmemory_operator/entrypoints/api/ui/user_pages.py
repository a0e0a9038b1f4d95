"""The pages of users: all of an agent; one with counts, export and erasure."""

import secrets
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from agentmemory_operator.entrypoints.api.inner_requests import ApiRequest, pass_inner_request
from agentmemory_operator.entrypoints.api.problems import BAD_REQUEST, Problem, ProblemRaised
from agentmemory_operator.entrypoints.api.ui.api_view import ApiRefused, ApiView, Json
from agentmemory_operator.entrypoints.api.ui.forms import read_form
from agentmemory_operator.entrypoints.api.ui.pages import SAFE_HEADERS, render_page

PAGE_SIZE = 50


async def list_users(request: Request) -> Response:
    """Show the users of an agent page by page, or those whose id starts with a text.

    A caller without the verb admin, who may not list users, can open a user by id.
    """
    view, query = ApiView(request), request.query_params
    prefix = query.get("prefix", "")
    page, problem = await view.try_get("/users", limit=PAGE_SIZE, cursor=query.get("cursor"), prefix=prefix)
    view.record_look(None, 0)
    values = {"agent": view.agent, "can": view.can(), "page": page, "problem": problem, "prefix": prefix}
    return render_page(request, "users.html", values)


async def show_user(request: Request) -> Response:
    """Show name, counts and receipts of a user."""
    return await _render_user(request, require_user(request))


def require_user(request: Request) -> str:
    """Return the user that the address names.

    Raises:
        ProblemRaised: If it names none.
    """
    if not (user_id := request.query_params.get("user_id", "")):
        raise ProblemRaised(Problem(type=BAD_REQUEST, detail="user_id is missing: choose a user"))
    return user_id


async def _render_user(request: Request, user_id: str, **more: object) -> Response:
    view = ApiView(request)
    user = await _read_user(view, user_id)
    stats, _ = await view.try_get("/stats", user_id=user_id)
    receipts, _ = await view.try_get("/receipts", user_id=user_id)
    view.record_look(user_id, 0)
    values = {"agent": view.agent, "can": view.can(), "user": user, "stats": stats, "receipts": receipts}
    # Repeating the form must return the same receipt.
    values |= {"preview": None, "receipt": None, "fault": None, "operation": secrets.token_urlsafe(12)}
    return render_page(request, "user.html", values | more)


async def _read_user(view: ApiView, user_id: str) -> Json:
    """Return a user; one without memories if the API knows none, because receipts remain after an erasure."""
    try:
        return await view.get(f"/users/{quote(user_id, safe='')}")
    except ApiRefused as refusal:
        if refusal.status != 404:
            raise
    # Raises NotFound if it is the agent that does not exist.
    view.rights()
    return {"user_id": user_id, "name": None, "memories": 0, "oldest": None, "newest": None}


async def forget_user(request: Request) -> Response:
    """Show what an erasure would erase, or erase a user and show the receipt.

    To erase, the form must have the user's id a second time, which a person has typed.
    """
    form, view = await read_form(request), ApiView(request)
    user_id = form.get("user_id", "")
    body: Json = {"user_id": user_id, "everything": True}
    if form.get("action") == "preview":
        preview = await view.send("POST", "/forget", body | {"dry_run": True})
        return await _render_user(request, user_id, preview=preview)
    if form.get("action") != "erase":
        raise ProblemRaised(Problem(type=BAD_REQUEST, detail="the form names no action: preview or erase"))
    if form.get("typed", "") != user_id:
        preview = await view.send("POST", "/forget", body | {"dry_run": True})
        fault = "Nothing was erased: the typed name is not the user's."
        return await _render_user(request, user_id, preview=preview, fault=fault)
    headers = {"idempotency-key": form["operation"]} if form.get("operation") else {}
    receipt = await view.send("POST", "/forget", body, headers=headers)
    return await _render_user(request, user_id, receipt=receipt)


async def export_user(request: Request) -> Response:
    """Send the export of a user as a file."""
    view, user_id = ApiView(request), require_user(request)
    inner = ApiRequest("GET", view.path("/export"), query=urlencode({"user_id": user_id}))
    return PassedResponse(view, inner, user_id, file_headers("memories.ndjson"))


def file_headers(name: str) -> dict[str, str]:
    """Return the headers with which a browser saves a response as a file."""
    return SAFE_HEADERS | {"Content-Disposition": f'attachment; filename="{name}"'}


class PassedResponse(StreamingResponse):
    """Passes the response of an inner request on as it arrives, and records it as a look unless it is an error.

    Args:
        user_id: User whose memories the response has; None for all users.
        added: Further headers of the response.
    """

    def __init__(
        self, view: ApiView, inner: ApiRequest, user_id: str | None, added: Mapping[str, str] | None = None
    ) -> None:
        self._view, self._inner, self._user_id = view, inner, user_id
        self._added = SAFE_HEADERS | dict(added or {})
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the request, and its response with the added headers."""
        names = {name.lower().encode() for name in self._added}

        async def pass_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] < 400:
                    self._view.record_look(self._user_id, None)
                kept = [pair for pair in message["headers"] if pair[0].lower() not in names]
                added = [(name.lower().encode(), value.encode()) for name, value in self._added.items()]
                message = {**message, "headers": [*kept, *added]}
            await send(message)

        await pass_inner_request(self._view.request, self._inner, pass_on, looks=True)
