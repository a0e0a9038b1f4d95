"""Serve the development server over loopback."""

import asyncio
import contextlib
import pathlib

from agentmemory_operator.adapters.asgi_server import serving
from agentmemory_operator.devserver.app import create_peers
from agentmemory_operator.devserver.cluster import ALONE, Simulation
from agentmemory_operator.devserver.features import DEFAULT_QDRANT_VERSION

LOOPBACK = "127.0.0.1"


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
    """
    apps = create_peers(data_dir, simulation, api_key=api_key, has_jwt_rbac=has_jwt_rbac, qdrant_version=qdrant_version)
    async with contextlib.AsyncExitStack() as stack:
        urls = [
            await stack.enter_async_context(serving(app, host=LOOPBACK, port=port and port + number))
            for number, app in enumerate(apps)
        ]
        print("Qdrant", *urls, flush=True)
        await asyncio.Event().wait()
