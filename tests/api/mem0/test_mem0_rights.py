"""Rights, limits and switches of mem0's dialects: they open no way around those of the native routes."""

import json
from typing import Any
from uuid import uuid4

import httpx
import pytest

from agentmemory_operator.entrypoints.api.identity.auth import TokenGuard
from agentmemory_operator.entrypoints.api.load.request_slots import Limits
from agentmemory_operator.entrypoints.api.mem0.mem0_routes import ENDPOINTS
from tests.support.web.api_stack import Stack, running_api
from tests.support.web.mem0_site import OPEN, Mem0Site

UUID = str(uuid4())
BODIES: dict[str, Any] = {
    "add": {"messages": "an intruder was here", "user_id": "ada"},
    "search": {"query": "tea", "filters": {"user_id": "ada"}},
    "list": {"filters": {"user_id": "ada"}},
}


def user_token(guarded: Mem0Site, user: str, *verbs: str) -> str:
    body = {"user_id": user, "verbs": list(verbs or ("read", "write"))}
    return str(guarded.native("POST", "/tokens", key="token-chief", json=body).json()["token"])


def status(guarded: Mem0Site, key: str, method: str, path: str, **arguments: Any) -> int:
    return guarded.call(method, path, key=key, **arguments).status_code


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Token token-writer"},
        {"Authorization": "token token-writer"},
        {"Authorization": "Bearer token-writer"},
        {"X-API-Key": "token-writer"},
        {"Authorization": "Token token-writer", "X-API-Key": "other"},
    ],
    ids=str,
)
def test_key_is_accepted(headers: dict[str, str], guarded: Mem0Site) -> None:
    assert guarded.http.get("/mem0/mem0-guarded/v1/ping/", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Token invalid-key-12345"},
        {"Authorization": "Token"},
        {"Authorization": "token-writer"},
        {"X-API-Key": "invalid-key-12345"},
        {"Authorization": "Token other", "X-API-Key": "token-writer"},
    ],
    ids=str,
)
def test_wrong_key_is_rejected(headers: dict[str, str], guarded: Mem0Site) -> None:
    answer = guarded.http.get("/mem0/mem0-guarded/v1/ping/", headers=headers)

    assert answer.status_code == 401
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json()["detail"]


def test_native_routes_accept_only_bearer_tokens(guarded: Mem0Site) -> None:
    for headers in ({"Authorization": "Token token-chief"}, {"X-API-Key": "token-chief"}):
        assert guarded.http.get("/v1/agents/mem0-guarded", headers=headers).status_code == 401


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
def test_endpoint_requires_its_verb(endpoint: Any, guarded: Mem0Site) -> None:
    path = endpoint.path.replace(":path", "").format(id=UUID, entity_type="user", name="ada")
    others = [verb for verb in ("read", "write") if verb != endpoint.verb]

    answer = guarded.call(endpoint.method, path, key=user_token(guarded, "ada", *others))
    assert answer.status_code == 403
    assert f"not {endpoint.verb}" in answer.json()["detail"]
    assert guarded.call(endpoint.method, path, key="token-stranger").status_code == 404


def test_user_token_is_bound_to_its_user(guarded: Mem0Site) -> None:
    ada, bob = user_token(guarded, "ada"), user_token(guarded, "bob")
    secret = guarded.add("the safe opens with 4711", "bob", key=bob)

    for key in (ada, "token-stranger"):
        for method in ("GET", "PUT", "DELETE"):
            body = {"json": {"text": "an intruder was here"}} if method == "PUT" else {}
            assert status(guarded, key, method, f"/v1/memories/{secret}/", **body) == 404
        assert status(guarded, key, "GET", f"/v1/memories/{secret}/history/") == 404
        assert status(guarded, key, "GET", f"/v1/event/{secret}/") == 404
    batch = {"memories": [{"memory_id": secret, "text": "an intruder was here"}]}
    assert status(guarded, ada, "PUT", "/v1/batch/", json=batch) == 404
    assert status(guarded, ada, "DELETE", "/v1/batch/", json=batch) == 404
    assert guarded.call("GET", f"/v1/memories/{secret}/", key=bob).json()["memory"] == "the safe opens with 4711"


@pytest.mark.parametrize(
    "filters",
    [
        {"user_id": "bob"},
        {"user_id": {"in": ["ada", "bob"]}},
        {"OR": [{"user_id": "ada"}, {"user_id": "bob"}]},
        {"OR": [{"user_id": "ada"}, {"NOT": [{"user_id": "ada"}]}]},
        {"NOT": [{"user_id": "ada"}]},
        {"user_id": {"ne": "ada"}},
        {"user_id": "*"},
        {"OR": [{"user_id": "*"}, {"run_id": "*"}]},
        {"run_id": "*"},
        {},
    ],
    ids=str,
)
def test_filters_never_reach_another_user(filters: Any, guarded: Mem0Site) -> None:
    ada, bob = user_token(guarded, "ada"), user_token(guarded, "bob")
    guarded.add("the safe opens with 4711", "bob", key=bob, run_id="r1")
    guarded.add("Ada drinks tea", "ada", key=ada, run_id="r1")

    for path, body in (("/v3/memories/", {}), ("/v3/memories/search/", {"query": "safe"}), ("/search", {"query": "x"})):
        answer = guarded.call("POST", path, key=ada, json={"filters": filters, **body})
        assert "safe opens" not in answer.text
        assert answer.status_code in (200, 403)
    assert "safe opens" not in guarded.call("GET", "/v1/entities/", key=ada).text


