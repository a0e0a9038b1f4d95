"""What the client does when the API is busy, away or out of time: a server that answers as each test says."""

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
    """Answers in order, and what was asked."""

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
def test_a_write_is_repeated_under_one_key_until_it_is_stored(script: Script, status: int) -> None:
    script.answers = [refused(status), refused(status), JSONResponse(STORED, 201)]

    with Client(script.url) as api:
        stored = api.agent("a").user("u").add("c")

    assert stored.id == "i"
    assert len(script.keys) == 3
    assert len(set(script.keys)) == 1
    assert script.keys[0]


async def test_the_asynchronous_client_repeats_too(script: Script) -> None:
    script.answers = [refused(503), JSONResponse(STORED, 201)]

    async with AsyncClient(script.url, token="t") as api:
        stored = await api.agent("a").user("u").add("c")

    assert stored.id == "i"
    assert script.tokens == ["Bearer t", "Bearer t"]


def test_a_token_that_is_renewed_is_asked_for_at_each_attempt(script: Script) -> None:
    script.answers = [refused(503), JSONResponse(STORED, 201)]
    tokens = iter(["old", "new"])

    with Client(script.url, token=lambda: next(tokens)) as api:
        api.agent("a").user("u").add("c")

    assert script.tokens == ["Bearer old", "Bearer new"]


def test_two_writes_have_two_keys(script: Script) -> None:
    script.answers = [JSONResponse(STORED, 201), JSONResponse(STORED, 201)]

    with Client(script.url) as api:
        api.agent("a").user("u").add("c")
        api.agent("a").user("u").add("c")

    assert len(set(script.keys)) == 2


def test_it_gives_up_with_the_last_problem(script: Script) -> None:
    script.answers = [refused(503)] * 3

    with Client(script.url, retries=2) as api, pytest.raises(ApiError, match="503 Busy: later"):
        api.agent("a").user("u").search("q")

    assert script.answers == []


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 500, 502])
def test_what_another_attempt_would_not_mend_is_not_repeated(script: Script, status: int) -> None:
    script.answers = [refused(status)]

    with Client(script.url) as api, pytest.raises(ApiError) as raised:
        api.agent("a").user("u").add("c")

    assert raised.value.status == status


def test_a_deletion_whose_answer_was_lost_is_done_when_nothing_is_left(script: Script) -> None:
    script.answers = [refused(504), refused(404)]

    with Client(script.url) as api:
        api.agent("a").user("u").delete("i")

    assert script.answers == []


def test_a_deletion_of_what_never_was_is_an_error(script: Script) -> None:
    script.answers = [refused(404)]

    with Client(script.url) as api, pytest.raises(ApiError) as raised:
        api.agent("a").user("u").delete("i")

    assert raised.value.status == 404


EXPORTED = b'{"id":"i"}\n{"counts":{"memories":1}}\n'
IMPORTED = {"counts": {"lines": 1, "imported": 1, "present": 0, "failed": 0}, "errors": [], "more_errors": 0}


def test_an_export_is_asked_for_again_until_it_begins(script: Script) -> None:
    script.answers = [refused(503), Response(EXPORTED)]
    tokens = iter(["old", "new"])

    with Client(script.url, token=lambda: next(tokens)) as api:
        exported = list(api.agent("a").user("u").export())

    assert exported == [{"id": "i"}]
    assert script.tokens == ["Bearer old", "Bearer new"]


def test_an_export_that_breaks_off_is_not_begun_again(script: Script) -> None:
    script.answers = [Response(EXPORTED[:11]), Response(EXPORTED)]

    with Client(script.url) as api, pytest.raises(ApiUnreachable, match="broke off"):
        list(api.agent("a").user("u").export())

    assert len(script.answers) == 1


def test_an_import_of_lines_that_can_be_read_again_is_repeated_whole(script: Script) -> None:
    script.answers = [refused(503), JSONResponse(IMPORTED)]

    with Client(script.url) as api:
        told = api.agent("a").user("u").import_memories([b"{}\n", b"{}\n"])

    assert told.imported == 1
    assert script.bodies == [b"{}\n{}\n"] * 2


def test_an_import_of_an_iterator_is_sent_once(script: Script) -> None:
    script.answers = [refused(503), JSONResponse(IMPORTED)]

    with Client(script.url) as api, pytest.raises(ApiError, match="503"):
        api.agent("a").user("u").import_memories(iter([b"{}\n"]))

    assert len(script.answers) == 1


async def test_the_asynchronous_client_repeats_both(script: Script) -> None:
    script.answers = [refused(503), Response(EXPORTED), refused(429), JSONResponse(IMPORTED)]

    async with AsyncClient(script.url) as api:
        exported = [line async for line in api.agent("a").user("u").export()]
        told = await api.agent("a").user("u").import_memories([b"{}\n"])

    assert (exported, told.imported, script.answers) == ([{"id": "i"}], 1, [])


@pytest.mark.parametrize("make", [lambda: Response("<html>", 502), lambda: JSONResponse(["x"], 502)])
def test_an_error_of_something_before_the_api_is_an_error_too(script: Script, make: Callable[[], Any]) -> None:
    script.answers = [make()]

    with Client(script.url) as api, pytest.raises(ApiError) as raised:
        api.agent("a").user("u").get("i")

    assert (raised.value.status, raised.value.type) == (502, "")


@pytest.mark.parametrize(("retry_after", "waited"), [("0", 0.0), ("7", 7.0), ("600", 30.0)])
def test_it_waits_as_long_as_the_api_says_within_bounds(retry_after: str, waited: float) -> None:
    assert Connection().wait_s(0, retry_after) == waited


@pytest.mark.parametrize(("attempt", "longest"), [(0, 0.5), (1, 1.0), (3, 4.0), (20, 30.0)])
def test_otherwise_each_wait_is_up_to_twice_the_one_before(attempt: int, longest: float) -> None:
    waits = [Connection().wait_s(attempt, None) for _ in range(50)]

    assert all(longest / 2 <= wait <= longest for wait in waits)
