"""Build the FastAPI application: routes, error handlers, probes, metrics and background tasks."""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from agentmemory_operator import __version__
from agentmemory_operator.agents.user_tokens import UserTokens
from agentmemory_operator.entrypoints.api import openapi, state_routes
from agentmemory_operator.entrypoints.api.bodies import request_invalid
from agentmemory_operator.entrypoints.api.edge import MCP_PATH, REQUEST_ID, Edge, SourceState
from agentmemory_operator.entrypoints.api.identity import user_routes as identity
from agentmemory_operator.entrypoints.api.identity.auth import Guard, UserTokenGuard
from agentmemory_operator.entrypoints.api.load.overload import AdmissionControl
from agentmemory_operator.entrypoints.api.load.request_slots import Limits
from agentmemory_operator.entrypoints.api.mcp.server import McpEndpoint
from agentmemory_operator.entrypoints.api.mem0 import mem0_routes
from agentmemory_operator.entrypoints.api.memories import (
    context_routes,
    entity_routes,
    item_routes,
    lineage_routes,
    memory_routes,
    session_routes,
)
from agentmemory_operator.entrypoints.api.memory_schemas import HealthOut, ProblemTypeOut, RootOut
from agentmemory_operator.entrypoints.api.nearest_path import nearest_path
from agentmemory_operator.entrypoints.api.openapi import SERVICE, add_docs, describe
from agentmemory_operator.entrypoints.api.problems import (
    PROBLEMS,
    ProblemRaised,
    not_ready_problem,
    problem_of,
    problem_of_status,
)
from agentmemory_operator.entrypoints.api.response_views import json_response
from agentmemory_operator.entrypoints.api.transfer import change_routes, hook_routes, transfer_routes
from agentmemory_operator.entrypoints.api.use_cases import Services
from agentmemory_operator.errors import AgentMemoryError, NotFound
from agentmemory_operator.runtime.metrics import PROCESS, LiveGauge, render
from agentmemory_operator.runtime.tasks import cancel, start_task

if TYPE_CHECKING:
    from agentmemory_operator.entrypoints.api.ui.explorer import Explorer

# Routers in the order of matching. Those with the most requests come first.
ROUTERS = (
    memory_routes.searching,
    context_routes.router,
    memory_routes.agents,
    state_routes.router,
    memory_routes.router,
    lineage_routes.router,
    session_routes.router,
    session_routes.conversations,
    item_routes.router,
    entity_routes.router,
    memory_routes.tools,
    memory_routes.erasure,
    identity.router,
    transfer_routes.router,
    change_routes.router,
    hook_routes.router,
)
METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
ROOT = "/"
LINKS = {"docs": "/docs", "openapi": "/openapi.json", "agents": "/v1/agents", "mcp": MCP_PATH, "health": "/healthz"}

log = logging.getLogger(__name__)


class _AlwaysReady:
    def find_obstacle(self) -> str | None:
        return None

    def find_unread(self) -> str | None:
        return None

    def age_s(self) -> float:
        return 0.0


ALWAYS_READY: SourceState = _AlwaysReady()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptionals:
    """Parts of the API that are only served on request.

    Attributes:
        serves_mem0: True to serve mem0's dialects under `/mem0/`.
        serves_ui: True to serve the explorer at `/ui`.
    """

    serves_mem0: bool = False
    serves_ui: bool = False


NO_OPTIONALS = ApiOptionals()


