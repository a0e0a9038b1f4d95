"""Thousands of concurrent calls of one client, against a server that is slow or refuses excess calls."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentmemory_client import ApiError, AsyncClient, Client, Stored
from tests.support.web.http_server import serve

CALLS = 256


@dataclass
class Narrow:
    """A server that refuses calls beyond a limit with 429.

    Attributes:
        grants: Maximum number of concurrent calls.
        takes_s: Duration of each call.
        per_second: Maximum calls per second; None for no limit.
        max_under_way: Highest number of concurrent calls so far.
        stored: Content of each stored memory; a repeated write appears twice.
    """

    grants: int = 10_000
    takes_s: float = 0.0
    per_second: int | None = None
    under_way: int = 0
    max_under_way: int = 0
    refused: int = 0
    stored: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: Request) -> Response:
        content = (await request.json())["content"]
        now = time.monotonic()
        rate = sum(at > now - 1 for at in self.times[-100:])
        if self.under_way >= self.grants or (self.per_second is not None and rate >= self.per_second):
            self.refused += 1
            return JSONResponse({"title": "Busy", "detail": "later"}, 429, headers={"Retry-After": "1"})
        self.times.append(now)
        self.under_way += 1
        self.max_under_way = max(self.max_under_way, self.under_way)
        await asyncio.sleep(self.takes_s)
        self.under_way -= 1
        self.stored.append(content)
        return JSONResponse({"id": content, "event": "ADD", "supersedes": None, "recorded": True, "warnings": []}, 201)


@pytest.fixture
def server() -> Iterator[Narrow]:
    server = Narrow()
    with serve(Starlette(routes=[Route("/{path:path}", server.answer, methods=["POST"])])) as server.url:
        yield server


async def add_gathered(client: AsyncClient, number: int) -> list[Stored | BaseException]:
    user = client.agent("a").user("u")
    return await asyncio.gather(*(user.add(str(place)) for place in range(number)), return_exceptions=True)


def add_in_threads(client: Client, number: int, *, threads: int) -> list[Stored]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(client.agent("a").user("u").add, map(str, range(number))))


async def test_waiting_calls_do_not_time_out(server: Narrow) -> None:
    server.takes_s = 1.5

    # Longer in total than the timeout: with 64 at a time the last call waits at least 4.5 s and ends after 6 s.
    async with AsyncClient(server.url, timeout_s=5, retries=0) as client:
        results = await add_gathered(client, CALLS)

    assert [result for result in results if not isinstance(result, Stored)] == []
    assert sorted(server.stored) == sorted(map(str, range(CALLS)))
    assert 32 < server.max_under_way <= 64


def test_threads_wait_for_a_slot(server: Narrow) -> None:
    server.takes_s = 0.02

    with Client(server.url, timeout_s=2, retries=0, in_flight=4) as client:
        add_in_threads(client, 200, threads=100)

    assert len(server.stored) == 200
    assert server.max_under_way == 4


@pytest.mark.parametrize(("grants", "per_second"), [(3, None), (1, None), (10_000, 40)])
async def test_client_slows_down_to_accepted_rate(server: Narrow, grants: int, per_second: int | None) -> None:
    server.takes_s, server.grants, server.per_second = 0.005, grants, per_second

    async with AsyncClient(server.url) as client:
        results = await add_gathered(client, 80)

    assert server.refused > 0, "nothing was refused: the test shows nothing"
    assert [result for result in results if not isinstance(result, Stored)] == []
    assert sorted(server.stored) == sorted(map(str, range(80)))


def test_threads_slow_down_to_accepted_rate(server: Narrow) -> None:
    server.takes_s, server.grants = 0.005, 2

    with Client(server.url) as client:
        add_in_threads(client, 60, threads=30)

    assert server.refused > 0
    assert len(server.stored) == 60


async def test_final_refusal_releases_slots(server: Narrow) -> None:
    async with AsyncClient(server.url, retries=1, wait_max_s=0.01, in_flight=2) as client:
        server.grants = 0
        results = await add_gathered(client, 5)
        server.grants = 1
        stored = await client.agent("a").user("u").add("after")

    assert [isinstance(result, ApiError) and result.status for result in results] == [429] * 5
    assert stored.id == "after"


async def test_cancelled_calls_release_slots(server: Narrow) -> None:
    # Longer than the limit below; the server waits for its calls when it ends.
    server.takes_s = 2

    async with AsyncClient(server.url, in_flight=2) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(add_gathered(client, 50), 0.3)
        assert server.max_under_way == 2
        server.takes_s = 0
        stored = await asyncio.wait_for(client.agent("a").user("u").add("after"), 5)

    assert stored.id == "after"


async def test_pausing_call_releases_its_slot() -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(503 if "busy" in request.url.path else 200, headers={"Retry-After": "1"}, json={})

    async with AsyncClient("http://a", in_flight=1) as client:
        client.http = httpx.AsyncClient(base_url="http://a", transport=httpx.MockTransport(answer))
        busy = asyncio.create_task(client.agent("busy").tools())
        await asyncio.sleep(0.05)
        with pytest.raises(KeyError):
            await asyncio.wait_for(client.agent("free").tools(), 0.5)
        busy.cancel()

    assert len(asked) == 2


def test_import_may_read_an_export_of_same_client() -> None:
    lines = b'{"id":"i"}\n{"counts":{}}\n'

    class Lines:
        """Lines that start a new export on each iteration."""

        def __iter__(self) -> Iterator[bytes]:
            return (b"x" for _ in client.agent("a").user("from").export())

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, content=lines)
        request.read()
        answers.append(429)
        return httpx.Response(429, headers={"Retry-After": "0"}, json={"detail": "later"})

    answers: list[int] = []
    with Client("http://a", in_flight=1, retries=2) as client:
        client.http = httpx.Client(base_url="http://a", transport=httpx.MockTransport(answer))
        copying = threading.Thread(target=_refused, args=(client, Lines()), daemon=True)
        copying.start()
        copying.join(10)

    assert not copying.is_alive()
    assert answers == [429] * 3


def _refused(client: Client, lines: object) -> None:
    with pytest.raises(ApiError):
        client.agent("a").user("to").import_memories(lines)  # type: ignore[arg-type] # an iterable


@pytest.mark.parametrize("in_flight", [0, -1])
def test_in_flight_must_be_positive(in_flight: int) -> None:
    with pytest.raises(ValueError, match="in_flight"):
        Client(in_flight=in_flight)
