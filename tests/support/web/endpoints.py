"""A valid request for every endpoint of the OpenAPI document, for any user."""

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

from agentmemory_operator.entrypoints.api.app import create_app
from agentmemory_operator.entrypoints.api.identity.auth import OpenGuard
from agentmemory_operator.runtime.metrics_api import ApiMeter

Json = dict[str, Any]
Endpoint = tuple[str, str]

DOCUMENT = create_app(
    cast(Any, SimpleNamespace(meter=ApiMeter(), access_counts=SimpleNamespace(metrics=list))),
    OpenGuard(),
    cast(Any, None),
).openapi()
# Callers sign these requests and send no token: tests/api/test_hooks.py.
SIGNED_ENDPOINTS = {("POST", "/v1/agents/{agent}/hooks/{name}")}
ENDPOINTS: list[Endpoint] = [
    (method.upper(), path)
    for path, methods in DOCUMENT["paths"].items()
    if path.startswith("/v1/")
    for method in methods
    if (method.upper(), path) not in SIGNED_ENDPOINTS
]
LIST_OF_AGENTS = ("GET", "/v1/agents")
TOOLS = ("GET", "/v1/tools")
AGENTLESS = {LIST_OF_AGENTS, TOOLS}
# Endpoints without a user.
WITHOUT_USER = {
    *AGENTLESS,
    *(("GET", f"/v1/agents/{{agent}}{path}") for path in ("", "/state", "/users")),
}
INTRUDED = "an intruder was here"
VECTOR = [1.0] * 8


def user_request(user: str) -> Json:
    return {"params": {"user_id": user}}


def item_of(user: str) -> Json:
    return {"params": {"namespace": ["memories", user], "key": "safe"}}


def stored_item_of(user: str, content: str) -> Json:
    return item_of(user) | {"json": {"content": content, "vector": VECTOR}}


def line_of(content: str) -> str:
    return json.dumps({"content": content, "vector": VECTOR})