def create_app(
    services: Services,
    guard: Guard,
    user_tokens: UserTokens,
    *,
    sources: SourceState = ALWAYS_READY,
    limits: Limits | None = None,
    options: ApiOptionals = NO_OPTIONALS,
) -> FastAPI:
    """Build the application.

    While it runs, it writes access counts, clears marks of stored memories and distils conversations in the background.
    On shutdown, after the last request, it writes the remaining counts, for at most 10 s.

    Args:
        user_tokens: Accepted in addition to the credentials that the guard accepts.
        sources: State of the source of objects. Default: always ready and never stale.
        limits: Limits on concurrent requests and their memory. None uses the defaults of `Limits`.
        options: Parts that are only served on request.
    """
    pressure, user_guard = AdmissionControl(limits or Limits()), UserTokenGuard(guard, user_tokens)
    explorer = _open_explorer(user_guard, user_tokens, pressure) if options.serves_ui else None
    edge = partial(Edge, guard=user_guard, meter=services.meter, pressure=pressure)
    app = _bare_app(partial(edge, sources=sources, site=explorer))
    app.state.services, app.state.user_tokens = services, user_tokens
    for router in ROUTERS:
        # Do not use `include_router`: the framework would match each route twice, once per level.
        app.router.routes.extend(router.routes)
    _add_root(app, LINKS | ({"ui": "/ui"} if explorer else {}))
    _add_probes(app, sources)
    counts = services.access_counts.metrics()
    _add_metrics(app, (*services.meter.metrics, *counts, *build_gauges(pressure, sources), PROCESS))
    _add_problem_pages(app)
    app.state.mcp = McpEndpoint()
    mem0, ui = mem0_routes.ROUTES if options.serves_mem0 else (), explorer.routes if explorer else ()
    app.router.routes.extend([Route(MCP_PATH, app.state.mcp, methods=["POST"]), *mem0, *ui])
    add_docs(app)
    _add_error_handlers(app)
    _describe_once(app)
    return app


class _Application(FastAPI):
    """FastAPI with `Edge` instead of its outer middleware layers, which would only pass each request on.

    Args:
        edge: Wraps the inner ASGI application.
    """

    def __init__(self, edge: Callable[[ASGIApp], ASGIApp], **options: Any) -> None:
        super().__init__(**options)
        self._edge = edge

    def build_middleware_stack(self) -> ASGIApp:
        inner = AsyncExitStackMiddleware(self.router)
        return self._edge(ExceptionMiddleware(inner, handlers=self.exception_handlers))


def _bare_app(edge: Callable[[ASGIApp], ASGIApp]) -> FastAPI:
    """Create the application. Of the framework's own routes it only has `/openapi.json`."""
    return _Application(
        edge,
        title=openapi.TITLE,
        version=__version__,
        lifespan=_lifespan,
        redirect_slashes=False,
        redoc_url=None,
        docs_url=None,
        generate_unique_id_function=openapi.operation_id,
        # Disable the framework's spans, which would export query parameters, including user ids. `Edge` creates spans.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services = app.state.services
    background = {
        "writing access counts stopped": services.access_counts.run(),
        "clearing marks of stored memories stopped": services.remember.run(),
        "distilling conversations stopped": services.distillation.run(),
    }
    tasks = [start_task(task, failure_message) for failure_message, task in background.items()]
    try:
        yield
    finally:
        await cancel(*tasks)
        await app.state.mcp.close()


def _describe_once(app: FastAPI) -> None:
    """Generate the OpenAPI document at its first use, and cache it."""
    described = None

    def describe_once() -> dict[str, object]:
        nonlocal described
        described = described or openapi.build_document(app)
        return described

    app.openapi = describe_once  # type: ignore[method-assign]


def _open_explorer(guard: Guard, user_tokens: UserTokens, pressure: AdmissionControl) -> "Explorer":
    # Import it only where it is served: the templates' engine takes memory.
    from agentmemory_operator.entrypoints.api.ui.explorer import Explorer

    return Explorer(guard, user_tokens, pressure)


def _add_root(app: FastAPI, links: Mapping[str, str]) -> None:
    @app.get(ROOT, summary="List the entry points", tags=[SERVICE], **describe(RootOut, problems=()))
    async def get_root() -> Response:
        """Return the entry points of the API."""
        return json_response({"links": links})


def _add_probes(app: FastAPI, sources: SourceState) -> None:
    @app.get("/healthz", summary="Check liveness", tags=[SERVICE], **describe(HealthOut, problems=()))
    async def get_health() -> Response:
        """Return 200 while the process responds."""
        return json_response({"status": "ok"})

    @app.get("/readyz", summary="Check readiness", tags=[SERVICE], **describe(HealthOut, problems=(503,)))
    async def get_readiness(request: Request) -> Response:
        """Return 200 if the API can serve agents, else 503 with the reason."""
        detail = sources.find_obstacle()
        if detail is None:
            return json_response({"status": "ok"})
        return not_ready_problem(detail).response(request.scope[REQUEST_ID])


def _add_metrics(app: FastAPI, metrics: Sequence[Collector]) -> None:
    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

    @app.get("/metrics", summary="Read metrics", tags=[SERVICE], response_class=Response, responses=text)
    async def get_metrics() -> Response:
        """Return the metrics in the Prometheus text format."""
        return Response(render(metrics), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})


