"""One Qdrant server as snapshots and restores use it."""

import contextlib
from collections.abc import AsyncIterator

from agentmemory_operator.adapters.qdrant_collections import QdrantCollections
from agentmemory_operator.adapters.qdrant_points import QdrantPoints
from agentmemory_operator.adapters.qdrant_snapshots import QdrantSnapshots
from agentmemory_operator.services.links import Endpoint
from agentmemory_operator.services.servers import Server


@contextlib.asynccontextmanager
async def open_server(url: str, *, deadline_s: float = 30) -> AsyncIterator[Server]:
    """Open everything of one server.

    Args:
        deadline_s: of what a snapshot's calls wait for.
    """
    snapshots = QdrantSnapshots(url, deadline_s=deadline_s)
    server = Server(Endpoint(url, None, 10), QdrantCollections(url), snapshots, QdrantPoints(url))
    try:
        yield server
    finally:
        await server.close()
