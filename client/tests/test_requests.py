"""Content of requests: valid tokens, escaped path segments, times in filters."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from agentmemory_client import ApiError, AsyncClient, Client, User
from agentmemory_client.langgraph_store import AgentMemoryStore

BAD_TOKENS = [
    "secret\n",
    "\nsecret",
    "sec\r\nret",
    "sécret",
    "secret ",
    "sec\x00ret",
    "sec\tret",
    "secret\u2028",
    "机密",
]
WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class RequestRecorder:
    """Records the requests of a client and rejects each with 422."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(422, json={"detail": "not now"})

    def client(self, **options: Any) -> Client:
        """Return a client that sends its requests to this recorder."""
        client = Client("http://a", **options)
        client.http = httpx.Client(base_url="http://a", transport=httpx.MockTransport(self))
        return client

    @property
    def body(self) -> Any:
        """JSON body of the last request."""
        return json.loads(self.requests[-1].content)


@pytest.mark.parametrize("token", BAD_TOKENS, ids=ascii)
@pytest.mark.parametrize(
    "make", [Client, AsyncClient, lambda token: AgentMemoryStore("a", user_id="u", token=token)], ids=["c", "a", "l"]
)
def test_invalid_token_is_rejected_and_not_shown(make: Callable[..., Any], token: str) -> None:
    with pytest.raises(ValueError, match=r"^token: ") as raised:
        make(token=token)

    assert_hidden(raised.value, token)


@pytest.mark.parametrize("token", BAD_TOKENS, ids=ascii)
def test_invalid_token_of_callable_is_not_sent(token: str) -> None:
    recorder = RequestRecorder()

    with recorder.client(token=lambda: token) as client, pytest.raises(ValueError, match=r"^token: ") as raised:
        client.agent("a").info()

    assert recorder.requests == []
    assert_hidden(raised.value, token)


def assert_hidden(error: BaseException, token: str) -> None:
    for part in (error, error.__cause__, error.__context__):
        assert token.strip() not in str(part)
        assert "ret" not in str(part).replace("retries", "")


NAMED: list[tuple[Callable[[User, str], object], str]] = [
    (lambda user, name: user.working(name), "/v1/agents/a/sessions/{}/working"),
    (lambda user, name: user.entity(name), "/v1/agents/a/entities/{}"),
    (lambda user, name: user.history(name), "/v1/agents/a/memories/{}/history"),
    (lambda user, name: user.delete(name), "/v1/agents/a/memories/{}"),
]


@pytest.mark.parametrize(("name", "sent"), [(".", "%2E"), ("..", "%2E%2E"), ("...", "..."), ("a/../b", "a%2F..%2Fb")])
@pytest.mark.parametrize(("call", "path"), NAMED)
def test_dots_in_names_are_escaped(call: Callable[[User, str], object], path: str, name: str, sent: str) -> None:
    recorder = RequestRecorder()

    with recorder.client() as client, pytest.raises(ApiError):
        call(client.agent("a").user("u"), name)

    assert recorder.requests[0].url.raw_path.partition(b"?")[0].decode() == path.format(sent)


@pytest.mark.parametrize("name", [".", ".."])
def test_dots_in_agent_names_are_escaped(name: str) -> None:
    recorder = RequestRecorder()

    with recorder.client() as client, pytest.raises(ApiError):
        client.agent(name).stats()

    assert recorder.requests[0].url.raw_path == f"/v1/agents/{name.replace('.', '%2E')}/stats".encode()


def test_change_without_options_is_rejected() -> None:
    recorder = RequestRecorder()

    with (
        recorder.client() as client,
        pytest.raises(ValueError, match=r"change: nothing to change: give one of importance"),
    ):
        client.agent("a").user("u").change("i")

    assert recorder.requests == []


async def test_async_change_without_options_is_rejected() -> None:
    async with AsyncClient("http://a") as client:
        with pytest.raises(ValueError, match="change: nothing to change"):
            await client.agent("a").user("u").change("i")


FILTERS = {
    "AND": [{"created_at": {"gte": WHEN, "lt": WHEN}}, {"NOT": [{"valid_from": WHEN}]}],
    "expires_at": {"in": [WHEN]},
    "metadata.n": {"eq": 1},
}
SENT = {
    "AND": [
        {"created_at": {"gte": WHEN.isoformat(), "lt": WHEN.isoformat()}},
        {"NOT": [{"valid_from": WHEN.isoformat()}]},
    ],
    "expires_at": {"in": [WHEN.isoformat()]},
    "metadata.n": {"eq": 1},
}


def test_times_in_filters_are_sent_as_text() -> None:
    recorder = RequestRecorder()

    with recorder.client() as client:
        user = client.agent("a").user("u")
        for call in (user.search_fields, lambda fields, filters: user.would_forget(filters=filters)):
            with pytest.raises(ApiError):
                call(["content"], filters=FILTERS)
            assert recorder.body["filters"] == SENT


def test_idempotency_key_may_be_unicode() -> None:
    recorder = RequestRecorder()

    with recorder.client() as client, pytest.raises(ApiError):
        client.agent("a").user("u").add("c", idempotency_key="Zoë")

    assert dict(recorder.requests[0].headers.raw)[b"Idempotency-Key"] == "Zoë".encode()
