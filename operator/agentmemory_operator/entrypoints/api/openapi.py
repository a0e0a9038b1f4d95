"""Generate the OpenAPI document and the page that shows it.

Route functions read bodies and render responses themselves, so both are described here explicitly. The page `/docs` is
Swagger UI from an installed package, so a browser loads nothing from other servers.
"""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import fastapi_offline
from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.responses import HTMLResponse, Response

from agentmemory_operator import __version__
from agentmemory_operator.entrypoints.api.examples import add_examples
from agentmemory_operator.entrypoints.api.fields import TIME_ZONE_HEADER
from agentmemory_operator.entrypoints.api.memory_schemas import ProblemOut
from agentmemory_operator.entrypoints.api.preconditions import (
    ETAG,
    IF_MATCH,
    IF_MATCH_SCHEMA,
    IF_NONE_MATCH,
    IF_NONE_MATCH_SCHEMA,
)
from agentmemory_operator.entrypoints.api.problems import MEDIA_TYPE, PROBLEMS

REF = "#/components/schemas/{model}"
ERROR = "Error{status}"
TITLE = "AgentMemory retrieval API"
DESCRIPTION = """Long-term memories of agents. Agents and their settings come from AgentMemory objects.
See `/v1/agents`.

The examples are requests to `agentmemory dev --manifests examples/quickstart` and its responses. Their agent is
`support-bot`, their user `ada`; for another agent, change the name. First store a memory, which other examples use.

## Errors

Every error is `application/problem+json` (RFC 9457). Its `type` is the path of a page that explains it.

| type | status | meaning |
|---|---|---|
"""

SERVICE = "Service"
TAGS = {
    "Search": "Find memories.",
    "Memories": "Store, list, read, update and delete memories.",
    "Conversations": "Store conversations, which a language model may distil into memories.",
    "Sessions": "Working memories of a session. The agent needs the type `working`, as in `examples/cognitive`.",
    "Items": "Key-value items by namespace.",
    "Entities": "Names in memories, and their relations. The agent needs `spec.entities`, as in `examples/brain`.",
    "Erasure": "Erase memories, and list the receipts.",
    "Transfer": "Export and import the memories of a user.",
    "Changes": "The change log.",
    "Agents": "Agents and their settings.",
    "Access": "Users, and tokens for them.",
    "Tools": "Tool schemas for language models.",
    "Webhooks": "Requests signed with the key of a hook in `spec.hooks`. `/docs` cannot sign them.",
    SERVICE: "Health, metrics and error descriptions.",
}
PLAIN_PARAMETERS = {
    "agent": "Name of the agent (`spec.agent`).",
    "id": "ID of the memory.",
    "user_id": "User, `group:NAME` or `global`.",
    "session_id": "ID of the session.",
    "name": "Name of the entity, hook or kind of error.",
    "idempotency-key": "Identifies the request: repeat it with the same key and body to retry safely.",
    TIME_ZONE_HEADER: "IANA time zone of the days in a query without `time_zone`.",
    IF_MATCH: "Only if the stored version has this `ETag` (in double quotes), or with `*` any; otherwise 412.",
    IF_NONE_MATCH: "`*`: only if nothing is stored; otherwise 412.",
    "last-event-id": "Cursor of the last event received, to resume a stream.",
}
"""Descriptions of path and header parameters. Models describe query parameters."""

JSON = "application/json"
READ_PROBLEMS = (401, 403, 404, 422, 429, 500, 502, 503)
SEARCH_PROBLEMS = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 502, 503)
WRITE_PROBLEMS = (400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 502, 503, 504)
"""Error statuses of endpoints that read, read with a body, and write."""

Described = type[BaseModel] | tuple[type[BaseModel], ...]
# Models of bodies and responses as `describe` met them, with the mode of their schemas.
_MODELS: dict[type[BaseModel], JsonSchemaMode] = {ProblemOut: "serialization"}

ETAG_HEADER = {
    ETAG: {"description": "Tag of the stored version, for `If-Match`.", "schema": {"type": "string"}},
}
ASSETS = "/docs/assets"
# Disable the public validation service to which Swagger UI sends the document by default.
PARAMETERS = {"validatorUrl": None}


def describe(
    answer: Described | None,
    *,
    problems: Sequence[int],
    status: int = 200,
    body: Described | None = None,
    headers: dict[str, Any] | None = None,
    media_type: str = JSON,
) -> dict[str, Any]:
    """Build the keyword arguments of a route that describe its body and responses.

    Args:
        answer: Model of the response, or a tuple of alternatives; None if the response has no body.
        problems: Statuses of the errors that the route may return.
        status: Status of a successful response.
        body: Model of the request body, or a tuple of alternatives; None if the route reads no body.
        headers: Header Object of OpenAPI of each response header, by name.
        media_type: Media type of the request body, or of the response if there is no body.
    """
    for model in _listed(answer):
        _MODELS.setdefault(model, "serialization")
    # A line of an export is also one of an import: its fields are described for those who write it.
    _MODELS.update(dict.fromkeys(_listed(body), "validation"))
    responses: dict[int | str, Any] = {code: {} for code in problems}
    if answer:
        responses[status] = {"content": {JSON if body else media_type: {"schema": _ref(answer, of="anyOf")}}}
    if headers:
        responses[status]["headers"] = headers
    arguments: dict[str, Any] = {"status_code": status, "responses": responses}
    if not body and media_type != JSON:
        # With this response class, FastAPI adds no media type of its own to the document.
        arguments["response_class"] = Response
    if body:
        content = {media_type: {"schema": _ref(body)}}
        arguments["openapi_extra"] = {"requestBody": {"required": True, "content": content}}
    return arguments


