"""OpenAPI document: it describes the API's actual requests and responses."""

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from agentmemory_operator.entrypoints.api import agent_schemas, memory_schemas, state_schemas
from agentmemory_operator.entrypoints.api.memories import context_requests
from agentmemory_operator.entrypoints.api.problems import PROBLEMS

VECTOR = [1.0] * 8
PLACE = "namespace=memories&namespace=shape"
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "http-api.md"
OPERATIONS = {
    "/": {"get": "getRoot"},
    "/healthz": {"get": "getHealth"},
    "/metrics": {"get": "getMetrics"},
    "/readyz": {"get": "getReadiness"},
    "/problems/{name}": {"get": "explainProblem"},
    "/v1/agents": {"get": "listAgents"},
    "/v1/tools": {"get": "listTools"},
    "/v1/agents/{agent}": {"get": "getAgent"},
    "/v1/agents/{agent}/memories": {"get": "listMemories", "post": "storeMemory"},
    "/v1/agents/{agent}/memories/batch": {"post": "storeMemories"},
    "/v1/agents/{agent}/messages": {"post": "storeMessages"},
    "/v1/agents/{agent}/memories/{id}": {"get": "getMemory", "patch": "updateMemory", "delete": "deleteMemory"},
    "/v1/agents/{agent}/memories/{id}/history": {"get": "getMemoryHistory"},
    "/v1/agents/{agent}/memories/{id}/children": {"get": "listMemoryChildren"},
    "/v1/agents/{agent}/memories/{id}/tree": {"get": "getMemoryTree"},
    "/v1/agents/{agent}/state": {"get": "getAgentState"},
    "/v1/agents/{agent}/stats": {"get": "getStats"},
    "/v1/agents/{agent}/search": {"post": "searchMemories"},
    "/v1/agents/{agent}/context": {"post": "buildContext"},
    "/v1/agents/{agent}/items": {"put": "putItem", "get": "getItem", "delete": "deleteItem"},
    "/v1/agents/{agent}/items/batch": {"post": "putItems"},
    "/v1/agents/{agent}/items/versions": {"get": "listItemVersions"},
    "/v1/agents/{agent}/relations": {"put": "putRelation"},
    "/v1/agents/{agent}/entities": {"get": "listEntities"},
    "/v1/agents/{agent}/entities/{name}": {"get": "getEntity", "patch": "updateEntity"},
    "/v1/agents/{agent}/keys": {"get": "listItemKeys"},
    "/v1/agents/{agent}/namespaces": {"get": "listNamespaces"},
    "/v1/agents/{agent}/sessions/{session_id}/working": {"get": "getWorkingMemory", "put": "putWorkingMemory"},
    "/v1/agents/{agent}/sessions/{session_id}/end": {"post": "endSession"},
    "/v1/agents/{agent}/changes": {"get": "listChanges"},
    "/v1/agents/{agent}/export": {"get": "exportUserMemories"},
    "/v1/agents/{agent}/import": {"post": "importUserMemories"},
    "/v1/agents/{agent}/forget": {"post": "forgetMemories"},
    "/v1/agents/{agent}/hooks/{name}": {"post": "receiveHook"},
    "/v1/agents/{agent}/receipts": {"get": "listReceipts"},
    "/v1/agents/{agent}/users": {"get": "listUsers"},
    "/v1/agents/{agent}/users/{user_id}": {"get": "getUser", "put": "putUser"},
    "/v1/agents/{agent}/tokens": {"post": "createUserToken"},
}
"""Names of the methods in generated clients: a change breaks their callers."""


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    described: dict[str, Any] = client.get("/openapi.json").json()
    return described


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in document["paths"].values():
        yield from methods.values()


def test_operations_have_exactly_these_names(document: dict[str, Any]) -> None:
    named = {
        path: {method: operation["operationId"] for method, operation in methods.items()}
        for path, methods in document["paths"].items()
    }

    assert named == OPERATIONS


def test_every_content_has_a_schema(document: dict[str, Any]) -> None:
    empty = [
        (operation["operationId"], status, media_type)
        for operation in operations(document)
        for status, response in operation["responses"].items()
        for media_type, content in response.get("content", {}).items()
        if not content.get("schema")
    ]

    assert empty == []


def test_operation_has_one_known_tag_and_a_text(document: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in document["tags"] if tag["description"]}

    used = [tag for operation in operations(document) for tag in operation["tags"]]
    assert set(used) == tags
    assert len(used) == len(list(operations(document)))
    assert [one["operationId"] for one in operations(document) if not (one["summary"] and one["description"])] == []


