"""What a call sends: tokens that a header can carry, names that reach what they name, times in filters."""

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


class Seen:
    """The requests that a client sent, each of which is refused."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(422, json={"detail": "not now"})

    def client(self, **options: Any) -> Client:
        """Return a client whose requests are kept."""
        client = Client("http://a", **options)
        client.http = httpx.Client(base_url="http://a", transport=httpx.MockTransport(self))
        return client

    @property
    def body(self) -> Any:
        """What the last request sent."""
        return json.loads(self.requests[-1].content)


@pytest.mark.parametrize("token", BAD_TOKENS, ids=ascii)
@pytest.mark.parametrize(
    "make", [Client, AsyncClient, lambda token: AgentMemoryStore("a", user_id="u", token=token)], ids=["c", "a", "l"]
)
def test_a_token_that_no_header_carries_is_refused_and_not_shown(make: Callable[..., Any], token: str) -> None:
    with pytest.raises(ValueError, match=r"^token: ") as raised:
        make(token=token)

    assert_hidden(raised.value, token)


@pytest.mark.parametrize("token", BAD_TOKENS, ids=ascii)
def test_nor_is_it_sent_where_a_function_returns_it(token: str) -> None:
    seen = Seen()

    with seen.client(token=lambda: token) as client, pytest.raises(ValueError, match=r"^token: ") as raised:
        client.agent("a").info()

    assert seen.requests == []
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
def test_a_name_of_dots_stays_a_name(call: Callable[[User, str], object], path: str, name: str, sent: str) -> None:
    seen = Seen()

    with seen.client() as client, pytest.raises(ApiError):
        call(client.agent("a").user("u"), name)

    assert seen.requests[0].url.raw_path.partition(b"?")[0].decode() == path.format(sent)


@pytest.mark.parametrize("name", [".", ".."])
def test_an_agent_of_dots_is_no_other_endpoint(name: str) -> None:
    seen = Seen()

    with seen.client() as client, pytest.raises(ApiError):
        client.agent(name).stats()

    assert seen.requests[0].url.raw_path == f"/v1/agents/{name.replace('.', '%2E')}/stats".encode()


def test_a_change_of_nothing_is_refused_before_it_is_sent() -> None:
    seen = Seen()

    with seen.client() as client, pytest.raises(ValueError, match=r"change: nothing to change: give one of importance"):
        client.agent("a").user("u").change("i")

    assert seen.requests == []


async def test_so_it_is_by_the_asynchronous_client() -> None:
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
    seen = Seen()

    with seen.client() as client:
        user = client.agent("a").user("u")
        for call in (user.search_fields, lambda fields, filters: user.would_forget(filters=filters)):
            with pytest.raises(ApiError):
                call(["content"], filters=FILTERS)
            assert seen.body["filters"] == SENT


def test_an_idempotency_key_in_any_language_is_sent() -> None:
    seen = Seen()

    with seen.client() as client, pytest.raises(ApiError):
        client.agent("a").user("u").add("c", idempotency_key="Zoë")

    assert dict(seen.requests[0].headers.raw)[b"Idempotency-Key"] == "Zoë".encode()