def with_header(arguments: dict[str, Any], name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Add an optional request header to the result of `describe`, for a route that reads the header itself."""
    extra = arguments.get("openapi_extra", {})
    parameters = [*extra.get("parameters", ()), {"name": name, "in": "header", "schema": schema}]
    return arguments | {"openapi_extra": extra | {"parameters": parameters}}


def with_preconditions(arguments: dict[str, Any], *, can_create: bool = False) -> dict[str, Any]:
    """Add the headers of conditional requests to the result of `describe`, and `ETag` to a response with a body."""
    described = with_header(arguments, IF_MATCH, IF_MATCH_SCHEMA)
    described = with_header(described, IF_NONE_MATCH, IF_NONE_MATCH_SCHEMA) if can_create else described
    status, responses = arguments["status_code"], arguments["responses"]
    answers = {} if status == 204 else {status: responses[status] | {"headers": ETAG_HEADER}}
    return described | {"responses": responses | answers}


def build_router(tag: str, route_class: type[APIRoute], *, prefix: str = "/v1/agents") -> APIRouter:
    """Create a router with one tag of `TAGS` for its operations, and function names as operation ids."""
    return APIRouter(
        prefix=prefix,
        tags=[tag],
        redirect_slashes=False,
        route_class=route_class,
        generate_unique_id_function=operation_id,
    )


def operation_id(route: APIRoute) -> str:
    """Return the camel-case operation id, from which generated clients derive method names."""
    first, *words = route.name.split("_")
    return first + "".join(word.capitalize() for word in words)


def build_document(app: FastAPI) -> dict[str, Any]:
    """Generate the OpenAPI document from the routes and models, without the framework's own schemas and 422 responses.

    Errors refer to one response per status in the components.

    Raises:
        KeyError: If a path or header parameter has no description in `PLAIN_PARAMETERS`.
    """
    tags = [{"name": name, "description": meaning} for name, meaning in TAGS.items()]
    described = get_openapi(
        title=TITLE, version=__version__, description=DESCRIPTION + _error_rows(), routes=app.routes, tags=tags
    )
    errors: set[str] = set()
    for methods in described["paths"].values():
        for operation in methods.values():
            errors |= _refer_to_errors(operation["responses"])
            for parameter in operation.get("parameters", ()):
                if parameter["in"] != "query":
                    parameter["description"] = PLAIN_PARAMETERS[parameter["name"]]
    components = described.setdefault("components", {})
    components["schemas"] = _schemas()
    components["responses"] = {ERROR.format(status=status): _problem(int(status)) for status in sorted(errors)}
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    # Allow requests without authentication too, as with AGENTMEMORY_AUTH=none.
    described["security"] = [{"bearer": []}, {}]
    add_examples(described)
    return described


def add_docs(app: FastAPI) -> None:
    """Add the page `/docs` and its assets."""
    folder = Path(str(files(fastapi_offline) / "static"))
    app.mount(ASSETS, StaticFiles(directory=folder))

    @app.get("/docs", include_in_schema=False)
    async def show() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=app.title,
            swagger_js_url=f"{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{ASSETS}/favicon.png",
            swagger_ui_parameters=PARAMETERS,
        )


def _schemas() -> dict[str, Any]:
    _, definitions = models_json_schema(list(_MODELS.items()), ref_template=REF)
    schemas_: dict[str, Any] = definitions["$defs"]
    return schemas_


def _refer_to_errors(responses: dict[str, Any]) -> set[str]:
    """Drop the framework's own 422, and replace other errors by references to the components; return their statuses."""
    if "application/json" in responses.get("422", {}).get("content", {}):
        del responses["422"]
    statuses = {status for status in responses if status >= "4"}
    responses |= {status: {"$ref": f"#/components/responses/{ERROR.format(status=status)}"} for status in statuses}
    return statuses


def _problem(status: int) -> dict[str, Any]:
    titles = " / ".join(problem.title for problem in PROBLEMS if problem.status == status)
    response: dict[str, Any] = {
        "description": titles,
        "content": {MEDIA_TYPE: {"schema": _ref(ProblemOut)}},
    }
    if status == 412:
        response["headers"] = ETAG_HEADER
    if status in (429, 503, 504):
        meaning = "Seconds to wait before the next attempt."
        response["headers"] = {"Retry-After": {"description": meaning, "schema": {"type": "integer"}}}
    return response


def _error_rows() -> str:
    rows = (f"| [`{problem.name}`]({problem.uri}) | {problem.status} | {problem.title} |" for problem in PROBLEMS)
    return "\n".join(rows)


def _listed(models: Described | None) -> tuple[type[BaseModel], ...]:
    return models if isinstance(models, tuple) else (models,) if models else ()


def _ref(model: Described, *, of: str = "oneOf") -> dict[str, Any]:
    # Use `anyOf` for responses: a complete response also matches the schema of a partial one, which `oneOf` forbids.
    if isinstance(model, tuple):
        return {of: [_ref(alternative) for alternative in model]}
    return {"$ref": REF.format(model=model.__name__)}
