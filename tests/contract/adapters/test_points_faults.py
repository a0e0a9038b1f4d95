"""Outcome of a call whose connection breaks or whose response is an error."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant import points
from agentmemory_operator.adapters.qdrant.call_hooks import READS_PER_RETRY
from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.errors import (
    CollectionDeleted,
    OutcomeUnknown,
    StoreRejected,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.main.stores import Stores
from agentmemory_operator.runtime.metrics_api import ApiMeter
from tests.support.metrics import collect_samples
from tests.support.web.http_server import ConnectionHandler, serve_connections

COUNTED = b'{"result": {"count": 7}, "status": "ok"}'


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Read one whole request; return its head."""
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = [line.split(b":")[1] for line in head.splitlines() if line.lower().startswith(b"content-length")]
    await reader.readexactly(int(length))
    return head


def answer_of(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Content-Type: application/json", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextlib.asynccontextmanager
async def engine(
    talk: ConnectionHandler, *, timeout_s: float = 2, meter: ApiMeter | None = None
) -> AsyncIterator[QdrantPoints]:
    """Open a store on a server with the given connection handler."""
    async with (
        serve_connections(talk) as url,
        QdrantPoints(url, api_key="k", timeout_s=timeout_s, meter=meter) as store,
    ):
        yield store


def always(status: int, body: bytes = b"{}", *headers: str) -> ConnectionHandler:
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
async def test_error_status_maps_to_error(status: int, of_read: type[Exception], of_write: type[Exception]) -> None:
    async with engine(always(status, b"not json")) as store:
        with pytest.raises(of_read):
            await store.scroll("c", {"limit": 1})
        with pytest.raises(of_write):
            await store.upsert("c", [])


async def test_missing_collection_raises_collection_deleted() -> None:
    body = b'{"status": {"error": "Not found: Collection `c` doesn\'t exist!"}, "time": 0.0}'
    async with engine(always(404, body)) as store:
        with pytest.raises(CollectionDeleted, match="Qdrant has no collection or alias 'c'"):
            await store.count("c", None)
        with pytest.raises(CollectionDeleted):
            await store.upsert("c", [])


@pytest.mark.parametrize("body", [b"404 page not found", b'{"status": {"error": "Not found: nothing here"}}'])
async def test_foreign_404_is_unavailable(body: bytes) -> None:
    async with engine(always(404, body)) as store:
        with pytest.raises(StoreUnavailable) as caught:
            await store.count("c", None)

    assert not isinstance(caught.value, CollectionDeleted)


@pytest.mark.parametrize("body", [b"<html>hello</html>", b'{"result": {"poi', b"[]", b'"text"', b'{"status": "ok"}'])
async def test_foreign_success_raises(body: bytes) -> None:
    async with engine(always(200, body)) as store:
        with pytest.raises(StoreUnavailable, match="proxy"):
            await store.count("c", None)
        with pytest.raises(OutcomeUnknown, match="proxy"):
            await store.upsert("c", [])


async def test_retry_after_is_passed_on() -> None:
    async with engine(always(429, b"{}", "Retry-After: 9")) as store:
        with pytest.raises(StoreUnavailable) as refused:
            await store.count("c", None)

    assert refused.value.retry_after_s == 9


@pytest.mark.parametrize("talk", [hang_up, say_nothing], ids=["reset", "time-out"])
async def test_lost_write_response_is_unknown(talk: ConnectionHandler) -> None:
    """The write is not repeated."""
    requests = 0

    async def count_and_talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        await talk(reader, writer)

    async with engine(count_and_talk, timeout_s=0.3) as store:
        with pytest.raises(OutcomeUnknown):
            await store.set_payload("c", {}, {})

    assert requests == 1


async def test_rejected_later_part_is_partial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "MAX_UPSERT_BYTES", 1)
    statuses = iter((200, 400, 400))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(answer_of(next(statuses), b'{"result": {}}'))

    async with engine(talk) as store:
        for is_partial in (True, False):
            with pytest.raises(StoreRejected) as rejected:
                await store.upsert("c", [{"id": 1, "payload": {}}, {"id": 2, "payload": {}}])
            assert rejected.value.is_partial is is_partial


async def test_write_timeout_of_server_is_unknown() -> None:
    async with engine(always(200, b'{"result": {"status": "wait_timeout"}}')) as store:
        with pytest.raises(OutcomeUnknown):
            await store.delete("c", {})


@pytest.mark.parametrize("talk", [hang_up, say_nothing], ids=["reset", "time-out"])
async def test_lost_read_response_is_transient(talk: ConnectionHandler) -> None:
    async with engine(talk, timeout_s=0.3) as store:
        with pytest.raises(StoreUnavailable) as refused:
            await store.count("c", None)

    assert isinstance(refused.value, TransientError)


async def test_read_survives_closed_pooled_connection() -> None:
    answered = 0

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        await read_request(reader)
        writer.write(answer_of(200, COUNTED))
        await writer.drain()
        answered += 1
        await read_request(reader)  # The second request on this connection gets no response.

    async with engine(answer_once) as store:
        assert await store.count("c", None) == 7
        assert await store.count("c", None) == 7

    assert answered == 2


