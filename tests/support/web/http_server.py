"""Real HTTP on loopback during a test: a served application, its certificates, checked responses."""

import asyncio
import contextlib
import pathlib
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

MAX_QUOTED_CHARS = 2000
HOST = "127.0.0.1"

ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Handles one connection byte by byte."""


def check_success(answer: httpx.Response) -> httpx.Response:
    """Return the response if it succeeded.

    Raises:
        AssertionError: If it is an error. The message contains its body, unlike that of `raise_for_status`.
    """
    request, words = answer.request, answer.text[:MAX_QUOTED_CHARS]
    assert answer.is_success, f"{request.method} {request.url.path}: {answer.status_code}: {words}"
    return answer


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """Certificate and key of a TLS server."""

    certificate: pathlib.Path
    key: pathlib.Path


class Authority:
    """A certificate authority.

    Args:
        folder: Folder for the servers' files.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        # Imported here, because `make client-ts` reads the API's document without the development packages.
        import trustme

        self._folder = folder
        self._ca = trustme.CA()

    @property
    def pem(self) -> str:
        """The authority's own certificate in PEM, as stored in a Secret."""
        return self._ca.cert_pem.bytes().decode()

    def issue(self, *, host: str = HOST) -> ServerFiles:
        """Issue a certificate for a host; return it with its key."""
        leaf = self._ca.issue_cert(host)
        return self._write(b"".join(part.bytes() for part in leaf.cert_chain_pems), leaf.private_key_pem.bytes())

    def self_signed(self) -> ServerFiles:
        """Return a self-signed certificate with its key."""
        return self._write(self._ca.cert_pem.bytes(), self._ca.private_key_pem.bytes())

    def _write(self, certificate: bytes, key: bytes) -> ServerFiles:
        folder = pathlib.Path(tempfile.mkdtemp(dir=self._folder))
        files = ServerFiles(folder / "cert.pem", folder / "key.pem")
        files.key.write_bytes(key)
        files.certificate.write_bytes(certificate)
        return files


@contextlib.contextmanager
def serve(app: Any, *, port: int = 0, tls: ServerFiles | None = None) -> Iterator[str]:
    """Serve an ASGI application; yield its URL.

    Args:
        port: 0 for any free port.
        tls: Certificate and key for https; None for http.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit the option. Without it, a response waits 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(("127.0.0.1", port))
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=1,
            # Longer than clients keep a connection: one that is closed as it is used again is an error.
            timeout_keep_alive=75,
            ssl_certfile=tls.certificate if tls else None,
            ssl_keyfile=tls.key if tls else None,
        )
        server = uvicorn.Server(config)
        started = threading.Event()
        thread = threading.Thread(target=_run, args=(server, listener, started), daemon=True)
        thread.start()
        if not started.wait(20):
            raise AssertionError("the server did not start within 20 s")
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


def _run(server: uvicorn.Server, listener: socket.socket, started: threading.Event) -> None:
    async def serve_and_tell() -> None:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        started.set()
        await serving
        # A client may leave the end of TLS unconfirmed. Its connection would fail a later test.
        for transport in list(asyncio.get_running_loop()._transports.values()):  # type: ignore[attr-defined]
            transport.abort()
        await asyncio.sleep(0.01)

    asyncio.run(serve_and_tell())


@contextlib.asynccontextmanager
async def serve_connections(talk: ConnectionHandler) -> AsyncIterator[str]:
    """Handle each connection with `talk`, then close it; yield the URL."""
    talks = []

    async def talk_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await talk(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(talk_and_close, HOST, 0) as server:
        yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*filter(None, talks))
