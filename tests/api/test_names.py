"""Unicode in names: UTF-8 only, NFC and NFD are equal, and invisible text is blank."""

import http.client
import itertools
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

import httpx
import pytest

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.agents.callers import CallerCache
from agentmemory_operator.entrypoints.api.identity.auth import IdentityGuard
from agentmemory_operator.spec.caller_rights import Caller, TokenReviewResult
from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import Stack, create_collection, running_api
from tests.support.web.endpoints import VECTOR

PROBE = "/v1/agents/probe"


@pytest.fixture
def composed() -> str:
    """A new user in NFC."""
    return f"Zo\u00eb-{uuid4().hex[:8]}"


@pytest.fixture
def decomposed(composed: str) -> str:
    """The same user in NFD."""
    return composed.replace("\u00eb", "e\u0308")


def remember(client: httpx.Client, user_id: str, **more: Any) -> str:
    answer = client.post(f"{PROBE}/memories", json={"user_id": user_id, "content": "c", "vector": VECTOR} | more)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def ids(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [each["id"] for each in answer.json()["results"]]


def test_both_forms_name_one_user(client: httpx.Client, composed: str, decomposed: str) -> None:
    stored = [remember(client, decomposed, content="a"), remember(client, composed, content="b")]

    for name in (composed, decomposed):
        listed = client.get(f"{PROBE}/memories", params={"user_id": name})
        found = client.post(f"{PROBE}/search", json={"user_id": name, "vector": VECTOR})
        read = client.get(f"{PROBE}/memories/{stored[0]}", params={"user_id": name})
        exported = client.get(f"{PROBE}/export", params={"user_id": name}).text.splitlines()
        assert sorted(ids(listed)) == sorted(ids(found)) == sorted(stored)
        assert read.json()["user_id"] == composed
        assert len(exported) == 3

    imported = client.post(
        f"{PROBE}/import",
        params={"user_id": composed},
        content=json.dumps({"user_id": decomposed, "content": "i", "vector": VECTOR}),
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert imported.json()["counts"]["imported"] == 1
    forgotten = client.post(f"{PROBE}/forget", json={"user_id": decomposed, "older_than": "2100-01-01T00:00:00Z"})
    assert forgotten.json()["counts"]["total"] == 3
    assert ids(client.get(f"{PROBE}/memories", params={"user_id": composed})) == []


NAMED = ("session_id", "key", "subject", "status_value", "category", "event_type", "domain", "speaker")


def test_identifiers_are_stored_and_filtered_as_nfc(client: httpx.Client, user: str) -> None:
    sent = {name: f"{name} e\u0301" for name in NAMED} | {"tags": ["e\u0301", "\u00e9"], "namespace": ["n", "e\u0301"]}
    memory_id = remember(client, user, **sent)

    stored = client.get(f"{PROBE}/memories/{memory_id}", params={"user_id": user}).json()
    assert {name: stored[name] for name in NAMED} == {name: f"{name} \u00e9" for name in NAMED}
    assert (stored["tags"], stored["namespace"]) == (["\u00e9"], ["n", "\u00e9"])
    for accent in ("e\u0301", "\u00e9"):
        queries: list[dict[str, Any]] = [{name: f"{name} {accent}"} for name in NAMED]
        queries += [{"session_id": {"in": [f"session_id {accent}"]}}, {"tags": accent}, {"tags": {"contains": accent}}]
        for filters in queries:
            body = {"user_id": user, "vector": VECTOR, "filters": filters}
            assert ids(client.post(f"{PROBE}/search", json=body)) == [memory_id], filters
        fields = {"session_id": f"session_id {accent}", "tags": [accent], "namespace": ["n", accent]}
        assert ids(client.post(f"{PROBE}/search", json={"user_id": user, "vector": VECTOR} | fields)) == [memory_id]
        listing = {"user_id": user, "tag": accent, "namespace": ["n", accent]}
        assert ids(client.get(f"{PROBE}/memories", params=listing)) == [memory_id]


def test_items_and_sessions_are_found_in_both_forms(client: httpx.Client, composed: str, decomposed: str) -> None:
    place = {"namespace": ["memories", decomposed, "e\u0301"], "key": "cl\u0065\u0301"}
    put = client.put("/v1/agents/words/items", params=place, json={"content": "v"})
    assert put.status_code == 200, put.text
    same = {"namespace": ["memories", composed, "\u00e9"], "key": "cl\u00e9"}
    assert client.get("/v1/agents/words/items", params=same | {"user_id": decomposed}).json()["content"] == "v"
    keys = client.get("/v1/agents/words/keys", params={"namespace": same["namespace"]}).json()
    assert keys["results"] == ["cl\u00e9"]

    path = "/v1/agents/mind/sessions"
    kept = client.put(
        f"{path}/se%CC%81/working",
        params={"user_id": composed},
        json={"content": "w", "vector": VECTOR},
    )
    assert kept.status_code == 200, kept.text
    working = client.get(f"{path}/s%C3%A9/working", params={"user_id": decomposed}).json()
    assert [each["content"] for each in working["results"]] == ["w"]


def test_compatibility_sign_is_checked_as_normalized(client: httpx.Client) -> None:
    """U+212A (Kelvin sign) normalizes to K."""

    memory_id = remember(client, "group:\u212a")

    answer = client.get(f"{PROBE}/memories/{memory_id}", params={"user_id": "group:K"})
    assert answer.json()["user_id"] == "group:K"


def subject(name: str, **more: Any) -> dict[str, Any]:
    account = {"kind": "ServiceAccount", "namespace": "agents", "name": name}
    return account | {"verbs": ["read", "write", "admin", "delegate"]} | more


GUARDED = agent_document(
    "guarded-names",
    access={
        "subjects": [
            subject("zoe", users=["Zoe\u0308"]),
            subject("kim", scopes=["group:K"]),
            subject("lee", scopes=["group:L"]),
        ]
    },
)


class Reviews:
    """Accepts the tokens `token-NAME`."""

    async def review(self, token: str) -> TokenReviewResult:
        return TokenReviewResult(caller=Caller("agents", token.removeprefix("token-")))


@pytest.fixture(scope="module")
def guarded(qdrant_url: str) -> Iterator[Stack]:
    create_collection(qdrant_url, GUARDED)
    guard = IdentityGuard(CallerCache(Reviews(), SystemClock()))
    with running_api(qdrant_url, GUARDED, guard=guard) as stack:
        yield stack


def request(stack: Stack, token: str, method: str, path: str, **more: Any) -> httpx.Response:
    url = f"{stack.api_url}/v1/agents/guarded-names{path}"
    return httpx.request(method, url, headers={"Authorization": f"Bearer {token}"}, **more)


@pytest.mark.parametrize("name", ["Zo\u00eb", "Zoe\u0308"])
def test_subject_of_a_user_matches_both_forms(guarded: Stack, name: str) -> None:
    body = {"user_id": name, "content": name, "vector": VECTOR}
    assert request(guarded, "token-zoe", "POST", "/memories", json=body).status_code == 201
    assert request(guarded, "token-zoe", "GET", "/memories", params={"user_id": name}).status_code == 200
    assert request(guarded, "token-zoe", "GET", "/memories", params={"user_id": "Zoe"}).status_code == 403

    body = {"user_id": name, "verbs": ["read"]}
    token = request(guarded, "token-zoe", "POST", "/tokens", json=body).json()["token"]
    for form in ("Zo\u00eb", "Zoe\u0308"):
        assert request(guarded, token, "GET", "/memories", params={"user_id": form}).status_code == 200
    assert request(guarded, token, "GET", "/memories", params={"user_id": "Zoe"}).status_code == 403


@pytest.mark.parametrize(("name", "status"), [("kim", 200), ("lee", 403)])
def test_rights_are_checked_after_normalization(guarded: Stack, name: str, status: int) -> None:
    token, scope = f"token-{name}", "group:\u212a"
    search = {"user_id": "u", "vector": VECTOR}

    assert request(guarded, token, "GET", "/memories", params={"user_id": scope}).status_code == status
    assert request(guarded, token, "POST", "/search", json=search | {"user_id": scope}).status_code == status
    assert request(guarded, token, "POST", "/search", json=search | {"include_scopes": [scope]}).status_code == status
    place = {"namespace": ["shared", "\u212a", "n"]}
    assert request(guarded, token, "GET", "/keys", params=place).status_code == status


INVISIBLE = [
    "\u200b",
    "\u200d\u200c",
    "\u202e\u2066",
    "\ufe0f",
    "\u00ad",
    "\u3164",
    "\u2800",
    "\U000e0100",
    "\ufeff \u115f",
]


FIELDS = ["user_id", "content", "session_id", "key", "subject", "tags", "speaker", "context"]


# Each text is tried in one field. The fields take turns, so that each is tried at least once.
@pytest.mark.parametrize(("text", "field"), [*zip(INVISIBLE, itertools.cycle(FIELDS), strict=False)])
def test_invisible_text_is_blank(client: httpx.Client, user: str, field: str, text: str) -> None:
    body = {"user_id": user, "content": "c", "vector": VECTOR, field: [text] if field == "tags" else text}

    answer = client.post(f"{PROBE}/memories", json=body)

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"].removesuffix("[0]") == field


@pytest.mark.parametrize("text", INVISIBLE)
def test_invisible_query_or_parameter_is_blank(client: httpx.Client, user: str, text: str) -> None:
    assert client.get(f"{PROBE}/memories", params={"user_id": text}).status_code == 422
    assert client.post("/v1/agents/words/search", json={"user_id": user, "query": text}).status_code == 422
    place = {"user_id": user, "namespace": ["a", "b"], "key": text}
    assert client.put("/v1/agents/words/items", params=place, json={"content": "c"}).status_code == 422
    assert client.get(f"/v1/agents/mind/sessions/{quote(text)}/working", params={"user_id": user}).status_code == 422


def raw(stack: Stack, method: str, target: bytes, body: Any = None, **headers: bytes) -> tuple[int, Any]:
    """Send a request with a raw target and raw headers; return status and JSON."""
    where, content = urlsplit(stack.api_url), b"" if body is None else json.dumps(body).encode()
    sent = {"Host": b"localhost", "Content-Type": b"application/json", "Content-Length": str(len(content)).encode()}
    lines = [method.encode() + b" " + target + b" HTTP/1.1"]
    lines += [name.replace("_", "-").encode() + b": " + value for name, value in (sent | headers).items()]
    with socket.create_connection((str(where.hostname), where.port or 80), timeout=20) as connection:
        connection.sendall(b"\r\n".join([*lines, b"", content]))
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        content = answer.read()
    return answer.status, json.loads(content) if content else None


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


MCP_HEADERS = {"Accept": b"application/json, text/event-stream", "X_AgentMemory_Agent": b"words"}


@pytest.mark.parametrize("around", [(b"", b""), (b"", b"  "), (b"\t ", b"\t")])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_user_in_header_equals_user_in_body(
    stack: Stack, client: httpx.Client, composed: str, decomposed: str, form: str, around: tuple[bytes, bytes]
) -> None:
    name = composed if form == "NFC" else decomposed
    header = around[0] + name.encode() + around[1]
    status, document = raw(
        *(stack, "POST", b"/mcp", call("remember", content="Likes tea")),
        **MCP_HEADERS,
        X_AgentMemory_User=header,
    )
    assert (status, document["result"].get("isError", False)) == (200, False)

    listed = client.get("/v1/agents/words/memories", params={"user_id": composed}).json()["results"]
    assert [(each["user_id"], each["content"]) for each in listed] == [(composed, "Likes tea")]


@pytest.mark.parametrize("header", ["X-AgentMemory-User", "X-AgentMemory-Agent", "Idempotency-Key", "Last-Event-ID"])
@pytest.mark.parametrize("target", [b"/mcp", b"/v1/agents/probe/memories"])
def test_header_without_utf8_is_400(stack: Stack, user: str, header: str, target: bytes) -> None:
    body = {"user_id": user, "content": "c", "vector": VECTOR}
    status, document = raw(stack, "POST", target, body, **{header.replace("-", "_"): "Zo\u00eb".encode("latin-1")})

    assert (status, document["type"], document["errors"][0]["field"]) == (400, "/problems/bad-request", header)
    assert header in document["detail"]


def test_other_headers_may_be_any_bytes(stack: Stack) -> None:
    assert raw(stack, "GET", b"/v1/agents", X_Proxy=b"\xff\xfe")[0] == 200


def test_idempotency_key_in_header_is_utf8(stack: Stack, user: str) -> None:
    body = {"user_id": user, "content": "c", "vector": VECTOR}
    keys = ["cl\u00e9".encode(), "cl\u0065\u0301".encode() + b" ", "cl\u00ea".encode()]
    stored = [raw(stack, "POST", b"/v1/agents/probe/memories", body, Idempotency_Key=key) for key in keys[:2]]

    assert len({document["id"] for _, document in stored}) == 1
    assert raw(stack, "POST", b"/v1/agents/probe/memories", body | {"content": "d"}, Idempotency_Key=keys[0])[0] == 409
    assert raw(stack, "POST", b"/v1/agents/probe/memories", body | {"content": "d"}, Idempotency_Key=keys[2])[0] == 201


@pytest.mark.parametrize("sent", [b"%FF", b"Zo%EB", b"%ED%A0%80"])
def test_query_without_utf8_is_400(stack: Stack, sent: bytes) -> None:
    status, document = raw(stack, "GET", b"/v1/agents/probe/memories?limit=5&user_id=" + sent)

    assert (status, document["errors"][0]["field"]) == (400, "user_id")


def test_path_without_utf8_is_400(stack: Stack) -> None:
    status, document = raw(stack, "GET", b"/v1/agents/mind/sessions/%FF/working?user_id=u")

    assert (status, document["errors"][0]["field"]) == (400, "path")
