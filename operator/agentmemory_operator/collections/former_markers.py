"""What earlier versions wrote into the development Qdrant, under the one id that all of them had: made this folder's.

Only that server: nobody else's collections can lie in it. On any other server that id may be anybody's.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from agentmemory_operator.collections.rules.collection import METADATA_KEY, Tenant, owner_in
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.snapshots import SnapshotFile, SnapshotStore
from agentmemory_operator.spec.naming import ALIAS_PREFIX, scratch_prefix

FORMER_ID = "development"

log = logging.getLogger(__name__)


async def adopt_former(server: Server, cluster_id: str) -> None:
    """Write an id in the place of the former one, wherever a server has that; nothing else may work on it yet.

    Raises:
        TransientError: some may not be done; the same again does the rest.
    """
    others: dict[str, int] = {}
    for name in await server.snapshots.collections():
        if name.startswith(scratch_prefix(FORMER_ID)):
            # Left by a kill: nobody looks for it under that name any more.
            await server.collections.delete(name)
            continue
        owner = await adopt_one(server.snapshots, name, cluster_id)
        if name.startswith(ALIAS_PREFIX) and owner not in ("", cluster_id):
            others[owner] = others.get(owner, 0) + 1
    for owner, count in others.items():
        log.warning(
            "%d collections of the development Qdrant belong to cluster %s and are not served or changed; this is"
            " cluster %s. If its id was lost, write %s into the file cluster-id of --data and start again",
            count,
            owner,
            cluster_id,
            owner,
        )


async def adopt_one(snapshots: SnapshotStore, physical: str, cluster_id: str) -> str:
    """Write an id in the place of the former one, if a collection has that; return whose cluster's it is then."""
    metadata = await snapshots.metadata(physical)
    owner = owner_in(metadata)[0]
    if metadata is None or owner != FORMER_ID or cluster_id == FORMER_ID:
        return owner
    await snapshots.write_metadata(physical, {METADATA_KEY: {**metadata[METADATA_KEY], "clusterId": cluster_id}})
    return cluster_id


def adopting(server: Server, cluster_id: str) -> Server:
    """The development Qdrant as one on which what comes of former snapshots is this folder's too."""
    return replace(server, snapshots=AdoptingSnapshots(server.snapshots, cluster_id))


@dataclass(frozen=True, slots=True)
class AdoptingSnapshots:
    """Implements ports.SnapshotStore on another one: what it recovers is adopted at once."""

    inner: SnapshotStore
    cluster_id: str

    async def recover(self, physical: str, location: str, *, sha256: str | None) -> None:
        """Have the server fetch a snapshot and make the collection of it."""
        await self.inner.recover(physical, location, sha256=sha256)
        await adopt_one(self.inner, physical, self.cluster_id)

    async def upload(self, physical: str, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
        """Send a snapshot to the server, which makes the collection of it."""
        await self.inner.upload(physical, content, sha256=sha256)
        await adopt_one(self.inner, physical, self.cluster_id)

    async def close(self) -> None:
        """Close the connections."""
        await self.inner.close()

    async def create(self, physical: str) -> SnapshotFile:
        """Make a snapshot and wait for it."""
        return await self.inner.create(physical)

    async def files(self, physical: str) -> list[SnapshotFile]:
        """The collection's snapshots."""
        return await self.inner.files(physical)

    def download(self, physical: str, name: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a snapshot's bytes."""
        return self.inner.download(physical, name)

    async def delete_file(self, physical: str, name: str) -> None:
        """Delete a snapshot; one that is gone is no error."""
        await self.inner.delete_file(physical, name)

    async def own_location(self, physical: str, name: str) -> str:
        """The URL under which the server itself reaches one of its snapshots."""
        return await self.inner.own_location(physical, name)

    async def collections(self) -> list[str]:
        """The names of all collections, sorted."""
        return await self.inner.collections()

    async def create_placeholder(self, physical: str, owner: Tenant | None = None) -> None:
        """Make an empty collection that says of itself that it is a placeholder."""
        await self.inner.create_placeholder(physical, owner)

    async def metadata(self, physical: str) -> Json | None:
        """A collection's metadata, None where it does not exist."""
        return await self.inner.metadata(physical)

    async def write_metadata(self, physical: str, changes: Json) -> None:
        """Merge into a collection's metadata; a key that is null is deleted."""
        await self.inner.write_metadata(physical, changes)
