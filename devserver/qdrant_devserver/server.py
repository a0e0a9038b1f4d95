"""Serve a data folder: an ASGI application for each peer, on loopback."""

import asyncio
import contextlib
import pathlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware

from qdrant_devserver.cluster.peers import SINGLE_SERVER, Simulation
from qdrant_devserver.cluster.state import open_state
from qdrant_devserver.features import DEFAULT_QDRANT_VERSION, Features, UnsupportedVersion, features_of
from qdrant_devserver.injected_faults import UnreachablePeer
from qdrant_devserver.rest.access import KeyGuard, LocalOnlyGuard
from qdrant_devserver.rest.routes import all_routes

__all__ = ["UnsupportedVersion", "create_app", "create_peers", "serve"]

LOOPBACK = "127.0.0.1"
# Maximum time for requests in progress when the server stops.
SHUTDOWN_TIMEOUT_S = 10
# Longer than the keep-alive time of clients.
KEEP_ALIVE_S = 75


def create_app(
    data_dir: pathlib.Path,
    *,
    api_key: str | None = None,
    has_jwt_rbac: bool = False,
    qdrant_version: str = DEFAULT_QDRANT_VERSION,
) -> Starlette:
    """Create the application of a server without a cluster. Raises: As `create_peers`."""
    return create_peers(
        data_dir, SINGLE_SERVER, api_key=api_key, has_jwt_rbac=has_jwt_rbac, qdrant_version=qdrant_version
    )[0]


def create_peers(
    data_dir: pathlib.Path,
    simulation: Simulation,
    *,
    api_key: str | None = None,
    has_jwt_rbac: bool = False,
    qdrant_version: str = DEFAULT_QDRANT_VERSION,
) -> list[Starlette]:
    """Create the applications of a simulated cluster, one for each peer. Start the first one first and stop it last.

    The start of the first one locks and loads the data folder; its stop flushes and releases the folder.

    Args:
        data_dir: Data folder; created if missing.
        simulation: Number and behaviour of the peers.
        api_key: Required for all requests except health checks, as `api-key` or bearer token. Without one, every client
            on this machine is accepted, except web pages of other sites.
        has_jwt_rbac: True to accept tokens signed with the key.
        qdrant_version: Version to report and to emulate.

    Raises:
        UnsupportedVersion: If the version cannot be emulated.
    """
    guard = Middleware(KeyGuard, api_key=api_key, has_jwt_rbac=has_jwt_rbac) if api_key else Middleware(LocalOnlyGuard)
    middleware = [Middleware(UnreachablePeer), guard] if simulation.peers > 1 else [guard]
    peers: list[Starlette] = []
    lifespan = _lifespan(peers, data_dir, features_of(qdrant_version), simulation)
    for number in range(1, simulation.peers + 1):
        peer = Starlette(routes=all_routes(), middleware=middleware, lifespan=lifespan if number == 1 else None)
        peer.router.redirect_slashes = False
        peer.state.peer = number
        peer.state.has_jwt_rbac = has_jwt_rbac
        peer.state.started_at = datetime.now(UTC).isoformat()
        peers.append(peer)
    return peers


def _lifespan(
    peers: list[Starlette], data_dir: pathlib.Path, features: Features, simulation: Simulation
) -> Callable[[Starlette], contextlib.AbstractAsyncContextManager[None]]:
    """Build the lifespan that holds the data folder while the first peer runs."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        state = open_state(data_dir, features, simulation)
        for peer in peers:
            peer.state.server = state
        try:
            yield
        finally:
            await state.close()

    return lifespan


async def serve(
    data_dir: pathlib.Path,
    *,
    port: int = 0,
    api_key: str | None = None,
    has_jwt_rbac: bool = False,
    qdrant_version: str = DEFAULT_QDRANT_VERSION,
    simulation: Simulation = SINGLE_SERVER,
) -> None:
    """Serve a data folder until cancelled. When ready, print the address of each peer.

    Args:
        data_dir: Data folder.
        port: 0 for any free port. Further peers use the following ports.
        api_key: Required for all requests except health checks. Without one, see `create_peers`.
        has_jwt_rbac: True to accept tokens signed with the key.
        qdrant_version: Version to report and to emulate.
        simulation: Number and behaviour of the peers.

    Raises:
        DataFolderBusy: If another server uses the folder.
        OSError: If the port is taken.
        UnsupportedVersion: If the version cannot be emulated.
    """
    peers = create_peers(
        data_dir, simulation, api_key=api_key, has_jwt_rbac=has_jwt_rbac, qdrant_version=qdrant_version
    )
    async with contextlib.AsyncExitStack() as stack:
        urls = [
            await stack.enter_async_context(_serving(peer, port and port + number)) for number, peer in enumerate(peers)
        ]
        print("Qdrant", *urls, flush=True)
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def _serving(peer: Starlette, port: int) -> AsyncIterator[str]:
    """Serve a peer inside the context; yield its URL. The port is opened after the peer has started."""
    async with peer.router.lifespan_context(peer):
        with socket.create_server((LOOPBACK, port)) as listener:
            # Accepted connections inherit the option. Without it, the header and the body of a response wait for each
            # other's acknowledgement: 40 ms a request.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = _PeerServer(_configuration(peer))
            task = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await task


class _PeerServer(uvicorn.Server):
    """Leaves signals to the process, because several servers share it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers, unlike uvicorn."""
        yield


def _configuration(peer: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        peer,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
    )
