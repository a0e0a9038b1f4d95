"""The endpoints of mem0's dialects, and their route class."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentmemory_operator.entrypoints.api.identity.rights import PlainRoute
from agentmemory_operator.entrypoints.api.mem0 import entity_lists, open_server_handlers, platform_handlers
from agentmemory_operator.entrypoints.api.mem0.dialect import problem_response
from agentmemory_operator.entrypoints.api.mem0.listing import UserMissing
from agentmemory_operator.entrypoints.api.problems import NOT_FOUND, Problem, ProblemRaised, problem_of
from agentmemory_operator.errors import AgentMemoryError, RequestInvalid
from agentmemory_operator.spec.caller_rights import Verb

REQUEST_ID = "request_id"
PREFIX = "/mem0/{agent}"
METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
NOT_IMPLEMENTED_STATUS = 501


@dataclass(frozen=True, slots=True)
class Mem0Endpoint:
    """An endpoint.

    Attributes:
        path: Below `PREFIX`. With a trailing slash, the path without it is served too.
        verb: None if any verb on the agent suffices.
        operation: Memory operation for traces; None for none.
    """

    method: str
    path: str
    handle: Callable[[str, Request], Awaitable[Response]]
    verb: Verb | None
    operation: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths that are served, the one with a trailing slash first."""
        path = f"{PREFIX}{self.path}"
        return (path, path.removesuffix("/")) if path.endswith("/") else (path,)

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """Method and path format of each path."""
        return tuple((self.method, path.replace(":path", "")) for path in self.paths)


READ, WRITE, ADMIN = Verb.READ, Verb.WRITE, Verb.ADMIN
SEARCH, CREATE, UPDATE, DELETE = "search_memory", "create_memory", "update_memory", "delete_memory"
_platform, _open = platform_handlers, open_server_handlers

PLATFORM: Sequence[Mem0Endpoint] = (
    Mem0Endpoint("GET", "/v1/ping/", _platform.ping, READ),
    Mem0Endpoint("POST", "/v3/memories/add/", _platform.add, WRITE, CREATE),
    Mem0Endpoint("POST", "/v3/memories/search/", _platform.search, READ, SEARCH),
    Mem0Endpoint("POST", "/v3/memories/", _platform.list_paged, READ, SEARCH),
    Mem0Endpoint("POST", "/v2/memories/search/", _platform.search_by_v1, READ, SEARCH),
    Mem0Endpoint("POST", "/v2/memories/", _platform.list_by_v2, READ, SEARCH),
    Mem0Endpoint("POST", "/v1/memories/search/", _platform.search_by_v1, READ, SEARCH),
    Mem0Endpoint("POST", "/v1/memories/", _platform.add_by_v1, WRITE, CREATE),
    Mem0Endpoint("GET", "/v1/memories/", _platform.list_by_query, READ, SEARCH),
    Mem0Endpoint("DELETE", "/v1/memories/", _platform.delete_all, ADMIN, DELETE),
    Mem0Endpoint("GET", "/v1/memories/{id}/history/", _platform.history, READ),
    Mem0Endpoint("GET", "/v1/memories/{id}/", _platform.get, READ, SEARCH),
    Mem0Endpoint("PUT", "/v1/memories/{id}/", _platform.update, WRITE, UPDATE),
    Mem0Endpoint("DELETE", "/v1/memories/{id}/", _platform.delete, WRITE, DELETE),
    Mem0Endpoint("PUT", "/v1/batch/", _platform.update_batch, WRITE, UPDATE),
    Mem0Endpoint("DELETE", "/v1/batch/", _platform.delete_batch, WRITE, DELETE),
    Mem0Endpoint("GET", "/v1/entities/", _platform.entities, READ),
    Mem0Endpoint("DELETE", "/v1/entities/{entity_type}/{name:path}/", entity_lists.delete_entity, ADMIN, DELETE),
    Mem0Endpoint("DELETE", "/v2/entities/{entity_type}/{name:path}/", entity_lists.delete_entity, ADMIN, DELETE),
    Mem0Endpoint("GET", "/v1/event/{id}/", entity_lists.read_event, READ),
)
OPEN_SERVER: Sequence[Mem0Endpoint] = (
    Mem0Endpoint("POST", "/memories", _open.add, WRITE, CREATE),
    Mem0Endpoint("GET", "/memories", _open.list_all, READ, SEARCH),
    Mem0Endpoint("DELETE", "/memories", _open.delete_all, ADMIN, DELETE),
    Mem0Endpoint("GET", "/memories/{id}", _platform.get, READ, SEARCH),
    Mem0Endpoint("PUT", "/memories/{id}", _open.update, WRITE, UPDATE),
    Mem0Endpoint("DELETE", "/memories/{id}", _platform.delete, WRITE, DELETE),
    Mem0Endpoint("GET", "/memories/{id}/history", _platform.history, READ),
    Mem0Endpoint("POST", "/search", _open.search, READ, SEARCH),
    Mem0Endpoint("POST", "/reset", _open.reset, ADMIN, DELETE),
)
ENDPOINTS = (*PLATFORM, *OPEN_SERVER)

