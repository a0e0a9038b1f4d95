"""Serve Starlette applications over HTTP, several in one process, and stop them in good order."""

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

from agentmemory_operator.runtime.rules.fair_shares import Leaving, Pace

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 2048
# Closed together when there are too many.
CLOSED_TOGETHER = 64
# From the first byte of a head to its end.
HEAD_S = 10.0
HEAD_MAX_BYTES = 1 << 15
# What is left of a body, once its request was answered.
REST_S = 30.0
# Until the first request, or the next.
IDLE_S = 75.0
# When the server stops, for a request that is on its way already.
LAST_S = 0.5
# Requests that wait on one connection for those before.
MOST_PIPELINED = 16
# Bytes around each byte of a body: a chunk of one byte takes six.
MOST_AROUND = 8

_NOTHING_LINGERS = struct.pack("ii", 1, 0)
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class ServedConnection(HttpToolsProtocol):
    """One connection, which knows since when it waits for what."""

    connections: "set[Any]"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._since_s = 0.0
        self._is_in_head = False
        self._is_in_message = False
        self._has_begun = False
        self._around = 0
        self._is_last = False
        self._sent: _Counting | None = None
        self._leaving = Leaving()

    @property
    def peer(self) -> str:
        """Who is at the other end."""
        return self.client[0] if self.client else ""

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def since_s(self) -> float:
        """Since when it is in the state that it is in."""
        return self._since_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count what is written; where there are too many connections make room, or go."""
        self._since_s = time.monotonic()
        self._sent = _Counting(transport)
        super().connection_made(self._sent)  # type: ignore[arg-type]
        if len(self.connections) > MOST_CONNECTIONS:
            others: list[ServedConnection] = [other for other in self.connections if other is not self]
            dropped = most_crowded(others)
            for other in dropped or [self]:
                other.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes in; there is an end to those that are no body."""
        self._has_begun = False
        super().data_received(data)
        if self._has_begun or not self._is_in_message:
            self._around = 0
            return
        self._around += len(data)
        if self._around > HEAD_MAX_BYTES:
            self._refuse_head()

    def _refuse_head(self) -> None:
        log.warning("closed connection from %s: headers larger than %d bytes", self.peer, HEAD_MAX_BYTES)
        if self.is_busy or not self._is_in_head:
            self.abort()
            return
        self.transport.write(_TOO_LARGE)
        self.transport.close()

    def on_message_begin(self) -> None:
        """Begin a head."""
        if len(self.pipeline) >= MOST_PIPELINED:
            self.abort()
            raise httptools.HttpParserError("too many pipelined requests on this connection")
        self._is_in_head = self._is_in_message = self._has_begun = True
        self._since_s = time.monotonic()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """End a head."""
        self._is_in_head = False
        super().on_headers_complete()
        if self._sent is not None:
            self._sent.begins_answer = True
        if self._is_last:
            self._answer_last()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._around -= MOST_AROUND * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._is_in_message = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """End an answer."""
        self._since_s = time.monotonic()
        super().on_response_complete()

    def shutdown(self) -> None:
        """Answer what is under way or on its way, and no more.

        A caller whose connection is idle cannot know that the server stops, and its next request may have been sent.
        """
        self._is_last = True
        if self.is_busy:
            self._answer_last()
        else:
            self.loop.call_later(LAST_S, super().shutdown)

    def _answer_last(self) -> None:
        """Say with the answer that it is the last one; the server closes the connection behind it."""
        if self.cycle is not None:
            self.cycle.keep_alive = False
            self.cycle.default_headers = [*self.cycle.default_headers, (b"connection", b"close")]

    def abort(self) -> None:
        """Close at once, whatever waits to leave; nothing of it stays with the kernel either."""
        if self._sent is not None and not self._sent.is_closed:
            self._sent.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NOTHING_LINGERS)
            self._sent.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Be closed."""
        if self._sent is not None:
            self._sent.is_closed = True
        super().connection_lost(exc)

    def look(self, pace: Pace, now_s: float) -> str | None:
        """Why it has to go."""
        if self._sent is None:
            return None
        waiting, left = self._sent.waiting_and_left()
        if self._leaving.is_too_slow(pace, waiting=waiting, left=left, now_s=now_s):
            return "client reads too slowly"
        took_s = now_s - self._since_s
        if self.is_busy or waiting:
            return None
        if self._is_in_head:
            return "request head too slow" if took_s > HEAD_S else None
        if self._is_in_message:
            return "request body too slow" if took_s > REST_S else None
        return "idle" if took_s > IDLE_S else None


def most_crowded(connections: Iterable[ServedConnection]) -> list[ServedConnection]:
    """Some that may go: of who has most, those that are waited for longest; none with a request under way."""
    idle = [connection for connection in connections if not connection.is_busy]
    peers = Counter(connection.peer for connection in idle)
    return sorted(idle, key=lambda connection: (-peers[connection.peer], connection.since_s))[:CLOSED_TOGETHER]


def sweep(connections: Iterable[Any], pace: Pace) -> None:
    """Close those that are too slow."""
    now_s = time.monotonic()
    for connection in list(connections):
        if isinstance(connection, ServedConnection) and (why := connection.look(pace, now_s)):
            log.info("closed connection from %s: %s", connection.peer, why)
            connection.abort()


class _Counting:
    """A transport that knows how much was written to it, and sends the head of an answer together with its body.

    The server writes them in two pieces, each of which would cost a call of the kernel here and wake up the reader.

    Attributes:
        begins_answer: what is written next is a head.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._handed = 0
        self._held = b""
        self._call_soon = asyncio.get_running_loop().call_soon
        self.begins_answer = False
        self.is_closed = False
        # What is called for each request, without a detour.
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._handed += len(data)
        if self.begins_answer:
            self.begins_answer = False
            self._send_held()
            self._held = data
            # The body mostly comes in the same turn of the loop; where it does not, nobody waits for it.
            self._call_soon(self._send_held)
        elif self._held:
            held, self._held = self._held, b""
            self._transport.writelines((held, data))
        else:
            self._transport.write(data)

    def _send_held(self) -> None:
        held, self._held = self._held, b""
        if held and not self.is_closed:
            self._transport.write(held)

    def close(self) -> None:
        self._send_held()
        self._transport.close()

    def abort(self) -> None:
        self._held = b""
        self._transport.abort()

    def waiting_and_left(self) -> tuple[int, int]:
        waiting = self._transport.get_write_buffer_size() + len(self._held)
        return waiting, self._handed - waiting


