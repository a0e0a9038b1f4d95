"""Serve ASGI applications on loopback or elsewhere, several in one process, and stop them in good order."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.types import ASGIApp

# Requests under way get this long when the process is asked to stop.
GRACE_S = 10


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the process: several servers share it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, *, host: str, port: int) -> AsyncIterator[str]:
    """Serve `app` while the context is open; yield its URL. Port 0 is any free one.

    Raises:
        OSError: the port is taken.
    """
    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    # Accepted connections inherit it. Head and body are written apart: without it an answer may wait 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_S, lifespan="on")
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        if task.done():
            raise RuntimeError("the application did not start: see the log")
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