class Silence:
    """Reads every request; responds to those that `answers` selects by number."""

    def __init__(self, answers: Callable[[int], bool]) -> None:
        self.requests = 0
        self._answers = answers

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            self.requests += 1
            if self._answers(self.requests):
                writer.write(answer_of(200, COUNTED))
                await writer.drain()


async def test_timed_out_read_is_retried_once() -> None:
    """Issue 16: a pause of 11 s gave a 503 although the response was about to arrive."""
    silence, meter = Silence(lambda number: number > 1), ApiMeter()
    async with engine(silence, timeout_s=0.4, meter=meter) as store:
        assert await store.count("c", None) == 7

    assert silence.requests == 2
    samples = collect_samples(*meter.metrics)
    assert samples['agentmemory_api_engine_retries_total{operation="POST points/count"}'] == 1


async def test_unreachable_server_gets_no_retries() -> None:
    is_back = False
    silence = Silence(lambda number: is_back)
    async with engine(silence, timeout_s=0.2) as store:
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await store.count("c", None)
        while_away = silence.requests
        is_back = True
        for _ in range(READS_PER_RETRY):
            await store.count("c", None)
        is_back, before = False, silence.requests
        with pytest.raises(StoreUnavailable):
            await store.count("c", None)

    assert while_away == 3 + 1
    assert silence.requests == before + 2


async def test_concurrent_timeouts_share_a_retry_budget() -> None:
    silence = Silence(lambda number: False)
    async with engine(silence, timeout_s=1) as store:
        reads = (store.count("c", None) for _ in range(30))
        found = await asyncio.gather(*reads, return_exceptions=True)

    assert all(isinstance(answer, StoreUnavailable) for answer in found)
    assert silence.requests <= 30 + 30 / READS_PER_RETRY + 1


async def test_stores_of_one_server_share_a_retry_budget() -> None:
    """In a cluster each agent has its own store, because it has its own key."""
    silence = Silence(lambda number: False)
    async with contextlib.AsyncExitStack() as stack:
        stores = Stores(stack, url=await stack.enter_async_context(serve_connections(silence)))
        opened = [stores.points(Endpoint("http://elsewhere.invalid", None, 1)) for _ in range(4)]
        reads = (store.count("c", None) for store in opened)
        found = await asyncio.gather(*reads, return_exceptions=True)
        for store in opened:
            await store.close()

    assert all(isinstance(answer, StoreUnavailable) for answer in found)
    assert silence.requests == 4 + 1


async def test_requests_send_key_and_refuse_compression() -> None:
    heads = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await read_request(reader)).lower())
        writer.write(answer_of(200, COUNTED))
        await writer.drain()

    async with engine(note) as store:
        await store.count("c", None)

    assert b"accept-encoding: identity\r\n" in heads[0]
    assert b"api-key: k\r\n" in heads[0]


async def test_call_is_timed_and_sends_traceparent() -> None:
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
    samples = collect_samples(*meter.metrics)
    for outcome in ("2xx", "5xx"):
        labels = f'operation="POST points/count",outcome="{outcome}"'
        assert samples[f"agentmemory_api_engine_duration_seconds_count{{{labels}}}"] == 1


async def test_full_disk_is_named_and_counted() -> None:
    """Qdrant's text may quote a memory, so only the cause is passed on."""
    error = {"status": {"error": "Service internal error: No space left on device: WAL buffer of 'a secret'"}}
    meter = ApiMeter(TracerOfOne())
    async with engine(always(500, json.dumps(error).encode()), meter=meter) as store:
        with pytest.raises(OutcomeUnknown, match=r"^Qdrant failed \(500\): its disk is full$") as raised:
            await store.delete("c", {})

    assert raised.value.is_disk_full
    samples = collect_samples(*meter.metrics)
    labels = 'operation="POST points/delete",outcome="disk_full"'
    assert samples[f"agentmemory_api_engine_duration_seconds_count{{{labels}}}"] == 1


class TracerOfOne:
    """Implements ports.Tracer with one span."""

    headers: Mapping[str, str] = {"traceparent": "of-this-test"}

    def span(self, name: str, **_: Any) -> contextlib.nullcontext[Any]:
        return contextlib.nullcontext(self)

    def note(self, name: str, value: str | int) -> None:
        pass

    def fail(self, kind: str) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("status", [400, 404, 429, 500])
async def test_server_message_is_not_in_error_text(status: int) -> None:
    """Error texts reach logs, events and status, and one write may serve several callers."""
    body = b'{"status": {"error": "Wrong input: the printer is out"}, "time": 0.0}'
    async with engine(always(status, body)) as store:
        with pytest.raises((TransientError, StoreRejected)) as read:
            await store.query("c", {"query": [1.0]})
        with pytest.raises((TransientError, StoreRejected)) as written:
            await store.upsert("c", [{"id": "1", "vector": [1.0], "payload": {"content": "the printer is out"}}])

    assert "printer" not in f"{read.value}{written.value}"
    assert str(status) in str(read.value)
    assert (read.value.server_message, written.value.server_message) == ("Wrong input: the printer is out", "")
