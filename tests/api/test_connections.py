"""Connections of a server, over raw sockets: limits of number, head, rate and shutdown."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from agentmemory_operator.adapters.http import asgi_server
from agentmemory_operator.adapters.http.served_certificate import ServedCertificate
from agentmemory_operator.runtime.rules.fair_shares import MinimumRate
from tests.support.web.http_server import ServerFiles

MIB = 1 << 20
STREAM_BYTES = 32 * MIB
ATTACKER = "127.0.0.2"
HEAD = b"Host: localhost\r\n"
# Far longer than any limit below, for a busy machine.
PATIENCE_S = 30


class Server:
    """A server in a thread.

    Args:
        files: Certificate and key for https; None for http.
    """

    def __init__(self, files: ServerFiles | None = None) -> None:
        self.url = ""
        self._certificate = ServedCertificate(files.certificate, files.key) if files else None
        self._started, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> "Server":
        self._thread.start()
        assert self._started.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_shutdown(self) -> None:
        """Stop, and return when new connections are refused."""
        self._stop.set()
        with contextlib.suppress(httpx.ConnectError):
            while httpx.get(f"{self.url}/small"):
                time.sleep(0.02)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        app = Starlette(
            routes=[
                Route("/small", self._small, methods=["GET", "POST"]),
                Route("/large", self._large),
                Route("/stream", self._stream),
                Route("/read", self._read, methods=["POST"]),
                Route("/late", self._late),
                Route("/who", self._who),
            ]
        )
        async with asgi_server.serving(
            app,
            host="127.0.0.1",
            port=0,
            min_rate=MinimumRate(bytes_s=500, window_s=2),
            certificate=self._certificate,
        ) as self.url:
            self._started.set()
            while not self._stop.is_set():
                await asyncio.sleep(0.02)

    async def _small(self, _: Request) -> Response:
        return PlainTextResponse("small")

    async def _large(self, _: Request) -> Response:
        return Response(b"x" * 64 * MIB)

    async def _read(self, request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    async def _stream(self, _: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(1024):
                yield b"x" * (STREAM_BYTES // 1024)

        return StreamingResponse(pieces())

    async def _late(self, _: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            await asyncio.sleep(2 * PATIENCE_S)
            yield b"late"

        return StreamingResponse(pieces())

    async def _who(self, request: Request) -> Response:
        return PlainTextResponse(f"{request.client.host if request.client else ''} {request.url.scheme}")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def connect(url: str, sends: bytes, *, source: str = ATTACKER, is_narrow: bool = True) -> socket.socket:
    place = urlsplit(url)
    connection = socket.socket()
    if is_narrow:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE_S)
    connection.bind((source, 0))
    connection.connect((place.hostname, place.port))
    connection.sendall(sends)
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    """Return the last bytes until the server closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while piece := connection.recv(1 << 16):
            received = (received + piece)[-1000:]
    return received


def count_to_end(connection: socket.socket) -> int:
    """Return the number of bytes until the server closes the connection."""
    count = 0
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 20):
            count += len(piece)
    return count


def is_closed_on(connection: socket.socket, piece: bytes, *, times: int, every_s: float = 0) -> bool:
    """Send a piece repeatedly; return whether the server closes the connection."""
    try:
        for _ in range(times):
            connection.sendall(piece)
            time.sleep(every_s)
    except OSError:
        return True
    return False


