"""Delete a snapshot: the copy in object storage, the file in Qdrant, and a placeholder without further files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.replaced_collection import keep_snapshots_available, remove_file
from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.connections.rules.object_keys import check_copy
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.snapshots import SnapshotFile
from agentmemory_operator.runtime.object_table import key_of
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.rules.steps import QDRANT, S3, location_of
from agentmemory_operator.snapshots.snapshot_creation import recorded_connection


@dataclass(slots=True)
class SnapshotRemoval:
    """Deletes the files at the locations in a MemorySnapshot's status, but only the snapshot's own. See `remove`."""

    servers: Servers
    copies: Copies

    async def remove(self, status: Mapping[str, Any], *, snapshot: Json) -> None:
        """Delete a snapshot's copy in object storage, and then, even if that fails, its file in Qdrant.

        Missing files are no error.

        Args:
            status: Status with the locations of the files.
            snapshot: The MemorySnapshot as received.

        Raises:
            SpecInvalid, NotOwned: If a location does not belong to the snapshot or its namespace, or a user must fix
                the connection or the storage.
            AgentMemoryError: Any other, if a file remains. Another call continues.
        """
        namespace = key_of(snapshot).namespace
        copy, location = location_of(status, S3), location_of(status, QDRANT)
        try:
            if copy:
                check_copy(copy, snapshot)
                await self.copies.remove(copy, namespace=namespace)
        finally:
            # Free the server's disk even if the storage rejects the deletion.
            if location is not None:
                await self.remove_files(status, location["physical"], lambda _: [location["name"]], namespace=namespace)

    async def remove_files(
        self,
        status: Mapping[str, Any],
        physical: str,
        choose: Callable[[list[SnapshotFile]], list[str]],
        *,
        namespace: str,
    ) -> None:
        """Delete files of a collection, and its placeholder if no files remain.

        Does nothing if the status records no connection: then the snapshot has created no file.

        Args:
            choose: Receives the existing files; returns the names of those to delete.

        Raises:
            AgentMemoryError: If a file remains. Another call continues.
        """
        connection = recorded_connection(status)
        if connection is None:
            return

        async def remove_from(server: Server) -> None:
            await keep_snapshots_available(server.collections, server.snapshots, physical)
            for name in choose(await server.snapshots.files(physical)):
                await remove_file(server.collections, server.snapshots, physical, name)

        await self.servers.use(connection, remove_from, namespace=namespace)
