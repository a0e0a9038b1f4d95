"""Snapshots of one Qdrant server, as the operator uses them."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from agentmemory_operator.collections.rules.collection import Tenant
from agentmemory_operator.ports.base import Json


@dataclass(frozen=True, slots=True)
class ShardFile:
    """The snapshot of one shard.

    Attributes:
        peer: number of the node that has it; None of a server that is alone.
        size: bytes.
        sha256: hex; None where the server does not tell.
        created_ms: Unix milliseconds.
    """

    shard: int
    peer: int | None
    name: str
    size: int
    sha256: str | None
    created_ms: int


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One snapshot as the server lists it.

    Attributes:
        size: bytes.
        sha256: hex; None where the server does not tell.
        created_ms: Unix milliseconds; servers tell whole seconds.
        shards: of a cluster, what it consists of.
    """

    name: str
    size: int
    sha256: str | None
    created_ms: int
    shards: tuple[ShardFile, ...] = ()


class SnapshotStore(Protocol):
    """Snapshots of the collections of one Qdrant server; `physical` is a collection's own name, never an alias.

    Raises as ports.PointStore does. Each call ends within a deadline of its own: StoreUnavailable for what the server
    began and did not finish.
    """

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        ...

    async def create(self, physical: str) -> SnapshotFile:
        """Make a snapshot and wait for it.

        Raises:
            NotFound: there is no such collection.
        """
        ...

    async def files(self, physical: str) -> list[SnapshotFile]:
        """The collection's snapshots, none where the collection is gone: they cannot be reached then."""
        ...

    def download(self, physical: str, name: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a snapshot's bytes.

        Raises:
            NotFound: it, or its collection, is gone.
        """
        ...

    async def recover(self, physical: str, location: str, *, sha256: str | None) -> None:
        """Have the server fetch a snapshot and make the collection of it.

        Args:
            physical: made where it does not exist; one that exists takes the points and keeps its settings.
            location: URL that the server can reach.
            sha256: the server refuses other bytes.

        Raises:
            StoreRejected: other bytes, an unfit collection, or a server that takes no URLs.
        """
        ...

    async def upload(self, physical: str, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
        """Send a snapshot to the server, which makes the collection of it; otherwise as `recover`."""
        ...

    async def delete_file(self, physical: str, name: str) -> None:
        """Delete a snapshot; one that is gone is no error."""
        ...

    async def own_location(self, physical: str, name: str) -> str:
        """The URL under which the server itself reaches one of its snapshots."""
        ...

    async def collections(self) -> list[str]:
        """The names of all collections, sorted."""
        ...

    async def create_placeholder(self, physical: str, owner: Tenant | None = None) -> None:
        """Make an empty collection that says of itself that it is a placeholder; one that exists is no error.

        Args:
            owner: whose snapshots it keeps in reach; None is whom the store was opened for.
        """
        ...

    async def metadata(self, physical: str) -> Json | None:
        """A collection's metadata, None where it does not exist."""
        ...

    async def write_metadata(self, physical: str, changes: Json) -> None:
        """Merge into a collection's metadata; a key that is null is deleted."""
        ...
