"""The verb that each endpoint requires, and the route classes that check it before the body is read.

If the caller's subject lists users, the caller may only act for these users. A shared scope must be allowed by the
subject. The route classes check the user ids of path and query. The readers of bodies check those in the body, and its
`author`: `bodies.check_named_users`, and for imports `LineIn.line` in `transfer/transfer_requests.py`.

The route classes also repeat a request once if the agent's collection was replaced before the request wrote anything.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentmemory_operator.agents.authorisation import AgentRights, check_rights
from agentmemory_operator.agents.fenced_store import retry_if_moved
from agentmemory_operator.entrypoints.api.memory_spans import OPERATIONS, memory_span
from agentmemory_operator.errors import Forbidden, NotFound
from agentmemory_operator.memories.rules.item_rules import owner_in_namespace
from agentmemory_operator.spec.caller_rights import Caller, Verb

CALLER, RIGHTS = "caller", "rights"

# Verb that each endpoint requires. None: the path names no agent, or the endpoint checks the rights itself.
VERBS: Mapping[tuple[str, str], Verb | None] = MappingProxyType(
    {
        ("GET", "/v1/agents"): None,
        ("GET", "/v1/tools"): None,
        ("GET", "/v1/agents/{agent}"): Verb.READ,
        ("GET", "/v1/agents/{agent}/stats"): Verb.READ,
        # The endpoint itself refuses callers that are limited to some users.
        ("GET", "/v1/agents/{agent}/state"): Verb.READ,
        ("GET", "/v1/agents/{agent}/memories"): Verb.READ,
        ("GET", "/v1/agents/{agent}/memories/{id}"): Verb.READ,
        ("GET", "/v1/agents/{agent}/memories/{id}/history"): Verb.READ,
        ("GET", "/v1/agents/{agent}/memories/{id}/children"): Verb.READ,
        ("GET", "/v1/agents/{agent}/memories/{id}/tree"): Verb.READ,
        ("GET", "/v1/agents/{agent}/sessions/{session_id}/working"): Verb.READ,
        ("POST", "/v1/agents/{agent}/search"): Verb.READ,
        ("POST", "/v1/agents/{agent}/context"): Verb.READ,
        ("POST", "/v1/agents/{agent}/memories"): Verb.WRITE,
        ("POST", "/v1/agents/{agent}/memories/batch"): Verb.WRITE,
        ("POST", "/v1/agents/{agent}/messages"): Verb.WRITE,
        ("PATCH", "/v1/agents/{agent}/memories/{id}"): Verb.WRITE,
        ("DELETE", "/v1/agents/{agent}/memories/{id}"): Verb.WRITE,
        ("PUT", "/v1/agents/{agent}/items"): Verb.WRITE,
        ("POST", "/v1/agents/{agent}/items/batch"): Verb.WRITE,
        ("GET", "/v1/agents/{agent}/items"): Verb.READ,
        ("GET", "/v1/agents/{agent}/items/versions"): Verb.READ,
        ("DELETE", "/v1/agents/{agent}/items"): Verb.WRITE,
        ("GET", "/v1/agents/{agent}/keys"): Verb.READ,
        ("GET", "/v1/agents/{agent}/namespaces"): Verb.READ,
        ("PUT", "/v1/agents/{agent}/relations"): Verb.WRITE,
        ("GET", "/v1/agents/{agent}/entities"): Verb.READ,
        ("GET", "/v1/agents/{agent}/entities/{name}"): Verb.READ,
        ("PATCH", "/v1/agents/{agent}/entities/{name}"): Verb.WRITE,
        ("PUT", "/v1/agents/{agent}/sessions/{session_id}/working"): Verb.WRITE,
        ("POST", "/v1/agents/{agent}/sessions/{session_id}/end"): Verb.WRITE,
        ("GET", "/v1/agents/{agent}/export"): Verb.READ,
        ("POST", "/v1/agents/{agent}/import"): Verb.WRITE,
        ("POST", "/v1/agents/{agent}/forget"): Verb.ADMIN,
        ("GET", "/v1/agents/{agent}/receipts"): Verb.ADMIN,
        ("GET", "/v1/agents/{agent}/users"): Verb.ADMIN,
        ("GET", "/v1/agents/{agent}/users/{user_id}"): Verb.READ,
        ("PUT", "/v1/agents/{agent}/users/{user_id}"): Verb.WRITE,
        ("POST", "/v1/agents/{agent}/tokens"): Verb.DELEGATE,
        # None, because the signature authenticates the caller.
        ("POST", "/v1/agents/{agent}/hooks/{name}"): None,
        # READ suffices for one user. The endpoint itself requires ADMIN for the changes of all users.
        ("GET", "/v1/agents/{agent}/changes"): Verb.READ,
    }
)

# Endpoints whose requests concern all users without a `user_id`. The caller must then not be limited to some.
ALL_USERS_ENDPOINTS = frozenset(
    {
        ("GET", "/v1/agents/{agent}/changes"),
        ("GET", "/v1/agents/{agent}/stats"),
        ("GET", "/v1/agents/{agent}/receipts"),
        ("GET", "/v1/agents/{agent}/users"),
    }
)


class GuardedRoute(APIRoute):
    """Route that checks the caller's rights before its handler runs.

    It also traces each request, and runs the handler once more if the agent's collection was replaced before any write.
    Construction raises KeyError unless the method and path are in `verbs`.

    Attributes:
        verbs: Verb that each endpoint requires, as `VERBS`.
        operations: Memory operation of each endpoint, for traces.
    """

    verbs: ClassVar[Mapping[tuple[str, str], Verb | None]] = VERBS
    operations: ClassVar[Mapping[tuple[str, str], str]] = OPERATIONS

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """Wrap the framework's handler in the checks, the trace and the repetition."""
        handle, (method, path) = super().get_route_handler(), self.endpoint_name
        verb, covers_all_users = self.verbs[method, path], (method, path) in ALL_USERS_ENDPOINTS
        operation = self.operations.get((method, path))

        async def handle_allowed(request: Request) -> Response:
            _check(request, verb)
            if covers_all_users and not request.query_params.get("user_id"):
                rights_of(request).check_all_users()
            with memory_span(request, operation):
                return await retry_if_moved(lambda: handle(request))

        return handle_allowed

    @cached_property
    def endpoint_name(self) -> tuple[str, str]:
        """Method and path, as in `verbs`."""
        [method] = self.methods or {""}
        return method, self.path_format


