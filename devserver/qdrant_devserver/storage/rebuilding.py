"""Optimize a copy of a shard; a process of its own, because the engine holds Python's global lock meanwhile.

python -m qdrant_devserver.storage.rebuilding FOLDER SERVER_PID < configuration.json
"""

import ctypes
import os
import signal
import sys

import orjson
import qdrant_edge as edge

from qdrant_devserver.storage.engine_configuration import engine_configuration

_PR_SET_PDEATHSIG = 1
# Reads and writes come first.
NICENESS = 10


def rebuild(folder: str, server_pid: int, configuration: bytes) -> None:
    """Load a shard with a configuration, optimize and close it."""
    os.nice(NICENESS)
    if sys.platform == "linux":
        # A killed server takes this process along: its copy is of no use to the next one.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server_pid:
        # It was killed before it could take this process along.
        return
    shard = edge.EdgeShard.load(folder, engine_configuration(orjson.loads(configuration)))
    shard.optimize()
    shard.flush()
    shard.close()


if __name__ == "__main__":
    rebuild(sys.argv[1], int(sys.argv[2]), sys.stdin.buffer.read())
