"""Signed memories: a hook's key stores memories of one user without a token."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from agentmemory_operator.entrypoints.api.identity.auth import TokenGuard
from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import create_collection, running_api
from tests.support.web.endpoints import VECTOR

KEY = b"0123456789abcdef0123456789abcdef"
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
HOOKED = agent_document(
    "hooked",
    lifecycle={"scrubSecrets": True},
    hooks=[
        {"name": "crm", "secretRef": {"name": "hook", "key": "crm"}},
        {"name": "other", "secretRef": {"name": "hook", "key": "other"}},
        {"name": "keyless", "secretRef": {"name": "hook", "key": "gone"}},
    ],
)
PATH = "/v1/agents/hooked/hooks/crm"
TURNS = [{"role": "user", "content": "I want to cancel", "vector": VECTOR}]


@pytest.fixture(scope="module")
def api(qdrant_url: str) -> Iterator[httpx.Client]:
    create_collection(qdrant_url, HOOKED)
    secrets = {("agents", "hook", "crm"): SECRET, ("agents", "hook", "other"): "o" * 32}
    guard = TokenGuard("t")
    with (
        running_api(qdrant_url, HOOKED, guard=guard, secrets=secrets) as stack,
        httpx.Client(base_url=stack.api_url, timeout=20) as client,
    ):
        yield client


def signed(body: Any, *, id: str = "", key: bytes = KEY, age_s: int = 0) -> dict[str, Any]:
    content, id = json.dumps(body).encode(), id or f"msg_{uuid4().hex}"
    at = str(int(time.time()) - age_s)
    mac = hmac.new(key, b".".join((id.encode(), at.encode(), content)), hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(mac).decode()}"
    headers = {"webhook-id": id, "webhook-timestamp": at, "webhook-signature": signature}
    return {"content": content, "headers": headers | {"Content-Type": "application/json"}}


def memory_of(user: str, **more: Any) -> dict[str, Any]:
    return {"memory": {"user_id": user, "content": "Ada, password: hunter2", "vector": VECTOR} | more}


def listed(api: httpx.Client, user: str) -> list[dict[str, Any]]:
    answer = api.get("/v1/agents/hooked/memories", params={"user_id": user}, headers={"Authorization": "Bearer t"})
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


def test_signed_memory_is_stored_once_and_scrubbed(api: httpx.Client, user: str) -> None:
    """The author of the memory is the hook. Another body under the same message id gets 409."""

    sent = signed(memory_of(user), id="msg_1")
    first, again = api.post(PATH, **sent), api.post(PATH, **sent)
    assert (first.status_code, again.status_code) == (202, 202), first.text
    assert first.json()["id"] == again.json()["id"]
    [memory] = listed(api, user)
    assert (memory["id"], memory["author"]) == (first.json()["id"], "hook:crm")
    assert memory["content"] == "Ada, password: [REDACTED:password]"
    assert api.post(PATH, **signed(memory_of(user, content="else"), id="msg_1")).status_code == 409


WRONG: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another key": lambda body: signed(body, key=b"x" * 32),
    "another hook's key": lambda body: signed(body, key=b"o" * 32),
    "five minutes old": lambda body: signed(body, age_s=302),
    "five minutes ahead": lambda body: signed(body, age_s=-302),
    "not signed": lambda body: signed(body) | {"headers": {"Content-Type": "application/json"}},
    "another body": lambda body: signed(body) | {"content": signed(memory_of("eve"))["content"]},
    "invalid time": lambda body: _with(signed(body), "webhook-timestamp", "1e9"),
    "another id": lambda body: _with(signed(body), "webhook-id", "msg_2"),
    "token instead of signature": lambda body: (
        signed(body) | {"headers": {"Content-Type": "application/json", "Authorization": "Bearer t"}}
    ),
}


def _with(sent: dict[str, Any], header: str, value: str) -> dict[str, Any]:
    return sent | {"headers": sent["headers"] | {header: value}}


def test_signed_conversation_is_stored_once(api: httpx.Client, user: str) -> None:
    conversation = {"user_id": user, "messages": TURNS}
    answers = [api.post(PATH, **signed(conversation, id="msg_talk")) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json() == answers[1].json()
    assert [(memory["content"], memory["author"]) for memory in listed(api, user)] == [("I want to cancel", "hook:crm")]


@pytest.mark.parametrize("wrong", WRONG)
def test_unsigned_request_is_401_without_details(api: httpx.Client, user: str, wrong: str) -> None:
    answer = api.post(PATH, **WRONG[wrong](memory_of(user)))
    keyless = api.post("/v1/agents/hooked/hooks/keyless", **signed(memory_of(user)))
    assert (answer.status_code, keyless.status_code) == (401, 401)
    assert answer.json()["detail"] == keyless.json()["detail"]
    assert listed(api, user) == []


def test_unknown_agent_and_hook_look_alike(api: httpx.Client) -> None:
    answers = [
        api.post(f"/v1/agents/{agent}/hooks/{hook}", **signed(memory_of("u")))
        for agent, hook in (("hooked", "nowhere"), ("nowhere", "nowhere"))
    ]
    assert [answer.status_code for answer in answers] == [404, 404]
    texts = [answer.json()["detail"].replace("hooked", "nowhere") for answer in answers]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"user_id": "u", "messages": []}, 422, "messages"),
        ({"messages": [{"role": "user", "content": "c"}]}, 422, "user_id"),
        ({"user_id": "global", "messages": TURNS}, 403, "a hook stores memories of one user only"),
        ({"user_id": "u", "messages": TURNS, "author": "somebody"}, 403, "author"),
        (memory_of("u") | {"messages": TURNS}, 422, "memory"),
        ({"user_id": "u", "content": "c"}, 422, "memory"),
        (memory_of("u", author="somebody"), 403, "author"),
        (memory_of("global"), 403, "a hook stores memories of one user only"),
        (memory_of("u", content=" "), 422, "memory.content"),
    ],
)
def test_wrong_signed_body_is_explained(api: httpx.Client, body: Any, status: int, words: str) -> None:
    answer = api.post(PATH, **signed(body))
    assert answer.status_code == status
    assert words in answer.text
