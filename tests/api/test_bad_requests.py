"""Bad requests: each gets its status and a problem that names the field, and stores nothing."""

import json
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.web.api_stack import Stack

MEMORIES, SEARCH, BATCH = "/v1/agents/probe/memories", "/v1/agents/probe/search", "/v1/agents/probe/memories/batch"
WORDS = "/v1/agents/words/memories"
UNKNOWN = f"{MEMORIES}/018f0000-0000-7000-8000-000000000000"
VECTOR = [0.5] * 8
GOOD = {"user_id": "bad", "content": "c", "vector": VECTOR}
SEARCH_BODY = {"user_id": "bad", "vector": VECTOR}


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 1


# (changed field, its value, field that the problem must name)
BAD_MEMORIES: list[tuple[str, Any, str]] = [
    ("user_id", None, "user_id"),
    ("user_id", 7, "user_id"),
    ("user_id", " ", "user_id"),
    ("user_id", "u\u0000", "user_id"),
    ("user_id", "u" * 257, "user_id"),
    ("content", None, "content"),
    ("content", " \n\t\u3000", "content"),
    ("content", 5, "content"),
    ("content", "x" * 65_537, "content"),
    ("type", "nope", "type"),
    ("type", 1, "type"),
    ("importance", 1.5, "importance"),
    ("importance", "huge", "importance"),
    ("importance", True, "importance"),
    ("importance", None, "importance"),
    ("decay_rate", 10.1, "decay_rate"),
    ("author", " ", "author"),
    ("knowledge_category", "weather", "knowledge_category"),
    ("context", "", "context"),
    ("source_ids", ["x"], "source_ids[0]"),
    ("parent_id", "x", "parent_id"),
    ("session_id", "", "session_id"),
    ("session_id", 1, "session_id"),
    ("tags", ["a"] * 65, "tags"),
    ("tags", ["a", ""], "tags[1]"),
    ("tags", ["a\tb"], "tags[0]"),
    ("source", "s" * 257, "source"),
    ("metadata", [], "metadata"),
    ("metadata", {"a": deep(20)}, "metadata"),
    ("supersedes", "nope", "supersedes"),
    ("expires_at", "tomorrow", "expires_at"),
    ("expires_at", "2026-11-21T08:00:00", "expires_at"),
    ("created_at", "1969-12-31T23:59:59Z", "created_at"),
    ("created_at", "9999-12-31T23:59:59-12:00", "created_at"),
    ("vector", [0.5] * 7, "vector"),
    ("vector", [0] * 8, "vector"),
    ("vector", [1e39] * 8, "vector"),
    ("vector", [1] * 7 + ["1"], "vector[7]"),
    ("vector", "AAAA", "vector"),
    ("vector", None, "vector"),
    ("nonsense", 1, "nonsense"),
    ("namespace", "a", "namespace"),
    ("namespace", ["a", ""], "namespace[1]"),
    ("namespace", ["memories", "somebody else"], "namespace"),
    ("valid_from", "today", "valid_from"),
    ("id", "018f0000-0000-7000-8000-000000000000", "id"),
]

BAD_SEARCHES: list[tuple[str, Any, str]] = [
    ("user_id", None, "user_id"),
    ("vector", None, "query"),
    ("query", "both", "query"),
    ("query", " ", "query"),
    ("vector", [0.5] * 7, "vector"),
    ("vector", [0] * 8, "vector"),
    ("top_k", 0, "top_k"),
    ("top_k", 10_001, "top_k"),
    ("top_k", 5.5, "top_k"),
    ("top_k", True, "top_k"),
    ("threshold", "0.5", "threshold"),
    ("threshold", 1e300, "threshold"),
    ("min_similarity", 1.1, "min_similarity"),
    ("min_similarity", True, "min_similarity"),
    ("min_priority", 1.1, "min_priority"),
    ("diversity", 2, "diversity"),
    ("diversity", {}, "diversity.per_session"),
    ("diversity", {"per_session": 0}, "diversity.per_session"),
    ("diversity", {"per_session": 101}, "diversity.per_session"),
    ("diversity", {"per_user": 1}, "diversity.per_user"),
    ("types", [], "types"),
    ("types", ["nope"], "types"),
    ("tags", [], "tags"),
    ("session_id", "", "session_id"),
    ("namespace", "a", "namespace"),
    ("filters", [], "filters"),
    ("filters", {"colour": "red"}, "filters.colour"),
    ("filters", {"OR": [{"type": {"like": "x"}}]}, "filters.OR[0].type.like"),
    ("at_time", "2026-11-21", "at_time"),
    ("reference_time", "yesterday", "reference_time"),
    ("reference_time", "1969-12-31T23:59:59Z", "reference_time"),
    ("time_zone", "Europe/Oslow", "time_zone"),
    ("time_zone", "../../etc/passwd", "time_zone"),
    ("time_zone", "", "time_zone"),
    ("time_zone", "A" * 65, "time_zone"),
    ("explain", 1, "explain"),
    ("nonsense", 1, "nonsense"),
]


