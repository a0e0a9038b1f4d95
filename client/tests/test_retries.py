"""Retries of the client against a server that returns scripted responses."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentmemory_client import ApiError, ApiUnreachable, AsyncClient, Client
from agentmemory_client.exchange import Connection
from tests.support.web.http_server import serve

STORED = {"id": "i", "event": "ADD", "supersedes": None, "recorded": True, "warnings": [], "new_field": 1}


@dataclass
class Script:
    """A server that returns scripted responses and records the requests."""

    answers: list[Response] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: Request) -> Response:
        self.keys.append(request.headers.get("idempotency-key"))
        self.tokens.append(request.headers.get("authorization"))
        self.bodies.append(await request.body())
        return self.answers.pop(0)


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script()
    methods = ["GET", "POST", "DELETE"]
    with serve(Starlette(routes=[Route("/{path:path}", script.answer, methods=methods)])) as script.url:
        yield script


def refused(status: int, retry_after: str | None = "0") -> Response:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return JSONResponse({"title": "Busy", "status": status, "detail": "later"}, status, headers=headers)


@pytest.mark.parametrize("status", [429, 503, 504])
def test_write_is_retried_under_one_key(script: Script, status: int) -> None:
    script.answers = [refused(status), refused(status), JSONResponse(STORED, 201)]

    with Client(script.url) as api:
        stored = api.agent("a").user("u").add("c")

    assert stored.id == "i"
    assert len(script.keys) == 3
    assert len(set(script.keys)) == 1
    assert script.keys[0]


async def test_async_client_retries_too(script: Script) -> None:
    script.answers = [refused(503), JSONResponse(STORED, 201)]

    async with AsyncClient(script.url, token="t") as api:
        stored = await api.agent("a").user("u").add("c")

    assert stored.id == "i"
    assert script.tokens == ["Bearer t", "Bearer t"]


def test_token_callable_is_called_for_each_attempt(script: Script) -> None:
    script.answers = [refused(503), JSONResponse(STORED, 201)]
    tokens = iter(["old", "new"])

    with Client(script.url, token=lambda: next(tokens)) as api:
        api.agent("a").user("u").add("c")

    assert script.tokens == ["Bearer old", "Bearer new"]


def test_two_writes_have_different_keys(script: Script) -> None:
    script.answers = [JSONResponse(STORED, 201), JSONResponse(STORED, 201)]

    with Client(script.url) as api:
        api.agent("a").user("u").add("c")
        api.agent("a").user("u").add("c")

    assert len(set(script.keys)) == 2


def test_last_error_is_raised_after_all_retries(script: Script) -> None:
    script.answers = [refused(503)] * 3

    with Client(script.url, retries=2) as api, pytest.raises(ApiError, match="503 Busy: later"):
        api.agent("a").user("u").search("q")

    assert script.answers == []


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 500, 502])
def test_other_errors_are_not_retried(script: Script, status: int) -> None:
    script.answers = [refused(status)]

    with Client(script.url) as api, pytest.raises(ApiError) as raised:
        api.agent("a").user("u").add("c")

    assert raised.value.status == status


def test_retried_deletion_accepts_404(script: Script) -> None:
    script.answers = [refused(504), refused(404)]

    with Client(script.url) as api:
        api.agent("a").user("u").delete("i")

    assert script.answers == []


def test_first_404_of_a_deletion_is_an_error(script: Script) -> None:
    script.answers = [refused(404)]

    with Client(script.url) as api, pytest.raises(ApiError) as raised:
        api.agent("a").user("u").delete("i")

    assert raised.value.status == 404


EXPORTED = b'{"id":"i"}\n{"counts":{"memories":1}}\n'
IMPORTED = {"counts": {"lines": 1, "imported": 1, "present": 0, "failed": 0}, "errors": [], "more_errors": 0}


def test_export_is_retried_until_it_starts(script: Script) -> None:
    script.answers = [refused(503), Response(EXPORTED)]
    tokens = iter(["old", "new"])

    with Client(script.url, token=lambda: next(tokens)) as api:
        exported = list(api.agent("a").user("u").export())

    assert exported == [{"id": "i"}]
    assert script.tokens == ["Bearer old", "Bearer new"]


def test_interrupted_export_is_not_restarted(script: Script) -> None:
    script.answers = [Response(EXPORTED[:11]), Response(EXPORTED)]

    with Client(script.url) as api, pytest.raises(ApiUnreachable, match="broke off"):
        list(api.agent("a").user("u").export())

    assert len(script.answers) == 1


def test_import_of_a_list_is_retried(script: Script) -> None:
    script.answers = [refused(503), JSONResponse(IMPORTED)]

    with Client(script.url) as api:
        result = api.agent("a").user("u").import_memories([b"{}\n", b"{}\n"])

    assert result.imported == 1
    assert script.bodies == [b"{}\n{}\n"] * 2


def test_import_of_an_iterator_is_sent_once(script: Script) -> None:
    script.answers = [refused(503), JSONResponse(IMPORTED)]

    with Client(script.url) as api, pytest.raises(ApiError, match="503"):
        api.agent("a").user("u").import_memories(iter([b"{}\n"]))

    assert len(script.answers) == 1


async def test_async_export_and_import_are_retried(script: Script) -> None:
    script.answers = [refused(503), Response(EXPORTED), refused(429), JSONResponse(IMPORTED)]

    async with AsyncClient(script.url) as api:
        exported = [line async for line in api.agent("a").user("u").export()]
        result = await api.agent("a").user("u").import_memories([b"{}\n"])

    assert (exported, result.imported, script.answers) == ([{"id": "i"}], 1, [])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Response("<html>", 502),
        lambda: JSONResponse(["x"], 502),
        lambda: Response("<html>log in", 200),
        lambda: Response(b"\xff", 200),
    ],
)
def test_answer_of_a_proxy_is_an_api_error(script: Script, make: Callable[[], Any]) -> None:
    script.answers = [make()]
    status = script.answers[0].status_code

    with Client(script.url) as api, pytest.raises(ApiError) as raised:
        api.agent("a").user("u").get("i")

    assert (raised.value.status, raised.value.type) == (status, "")


@pytest.mark.parametrize(("retry_after", "waited"), [("0", 0.0), ("7", 7.0), ("600", 30.0)])
def test_retry_after_is_capped(retry_after: str, waited: float) -> None:
    assert Connection().backoff_s(0, retry_after) == waited


@pytest.mark.parametrize(("attempt", "longest"), [(0, 0.5), (1, 1.0), (3, 4.0), (20, 30.0)])
def test_backoff_doubles_with_jitter(attempt: int, longest: float) -> None:
    waits = [Connection().backoff_s(attempt, None) for _ in range(50)]

    assert all(longest / 2 <= wait <= longest for wait in waits)
