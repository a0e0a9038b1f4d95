"""A real HTTP server on loopback for the length of a test: uvicorn, in a thread of its own."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

from tests.support.certificates import ServerFiles


@contextlib.contextmanager
def serve(app: Any, *, port: int = 0, tls: ServerFiles | None = None) -> Iterator[str]:
    """Serve an ASGI application; yields its URL.

    Args:
        port: 0 is any free one.
        tls: serve https with these.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by every connection; without it an answer waits 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(("127.0.0.1", port))
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=5,
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

    asyncio.run(serve_and_tell())