def build_gauges(pressure: AdmissionControl, sources: SourceState) -> list[Collector]:
    """Return gauges of requests, body bytes and the age of the settings; their values are read at each scrape."""
    return [
        LiveGauge(
            "agentmemory_api_requests_in_flight", "Requests in progress.", (), lambda: {(): float(pressure.requests)}
        ),
        LiveGauge(
            "agentmemory_api_requests_receiving",
            "Requests whose bodies are being received.",
            (),
            lambda: {(): float(pressure.receiving)},
        ),
        LiveGauge(
            "agentmemory_api_body_bytes_in_flight",
            "Received bytes of bodies in memory.",
            (),
            lambda: {(): float(pressure.body_bytes)},
        ),
        LiveGauge(
            "agentmemory_api_settings_age_seconds",
            "Seconds since the last contact with the source of objects.",
            (),
            lambda: {(): sources.age_s()},
        ),
    ]


def _add_problem_pages(app: FastAPI) -> None:
    @app.get(
        "/problems/{name}", summary="Explain an error", tags=[SERVICE], **describe(ProblemTypeOut, problems=(404,))
    )
    async def explain_problem(name: str) -> Response:
        """Explain the kind of error that a `type` URI names, and how to fix it."""
        for problem in PROBLEMS:
            if problem.name == name:
                content = {"type": problem.uri, "title": problem.title, "status": problem.status}
                return json_response(content | {"explanation": problem.explanation})
        raise NotFound(f"there is no error {name[:64]!r}: use one of {', '.join(problem.name for problem in PROBLEMS)}")


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(AgentMemoryError)
    async def of_use_case(request: Request, error: AgentMemoryError) -> Response:
        return problem_of(error).response(request.scope[REQUEST_ID])

    @app.exception_handler(ProblemRaised)
    async def of_http_side(request: Request, error: ProblemRaised) -> Response:
        return error.problem.response(request.scope[REQUEST_ID])

    @app.exception_handler(RequestValidationError)
    async def of_parameters(request: Request, error: RequestValidationError) -> Response:
        # Drop the start of the location, the kind of parameter: query, path or header.
        errors = [item | {"loc": tuple(item["loc"])[1:]} for item in error.errors()]
        return problem_of(request_invalid(errors)).response(request.scope[REQUEST_ID])

    @app.exception_handler(HTTPException)
    async def of_framework(request: Request, error: HTTPException) -> Response:
        # Build the header `Allow` here, because the framework's names only the methods of the first route of the path.
        methods = ", ".join(_methods_of(app, request)) if error.status_code == 405 else ""
        headers = {"Allow": methods} if methods else error.headers
        remedy = f"this path has {methods}" if methods else _other_path(app, request.scope["path"])
        return problem_of_status(error.status_code, headers, remedy).response(request.scope[REQUEST_ID])


def _other_path(app: FastAPI, path: str) -> str:
    """Return a remedy that names the result of `nearest_path` for a requested path."""
    routes = [route for route in app.routes if isinstance(route, Route) and route.path != ROOT]
    # Suggest no path of mem0's dialects for a misspelt native one.
    templates = [route.path_format for route in routes if route not in mem0_routes.ROUTES]
    return f"the nearest path is {nearest_path(path, templates)}"


def _methods_of(app: FastAPI, request: Request) -> list[str]:
    """Return the methods that the request's path supports."""
    scopes = {method: {**request.scope, "method": method} for method in METHODS}
    found = [
        method for method, scope in scopes.items() if any(route.matches(scope)[0] is Match.FULL for route in app.routes)
    ]
    # Add HEAD, because `Edge` answers it for every path with GET.
    return sorted([*found, "HEAD"]) if "GET" in found else found
