"""A web server with files, over TLS; a test may have it break off, or lead elsewhere."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.certificates import ServerFiles
from tests.support.http_server import serve


@dataclass(slots=True)
class WebServer:
    """An ASGI application.

    Attributes:
        url: where it is.
        files: content by path.
        moved: where a path leads on to.
        cuts: how many answers break off in the middle from now on.
        asked: paths, in the order of the calls.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    cuts: int = 0
    asked: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        """Host and port, as a connection lists them."""
        return self.url.removeprefix("https://")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        self.asked.append(path)
        if path in self.moved:
            await _answer(send, 302, b"", headers=[(b"location", self.moved[path].encode())])
        elif path not in self.files:
            await _answer(send, 404, b"")
        elif self.cuts:
            self.cuts -= 1
            content = self.files[path]
            await _answer(send, 200, content[: len(content) // 2], size=len(content))
        else:
            await _answer(send, 200, self.files[path])


async def _answer(
    send: Any, status: int, body: bytes, *, size: int | None = None, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    length = str(len(body) if size is None else size).encode()
    told = [(b"content-length", length), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body, "more_body": size is not None})
    # A server that returns before it has sent what it told of closes the connection.


@contextlib.contextmanager
def serving_files(tls: ServerFiles) -> Iterator[WebServer]:
    """Serve files over TLS."""
    server = WebServer()
    with serve(server, tls=tls) as server.url:
        yield server
