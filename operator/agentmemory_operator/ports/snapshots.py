"""Port for the snapshots of one Qdrant server."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from agentmemory_operator.collections.rules.collection import Tenant
from agentmemory_operator.ports.base import Json


@dataclass(frozen=True, slots=True)
class ShardFile:
    """Snapshot of one shard.

    Attributes:
        peer: Peer id of the node that stores it; None for a single server.
        size: Bytes.
        sha256: Hex; None if the server does not report it.
        created_ms: Creation time in Unix milliseconds; 0 if the server does not report it.
    """

    shard: int
    peer: int | None
    name: str
    size: int
    sha256: str | None
    created_ms: int


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One snapshot, as listed by the server.

    Attributes:
        size: Bytes.
        sha256: Hex; None if the server does not report it.
        created_ms: Creation time in Unix milliseconds; servers report whole seconds. 0 if not reported.
        shards: In a cluster, the files of the shards; empty for a single server.
    """

    name: str
    size: int
    sha256: str | None
    created_ms: int
    shards: tuple[ShardFile, ...] = ()


class SnapshotStore(Protocol):
    """Snapshots of the collections of one Qdrant server; `physical` is a collection's own name, never an alias.

    Methods raise StoreUnavailable if the server is unavailable, StoreRejected if it rejects the call, and SpecInvalid
    if the egress policy forbids its host. Each call except `download` has a deadline. StoreUnavailable is also raised
    for an operation that the server has started but not completed in time, and may still complete. `create`, `recover`
    and `upload` raise SpecInvalid if the server is a cluster of several nodes and the connection does not list them.
    """

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        ...

    async def create(self, physical: str) -> SnapshotFile:
        """Create a snapshot and wait until it is complete.

        Raises:
            NotFound: If there is no such collection.
        """
        ...

    async def files(self, physical: str) -> list[SnapshotFile]:
        """Return the snapshots of a collection, oldest first.

        Empty if the collection is deleted, which makes its files unreachable.
        """
        ...

    def download(self, physical: str, name: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open the content of a snapshot. Reading it raises StoreUnavailable if the connection breaks.

        Raises:
            NotFound: If the snapshot or its collection does not exist.
        """
        ...

    async def recover(self, physical: str, location: str, *, sha256: str | None) -> None:
        """Make the server fetch a snapshot and recover it into a collection.

        Args:
            physical: Created if it does not exist. An existing collection receives the points and keeps its settings.
            location: URL that the server can reach.
            sha256: Expected digest; the server rejects other content. None skips the check.

        Raises:
            StoreRejected: If the snapshot does not exist, its content or the collection does not fit, or the server
                accepts no URLs.
            RecoveryOutcomeUnknown: If the response was lost: the server may still complete the recovery.
        """
        ...

    async def upload(self, physical: str, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
        """Send a snapshot to the server, which recovers it into a collection.

        Collection, checksum and errors are as in `recover`. Errors of `content` pass through.
        """
        ...

    async def delete_file(self, physical: str, name: str) -> None:
        """Delete a snapshot; an absent snapshot is no error."""
        ...

    async def own_location(self, physical: str, name: str) -> str:
        """Return the location of a snapshot of this server, as `recover` accepts it. Its existence is not checked."""
        ...

    async def collections(self) -> list[str]:
        """Return the names of all collections, placeholders included, sorted."""
        ...

    async def create_placeholder(self, physical: str, owner: Tenant | None = None) -> None:
        """Create an empty collection marked as a placeholder, which makes snapshot files of its name reachable.

        An existing collection is no error.

        Args:
            owner: Owner of the snapshots. If None, a store of `connections/guarded_stores.py` writes the namespace that
                it works for, and any other store writes no owner.
        """
        ...

    async def metadata(self, physical: str) -> Json | None:
        """Return the metadata of a collection, {} if it has none; None if the collection does not exist."""
        ...

    async def write_metadata(self, physical: str, changes: Json) -> None:
        """Merge changes into the metadata of a collection; a null value deletes its key.

        Raises:
            StoreUnavailable: If the collection does not exist.
        """
        ...
