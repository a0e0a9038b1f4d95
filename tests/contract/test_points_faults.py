"""What becomes of a call whose connection breaks, or whose answer is an error of the server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, cast

import pytest

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.qdrant_points import QdrantPoints
from agentmemory_operator.errors import OutcomeUnknown, StoreRejected, StoreUnavailable, TransientError
from agentmemory_operator.services.access_counts import AccessCounts
from agentmemory_operator.services.api_metering import ApiMeter
from agentmemory_operator.services.metrics import render

COUNTED = b'{"result": {"count": 7}, "status": "ok"}'
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Read one request whole; return its head."""
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = [line.split(b":")[1] for line in head.splitlines() if line.lower().startswith(b"content-length")]
    await reader.readexactly(int(length))
    return head


def answer_of(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Content-Type: application/json", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextlib.asynccontextmanager
async def engine(talk: Talk, *, timeout_s: float = 2, meter: ApiMeter | None = None) -> AsyncIterator[QdrantPoints]:
    """Give a store in front of a server that talks as told."""

    talks = []

    async def talk_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await talk(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(talk_and_close, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with QdrantPoints(f"http://127.0.0.1:{port}", api_key="k", timeout_s=timeout_s, meter=meter) as store:
            yield store
        await asyncio.gather(*filter(None, talks))


def always(status: int, body: bytes = b"{}", *headers: str) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(answer_of(status, body, *headers))
            await writer.drain()

    return talk


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    await reader.read()


@pytest.mark.parametrize(
    ("status", "of_read", "of_write"),
    [
        (429, StoreUnavailable, StoreUnavailable),
        (503, StoreUnavailable, StoreUnavailable),
        (500, StoreUnavailable, OutcomeUnknown),
        (502, StoreUnavailable, OutcomeUnknown),
        (504, StoreUnavailable, OutcomeUnknown),
        (408, StoreUnavailable, OutcomeUnknown),
        (400, StoreRejected, StoreRejected),
        (403, StoreRejected, StoreRejected),
        (404, StoreUnavailable, StoreUnavailable),
    ],
)
async def test_an_error_status_becomes_an_error_of_ours(
    status: int, of_read: type[Exception], of_write: type[Exception]
) -> None:
    async with engine(always(status, b"not json")) as store:
        with pytest.raises(of_read):
            await store.count("c", None)
        with pytest.raises(of_write):
            await store.upsert("c", [])


@pytest.mark.parametrize("body", [b"<html>hello</html>", b'{"result": {"poi', b"[]", b'"text"', b'{"status": "ok"}'])
async def test_a_success_that_is_none_of_qdrants_is_an_error_of_ours(body: bytes) -> None:
    async with engine(always(200, body)) as store:
        with pytest.raises(StoreUnavailable, match="proxy"):
            await store.count("c", None)
        with pytest.raises(OutcomeUnknown, match="proxy"):
            await store.upsert("c", [])


async def test_a_wait_that_the_server_asks_for_is_passed_on() -> None:
    async with engine(always(429, b"{}", "Retry-After: 9")) as store:
        with pytest.raises(StoreUnavailable) as refused:
            await store.count("c", None)

    assert refused.value.retry_after_s == 9


@pytest.mark.parametrize("talk", [hang_up, say_nothing], ids=["reset", "time-out"])
async def test_a_write_whose_answer_is_lost_is_unknown_and_not_repeated(talk: Talk) -> None:
    requests = 0

    async def count_and_talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        await talk(reader, writer)

    async with engine(count_and_talk, timeout_s=0.3) as store:
        with pytest.raises(OutcomeUnknown):
            await store.set_payload("c", {}, {})

    assert requests == 1


async def test_a_write_that_the_engine_did_not_finish_in_time_is_unknown() -> None:
    async with engine(always(200, b'{"result": {"status": "wait_timeout"}}')) as store:
        with pytest.raises(OutcomeUnknown):
            await store.delete("c", {})


@pytest.mark.parametrize("talk", [hang_up, say_nothing], ids=["reset", "time-out"])
async def test_a_read_whose_answer_is_lost_may_be_tried_later(talk: Talk) -> None:
    async with engine(talk, timeout_s=0.3) as store:
        with pytest.raises(StoreUnavailable) as refused:
            await store.count("c", None)

    assert isinstance(refused.value, TransientError)


async def test_a_read_survives_a_pooled_connection_that_was_closed() -> None:
    answered = 0

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        await read_request(reader)
        writer.write(answer_of(200, COUNTED))
        await writer.drain()
        answered += 1
        await read_request(reader)  # the second on this connection gets no answer

    async with engine(answer_once) as store:
        assert await store.count("c", None) == 7
        assert await store.count("c", None) == 7

    assert answered == 2


async def test_requests_ask_for_plain_answers_and_carry_the_key() -> None:
    heads = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await read_request(reader)).lower())
        writer.write(answer_of(200, COUNTED))
        await writer.drain()

    async with engine(note) as store:
        await store.count("c", None)

    assert b"accept-encoding: identity\r\n" in heads[0]
    assert b"api-key: k\r\n" in heads[0]


async def test_a_call_is_measured_and_carries_what_joins_it_to_its_trace() -> None:
    heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for status in (200, 503):
            heads.append(await read_request(reader))
            writer.write(answer_of(status, COUNTED))
            await writer.drain()

    meter = ApiMeter(TracerOfOne())
    async with engine(talk, meter=meter) as store:
        await store.count("agent_memory_bot", None)
        with pytest.raises(StoreUnavailable):
            await store.count("agent_memory_bot", None)

    assert all(b"traceparent: of-this-test" in head for head in heads)
    counts = AccessCounts(cast(Any, None), SystemClock(), writer="w")
    measured = render(meter.metrics(counts))
    for outcome in ("2xx", "5xx"):
        labels = f'operation="POST points/count",outcome="{outcome}"'
        assert f"agentmemory_api_engine_duration_seconds_count{{{labels}}} 1" in measured


class TracerOfOne:
    """Implements ports.Tracer: one span, with a name of its own."""

    headers: Mapping[str, str] = {"traceparent": "of-this-test"}

    def span(self, name: str, **_: Any) -> contextlib.nullcontext[Any]:
        return contextlib.nullcontext(self)

    def note(self, name: str, value: str | int) -> None:
        pass

    def fail(self, kind: str) -> None:
        pass

    async def close(self) -> None:
        pass
