"""Conditional writes: the headers that a call sends, its result, and its error."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agentmemory_client import Agent, Client, PreconditionFailed

HOME = ("memories", "u")
STORED = {"success": True, "memory_id": "m", "key": "k", "message": "stored", "etag": "new"}
MEMORY = {
    "id": "m",
    "user_id": "u",
    "content": "c",
    "type": "fact",
    "importance": 0.5,
    "created_at": "2026-01-02T03:04:05.000Z",
}


class ScriptedApi:
    """Answers requests in order, and records them."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answers.pop(0)

    @property
    def agent(self) -> Agent:
        client = Client("http://a", wait_max_s=0)
        client.http = httpx.Client(base_url="http://a", transport=httpx.MockTransport(self))
        return client.agent("a")


def failed(etag: str | None) -> httpx.Response:
    document = {"status": 412, "title": "The stored version is another", "detail": "read it", "etag": etag}
    return httpx.Response(412, json=document)


Write = Callable[[Agent, str | None], Any]
WRITES: list[Any] = [
    pytest.param(lambda agent, etag: agent.put_item(HOME, "c", key="k", if_match=etag), STORED, id="put"),
    pytest.param(lambda agent, etag: agent.delete_item(HOME, "k", if_match=etag), None, id="delete item"),
    pytest.param(lambda agent, etag: agent.user("u").change("m", pinned=True, if_match=etag), MEMORY, id="change"),
    pytest.param(lambda agent, etag: agent.user("u").delete("m", if_match=etag), None, id="delete"),
]


@pytest.mark.parametrize(
    ("etag", "sent"), [("abc", '"abc"'), ('"abc"', '"abc"'), ("*", "*")], ids=["field", "header", "any"]
)
@pytest.mark.parametrize(("write", "answer"), WRITES)
def test_etag_is_sent_in_quotes(write: Write, answer: Any, etag: str, sent: str) -> None:
    api = ScriptedApi(httpx.Response(200, json=answer) if answer else httpx.Response(204))

    write(api.agent, etag)

    [request] = api.requests
    assert request.headers["If-Match"] == sent
    assert b"if_match" not in request.content


@pytest.mark.parametrize(("write", "answer"), WRITES)
def test_empty_etag_sends_nothing(write: Write, answer: Any) -> None:
    """It would otherwise be an unconditional write."""
    api = ScriptedApi()

    with pytest.raises(ValueError, match="if_match: is empty"):
        write(api.agent, "")

    assert api.requests == []


@pytest.mark.parametrize(("write", "answer"), WRITES)
def test_failure_has_the_stored_etag(write: Write, answer: Any) -> None:
    api = ScriptedApi(failed("current"))

    with pytest.raises(PreconditionFailed, match="412 The stored version is another: read it") as failure:
        write(api.agent, "old")

    assert failure.value.etag == "current"
    assert len(api.requests) == 1, "a failed condition is not retried"


@pytest.mark.parametrize("etag", ["abc", None])
@pytest.mark.parametrize(("write", "answer"), WRITES[:3])
def test_retry_has_the_same_key(write: Write, answer: Any, etag: str | None) -> None:
    """So an attempt whose response was lost does not fail the condition of the next.

    And without a condition, the next one does not change or delete what another client has written in between.
    """
    unknown = httpx.Response(504, json={"detail": "unknown"})
    api = ScriptedApi(unknown, httpx.Response(200, json=answer) if answer else httpx.Response(204))

    write(api.agent, etag)

    assert len({request.headers["Idempotency-Key"] for request in api.requests}) == 1


def test_item_is_only_created_with_if_none_match() -> None:
    api = ScriptedApi(httpx.Response(200, json=STORED), httpx.Response(200, json=STORED))

    stored = api.agent.put_item(HOME, "c", key="k", if_none_match=True)
    api.agent.put_item(HOME, "c", key="k", if_none_match=False)

    assert stored.etag == "new"
    assert [request.headers.get("If-None-Match") for request in api.requests] == ["*", None]


def test_items_of_a_batch_have_conditions_and_errors() -> None:
    results = [STORED, {"error": json.loads(failed("current").content)}]
    api = ScriptedApi(httpx.Response(200, json={"results": results}))

    stored, refused = api.agent.put_items(
        [
            {"namespace": HOME, "content": "a", "if_none_match": True},
            {"namespace": HOME, "content": "b", "key": "k", "if_match": "old"},
        ]
    )

    items = json.loads(api.requests[0].content)["items"]
    assert [(item.get("if_match"), item.get("if_none_match")) for item in items] == [(None, True), ("old", None)]
    assert not isinstance(stored, Exception)
    assert isinstance(refused, PreconditionFailed)
    assert refused.etag == "current"


@pytest.mark.parametrize(
    ("headers", "etag"),
    [
        pytest.param({"ETag": '"abc"'}, "abc", id="strong"),
        pytest.param({"ETag": 'W/"abc"'}, "abc", id="weakened by a proxy"),
        pytest.param({}, None, id="older API"),
    ],
)
def test_read_memory_has_the_etag_of_the_header(headers: dict[str, str], etag: str | None) -> None:
    answers = [httpx.Response(200, json=MEMORY, headers=headers) for _ in range(3)]
    agent = ScriptedApi(*answers).agent

    read = agent.get_item(HOME, "k"), agent.user("u").get("m"), agent.user("u").change("m", pinned=True)

    assert [memory.etag for memory in read] == [etag] * 3