class PlainRoute(GuardedRoute):
    """A guarded route for functions that only take the agent's name and the request.

    It bypasses the framework's dependency resolution, which would cost more than all other work of the API for a
    search.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the rights, then run the route function; once more if the collection was replaced before any write.

        A request with another method than that of the route gets the framework's error 405.
        """
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self.respond(Request(scope, receive, send))
        await response(scope, receive, send)

    async def respond(self, request: Request) -> Response:
        """Check the rights, run the route function, and return its response."""
        _check(request, self.verbs[self.endpoint_name])
        agent = request.path_params["agent"]
        with memory_span(request, self.operations.get(self.endpoint_name)):
            response: Response = await retry_if_moved(lambda: self.endpoint(agent, request))
        return response


def _check(request: Request, verb: Verb | None) -> None:
    if verb is not None:
        directory, agent = request.app.state.services.directory, request.path_params["agent"]
        request.scope[RIGHTS] = check_rights(directory, agent, caller=caller_of(request), verb=verb)
        if user_id := request.path_params.get("user_id"):
            rights_of(request).check_users([user_id])
        # Parse only an existing query string. Searches have none.
        if request.scope["query_string"]:
            _check_query(request)


def _check_query(request: Request) -> None:
    query, rights = request.query_params, rights_of(request)
    users = query.getlist("user_id")
    owner = owner_in_namespace(query.getlist("namespace"), has_user=bool(users))
    try:
        rights.check_users(users)
        rights.check_users(query.getlist("include_scopes"), field="include_scopes")
        rights.check_users([owner] if owner else [], field="namespace")
    except Forbidden:
        if memory_id := request.path_params.get("id"):
            raise NotFound(f"this user has no memory {memory_id}") from None
        raise


def rights_of(request: Request) -> AgentRights:
    """Return the caller's rights to the agent of the path, as the route class has determined them.

    Raises:
        KeyError: If the endpoint has no verb in `VERBS`.
    """
    rights: AgentRights = request.scope[RIGHTS]
    return rights


def caller_of(request: Request) -> Caller:
    """Return the caller that `Edge` has authenticated; UNKNOWN_CALLER for a request to a hook."""
    caller: Caller = request.scope[CALLER]
    return caller