def test_user_token_implies_its_user(guarded: Mem0Site) -> None:
    ada = user_token(guarded, "ada")
    text = f"Ada drinks tea {uuid4()}"
    guarded.call("POST", "/v3/memories/add/", key=ada, json={"messages": text, "infer": False})

    found = guarded.call("POST", "/v3/memories/", key=ada, json={"page_size": 1}).json()["results"]
    assert [(memory["user_id"], memory["memory"]) for memory in found] == [("ada", text)]
    [entity] = guarded.call("GET", "/v1/entities/", key=ada).json()["results"]
    assert entity["name"] == "ada"


@pytest.mark.parametrize("name", BODIES)
def test_other_user_in_a_body_is_forbidden(name: str, guarded: Mem0Site) -> None:
    path = {"add": "/v3/memories/add/", "search": "/v3/memories/search/", "list": "/v3/memories/"}[name]
    bob = user_token(guarded, "bob")

    assert status(guarded, bob, "POST", path, json=BODIES[name]) == 403


def test_user_in_filters_of_an_addition_is_checked(guarded: Mem0Site) -> None:
    body = {"messages": "an intruder was here", "filters": {"user_id": "ada"}}

    assert status(guarded, user_token(guarded, "bob"), "POST", "/v3/memories/add/", json=body) == 403


def test_malformed_scope_in_filters_of_an_addition_is_rejected(guarded: Mem0Site) -> None:
    body = {"messages": "an intruder was here", "filters": {"user_id": "group:a b"}}

    assert status(guarded, user_token(guarded, "bob"), "POST", "/v3/memories/add/", json=body) == 400


def test_everyone_needs_admin(guarded: Mem0Site) -> None:
    everyone = {"filters": {"user_id": "*"}}

    assert status(guarded, "token-writer", "POST", "/v3/memories/", json=everyone) == 403
    assert status(guarded, "token-writer", "GET", "/v1/entities/") == 403
    assert status(guarded, "token-chief", "POST", "/v3/memories/", json=everyone) == 200
    assert status(guarded, "token-chief", "GET", "/v1/entities/") == 200


def test_id_in_stored_metadata_is_not_trusted(guarded: Mem0Site) -> None:
    """A user cannot make an administrator's client change another user's memory by storing its id."""
    text = uuid4().hex
    secret = guarded.add(text, "bob", key=user_token(guarded, "bob"))
    ada = user_token(guarded, "ada")
    trap = {"user_id": "ada", "content": uuid4().hex, "metadata": {"mem0": {"id": secret, "mark": "0" * 16}}}
    stored = guarded.native("POST", "/memories", key=ada, json=trap).json()["id"]

    body = {"filters": {"user_id": "ada", "memory_ids": [secret, stored]}}
    [listed] = guarded.call("POST", "/v3/memories/", key="token-chief", json=body).json()["results"]
    assert listed["id"] == stored
    updated = guarded.call("PUT", f"/v1/memories/{stored}/", key=ada, json={"text": uuid4().hex}).json()
    assert updated["id"] == stored
    [listed] = guarded.call("POST", "/v3/memories/", key="token-chief", json=body).json()["results"]
    assert listed["id"] == stored
    assert guarded.texts({"user_id": "bob", "memory_ids": [secret]}, key="token-chief") == [text]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/v1/memories/?user_id=*"),
        ("DELETE", "/v1/memories/?user_id=eve"),
        ("DELETE", "/v2/entities/user/eve/"),
        ("DELETE", "/v2/entities/run/r1/"),
        ("POST", "/reset"),
    ],
)
def test_bound_account_deletes_only_its_users(method: str, path: str, guarded: Mem0Site) -> None:
    guarded.add("Eve drinks tea", "eve", key="token-writer", run_id="r1")

    assert status(guarded, "token-bound", method, path) == 403
    assert guarded.texts({"user_id": "eve"}, key="token-writer") == ["Eve drinks tea"]


def test_shared_scope_needs_its_right(guarded: Mem0Site) -> None:
    body = {"messages": "all drink tea", "user_id": "global"}

    assert status(guarded, "token-chief", "POST", "/v3/memories/add/", json=body) == 403


def test_author_is_the_caller(guarded: Mem0Site) -> None:
    memory_id = guarded.add(uuid4().hex, "ada", key="token-writer", author="somebody")
    memory = guarded.native("GET", f"/memories/{memory_id}", key="token-writer", params={"user_id": "ada"}).json()

    assert memory["author"] == "agents/writer"


def test_dialects_are_off_by_default(stack: Stack, client: httpx.Client) -> None:
    assert client.get("/mem0/probe/v1/ping/").status_code == 404


def test_foreign_pages_are_rejected(site: Mem0Site) -> None:
    answer = site.call("GET", "/v1/ping/", headers={"Origin": "https://evil.example"})

    assert answer.status_code == 403
    assert answer.json()["detail"]


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_bodies_are_limited(method: str, site: Mem0Site) -> None:
    path = "/v1/batch/" if method == "DELETE" else "/v3/memories/"
    content = json.dumps({"memories": [{"memory_id": UUID, "text": "x" * (1 << 20)}]})
    answer = site.call(method, path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413

    answer = site.call(method, path, content=b"{", headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    answer = site.call(method, path, content=b"{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415


def test_overload_is_answered_as_mem0_does(mem0_stack: Stack) -> None:
    with (
        running_api(
            mem0_stack.qdrant_url, OPEN, guard=TokenGuard("k"), limits=Limits(caller_rate=1), serves_mem0=True
        ) as stack,
        httpx.Client(base_url=stack.api_url, headers={"Authorization": "Token k"}) as http,
    ):
        answers = [http.get("/mem0/mem0-open/v1/ping/") for _ in range(8)]

    [rejected, *_] = [answer for answer in answers if answer.status_code == 429]
    assert rejected.headers["Retry-After"]
    assert rejected.json()["detail"]