def test_operation_names_are_unique_and_short(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for operation in operations(document)]

    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(r"[a-z]+([A-Z][a-z]+){1,3}", name)] == []


def test_schema_names_are_type_names(document: dict[str, Any]) -> None:
    names = document["components"]["schemas"]

    assert [name for name in names if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name)] == []


def test_parameters_have_a_description(document: dict[str, Any]) -> None:
    parameters = [
        f"{operation['operationId']} {parameter['name']}"
        for operation in operations(document)
        for parameter in operation.get("parameters", ())
        if not parameter.get("description") and not parameter["schema"].get("description")
    ]

    assert parameters == []


def deprecated_and_not_marked(node: Any) -> Iterator[Any]:
    """Yield nodes with "deprecated" in their description but without the `deprecated` flag, which tools read."""
    if isinstance(node, dict):
        if "deprecated" in str(node.get("description", "")).lower() and node.get("deprecated") is not True:
            yield node
        for child in node.values():
            yield from deprecated_and_not_marked(child)
    elif isinstance(node, list):
        for child in node:
            yield from deprecated_and_not_marked(child)


def test_deprecated_nodes_are_flagged(document: dict[str, Any]) -> None:
    old = {"description": "Deprecated: send `new`."}

    assert list(deprecated_and_not_marked(document)) == []
    assert list(deprecated_and_not_marked({"a": [old, old | {"deprecated": True}]})) == [old]


def test_references_have_a_component(document: dict[str, Any]) -> None:
    components = document["components"]
    known = {f"#/components/{kind}/{name}" for kind in ("responses", "schemas") for name in components[kind]}

    assert set(references(document)) == known


def test_errors_are_described_once_as_problems(document: dict[str, Any]) -> None:
    for operation in operations(document):
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert response == {"$ref": f"#/components/responses/Error{status}"}, operation["operationId"]
                assert int(status) in {problem.status for problem in PROBLEMS}
    for response in document["components"]["responses"].values():
        assert list(response["content"]) == ["application/problem+json"]


def test_description_lists_every_error_type(document: dict[str, Any]) -> None:
    rows = re.findall(r"^\| \[`([a-z-]+)`]\((\S+)\) \| (\d+) \| (.+) \|$", document["info"]["description"], re.M)

    assert rows == [(problem.name, problem.uri, str(problem.status), problem.title) for problem in PROBLEMS]


def names_of(schema: dict[str, Any]) -> str:
    refs = [one["$ref"] for one in schema.get("oneOf", [schema])]
    return " or ".join(ref.rpartition("/")[2] for ref in refs)