def test_unfinished_head_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that drip in do not extend the limit."""

    monkeypatch.setattr(asgi_server, "MAX_HEAD_S", 0.5)
    with connect(server.url, b"GET /small HTTP/1.1\r\nX-Slow: ") as slow:
        assert is_closed_on(slow, b"x", times=300, every_s=0.1)
    assert httpx.get(f"{server.url}/small").text == "small"


def test_silent_connection_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_server, "MAX_IDLE_S", 0.5)
    with connect(server.url, b"") as silent, connect(server.url, b"\r\n") as nearly:
        assert read_to_end(silent) == read_to_end(nearly) == b""


@pytest.mark.parametrize("piece", [b"X-Many: 1\r\n", b"x" * 1000])
def test_oversized_head_is_refused(server: Server, piece: bytes) -> None:
    with connect(server.url, b"GET /small HTTP/1.1\r\nX-Large: 1\r\n") as connection:
        assert is_closed_on(connection, piece, times=16 * MIB // len(piece))
        assert b"431" in read_to_end(connection) or b"200" not in read_to_end(connection)
    assert httpx.get(f"{server.url}/small", headers={"X-Token": "t" * 20_000}).status_code == 200


@pytest.mark.parametrize(
    ("what", "begins", "piece"),
    [
        ("trailers", b"0\r\n", b"X-Trailer: " + b"t" * 1000 + b"\r\n"),
        ("one trailer", b"0\r\nX-Trailer: ", b"t" * 1000),
        ("an extension of a chunk", b"1;", b"e" * 1000),
    ],
)
def test_chunk_extensions_and_trailers_are_limited(server: Server, what: str, begins: bytes, piece: bytes) -> None:
    head = b"POST /read HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    with connect(server.url, head + begins) as connection:
        assert is_closed_on(connection, piece, times=64 * MIB // len(piece)), what


def test_many_chunks_are_accepted(server: Server) -> None:
    chunks = (b"x" for _ in range(200_000))

    assert httpx.post(f"{server.url}/read", content=chunks).text == "200000"


def test_unread_pipelined_requests_are_closed(server: Server) -> None:
    again = b"GET /small HTTP/1.1\r\n" + HEAD + b"\r\n"
    with connect(server.url, b"GET /stream HTTP/1.1\r\n" + HEAD + b"\r\n") as connection:
        assert is_closed_on(connection, again * 100, times=100, every_s=0.02)
    answers = connect(server.url, again * 10, source="127.0.0.1")
    with answers:
        received = b""
        while received.count(b"small") < 10:
            received += answers.recv(1 << 16)


def test_slow_reader_is_closed_and_steady_one_is_not(server: Server) -> None:
    asks = b"GET /stream HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n"
    with (
        connect(server.url, asks) as none,
        connect(server.url, asks) as slow,
        connect(server.url, asks, is_narrow=False) as steady,
        connect(server.url, b"GET /large HTTP/1.1\r\n" + HEAD + b"\r\n") as complete,
    ):
        complete.recv(100)
        deadline_s = time.monotonic() + 8
        while time.monotonic() < deadline_s:
            assert steady.recv(1 << 16)
            with contextlib.suppress(ConnectionResetError):
                slow.recv(1)
            time.sleep(0.05)

        assert read_to_end(steady).endswith(b"0\r\n\r\n")
        assert count_to_end(none) < STREAM_BYTES
        assert count_to_end(slow) < STREAM_BYTES
        assert count_to_end(complete) < 64 * MIB, "a response that the application has completed is kept"


def test_unread_body_after_response_is_limited(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server drains the rest of an answered body for `MAX_BODY_REST_S` at most."""

    monkeypatch.setattr(asgi_server, "MAX_BODY_REST_S", 0.5)
    head = b"POST /small HTTP/1.1\r\n" + HEAD + b"Content-Length: 1000000000\r\n\r\n"
    with connect(server.url, head) as connection:
        assert b"200 OK" in connection.recv(1 << 16)
        assert is_closed_on(connection, b"x", times=300, every_s=0.1)


def test_largest_client_loses_excess_connections(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_server, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(asgi_server, "MAX_EVICTED_CONNECTIONS", 5)
    with httpx.Client(base_url=server.url) as client, contextlib.ExitStack() as stack:
        assert client.get("/small").status_code == 200
        kept = client.get("/small").extensions["network_stream"].get_extra_info("client_addr")
        for _ in range(60):
            stack.enter_context(connect(server.url, b"GET /small"))
        time.sleep(0.2)

        again = client.get("/small")
        assert again.status_code == 200
        assert again.extensions["network_stream"].get_extra_info("client_addr") == kept
        assert httpx.get(f"{server.url}/small").status_code == 200


def test_shutdown_does_not_wait_for_slow_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_server, "GRACE_S", 1)
    body = b"POST /read HTTP/1.1\r\n" + HEAD + b"Content-Length: 100\r\n\r\nx"
    attacks = [b"", b"GET /small", body, b"GET /stream HTTP/1.1\r\n" + HEAD + b"\r\n"]
    with Server() as server, contextlib.ExitStack() as stack:
        for sends in attacks * 3:
            stack.enter_context(connect(server.url, sends))
        time.sleep(0.2)

        server.stop()


def test_request_at_shutdown_is_answered_with_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request on a kept-alive connection that arrives during the shutdown is the last one there."""

    monkeypatch.setattr(asgi_server, "LAST_REQUEST_S", PATIENCE_S)
    with Server() as server, httpx.Client(base_url=server.url) as client:
        before = client.get("/small")
        server.start_shutdown()

        last = client.get("/small")

        assert ("connection" in before.headers, last.headers["connection"]) == (False, "close")
        assert (last.status_code, last.text) == (200, "small")
        with pytest.raises(httpx.ConnectError):
            client.get("/small")


def test_websocket_upgrade_is_ignored(server: Server) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "a"}

    assert httpx.get(f"{server.url}/small", headers=upgrade).text == "small"


def test_response_is_sent_in_one_piece(server: Server) -> None:
    with connect(server.url, b"") as connection:
        for _ in range(50):
            connection.sendall(b"GET /small HTTP/1.1\r\n" + HEAD + b"\r\n")

            assert connection.recv(1 << 16).endswith(b"\r\n\r\nsmall")


def test_head_is_sent_before_a_late_body(server: Server) -> None:
    with connect(server.url, b"GET /late HTTP/1.1\r\n" + HEAD + b"\r\n") as connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("ends", ["HTTP/1.0", "HTTP/1.1\r\nConnection: close"])
def test_last_response_is_complete(server: Server, ends: str) -> None:
    with connect(server.url, f"GET /small {ends}\r\n".encode() + HEAD + b"\r\n") as connection:
        assert read_to_end(connection).endswith(b"\r\n\r\nsmall")


def test_forwarded_headers_are_ignored(server: Server) -> None:
    """Limits count by address: with a forged one a client would have any number of shares."""
    forged = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"}

    assert httpx.get(f"{server.url}/who", headers=forged).text == "127.0.0.1 http"
