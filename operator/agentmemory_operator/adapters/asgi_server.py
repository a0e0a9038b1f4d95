"""Serve Starlette applications over HTTP, several in one process, and stop them in good order."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.applications import Starlette

# Requests under way get this long when the process is asked to stop.
GRACE_S = 10
KEEP_ALIVE_S = 75
BACKLOG = 2048


@contextlib.asynccontextmanager
async def serving(app: Starlette, *, host: str, port: int) -> AsyncIterator[str]:
    """Serve `app` while the context is open; yield its URL.

    The application starts before the port is open and ends after the last request.

    Args:
        port: 0 is any free one.

    Raises:
        OSError: the port is taken.
        Exception: whatever the application's start raises.
    """
    async with app.router.lifespan_context(app):
        with _listening(host, port) as listener:
            server = _Server(_configuration(app))
            task = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                while not server.started and not task.done():
                    await asyncio.sleep(0.01)
                shown = f"[{host}]" if ":" in host else host
                yield f"http://{shown}:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await task


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the process: several servers share it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _configuration(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_S,
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