def without_none(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if value is not None}


def assert_problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == status
    assert problem["request_id"] == answer.headers["x-request-id"]
    return problem


def assert_names(answer: httpx.Response, field: str) -> None:
    problem = assert_problem(answer, 422)
    assert field in [error["field"] for error in problem["errors"]], problem["errors"]
    assert field in problem["detail"]


@pytest.fixture(autouse=True)
def _stores_nothing(client: httpx.Client) -> Any:
    before = client.get("/v1/agents/probe").json()["memories"]
    yield
    assert client.get("/v1/agents/probe").json()["memories"] == before


@pytest.mark.parametrize(("field", "value", "named"), BAD_MEMORIES)
def test_bad_memory_names_its_field(client: httpx.Client, field: str, value: Any, named: str) -> None:
    body = GOOD | {field: value}
    # null means unset for an optional field; for a required one both null and its absence are tried.
    for sent in (body, without_none(body)) if field in ("user_id", "content", "vector") else (body,):
        assert_names(client.post(MEMORIES, json=sent), named)


@pytest.mark.parametrize(("field", "value", "named"), BAD_SEARCHES)
def test_bad_search_names_its_field(client: httpx.Client, field: str, value: Any, named: str) -> None:
    assert_names(client.post(SEARCH, json=without_none(SEARCH_BODY | {field: value})), named)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_number_outside_json_names_its_field(client: httpx.Client, literal: str) -> None:
    body = json.dumps(GOOD | {"importance": 0}).replace('"importance": 0', f'"importance": {literal}')

    assert_names(client.post(MEMORIES, content=body), "importance")


def test_nan_in_vector_names_its_index(client: httpx.Client) -> None:
    body = '{"user_id": "bad", "content": "c", "vector": [1, NaN, 1, 1, 1, 1, 1, 1]}'

    assert_names(client.post(MEMORIES, content=body), "vector[1]")


def test_unpaired_surrogate_names_its_field(client: httpx.Client) -> None:
    body = '{"user_id": "bad", "content": "\\ud800", "vector": [1,1,1,1,1,1,1,1], "metadata": {"a": ["\\udc00"]}}'

    assert_names(client.post(MEMORIES, content=body), "content")
    assert_names(client.post(MEMORIES, content=body), "metadata.a[0]")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nul", b"{'a': 1}", b"\xff\xfe", b'{"user_id": "\xff"}', b"\xef\xbb\xbf{}", b"[" * 100_000, b"{} {}"],
    ids=["empty", "open", "word", "quotes", "utf-16 mark", "no utf-8", "byte order mark", "deep", "two"],
)
@pytest.mark.parametrize("path", [MEMORIES, BATCH, SEARCH])
def test_invalid_json_is_400(client: httpx.Client, path: str, body: bytes) -> None:
    problem = assert_problem(client.post(path, content=body), 400)

    assert problem["type"] == "/problems/invalid-json"


@pytest.mark.parametrize("body", [b"[]", b"1", b'"a"', b"null", b"true"])
@pytest.mark.parametrize("path", [MEMORIES, BATCH, SEARCH])
def test_json_non_object_is_422(client: httpx.Client, path: str, body: bytes) -> None:
    assert_names(client.post(path, content=body), "body")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "memories"),
        ({"memories": []}, "memories"),
        ({"memories": {}}, "memories"),
        ({"memories": [GOOD] * 1001}, "memories"),
        ({"memories": [GOOD], "more": 1}, "more"),
    ],
)
def test_bad_batch_is_refused_whole(client: httpx.Client, body: Any, field: str) -> None:
    assert_names(client.post(BATCH, json=body), field)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "user_id"),
        ("user_id=", "user_id"),
        ("user_id=%00", "user_id"),
        ("user_id=u&limit=0", "limit"),
        ("user_id=u&limit=1001", "limit"),
        ("user_id=u&limit=many", "limit"),
        ("user_id=u&cursor=nope", "cursor"),
        ("user_id=u&include_superseded=perhaps", "include_superseded"),
        ("user_id=u&type=", "type[0]"),
        ("user_id=u&tag=", "tag[0]"),
        ("user_id=u&namespace=a&namespace=", "namespace[1]"),
        ("user_id=u&nonsense=1", "nonsense"),
    ],
)
def test_bad_list_names_its_parameter(client: httpx.Client, query: str, field: str) -> None:
    assert_names(client.get(f"{MEMORIES}?{query}"), field)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("query", ["", "user_id=", "user_id=u&extra=1"])