def test_bodies_have_a_named_schema(document: dict[str, Any]) -> None:
    bodies = {
        (method, path): names_of(next(iter(operation["requestBody"]["content"].values()))["schema"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    }

    assert bodies == {
        ("post", "/v1/agents/{agent}/memories"): "MemoryIn or ConversationIn",
        ("post", "/v1/agents/{agent}/memories/batch"): "BatchIn",
        ("post", "/v1/agents/{agent}/messages"): "ConversationIn",
        ("patch", "/v1/agents/{agent}/memories/{id}"): "ChangeIn",
        ("post", "/v1/agents/{agent}/search"): "SearchIn",
        ("post", "/v1/agents/{agent}/context"): "ContextIn",
        ("put", "/v1/agents/{agent}/items"): "ItemIn",
        ("post", "/v1/agents/{agent}/items/batch"): "ItemsIn",
        ("put", "/v1/agents/{agent}/relations"): "RelationIn",
        ("patch", "/v1/agents/{agent}/entities/{name}"): "EntityChangeIn",
        ("put", "/v1/agents/{agent}/sessions/{session_id}/working"): "WorkingIn",
        ("post", "/v1/agents/{agent}/forget"): "ForgetIn",
        ("put", "/v1/agents/{agent}/users/{user_id}"): "UserIn",
        ("post", "/v1/agents/{agent}/tokens"): "TokenIn",
        ("post", "/v1/agents/{agent}/hooks/{name}"): "HookIn or ConversationIn",
        ("post", "/v1/agents/{agent}/import"): "LineIn",
    }


def test_patterns_work_in_other_regex_engines(document: dict[str, Any]) -> None:
    schema = document["components"]["schemas"]["MemoryIn"]["properties"]["user_id"]
    pattern = re.compile(schema["pattern"])

    assert pattern.search("user 1")
    assert not any(pattern.search(bad) for bad in ("", " ", "a\x00", "a\x85b"))


@pytest.mark.parametrize(
    ("method", "path", "body", "model"),
    [
        ("GET", "/v1/agents", None, agent_schemas.AgentsOut),
        ("GET", "/v1/agents/probe", None, agent_schemas.AgentDetailOut),
        ("GET", "/v1/agents/probe/state", None, state_schemas.AgentStateOut),
        ("GET", "/v1/tools", None, memory_schemas.ToolsOut),
        ("GET", "/v1/agents/nobody", None, memory_schemas.ProblemOut),
        ("POST", "/v1/agents/probe/memories", {"content": "c", "vector": VECTOR}, memory_schemas.StoredOut),
        ("POST", "/v1/agents/probe/memories", {"vector": VECTOR}, memory_schemas.ProblemOut),
        ("POST", "/v1/agents/probe/memories/batch", {"memories": [{}]}, memory_schemas.BatchOut),
        ("GET", "/v1/agents/probe/memories?user_id=shape", None, memory_schemas.PageOut),
        ("POST", "/v1/agents/probe/search", {"vector": VECTOR}, memory_schemas.SearchOut),
        ("POST", "/v1/agents/probe/context", {"vector": VECTOR}, context_requests.ContextOut),
        ("GET", "/v1/agents/mind/sessions/s/working?user_id=shape", None, memory_schemas.WorkingOut),
        ("POST", "/v1/agents/mind/sessions/s/end?user_id=shape", None, memory_schemas.EndedOut),
        ("POST", "/v1/agents/probe/search", {"vector": VECTOR, "explain": True}, memory_schemas.SearchOut),
        ("GET", f"/v1/agents/probe/keys?{PLACE}", None, memory_schemas.KeysOut),
        ("GET", f"/v1/agents/probe/namespaces?{PLACE}", None, memory_schemas.NamespacesOut),
        ("PUT", f"/v1/agents/probe/items?{PLACE}", {"content": "c", "vector": VECTOR}, memory_schemas.ItemStoredOut),
        ("POST", "/v1/agents/probe/items/batch", {"items": [{}]}, memory_schemas.ItemsStoredOut),
        ("GET", f"/v1/agents/probe/items/versions?{PLACE}&key=k", None, memory_schemas.ProblemOut),
        ("GET", "/", None, memory_schemas.RootOut),
        ("GET", "/healthz", None, memory_schemas.HealthOut),
        ("GET", "/problems/conflict", None, memory_schemas.ProblemTypeOut),
    ],
)
def test_response_matches_its_model(
    client: httpx.Client, method: str, path: str, body: dict[str, Any] | None, model: type[BaseModel]
) -> None:
    client.post("/v1/agents/probe/memories", json={"user_id": "shape", "content": "c", "vector": VECTOR})
    sent = (
        body
        if body is None or not {"memories", "items"}.isdisjoint(body) or method == "PUT"
        else {"user_id": "shape"} | body
    )

    model.model_validate(client.request(method, path, json=sent).json())


def test_page_lists_every_request(document: dict[str, Any]) -> None:
    listed = re.findall(r"^\| `(GET|POST|PUT|PATCH|DELETE) (\S+)` \|", PAGE.read_text(), re.MULTILINE)

    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert set(listed) == described


def of_requests(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schema of each query parameter and body, with its place."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] != "path":
                    yield f"{method} {path} {parameter['name']}", parameter["schema"]
            for content in operation.get("requestBody", {}).get("content", {}).values():
                yield f"{method} {path}", content["schema"]


def unbounded(document: dict[str, Any], schema: dict[str, Any], place: str) -> Iterator[str]:
    """Yield the places of unbounded lists, strings and integers in a schema."""
    if "$ref" in schema:
        yield from unbounded(document, document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], place)
        return
    if schema.get("type") == "array" and "maxItems" not in schema:
        yield place
    if schema.get("type") == "integer" and "maximum" not in schema:
        yield place
    if schema.get("type") == "string" and not {"maxLength", "enum", "const"} & set(schema):
        yield place
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    for child in [*inner, *([schema["items"]] if "items" in schema else [])]:
        yield from unbounded(document, child, f"{place}[]")
    for name, child in schema.get("properties", {}).items():
        yield from unbounded(document, child, f"{place}.{name}")


def test_request_fields_are_bounded(document: dict[str, Any]) -> None:
    assert [found for place, schema in of_requests(document) for found in unbounded(document, schema, place)] == []


def test_bound_check_finds_missing_bounds(document: dict[str, Any]) -> None:
    places = [place for place, _ in of_requests(document)]
    loose = {"anyOf": [{"type": "array", "items": {"type": "string"}}], "properties": {"a": {"type": "string"}}}

    assert len(places) > 40
    assert list(unbounded(document, loose, "x")) == ["x[]", "x[][]", "x.a"]
