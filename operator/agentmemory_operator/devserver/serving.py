"""Serve the development server over loopback."""

import asyncio
import pathlib

from agentmemory_operator.adapters.asgi_server import serving
from agentmemory_operator.devserver.app import create_app
from agentmemory_operator.devserver.features import DEFAULT_QDRANT_VERSION


async def serve(
    data_dir: pathlib.Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key: str | None = None,
    has_jwt_rbac: bool = False,
    qdrant_version: str = DEFAULT_QDRANT_VERSION,
) -> None:
    """Serve a data folder until cancelled; print the address when ready.

    Args:
        data_dir: where everything is kept.
        host: address to listen on.
        port: 0 takes any free one.
        api_key: asked of every request but health checks.
        has_jwt_rbac: tokens that are signed with the key are taken too.
        qdrant_version: what the server says it is.

    Raises:
        DataFolderBusy: another server works on the folder.
        OSError: the port is taken.
    """
    app = create_app(data_dir, api_key=api_key, has_jwt_rbac=has_jwt_rbac, qdrant_version=qdrant_version)
    async with serving(app, host=host, port=port) as url:
        print(f"Qdrant {url}", flush=True)
        await asyncio.Event().wait()