def test_single_memory_needs_its_user(client: httpx.Client, method: str, query: str) -> None:
    assert_problem(client.request(method, f"{UNKNOWN}?{query}"), 422)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/agents/nobody"),
        ("GET", "/v1/agents/nobody/memories?user_id=u"),
        ("POST", "/v1/agents/nobody/memories"),
        ("POST", "/v1/agents/nobody/memories/batch"),
        ("POST", "/v1/agents/nobody/search"),
        ("POST", "/v1/agents/%00/search"),
        ("GET", f"{UNKNOWN}?user_id=u"),
        ("DELETE", f"{UNKNOWN}?user_id=u"),
        ("GET", f"{MEMORIES}/not-an-id?user_id=u"),
        ("DELETE", f"{MEMORIES}/%F0%9F%92%A9?user_id=u"),
        ("GET", "/v1/agents/"),
        ("GET", "/v1"),
        ("GET", "/nothing"),
        ("GET", "/problems/nothing"),
        ("GET", f"{UNKNOWN}/history?user_id=u"),
    ],
)
def test_unknown_path_is_404(client: httpx.Client, method: str, path: str) -> None:
    sent = {"json": GOOD} if method == "POST" else {}

    assert_problem(client.request(method, path, **sent), 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("PUT", MEMORIES, {"GET", "HEAD", "POST"}), ("GET", SEARCH, {"POST"}), ("DELETE", "/v1/agents", {"GET", "HEAD"})],
)
def test_unsupported_method_is_405(client: httpx.Client, method: str, path: str, allowed: set[str]) -> None:
    answer = client.request(method, path)

    assert_problem(answer, 405)
    assert set(answer.headers["allow"].split(", ")) == allowed


def test_text_without_embedder_asks_for_a_vector(client: httpx.Client) -> None:
    answer = client.post(SEARCH, json={"user_id": "bad", "query": "text"})

    assert_names(answer, "query")
    assert "8 dimensions" in answer.json()["detail"]


def test_vector_for_embedding_agent_is_refused(client: httpx.Client) -> None:
    assert_names(client.post(WORDS, json=GOOD | {"vector": [0.5] * 64}), "vector")


@pytest.mark.parametrize("key", ["", "k" * 257, "a\tb"])
def test_bad_idempotency_key_is_refused(client: httpx.Client, key: str) -> None:
    answer = client.post(MEMORIES, json=GOOD, headers={"Idempotency-Key": key})

    assert_names(answer, "idempotency-key")


def test_superseding_unknown_memory_is_404(client: httpx.Client) -> None:
    body = GOOD | {"supersedes": "018f0000-0000-7000-8000-000000000000"}

    assert_problem(client.post(MEMORIES, json=body), 404)


def test_agent_without_collection_is_503(client: httpx.Client) -> None:
    answer = client.get("/v1/agents/missing")

    assert assert_problem(answer, 503)["type"] == "/problems/collection-missing"
    assert int(answer.headers["retry-after"]) >= 1


# A browser lets a page send the first three to any server without a CORS preflight.
NOT_JSON = [
    *("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
    *("", "application/jsonp", "text/plain, application/json", "text/plain; +json", "\u00e9/+jso\u00f1"),
]


@pytest.mark.parametrize("media_type", NOT_JSON)
def test_other_media_type_is_415(client: httpx.Client, media_type: str) -> None:
    sent = {"Content-Type": media_type.encode("latin-1")}
    answer = client.post(MEMORIES, content=json.dumps(GOOD), headers=sent)

    assert assert_problem(answer, 415)["detail"].endswith("send application/json")


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_body_without_media_type_is_415(stack: Stack, method: str, is_chunked: bool) -> None:
    """A browser page may send an untyped body to any server."""
    items = "/v1/agents/probe/items?namespace=memories&namespace=u&key=k"
    path = {"POST": MEMORIES, "PATCH": f"{MEMORIES}/{uuid4()}?user_id=u", "PUT": items}
    body = json.dumps(GOOD).encode()
    answer = httpx.request(method, stack.api_url + path[method], content=iter([body]) if is_chunked else body)

    problem = assert_problem(answer, 415)
    assert problem["detail"] == "Content-Type is missing: send application/json"


def test_empty_body_needs_no_media_type(stack: Stack) -> None:
    assert httpx.post(stack.api_url + MEMORIES).json()["type"] == "/problems/invalid-json"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("types", [f"t{number}" for number in range(30_000)]),
        ("tags", [f"t{number}" for number in range(30_000)]),
        ("tags", ["t" * 20] * 43_000),
        ("types", ["x" * 1_000_000]),
        ("include_scopes", ["group:a"] * 33),
        ("filters", {"x" * 1_000_000: 1}),
        ("filters", {"type": {"in": ["a"] * 30_000}}),
        ("filters", {"OR": [{"type": "a"}] * 10_000}),
    ],
)
def test_oversized_search_gets_short_problem(client: httpx.Client, field: str, value: Any) -> None:
    answer = client.post("/v1/agents/probe/search", json={"user_id": "bad", "vector": [1.0] * 8, field: value})

    assert answer.status_code == 422
    assert len(answer.content) < 16 << 10


def test_first_errors_are_named_and_rest_counted(client: httpx.Client) -> None:
    answer = client.post("/v1/agents/probe/memories", json=GOOD | {f"no{number}": 1 for number in range(70)})

    problem = assert_problem(answer, 422)
    assert (len(problem["errors"]), problem["more_errors"]) == (50, 20)
    assert problem["detail"].endswith("and 20 more") or len(problem["detail"]) == 4096
