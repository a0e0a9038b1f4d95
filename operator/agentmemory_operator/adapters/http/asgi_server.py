"""Serve Starlette applications over HTTP, several in one process, and stop them in good order."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.applications import Starlette

from agentmemory_operator.adapters.http.asgi_connections import IDLE_S, ServedConnection, sweep
from agentmemory_operator.runtime.rules.fair_shares import Pace

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
