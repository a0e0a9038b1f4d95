"""Run the development server: `qdrant-devserver --data DIR --port N`."""

import argparse
import asyncio
import contextlib
import pathlib
import signal
import sys

from qdrant_devserver.cluster.peers import Simulation
from qdrant_devserver.features import DEFAULT_QDRANT_VERSION, UnsupportedVersion
from qdrant_devserver.server import serve


def main() -> int:
    """Serve until interrupted; return 1 if the folder, the port or the version cannot be used."""
    parser = argparse.ArgumentParser(prog="qdrant-devserver", description="A Qdrant REST server for development.")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder that keeps everything")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free one")
    parser.add_argument("--qdrant-version", default=DEFAULT_QDRANT_VERSION, help="the version to answer as")
    parser.add_argument("--api-key", help="asked of every request but health checks")
    parser.add_argument("--jwt-rbac", action="store_true", help="tokens that are signed with the key are taken too")
    parser.add_argument("--peers", type=int, default=1, help="simulate a cluster of so many servers, a port each")
    parser.add_argument("--activation-seconds", type=float, default=1.0, help="until a recovered shard is active")
    arguments = parser.parse_args()
    try:
        asyncio.run(_serve_until_stopped(arguments))
    except (UnsupportedVersion, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


async def _serve_until_stopped(arguments: argparse.Namespace) -> None:
    server = asyncio.create_task(
        serve(
            arguments.data,
            port=arguments.port,
            api_key=arguments.api_key,
            has_jwt_rbac=arguments.jwt_rbac,
            qdrant_version=arguments.qdrant_version,
            simulation=Simulation(arguments.peers, arguments.activation_seconds),
        )
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, server.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await server


if __name__ == "__main__":
    sys.exit(main())