# Requests under way get this long when the process is asked to stop.
GRACE_S = 10
BACKLOG = 2048
PACE = Pace()
# Of the server's tenths of a second.
SWEEP_TICKS = 10


@contextlib.asynccontextmanager
async def serving(app: Starlette, *, host: str, port: int, pace: Pace = PACE) -> AsyncIterator[str]:
    """Serve `app` while the context is open; yield its URL.

    The application starts before the port is open and ends after the last request.

    Args:
        port: 0 is any free one.
        pace: of what is read of it.

    Raises:
        OSError: the port is taken.
        Exception: whatever the application's start raises.
    """
    async with app.router.lifespan_context(app):
        with _listening(host, port) as listener:
            server = _Server(_configuration(app), pace)
            task = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                while not server.started and not task.done():
                    await asyncio.sleep(0.01)
                shown = f"[{host}]" if ":" in host else host
                yield f"http://{shown}:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await task
                await server.close_all()


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the process: several servers share it. Closes connections that are too slow."""

    def __init__(self, config: uvicorn.Config, pace: Pace) -> None:
        super().__init__(config)
        self._pace = pace

    async def close_all(self) -> None:
        """Close what the time for a stop was too short for."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        # Those that are closed are told so in the next turn.
        await asyncio.sleep(0)

    async def on_tick(self, counter: int) -> bool:
        """Look at the connections once a second."""
        if counter % SWEEP_TICKS == 0:
            sweep(self.server_state.connections, self._pace)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
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
        # Whoever is at the other end of the connection is the caller, whatever its headers say.
        proxy_headers=False,
        timeout_keep_alive=int(IDLE_S),
        timeout_graceful_shutdown=GRACE_S,
    )


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=BACKLOG) as listener:
        # Accepted connections inherit it. Without, an answer's header and body, written in two pieces, wait for each
        # other's acknowledgement: 40 ms a request. The event loop sets it only on sockets that it makes itself.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener
