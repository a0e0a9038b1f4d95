"""Serve the development server over loopback."""

import asyncio
import contextlib
import pathlib
import socket
from collections.abc import Iterator

import uvicorn

from agentmemory_operator.devserver.app import create_app
from agentmemory_operator.devserver.features import DEFAULT_QDRANT_VERSION


async def serve(
    data_dir: pathlib.Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key: str | None = None,
    qdrant_version: str = DEFAULT_QDRANT_VERSION,
) -> None:
    """Serve a data folder until cancelled; print the address when ready.

    Args:
        data_dir: where everything is kept.
        host: address to listen on.
        port: 0 takes any free one.
        api_key: asked of every request but health checks.
        qdrant_version: what the server says it is.

    Raises:
        DataFolderBusy: another server works on the folder.
        OSError: the port is taken.
    """
    app = create_app(data_dir, api_key=api_key, qdrant_version=qdrant_version)
    async with app.router.lifespan_context(app):
        with _listening(host, port) as listener:
            config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=75)
            server = _Server(config, f"http://{host}:{listener.getsockname()[1]}")
            task = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                await asyncio.shield(task)
            finally:
                server.should_exit = True
                await task


class _Server(uvicorn.Server):
    """Says where it listens once it does, and leaves signals to whoever runs the process."""

    def __init__(self, config: uvicorn.Config, url: str) -> None:
        super().__init__(config)
        self._url = url

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then print the address."""
        await super().startup(sockets)
        print(f"Qdrant {self._url}", flush=True)


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    with socket.create_server((host, port), backlog=2048) as listener:
        # Accepted connections inherit it. Without, an answer's header and body, written in two pieces, wait for each
        # other's acknowledgement: 40 ms a request. The event loop sets it only on sockets that it makes itself.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield listener
