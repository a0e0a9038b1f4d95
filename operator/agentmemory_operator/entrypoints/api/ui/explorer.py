"""The routes of the explorer, its sign-in, and its pages for errors."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from agentmemory_operator.agents.user_tokens import UserTokens
from agentmemory_operator.entrypoints.api.edge import REQUEST_ID
from agentmemory_operator.entrypoints.api.identity.auth import Guard
from agentmemory_operator.entrypoints.api.load.overload import AdmissionControl
from agentmemory_operator.entrypoints.api.problems import (
    NOT_FOUND,
    UNAUTHORIZED,
    Problem,
    ProblemRaised,
    problem_of,
)
from agentmemory_operator.entrypoints.api.ui import (
    agent_pages,
    ask_page,
    memory_pages,
    record_pages,
    timeline_page,
    user_pages,
)
from agentmemory_operator.entrypoints.api.ui.api_view import ApiRefused
from agentmemory_operator.entrypoints.api.ui.forms import read_form
from agentmemory_operator.entrypoints.api.ui.pages import (
    NEW_COOKIE,
    SESSION,
    STATIC_PREFIX,
    UI_PREFIX,
    redirect,
    render_page,
    send_static,
    set_cookie,
)
from agentmemory_operator.entrypoints.api.ui.sessions import MAX_TOKEN_CHARS, BrowserSession, BrowserSessions
from agentmemory_operator.errors import AgentMemoryError, Unauthenticated

Handler = Callable[[Request], Awaitable[Response]]

IS_LINKED = "ui_is_linked"
"""Entry of the ASGI scope: True if a page of another site caused the request, so that the browser sent no cookie."""
_FOREIGN_SITES = (b"cross-site", b"same-site")
SIGN_IN = f"{UI_PREFIX}/sign-in"
MAX_SIGN_IN_BYTES = 16_384
# In each tuple: method, path below an agent, handler.
AGENT_PAGES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "", agent_pages.show_agent),
    ("GET", "/ask", ask_page.ask),
    ("GET", "/timeline", timeline_page.show_timeline),
    ("GET", "/memories/{id}", memory_pages.show_memory),
    ("POST", "/memories/{id}", memory_pages.change_memory),
    ("GET", "/users", user_pages.list_users),
    ("GET", "/user", user_pages.show_user),
    ("POST", "/user", user_pages.forget_user),
    ("GET", "/export", user_pages.export_user),
    ("GET", "/changes", record_pages.list_changes),
    ("GET", "/changes/stream", record_pages.stream_changes),
    ("GET", "/receipts", record_pages.list_receipts),
    ("GET", "/receipts/proof", record_pages.send_proof),
    ("GET", "/backups", agent_pages.show_backups),
    ("GET", "/graph", record_pages.show_graph),
)


class Explorer:
    """The explorer of one API process. Implements `edge.PageSite`.

    Args:
        guard: Authenticates the callers of the API.
        tokens: Has the key of the cookies.
        pressure: Limits the sign-ins that wait for a review of their token.

    Attributes:
        routes: To be added to the application.
    """

    def __init__(self, guard: Guard, tokens: UserTokens, pressure: AdmissionControl) -> None:
        self._guard, self._pressure = guard, pressure
        self._sessions = BrowserSessions(tokens)
        self.routes = self._build_routes()

    def has_page(self, path: str) -> bool:
        """Return whether a path is one of the explorer's."""
        return path == UI_PREFIX or path.startswith(f"{UI_PREFIX}/")

    def needs_caller(self, path: str) -> bool:
        """Return True for all pages except the sign-in and static files."""
        return path != SIGN_IN and not path.startswith(f"{STATIC_PREFIX}/")

    async def open_session(self, scope: Scope) -> bytes:
        """Read or begin the session of a request; return the value for the header `Authorization`.

        Raises:
            TransientError: If the key of the cookies cannot be read now.
        """
        headers = dict(scope["headers"])
        session = scope[SESSION] = await self._sessions.open(headers)
        if session.is_new:
            scope[IS_LINKED] = headers.get(b"sec-fetch-site") in _FOREIGN_SITES
        if session.is_new and not scope[IS_LINKED]:
            scope[NEW_COOKIE] = await self._sessions.seal(session)
        return b"Bearer " + session.token.encode() if session.token else b""

    def render_problem(self, problem: Problem, scope: Scope) -> Response:
        """Render an error of the API as a page; without a valid token, redirect to the sign-in."""
        request = Request(scope)
        if scope.get(IS_LINKED):
            return _open_again(request)
        if problem.type is UNAUTHORIZED:
            return redirect(request, SIGN_IN)
        response = _problem_page(request, problem.type.status, problem.body(scope[REQUEST_ID]))
        response.headers.update(problem.headers)
        return response

    def _build_routes(self) -> list[Route]:
        agent = f"{UI_PREFIX}/agents/{{agent}}"
        pages = [(method, agent + path, handler) for method, path, handler in AGENT_PAGES]
        pages += [
            ("GET", UI_PREFIX, _go_home),
            ("GET", f"{UI_PREFIX}/", _go_home),
            ("GET", f"{UI_PREFIX}/agents", agent_pages.list_agents),
            ("GET", SIGN_IN, self._show_sign_in),
            ("POST", SIGN_IN, self._sign_in),
            ("POST", f"{UI_PREFIX}/sign-out", self._sign_out),
        ]
        routes = [
            Route(path, self._as_page(handler), methods=[method], include_in_schema=False)
            for method, path, handler in pages
        ]
        routes.append(Route(f"{STATIC_PREFIX}/{{name}}", send_static, include_in_schema=False))
        missing = self._as_page(_find_no_page)
        routes.append(Route(f"{UI_PREFIX}/{{path:path}}", missing, include_in_schema=False))
        return routes

    def _as_page(self, handler: Handler) -> Handler:
        """Wrap a handler, so that its errors become pages."""

        async def handle(request: Request) -> Response:
            if request.scope.get(IS_LINKED):
                return _open_again(request)
            try:
                return await handler(request)
            except ApiRefused as refusal:
                return _problem_page(request, refusal.status, refusal.document)
            except ProblemRaised as error:
                return self.render_problem(error.problem, request.scope)
            except AgentMemoryError as error:
                return self.render_problem(problem_of(error), request.scope)

        return handle

    async def _show_sign_in(self, request: Request) -> Response:
        await self.open_session(request.scope)
        if request.scope.get(IS_LINKED):
            return _open_again(request)
        return render_page(request, "sign_in.html", {"fault": None})

    async def _sign_in(self, request: Request) -> Response:
        await self.open_session(request.scope)
        form = await read_form(request, max_bytes=MAX_SIGN_IN_BYTES)
        token = form.get("token", "").strip()
        fault = await self._find_fault(token)
        if fault is not None:
            return render_page(request, "sign_in.html", {"fault": fault}, 401)
        # Begin a new session, so that no cookie or form from before the sign-in is valid in it.
        response = redirect(request, f"{UI_PREFIX}/agents")
        set_cookie(request, response, await self._sessions.seal(BrowserSession(token)))
        return response

    async def _find_fault(self, token: str) -> str | None:
        """Return why a token cannot be used, or None if the API accepts it."""
        if not token.isascii() or not token.isprintable():
            return "the token has characters that no token has: copy it again"
        if len(token) > MAX_TOKEN_CHARS:
            return f"the token has more than {MAX_TOKEN_CHARS:,} characters, which do not fit into a cookie"
        authorization = b"Bearer " + token.encode()
        try:
            if self._guard.authenticate_cached(authorization) is None:
                with self._pressure.admit_unauthenticated():
                    await self._guard.authenticate(authorization)
        except Unauthenticated as error:
            return str(error)
        return None

    async def _sign_out(self, request: Request) -> Response:
        await read_form(request)
        response = redirect(request, SIGN_IN)
        set_cookie(request, response, "")
        return response


async def _go_home(request: Request) -> Response:
    return redirect(request, f"{UI_PREFIX}/agents")


async def _find_no_page(request: Request) -> Response:
    raise ProblemRaised(Problem(type=NOT_FOUND, detail=f"the explorer has no page {request.scope['path'][:128]}"))


def _open_again(request: Request) -> Response:
    """Let the browser open the same page again, from this page.

    It sends no cookie with a request that a page of another site causes, such as a link. A new cookie would replace
    that of the session.
    """
    query = request.scope["query_string"].decode("latin-1")
    url = quote(request.scope["path"]) + (f"?{query}" if query else "")
    return render_page(request, "again.html", {"url": url})


def _problem_page(request: Request, status: int, document: Mapping[str, Any]) -> Response:
    return render_page(request, "problem.html", {"problem": document}, status)
