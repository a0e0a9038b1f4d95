"""Requests of the snapshot adapter, and its handling of late, partial and missing responses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentmemory_operator.adapters.qdrant.call_hooks import CallHooks
from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots
from agentmemory_operator.errors import (
    AgentMemoryError,
    LeadershipLost,
    NotFound,
    SpecInvalid,
    StoreRejected,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.runtime.metrics import NO_TRACES
from tests.support.programs import free_port
from tests.support.web.http_server import serve, serve_connections

NAME = "agent_memory_bot__1"
FILE = {"name": "bot.snapshot", "creation_time": "2026-11-22T09:00:01", "size": 7, "checksum": "ab"}
CALLS: dict[str, Callable[[QdrantSnapshots], Awaitable[Any]]] = {
    "create": lambda store: store.create(NAME),
    "files": lambda store: store.files(NAME),
    "download": lambda store: read(store),
    "recover": lambda store: store.recover(NAME, "http://elsewhere/file", sha256="ab"),
    "upload": lambda store: store.upload(NAME, pieces(b"one"), sha256="ab"),
    "delete_file": lambda store: store.delete_file(NAME, "bot.snapshot"),
    "collections": lambda store: store.collections(),
    "create_placeholder": lambda store: store.create_placeholder(NAME),
    "metadata": lambda store: store.metadata(NAME),
    "write_metadata": lambda store: store.write_metadata(NAME, {"a": 1}),
}


@dataclass
class Server:
    """Records every request and responds as configured."""

    answer: Callable[[], Response] = lambda: JSONResponse({"result": True})
    delay_s: float = 0
    cluster: dict[str, Any] = field(default_factory=lambda: {"status": "disabled"})
    calls: list[tuple[str, str, bytes, str]] = field(default_factory=list)

    async def take(self, request: Request) -> Response:
        if request.url.path == "/cluster":
            return JSONResponse({"result": self.cluster})
        body = await request.body()
        await asyncio.sleep(self.delay_s)
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        self.calls.append((request.method, target, body, request.headers.get("api-key", "")))
        return self.answer()

    @contextlib.asynccontextmanager
    async def open_store(self, **options: Any) -> AsyncIterator[QdrantSnapshots]:
        methods = ["GET", "PUT", "POST", "PATCH", "DELETE"]
        with serve(Starlette(routes=[Route("/{rest:path}", self.take, methods=methods)])) as url:
            store = QdrantSnapshots(url, **options)
            yield store
            await store.close()


def pieces(*chunks: bytes, fault: AgentMemoryError | None = None) -> AsyncIterator[bytes]:
    async def read() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk
        if fault is not None:
            raise fault

    return read()


async def read(store: QdrantSnapshots) -> bytes:
    async with store.download(NAME, "bot.snapshot") as chunks:
        return b"".join([chunk async for chunk in chunks])


def words(status: int) -> Response:
    return JSONResponse({"status": {"error": "the server's words"}}, status)


async def test_created_snapshot_matches_response() -> None:
    server = Server(lambda: JSONResponse({"result": FILE}))
    async with server.open_store() as store:
        snapshot = await store.create(NAME)

    assert (snapshot.name, snapshot.size, snapshot.sha256, snapshot.created_ms) == (
        "bot.snapshot",
        7,
        "ab",
        1795338001000,
    )
    assert server.calls[0][:2] == ("POST", f"/collections/{NAME}/snapshots?wait=true")


async def test_list_is_sorted_by_age() -> None:
    later = FILE | {"name": "a", "creation_time": "2026-11-22T10:00:00", "checksum": None}
    async with Server(lambda: JSONResponse({"result": [later, FILE]})).open_store() as store:
        files = await store.files(NAME)

    assert [(file.name, file.sha256) for file in files] == [("bot.snapshot", "ab"), ("a", None)]


async def test_recover_sends_location_priority_checksum() -> None:
    server = Server()
    async with server.open_store() as store:
        await store.recover(NAME, "https://elsewhere/file", sha256="ab")

    method, target, body, _ = server.calls[0]
    assert (method, target) == ("PUT", f"/collections/{NAME}/snapshots/recover?wait=true")
    assert body == b'{"location":"https://elsewhere/file","priority":"snapshot","checksum":"ab"}'


async def test_key_is_sent_for_own_files_only() -> None:
    server = Server()
    async with server.open_store(api_key="key") as store:
        await store.recover(NAME, await store.own_location("other", "file"), sha256=None)
        await store.recover(NAME, "https://elsewhere/file", sha256=None)

    own, other = (body for _, _, body, _ in server.calls)
    assert b'"api_key":"key"' in own
    assert b"api_key" not in other


async def test_upload_streams_a_form_file() -> None:
    server = Server()
    async with server.open_store(api_key="key") as store:
        await store.upload(NAME, pieces(b"one", b"two"), sha256="ab")

    method, target, body, key = server.calls[0]
    expected = f"/collections/{NAME}/snapshots/upload?wait=true&priority=snapshot&checksum=ab"
    assert (method, target, key) == ("POST", expected, "key")
    assert b"onetwo" in body
    assert b'name="snapshot"' in body


async def test_upload_raises_error_of_its_source() -> None:
    async with Server().open_store() as store:
        with pytest.raises(TransientError, match="the storage is away"):
            await store.upload(NAME, pieces(b"one", fault=TransientError("the storage is away")), sha256=None)


@pytest.mark.parametrize(("status", "error"), [(400, StoreRejected), (429, StoreUnavailable), (500, StoreUnavailable)])
async def test_http_status_maps_to_error(status: int, error: type[AgentMemoryError]) -> None:
    async with Server(lambda: words(status)).open_store() as store:
        for call in CALLS.values():
            with pytest.raises(error, match="the server's words"):
                await call(store)


async def test_foreign_404_is_unavailable() -> None:
    """A proxy's 404 does not prove that a collection or a file is missing."""
    async with Server(lambda: Response("404 page not found", 404)).open_store() as store:
        for call in CALLS.values():
            with pytest.raises(StoreUnavailable, match="check for a proxy"):
                await call(store)