# First part of a path below `PREFIX` -> reason why mem0's calls there are not served.
WITHOUT_COUNTERPART: Mapping[str, str] = MappingProxyType(
    {
        "/api/v1/orgs": "there are no organisations and projects: settings of an agent are in its AgentMemory object",
        "/api/v1/webhooks": "webhooks are declared in spec.webhooks of the AgentMemory object",
        "/v1/feedback": "feedback is not stored: importance and accesses rank memories",
        "/v1/exports": "there are no exports by schema: use GET /v1/agents/{agent}/export",
        "/v1/summary": "there are no summaries of filters: search, or consolidate with spec.consolidation",
        "/v1/profiles": "there are no generated profiles",
        "/v2/profiles": "there are no generated profiles",
        "/v1/events": "events are not listed: read one by its id, or GET /v1/agents/{agent}/changes",
        "/v1/stats": "there are no statistics of calls: use GET /v1/agents/{agent}/stats",
        "/v1/users": "a user exists as soon as it has a memory",
        "/v1/agents": "an agent_id exists as soon as a memory has it",
        "/v1/apps": "an app_id exists as soon as a memory has it",
        "/v1/runs": "a run_id exists as soon as a memory has it",
        "/configure": "the settings of an agent are in its AgentMemory object",
        "/generate-instructions": "instructions are not generated",
    }
)


class Mem0Route(PlainRoute):
    """A guarded route whose errors are rendered as mem0's servers do."""

    verbs: ClassVar[Mapping[tuple[str, str], Verb | None]] = MappingProxyType(
        {name: endpoint.verb for endpoint in ENDPOINTS for name in endpoint.names}
        | {(method, f"{PREFIX}/{{path}}"): None for method in METHODS}
    )
    operations: ClassVar[Mapping[tuple[str, str], str]] = MappingProxyType(
        {name: endpoint.operation for endpoint in ENDPOINTS for name in endpoint.names if endpoint.operation}
    )

    @property
    def is_platform(self) -> bool:
        """True for an endpoint of the platform dialect, whose paths start with a version."""
        return self.path_format.startswith(f"{PREFIX}/v")

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request. On the platform, invalid requests get the status 400, except without a user."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        status = None
        try:
            response = await self.respond(Request(scope, receive, send))
        except ProblemRaised as error:
            response = problem_response(error.problem, scope[REQUEST_ID])
        except AgentMemoryError as error:
            if self.is_platform and isinstance(error, RequestInvalid) and not isinstance(error, UserMissing):
                status = 400
            response = problem_response(problem_of(error), scope[REQUEST_ID], status=status)
        await response(scope, receive, send)


async def respond_without_counterpart(agent: str, request: Request) -> Response:
    """Respond to a path that has no endpoint: 501 with the reason for calls that mem0 has, else 404."""
    path = f"/{request.path_params['path']}"
    for prefix, reason in WITHOUT_COUNTERPART.items():
        if path == prefix or path.startswith(f"{prefix}/"):
            detail = reason.format(agent=agent)
            return problem_response(
                Problem(type=NOT_FOUND, detail=detail), request.scope[REQUEST_ID], status=NOT_IMPLEMENTED_STATUS
            )
    detail = f"mem0's servers have no {request.method} {path[:128]}, or it is not served: see docs/mem0.md"
    return problem_response(Problem(type=NOT_FOUND, detail=detail), request.scope[REQUEST_ID])


def _route(method: str, path: str, handle: Callable[[str, Request], Awaitable[Response]]) -> Mem0Route:
    return Mem0Route(path, handle, methods=[method], include_in_schema=False)


ROUTES = (
    *(_route(endpoint.method, path, endpoint.handle) for endpoint in ENDPOINTS for path in endpoint.paths),
    *(_route(method, f"{PREFIX}/{{path:path}}", respond_without_counterpart) for method in METHODS),
)
