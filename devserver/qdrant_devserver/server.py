"""The server of a data folder: as an ASGI application of each peer, and served on loopback."""

import asyncio
import contextlib
import pathlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware

from qdrant_devserver.cluster.peers import ALONE, Simulation
from qdrant_devserver.cluster.state import open_state
from qdrant_devserver.features import DEFAULT_QDRANT_VERSION, Features, VersionNotServed, features_of
from qdrant_devserver.injected_faults import Absence
from qdrant_devserver.rest.access import KeyGuard, OwnMachine
from qdrant_devserver.rest.routes import all_routes

__all__ = ["VersionNotServed", "create_app", "create_peers", "serve"]

LOOPBACK = "127.0.0.1"
# Requests under way get this long when the process is asked to stop.
GRACE_S = 10
# Longer than clients keep a connection that they do not use.
IDLE_S = 75


def create_app(
    data_dir: pathlib.Path,
    *,
    api_key: str | None = None,
    has_jwt_rbac: bool = False,
    qdrant_version: str = DEFAULT_QDRANT_VERSION,
) -> Starlette:
    """A Qdrant server over a data folder: `create_peers` of one."""
    return create_peers(data_dir, ALONE, api_key=api_key, has_jwt_rbac=has_jwt_rbac, qdrant_version=qdrant_version)[0]


def create_peers(
    data_dir: pathlib.Path,
    simulation: Simulation,
    *,
    api_key: str | None = None,
    has_jwt_rbac: bool = False,
    qdrant_version: str = DEFAULT_QDRANT_VERSION,
) -> list[Starlette]:
    """The servers of a simulated cluster over a data folder; the first is started first and stopped last.

    The folder is taken and read when the application starts, flushed and let go when it stops.

    Args:
        data_dir: where everything is kept; made when missing.
        simulation: how many, and how they behave.
        api_key: asked of every request but health checks, as `api-key` or bearer token. Without one, callers on this
            machine are served, but for web pages of other sites.
        has_jwt_rbac: tokens that are signed with the key are taken too.
        qdrant_version: what the server says it is, and whose features it has.

    Raises:
        VersionNotServed: it does not answer as that version.
    """
    guard = Middleware(KeyGuard, api_key=api_key, has_jwt_rbac=has_jwt_rbac) if api_key else Middleware(OwnMachine)
    middleware = [Middleware(Absence), guard] if simulation.peers > 1 else [guard]
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
    """What holds the data folder while the first peer runs."""

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
    simulation: Simulation = ALONE,
) -> None:
    """Serve a data folder until cancelled; print the address, of several peers the addresses, when ready.

    Args:
        data_dir: where everything is kept.
        port: 0 takes any free one; peers have those that follow.
        api_key: asked of every request but health checks.
        has_jwt_rbac: tokens that are signed with the key are taken too.
        qdrant_version: what the server says it is.
        simulation: of several peers.

    Raises:
        DataFolderBusy: another server works on the folder.
        OSError: the port is taken.
        VersionNotServed: it does not answer as that version.
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
    """Serve a peer while the context is open; yield its URL. The port opens once the peer has started."""
    async with peer.router.lifespan_context(peer):
        with socket.create_server((LOOPBACK, port)) as listener:
            # Accepted connections inherit it. Without, an answer's header and body wait for each other's
            # acknowledgement: 40 ms a request.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = _PeerServer(_configuration(peer))
            task = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                yield f"http://{LOOPBACK}:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True
                await task


class _PeerServer(uvicorn.Server):
    """Leaves signals to whoever runs the process: several servers share it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _configuration(peer: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        peer,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