# Valid requests as arguments of httpx.
REQUESTS: dict[Endpoint, Callable[[str], Json]] = {
    LIST_OF_AGENTS: lambda user: {},
    TOOLS: lambda user: {},
    ("GET", "/v1/agents/{agent}"): lambda user: {},
    ("GET", "/v1/agents/{agent}/state"): lambda user: {},
    ("GET", "/v1/agents/{agent}/stats"): user_request,
    ("GET", "/v1/agents/{agent}/memories"): user_request,
    ("GET", "/v1/agents/{agent}/memories/{id}"): user_request,
    ("GET", "/v1/agents/{agent}/memories/{id}/history"): user_request,
    ("GET", "/v1/agents/{agent}/memories/{id}/children"): user_request,
    ("GET", "/v1/agents/{agent}/memories/{id}/tree"): user_request,
    ("PATCH", "/v1/agents/{agent}/memories/{id}"): lambda user: user_request(user) | {"json": {"tags": ["intruded"]}},
    ("DELETE", "/v1/agents/{agent}/memories/{id}"): user_request,
    ("GET", "/v1/agents/{agent}/sessions/{session_id}/working"): user_request,
    ("PUT", "/v1/agents/{agent}/sessions/{session_id}/working"): lambda user: (
        user_request(user) | {"json": {"content": INTRUDED, "vector": VECTOR}}
    ),
    ("POST", "/v1/agents/{agent}/sessions/{session_id}/end"): user_request,
    ("POST", "/v1/agents/{agent}/search"): lambda user: {"json": {"user_id": user, "vector": VECTOR}},
    ("POST", "/v1/agents/{agent}/context"): lambda user: {"json": {"user_id": user, "vector": VECTOR}},
    ("POST", "/v1/agents/{agent}/memories"): lambda user: {
        "json": {"user_id": user, "content": INTRUDED, "vector": VECTOR}
    },
    ("POST", "/v1/agents/{agent}/messages"): lambda user: {
        "json": {"user_id": user, "messages": [{"role": "user", "content": INTRUDED, "vector": VECTOR}]}
    },
    ("POST", "/v1/agents/{agent}/memories/batch"): lambda user: {
        "json": {"memories": [{"user_id": user, "content": INTRUDED, "vector": VECTOR}]}
    },
    ("PUT", "/v1/agents/{agent}/items"): lambda user: stored_item_of(user, INTRUDED),
    ("POST", "/v1/agents/{agent}/items/batch"): lambda user: {
        "json": {"items": [{**item_of(user)["params"], "content": INTRUDED, "vector": VECTOR}]}
    },
    ("GET", "/v1/agents/{agent}/items"): item_of,
    ("GET", "/v1/agents/{agent}/items/versions"): item_of,
    ("DELETE", "/v1/agents/{agent}/items"): item_of,
    ("GET", "/v1/agents/{agent}/keys"): lambda user: {"params": {"namespace": ["memories", user]}},
    ("GET", "/v1/agents/{agent}/namespaces"): user_request,
    ("PUT", "/v1/agents/{agent}/relations"): lambda user: {
        "json": {"user_id": user, "source": "Somebody", "relation": "uses", "target": "Acme"}
    },
    ("GET", "/v1/agents/{agent}/entities"): user_request,
    ("GET", "/v1/agents/{agent}/entities/{name}"): user_request,
    ("PATCH", "/v1/agents/{agent}/entities/{name}"): lambda user: user_request(user) | {"json": {"name": INTRUDED}},
    ("GET", "/v1/agents/{agent}/export"): user_request,
    ("POST", "/v1/agents/{agent}/import"): lambda user: (
        user_request(user) | {"content": line_of(f"{INTRUDED}, {uuid4()}")}
    ),
    ("POST", "/v1/agents/{agent}/forget"): lambda user: {"json": {"user_id": user, "everything": True}},
    ("GET", "/v1/agents/{agent}/receipts"): user_request,
    ("GET", "/v1/agents/{agent}/changes"): user_request,
    ("GET", "/v1/agents/{agent}/users"): lambda user: {},
    ("GET", "/v1/agents/{agent}/users/{user_id}"): lambda user: {},
    ("PUT", "/v1/agents/{agent}/users/{user_id}"): lambda user: {"json": {"name": INTRUDED}},
    ("POST", "/v1/agents/{agent}/tokens"): lambda user: {"json": {"user_id": user, "verbs": ["read"]}},
}


def endpoints_with_user(document: Json) -> Iterator[Endpoint]:
    """Yield the endpoints with a `user_id` in their parameters or anywhere in their body.

    Endpoints that take no token are left out.
    """
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parameters = {parameter["name"] for parameter in operation.get("parameters", ())}
            body = json.dumps(_resolved(document, operation.get("requestBody", {}), depth=8))
            is_named = "user_id" in parameters or '"user_id": ' in body
            if is_named and (method.upper(), path) not in SIGNED_ENDPOINTS:
                yield method.upper(), path


def _resolved(document: Json, node: Any, *, depth: int) -> Any:
    """Return a part of the document with its references resolved."""
    if isinstance(node, list):
        return [_resolved(document, child, depth=depth) for child in node]
    if not isinstance(node, dict) or depth == 0:
        return node
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        return _resolved(document, document["components"]["schemas"][name], depth=depth - 1)
    return {key: _resolved(document, child, depth=depth) for key, child in node.items()}


def arguments_of(endpoint: Endpoint, user: str, *, agent: str, id: str, token: str) -> Json:
    """Build the httpx arguments of an endpoint's request."""
    method, path = endpoint
    arguments = REQUESTS[endpoint](user)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Content-Type": "application/x-ndjson"} if "content" in arguments else {}
    url = path.format(agent=agent, id=id, session_id="s", name=user, user_id=user)
    return {"method": method, "url": url, "headers": headers, **arguments}
