"""Minimal HTTP client: one blocking keep-alive socket, only the required headers.

Both sides of a comparison use it, so that the client's own overhead is equal.
"""

import socket
import time
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import orjson

# Servers close idle connections after 5 s.
IDLE_S = 2.0
TIMEOUT_S = 120.0


class Refused(Exception):
    """A response with a status other than 2xx."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body[:500].decode(errors='replace')}")
        self.status = status


class Client:
    """One connection to one server. Not thread-safe."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._socket: socket.socket | None = None
        self._used_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._socket:
            self._socket.close()
        self._socket = None

    def call(self, method: str, path: str, content: Any = None) -> Any:
        """Send a request and return the parsed response.

        Raises:
            Refused, ConnectionError: As `send`.
        """
        return self.send(self.prepare(method, path, content))

    def prepare(self, method: str, path: str, content: Any = None) -> bytes:
        """Return the bytes of a request."""
        body = b"" if content is None else orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._address[0]}", "Accept-Encoding: identity"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode() + body

    def send(self, request: bytes) -> Any:
        """Send a prepared request and return the parsed response; None for an empty one.

        Raises:
            Refused: If the status is not 2xx.
            ConnectionError: If the server closes the connection before the end of its response.
        """
        body = self._exchange(request)
        return orjson.loads(body) if body else None

    def text(self, method: str, path: str) -> str:
        """Send a request without a body and return the text of the response. Raises Refused as `call`."""
        return self._exchange(self.prepare(method, path)).decode()

    def size_of(self, request: bytes) -> int:
        """Send a prepared request and return the size of the response's body in bytes. Raises: As `send`."""
        return len(self._exchange(request))

    def timed(self, request: bytes) -> tuple[Any, float]:
        """Send a prepared request. Return the parsed response and its duration in milliseconds.

        The duration excludes the time to connect. Raises: As `send`.
        """
        self._connect()
        started_s = time.perf_counter()
        answer = self.send(request)
        return answer, (time.perf_counter() - started_s) * 1000

    def _connect(self) -> socket.socket:
        if self._socket is None or time.monotonic() - self._used_s > IDLE_S:
            self.close()
            self._socket = socket.create_connection(self._address, timeout=TIMEOUT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._used_s = time.monotonic()
        return self._socket

    def _exchange(self, request: bytes) -> bytes:
        connection = self._connect()
        connection.sendall(request)
        head, body = _read_head(connection)
        status, length = int(head[9:12]), _content_length(head)
        parts, missing = [body], length - len(body)
        while missing > 0:
            part = connection.recv(min(missing, 1 << 20))
            if not part:
                raise ConnectionError("the server closed the connection within an answer")
            parts.append(part)
            missing -= len(part)
        answer = b"".join(parts)
        self._used_s = time.monotonic()
        if not 200 <= status < 300:
            raise Refused(status, answer)
        return answer


def _read_head(connection: socket.socket) -> tuple[bytes, bytes]:
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(1 << 16)
        if not part:
            raise ConnectionError("the server closed the connection")
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    return head, body


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise ConnectionError("the answer has no Content-Length")
