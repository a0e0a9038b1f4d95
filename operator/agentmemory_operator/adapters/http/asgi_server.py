"""Serve Starlette applications over HTTP, several in one process, with limits on connections and a graceful stop.

uvicorn has no time limits for a slow request head, a slow body, or a client that reads slowly. So `ServedConnection`
records the state of a connection, and `close_slow_connections` closes slow and idle connections once a second. If there
are more than 2,048 connections, up to 64 idle ones are closed, first those of the client with the most idle ones. If
none is idle, the new connection is closed.
"""

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import httptools
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentmemory_operator.adapters.http.served_certificate import ServedCertificate
from agentmemory_operator.runtime.rules.fair_shares import MinimumRate, StallDetector

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 2048
# Maximum number of idle connections that are closed together if there are too many.
MAX_EVICTED_CONNECTIONS = 64
# Maximum time from the first to the last byte of a request head, and of a TLS handshake.
MAX_HEAD_S = 10.0
MAX_HEAD_BYTES = 1 << 15
# Maximum seconds for the rest of a body whose request was answered already.
MAX_BODY_REST_S = 30.0
# Maximum seconds that a connection is kept without a request.
MAX_IDLE_S = 75.0
# Seconds for a request that may already be in transit when the server stops.
LAST_REQUEST_S = 0.5
# Maximum number of pipelined requests on one connection.
MAX_PIPELINED_REQUESTS = 16
# Allowed bytes on the wire per byte of a body: a chunk of one byte takes six, its framing included.
MAX_FRAMING_PER_BYTE = 8

