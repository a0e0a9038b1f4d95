"""The bridge of `agentmemory mcp`: concurrent requests, cancellation, and what HTTP needs besides a message."""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx
import pytest

from agentmemory_client import AsyncClient
from agentmemory_operator.entrypoints.cli.mcp_bridge import MAX_CONCURRENT_REQUESTS, VERSION_KEY, McpBridge, read_lines

Json = dict[str, Any]


class Endpoint:
    """Replaces the API: keeps the requests, and holds back the responses until `is_open` is set."""

    def __init__(self, result: Callable[[Json], Json] = lambda _: {}) -> None:
        self.requests: list[httpx.Request] = []
        self.is_open = asyncio.Event()
        self._result = result

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        await self.is_open.wait()
        message = json.loads(request.content)
        if "id" not in message:
            return httpx.Response(202)
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": self._result(message)}
        return httpx.Response(200, json=answer)

    @property
    def headers(self) -> list[dict[str, str]]:
        names = ("mcp-protocol-version", "mcp-method", "mcp-name")
        return [{name: request.headers[name] for name in names if name in request.headers} for request in self.requests]


async def serve(endpoint: Endpoint, lines: AsyncIterator[bytes], headers: Mapping[str, str] = {}) -> list[Json]:
    """Run the bridge to the end of the lines; return what it wrote."""
    written: list[bytes] = []
    async with AsyncClient("http://api", token="t") as client:
        client.http = httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(endpoint.answer))
        async with client.http:
            await McpBridge(client, {"agent": "bot", "user_id": "ädä"}, headers, written.append).serve(lines)
    return [json.loads(line) for line in written]


async def lines_of(*messages: Json | Callable[[], Any]) -> AsyncIterator[bytes]:
    """Yield messages as lines; a function is called, and yields none."""
    for message in messages:
        if callable(message):
            await message()
        else:
            yield json.dumps(message).encode()


def request(number: int, method: str = "ping", **parameters: Any) -> Json:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}


async def test_target_and_token_are_sent() -> None:
    endpoint = Endpoint()
    endpoint.is_open.set()

    assert await serve(endpoint, lines_of(request(1))) == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
    [sent] = endpoint.requests
    assert dict(sent.url.params) == {"agent": "bot", "user_id": "ädä"}
    assert sent.headers["authorization"] == "Bearer t"


async def test_cancelled_request_gets_no_response() -> None:
    endpoint = Endpoint()
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}

    async def settle() -> None:
        while len(endpoint.requests) < 2:
            await asyncio.sleep(0)

    async def go_on() -> None:
        endpoint.is_open.set()

    unknown = cancelled | {"params": {"requestId": 7}}
    written = await serve(endpoint, lines_of(request(1), request(2), settle, cancelled, unknown, go_on))

    assert [message["id"] for message in written] == [2]


async def test_requests_are_concurrent_up_to_a_limit() -> None:
    endpoint = Endpoint()
    requests = [request(number) for number in range(MAX_CONCURRENT_REQUESTS + 3)]
    serving = asyncio.create_task(serve(endpoint, lines_of(*requests)))
    for _ in range(200):
        await asyncio.sleep(0)
    in_flight = len(endpoint.requests)
    endpoint.is_open.set()

    assert in_flight == MAX_CONCURRENT_REQUESTS
    assert sorted(message["id"] for message in await serving) == list(range(len(requests)))


async def test_cancellation_passes_waiting_requests() -> None:
    endpoint = Endpoint()
    requests = [request(number) for number in range(MAX_CONCURRENT_REQUESTS + 2)]
    waiting = MAX_CONCURRENT_REQUESTS
    cancelled = [
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}
        for number in (0, waiting)
    ]

    async def fill_slots() -> None:
        while len(endpoint.requests) < MAX_CONCURRENT_REQUESTS:
            await asyncio.sleep(0)

    serving = asyncio.create_task(serve(endpoint, lines_of(*requests, fill_slots, *cancelled)))
    for _ in range(400):
        await asyncio.sleep(0)
    sent = {json.loads(one.content)["id"] for one in endpoint.requests}
    endpoint.is_open.set()

    assert sent == {*range(waiting), waiting + 1}
    assert {message["id"] for message in await serving} == sent - {0}


async def test_request_that_cannot_be_sent_does_not_end_the_others() -> None:
    written = await serve(Endpoint(), lines_of(request(1), request(2)), {"X-AgentMemory-Timezone": "Zürich"})

    assert [message["error"]["code"] for message in written] == [-32603, -32603]


@pytest.mark.parametrize("result", [None, [], "2025-11-25"])
async def test_result_of_another_form_is_passed_on(result: Any) -> None:
    endpoint = Endpoint(lambda _: result)
    endpoint.is_open.set()

    written = await serve(endpoint, lines_of(request(0, "initialize"), request(1)))

    assert [(message["id"], message["result"]) for message in written] == [(0, result), (1, result)]


async def test_negotiated_version_is_sent_with_later_messages() -> None:
    endpoint = Endpoint(lambda message: {"protocolVersion": "2025-11-25"} if message["method"] == "initialize" else {})
    endpoint.is_open.set()

    async def settle() -> None:
        while not endpoint.requests:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)

    started = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    await serve(endpoint, lines_of(request(0, "initialize"), settle, started, request(1, "tools/list")))

    assert endpoint.headers == [{}, *([{"mcp-protocol-version": "2025-11-25"}] * 2)]


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("remember", "remember"),
        ("é", f"=?base64?{base64.b64encode('é'.encode()).decode()}?="),
        (" a\r\nX: y", f"=?base64?{base64.b64encode(b' a' + bytes([13, 10]) + b'X: y').decode()}?="),
        (7, None),
    ],
)
async def test_message_with_its_version_is_repeated_in_headers(name: Any, sent: str | None) -> None:
    endpoint = Endpoint()
    endpoint.is_open.set()
    message = request(1, "tools/call", name=name, _meta={VERSION_KEY: "2026-07-28"})

    await serve(endpoint, lines_of(message))

    expected = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}
    assert endpoint.headers == [expected | ({"mcp-name": sent} if sent else {})]


async def test_lines_of_a_pipe_are_split_and_joined() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo")
    lines = read_lines(reading)

    assert await anext(lines) == b"one"
    os.write(writing, b" parts\n\nlast")
    os.close(writing)
    assert [line async for line in lines] == [b"two parts", b"", b"last"]
    os.close(reading)
