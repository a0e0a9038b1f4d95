"""Optimize a copy of a shard in a process of its own, because the engine holds Python's global lock while it runs.

python -m qdrant_devserver.storage.optimize_copy FOLDER SERVER_PID < configuration.json
"""

import ctypes
import os
import signal
import sys

import orjson
import qdrant_edge as edge

from qdrant_devserver.storage.engine_configuration import engine_configuration

_PR_SET_PDEATHSIG = 1
# Lower priority than reads and writes.
NICENESS = 10


def rebuild(folder: str, server_pid: int, configuration: bytes) -> None:
    """Load a shard with a configuration, optimize it and close it. Do nothing if the server has ended."""
    os.nice(NICENESS)
    if sys.platform == "linux":
        # The kernel kills this process with the server: the copy is useless to the next server.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server_pid:
        # The server was killed before the call above took effect.
        return
    shard = edge.EdgeShard.load(folder, engine_configuration(orjson.loads(configuration)))
    shard.optimize()
    shard.flush()
    shard.close()


if __name__ == "__main__":
    rebuild(sys.argv[1], int(sys.argv[2]), sys.stdin.buffer.read())
