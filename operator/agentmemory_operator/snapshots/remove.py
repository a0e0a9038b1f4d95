"""A snapshot's bytes go: the copy off the server, the file on it, and the placeholder whose last one it was."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.retire import keep_in_reach, remove_file
from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.connections.rules.bucket_places import check_copy
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.snapshots import SnapshotFile
from agentmemory_operator.runtime.cache import key_of
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.make import recorded_connection
from agentmemory_operator.snapshots.rules.steps import QDRANT, S3, location_of


@dataclass(slots=True)
class SnapshotRemoval:
    """Removes what a MemorySnapshot's status says there is and is its own; every part may be gone already."""

    servers: Servers
    copies: Copies

    async def remove(self, status: Mapping[str, Any], *, snapshot: Json) -> None:
        """Remove a snapshot's bytes wherever they are.

        Args:
            snapshot: the MemorySnapshot as it came.

        Raises:
            AgentMemoryError: something is left; another call goes on.
        """
        namespace = key_of(snapshot).namespace
        copy, place = location_of(status, S3), location_of(status, QDRANT)
        try:
            if copy:
                check_copy(copy, snapshot)
                await self.copies.remove(copy, namespace=namespace)
        finally:
            # A storage that refuses must not keep the server's disk full.
            if place is not None:
                await self.remove_files(status, place["physical"], lambda _: [place["name"]], namespace=namespace)

    async def remove_files(
        self,
        status: Mapping[str, Any],
        physical: str,
        choose: Callable[[list[SnapshotFile]], list[str]],
        *,
        namespace: str,
    ) -> None:
        """Remove files of a collection, and its placeholder if it keeps no other.

        Args:
            choose: told the files that there are, returns the names of those that go.
        """
        connection = recorded_connection(status)
        if connection is None:
            return

        async def remove_from(server: Server) -> None:
            await keep_in_reach(server.collections, server.snapshots, physical)
            for name in choose(await server.snapshots.files(physical)):
                await remove_file(server.collections, server.snapshots, physical, name)

        await self.servers.use(connection, remove_from, namespace=namespace)