async def test_unreachable_server_is_unavailable() -> None:
    store = QdrantSnapshots(f"http://127.0.0.1:{free_port()}")

    for call in CALLS.values():
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await call(store)

    await store.close()


async def test_accepted_response_is_unavailable() -> None:
    accepted = {"status": "accepted", "time": 0.1}
    async with Server(lambda: JSONResponse(accepted, 202)).open_store() as store:
        for call in ("create", "recover", "upload"):
            with pytest.raises(StoreUnavailable, match="has not finished"):
                await CALLS[call](store)


@pytest.mark.parametrize("call", ["create", "recover", "upload"])
async def test_call_ends_at_its_deadline(call: str) -> None:
    server = Server(delay_s=0.6)
    async with server.open_store(deadline_s=0.2) as store:
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            await CALLS[call](store)

    assert server.calls, "the limit of other calls is not what ended it"


async def test_slow_call_outlasts_the_normal_timeout() -> None:
    async with Server(lambda: JSONResponse({"result": FILE}), delay_s=1.2).open_store(timeout_s=1) as store:
        assert (await store.create(NAME)).name == "bot.snapshot"


async def test_interrupted_download_is_unavailable() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()

    async with serve_connections(half) as url:
        store = QdrantSnapshots(url)
        with pytest.raises(StoreUnavailable):
            await read(store)
        await store.close()


async def test_missing_file_raises_or_does_nothing() -> None:
    async with Server(lambda: words(404)).open_store() as store:
        await store.delete_file(NAME, "bot.snapshot")
        assert await store.files(NAME) == []
        assert await store.metadata(NAME) is None
        for call in ("create", "download"):
            with pytest.raises(NotFound):
                await CALLS[call](store)
        with pytest.raises(StoreUnavailable):
            await store.write_metadata(NAME, {})


@pytest.mark.parametrize(
    ("message", "error"), [("shard 0 not found", StoreUnavailable), ("Snapshot not found", StoreRejected)]
)
async def test_deletion_during_recovery_is_retryable(message: str, error: type[Exception]) -> None:
    def answer() -> Response:
        method, target, *_ = server.calls[-1]
        is_recovery = "/recover" in target or "/upload" in target
        missing = JSONResponse({"status": {"error": f"Not found: {message}"}}, 404)
        return missing if is_recovery or method == "GET" else JSONResponse({"result": True})

    server = Server(answer)
    async with server.open_store() as store:
        for call in (store.recover(NAME, "file", sha256=None), store.upload(NAME, pieces(b"one"), sha256=None)):
            with pytest.raises(error, match=message):
                await call


async def test_existing_placeholder_is_no_error() -> None:
    async with Server(lambda: words(409)).open_store() as store:
        await store.create_placeholder(NAME)


async def test_lost_leadership_sends_nothing() -> None:
    def refuse() -> None:
        raise LeadershipLost("another leads")

    server = Server()
    async with server.open_store() as store:
        store.watch_calls(CallHooks(before_write=refuse, count_call=lambda *_: None, tracer=NO_TRACES))
        for call in ("create", "recover", "upload", "delete_file", "create_placeholder", "write_metadata"):
            with pytest.raises(LeadershipLost):
                await CALLS[call](store)

    assert server.calls == []


@pytest.mark.parametrize("call", ["create", "recover", "upload"])
async def test_unlisted_cluster_nodes_are_rejected(call: str) -> None:
    server = Server(cluster={"status": "enabled", "peers": {"1": {}, "2": {}}})
    async with server.open_store() as store:
        with pytest.raises(SpecInvalid, match=r"cluster of 2 nodes.*spec\.nodes") as caught:
            await CALLS[call](store)

    assert caught.value.reason == "NodesNotListed"
    assert server.calls == []


async def test_cluster_of_one_node_is_accepted() -> None:
    server = Server(lambda: JSONResponse({"result": FILE}), cluster={"status": "enabled", "peers": {"1": {}}})
    async with server.open_store() as store:
        assert (await store.create(NAME)).name == "bot.snapshot"
