"""The connections of an HTTP server: how many, how long each may take over a head, and how slowly it may be read.

The server itself leaves all three to whoever connects.
"""

import asyncio
import logging
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import httptools
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