_NO_LINGER = struct.pack("ii", 1, 0)
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class ServedConnection(HttpToolsProtocol):
    """Server side of one connection. Records whether it waits for a request, a head or a body, and since when."""

    connections: "set[Any]"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._since_s = 0.0
        self._is_in_head = False
        self._is_in_message = False
        self._has_new_message = False
        self._framing_bytes = 0
        self._is_last = False
        self._sent: _CountingTransport | None = None
        self._stall_detector = StallDetector()

    @property
    def peer(self) -> str:
        """IP address of the client; '' if unknown."""
        return self.client[0] if self.client else ""

    @property
    def is_busy(self) -> bool:
        """True if a request is being served."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def since_s(self) -> float:
        """Monotonic time, in seconds, of the latest of: connect, start of a request, end of a response."""
        return self._since_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to count written bytes. Beyond 2,048 connections, close up to 64 idle ones, or else this connection."""
        self._since_s = time.monotonic()
        self._sent = _CountingTransport(transport)
        super().connection_made(self._sent)  # type: ignore[arg-type]
        if len(self.connections) > MAX_CONNECTIONS:
            peers: list[ServedConnection] = [connection for connection in self.connections if connection is not self]
            evicted = select_evictable(peers)
            for connection in evicted or [self]:
                connection.abort()

    def data_received(self, data: bytes) -> None:
        """Process received bytes; close the connection if headers or chunk framing exceed 32 KiB."""
        self._has_new_message = False
        super().data_received(data)
        if self._has_new_message or not self._is_in_message:
            self._framing_bytes = 0
            return
        self._framing_bytes += len(data)
        if self._framing_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def _refuse_head(self) -> None:
        log.warning("closed connection from %s: headers larger than %d bytes", self.peer, MAX_HEAD_BYTES)
        if self.is_busy or not self._is_in_head:
            self.abort()
            return
        self.transport.write(_TOO_LARGE)
        self.transport.close()

    def on_message_begin(self) -> None:
        """Record the start of a request head; abort the connection if 16 requests wait already."""
        if len(self.pipeline) >= MAX_PIPELINED_REQUESTS:
            self.abort()
            raise httptools.HttpParserError("too many pipelined requests on this connection")
        self._is_in_head = self._is_in_message = self._has_new_message = True
        self._since_s = time.monotonic()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Record the end of a request head. Delay the next write, the response head, to send it with the body."""
        self._is_in_head = False
        super().on_headers_complete()
        if self._sent is not None:
            self._sent.expects_head = True
        if self._is_last:
            self._send_connection_close()

    def on_body(self, body: bytes) -> None:
        """Count a part of a body, which allows some bytes of chunk framing."""
        self._framing_bytes -= MAX_FRAMING_PER_BYTE * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record the end of a request, body included."""
        self._is_in_message = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Record the end of a response."""
        self._since_s = time.monotonic()
        super().on_response_complete()

    def shutdown(self) -> None:
        """Serve the current request, or one that arrives within half a second, then close the connection.

        The client of an idle connection does not know that the server stops, and may have sent its next request
        already.
        """
        self._is_last = True
        if self.is_busy:
            self._send_connection_close()
        else:
            self.loop.call_later(LAST_REQUEST_S, super().shutdown)

    def _send_connection_close(self) -> None:
        """Add `Connection: close` to the response, after which the server closes the connection."""
        if self.cycle is not None:
            self.cycle.keep_alive = False
            self.cycle.default_headers = [*self.cycle.default_headers, (b"connection", b"close")]

    def abort(self) -> None:
        """Close immediately and discard unsent data, in the kernel's buffers too."""
        if self._sent is not None and not self._sent.is_closed:
            self._sent.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._sent.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the connection is closed, so that `abort` and delayed writes have no effect."""
        if self._sent is not None:
            self._sent.is_closed = True
        super().connection_lost(exc)

    def find_close_reason(self, min_rate: MinimumRate, now_s: float) -> str | None:
        """Return the reason to close the connection now, or None. Called once a second.

        Args:
            min_rate: Minimum rate at which the client must read responses.
            now_s: Monotonic time in seconds.
        """
        if self._sent is None:
            return None
        unsent, sent = self._sent.count_waiting_and_sent()
        if self._stall_detector.is_too_slow(min_rate, unsent_bytes=unsent, sent_bytes=sent, now_s=now_s):
            return "client reads too slowly"
        took_s = now_s - self._since_s
        if self.is_busy or unsent:
            return None
        if self._is_in_head:
            return "request head too slow" if took_s > MAX_HEAD_S else None
        if self._is_in_message:
            return "request body too slow" if took_s > MAX_BODY_REST_S else None
        return "idle" if took_s > MAX_IDLE_S else None


def select_evictable(connections: Iterable[ServedConnection]) -> list[ServedConnection]:
    """Return up to 64 connections to close. All of them are idle: no request is being served.

    Connections of the clients with the most idle connections come first; among these, those that have waited longest.
    """
    idle = [connection for connection in connections if not connection.is_busy]
    peers = Counter(connection.peer for connection in idle)
    return sorted(idle, key=lambda connection: (-peers[connection.peer], connection.since_s))[:MAX_EVICTED_CONNECTIONS]


def close_slow_connections(connections: Iterable[Any], min_rate: MinimumRate) -> None:
    """Abort each connection for which `find_close_reason` returns a reason, and log the reason."""
    now_s = time.monotonic()
    for connection in list(connections):
        if isinstance(connection, ServedConnection) and (reason := connection.find_close_reason(min_rate, now_s)):
            log.info("closed connection from %s: %s", connection.peer, reason)
            connection.abort()


class _CountingTransport:
    """Transport wrapper that counts written bytes, and sends the head of a response together with its body.

    uvicorn writes them separately. Two writes would cost two system calls here, and wake the client twice.

    Attributes:
        expects_head: True if the next write is the head of a response.
        is_closed: True after the connection is closed.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._written_bytes = 0
        self._head = b""
        self._call_soon = asyncio.get_running_loop().call_soon
        self.expects_head = False
        self.is_closed = False
        # Set an attribute, which is faster than `__getattr__`: uvicorn calls `is_closing` for each request.
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._written_bytes += len(data)
        if self.expects_head:
            self.expects_head = False
            self._send_head()
            self._head = data
            # Wait one iteration of the event loop for the body, which usually follows. Then send the head without it.
            self._call_soon(self._send_head)
        elif self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        else:
            self._transport.write(data)

    def _send_head(self) -> None:
        head, self._head = self._head, b""
        if head and not self.is_closed:
            self._transport.write(head)

    def close(self) -> None:
        self._send_head()
        self._transport.close()

    def abort(self) -> None:
        self._head = b""
        self._transport.abort()

    def count_waiting_and_sent(self) -> tuple[int, int]:
        unsent = self._transport.get_write_buffer_size() + len(self._head)
        return unsent, self._written_bytes - unsent


# Seconds for requests in progress when the server stops.
GRACE_S = 10
BACKLOG = 2048
DEFAULT_RATE = MinimumRate()
# Ticks of uvicorn, 0.1 s each, between two sweeps.
SWEEP_TICKS = 10


@contextlib.asynccontextmanager
async def serving(
    app: Starlette,
    *,
    host: str,
    port: int,
    min_rate: MinimumRate = DEFAULT_RATE,
    certificate: ServedCertificate | None = None,
) -> AsyncIterator[str]:
    """Serve `app` while the context is open; yield its URL.

    The application starts before the port is open. It stops after the last request, which is aborted if it takes longer
    than `GRACE_S` (10 s).

    Args:
        host: Address to listen on.
        port: Port; 0 chooses a free one.
        min_rate: Minimum rate at which clients must read responses.
        certificate: Certificate for https, read again when its files change; None serves http.

    Raises:
        OSError: If the port is in use, or the address is not usable.
        Exception: Errors of the application's startup.
    """
    async with app.router.lifespan_context(app):
        with _listening(host, port) as listener:
            server = _Server(_configuration(app), min_rate, certificate)
            task = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                while not server.started and not task.done():
                    await asyncio.sleep(0.01)
                url_host = f"[{host}]" if ":" in host else host
                yield f"{'https' if certificate else 'http'}://{url_host}:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await task
                await server.close_all()


class _Server(uvicorn.Server):
    """Server without signal handlers, because several share the process. Closes slow connections once a second."""

    def __init__(self, config: uvicorn.Config, min_rate: MinimumRate, certificate: ServedCertificate | None) -> None:
        super().__init__(config)
        self._min_rate = min_rate
        self._certificate = certificate

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections; with a certificate, only those that complete their TLS handshake within 10 s."""
        if self._certificate is None:
            await super().startup(sockets)
            return
        # uvicorn cannot set the time limit of handshakes, 60 s by default.
        accept = asyncio.get_running_loop().create_server
        tls: dict[str, Any] = {"ssl": self._certificate.context, "ssl_handshake_timeout": MAX_HEAD_S}
        self.servers = [await accept(self._connect, sock=sock, backlog=BACKLOG, **tls) for sock in sockets or ()]
        self.started = True

    def _connect(self) -> ServedConnection:
        return ServedConnection(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def close_all(self) -> None:
        """Abort the connections that are still open after the grace period."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        # Wait for the next iteration, in which asyncio calls `connection_lost`.
        await asyncio.sleep(0)

    async def on_tick(self, counter: int) -> bool:
        """Sweep the connections, and look for a new certificate, once a second."""
        if counter % SWEEP_TICKS == 0:
            if self._certificate is not None:
                self._certificate.refresh()
            close_slow_connections(self.server_state.connections, self._min_rate)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers unchanged."""
        yield


def _configuration(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=ServedConnection,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        # Do not trust `X-Forwarded-For`: the peer of the connection is the client.
        proxy_headers=False,
        timeout_keep_alive=int(MAX_IDLE_S),
        timeout_graceful_shutdown=GRACE_S,
    )


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=BACKLOG) as listener:
        # Accepted connections inherit the option. Without it, a response written in two pieces waits for a delayed
        # acknowledgement, 40 ms per request. The event loop sets it only on sockets that it creates itself.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener
