"""Snapshots of one Qdrant server: calls of Qdrant's own client that take their time, and streams."""

import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any, Unpack
from urllib.parse import quote

import aiohttp
from qdrant_client import models

from agentmemory_operator.adapters.qdrant.answers import understood
from agentmemory_operator.adapters.qdrant.calls import CallWatch
from agentmemory_operator.adapters.qdrant.control import ControlOptions, QdrantControl, result_of
from agentmemory_operator.collections.rules.collection import Tenant, is_placeholder, placeholder_metadata
from agentmemory_operator.errors import (
    AgentMemoryError,
    CollectionNotFound,
    LeadershipLost,
    NotFound,
    RecoveryUnended,
    SpecInvalid,
    StoreRejected,
    StoreUnavailable,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.snapshots import SnapshotFile
from agentmemory_operator.spec.kinds.conditions import Reason

# The server's own default differs from its documentation: a restored copy is the one that counts.
PRIORITY = models.SnapshotPriority.SNAPSHOT
# What an uploaded file is called on the server.
RECEIVED = "agentmemory-received.snapshot"
_NO_SHARD = re.compile(r"\bshard \d+ not found")

log = logging.getLogger(__name__)


class QdrantSnapshots:
    """Implements ports.SnapshotStore; reaches the server as `QdrantControl`, and raises as that.

    Attributes:
        qdrant: the client of the server.
    """

    def __init__(self, url: str, **options: Unpack[ControlOptions]) -> None:
        self.qdrant = QdrantControl(url, **options)

    def watch_calls(self, watch: CallWatch) -> None:
        """Do around each call what the watch says."""
        self.qdrant.watch = watch

    async def close(self) -> None:
        """Close the connections."""
        await self.qdrant.close()

    async def create(self, physical: str) -> SnapshotFile:
        """Make a snapshot and wait for it."""
        await self._check_alone()
        told = await result_of(self.qdrant.snapshots.create_snapshot(physical, wait=True))
        with understood():
            return read_file(told)

    async def files(self, physical: str) -> list[SnapshotFile]:
        """The collection's snapshots, sorted by time; none where the collection is gone."""
        try:
            told = await result_of(self.qdrant.snapshots.list_snapshots(physical))
        except NotFound:
            return []
        with understood():
            return sorted(map(read_file, told), key=lambda file: (file.created_ms, file.name))

    def download(self, physical: str, name: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a snapshot's bytes."""
        return self.qdrant.download(_snapshot(physical, name))

    async def recover(self, physical: str, location: str, *, sha256: str | None) -> None:
        """Have the server fetch a snapshot and make the collection of it; its own file it fetches with our key."""
        await self._check_alone()
        api_key = self.qdrant.api_key if location.startswith(f"{self.qdrant.url}/") else None
        source = models.SnapshotRecover(location=location, priority=PRIORITY, checksum=sha256, api_key=api_key)
        with recovery_errors():
            await self.qdrant.snapshots.recover_from_snapshot(physical, wait=True, snapshot_recover=source)

    async def upload(self, physical: str, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
        """Send a snapshot to the server, which makes the collection of it; the file is not left there."""
        await self._check_alone()
        try:
            await upload_file(self.qdrant, _snapshots(physical), content, sha256=sha256)
        except AgentMemoryError as exc:
            if not isinstance(exc, LeadershipLost):
                await self._drop_received(physical)
            raise
        await self._drop_received(physical)

    async def _drop_received(self, physical: str) -> None:
        """Delete the file that the server keeps of an upload among the collection's snapshots, be it recovered or not.

        What cannot be deleted now is replaced by the next upload of the same collection.
        """
        try:
            if await self.metadata(physical) is not None:
                await self.delete_file(physical, RECEIVED)
                return
            # Its snapshots are within reach only while the collection exists.
            await self.create_placeholder(physical)
            await self.delete_file(physical, RECEIVED)
            # Asked again: a recovery that was given up may have ended meanwhile.
            if is_placeholder(await self.metadata(physical)):
                await self.qdrant.collections.delete_collection(physical)
        except (StoreRejected, StoreUnavailable) as exc:
            log.warning("an uploaded snapshot file of %s may be left on Qdrant: %s", physical, exc)

    async def _check_alone(self) -> None:
        """Pass where one node has everything: what a node of several makes or takes is its part alone.

        Raises:
            SpecInvalid: it is one of a cluster.
        """
        told = await result_of(self.qdrant.cluster.cluster_status())
        with understood():
            count = len(told.get("peers") or ())
        if count > 1:
            raise SpecInvalid(
                Reason.NODES_NOT_LISTED,
                f"{self.qdrant.url} is a cluster of {count} nodes, and each node creates and restores its own part of "
                f"a snapshot: list the URL of each in spec.nodes of the connection",
            )

    async def delete_file(self, physical: str, name: str) -> None:
        """Delete a snapshot; one that is gone is no error."""
        try:
            await self.qdrant.snapshots.delete_snapshot(physical, name, wait=True)
        except NotFound:
            return

    async def own_location(self, physical: str, name: str) -> str:
        """The URL under which the server itself reaches one of its snapshots: the one that we reach it by."""
        return self.qdrant.url + _snapshot(physical, name)

    async def collections(self) -> list[str]:
        """The names of all collections, sorted."""
        return await self.qdrant.names()

    async def create_placeholder(self, physical: str, owner: Tenant | None = None) -> None:
        """Make an empty collection that says of itself that it is a placeholder; one that exists is no error."""
        await self.qdrant.create_empty(physical, placeholder_metadata(owner))

    async def metadata(self, physical: str) -> Json | None:
        """A collection's metadata, None where it does not exist."""
        return await self.qdrant.metadata(physical)

    async def write_metadata(self, physical: str, changes: Json) -> None:
        """Merge into a collection's metadata; a key that is null is deleted."""
        try:
            await self.qdrant.write_metadata(physical, changes)
        except NotFound as exc:
            raise StoreUnavailable(f"{physical} disappeared during the call: {exc}") from exc


@contextmanager
def recovery_errors() -> Iterator[None]:
    """Raise what a recovery that did not succeed says of the snapshot.

    Raises:
        RecoveryUnended: it was sent and not answered: the server does not end it for that.
        StoreUnavailable: its collection was deleted meanwhile: Qdrant has no such collection, or no shard of it.
        StoreRejected: anything else was not found.
    """
    try:
        yield
    except StoreUnavailable as exc:
        if not isinstance(exc.__cause__, TimeoutError | aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
            raise
        raise RecoveryUnended(f"{exc}; Qdrant may still finish the recovery") from exc
    except NotFound as exc:
        if isinstance(exc, CollectionNotFound) or _NO_SHARD.search(str(exc)):
            raise StoreUnavailable(f"the collection was deleted during its recovery: retry ({exc})") from exc
        raise StoreRejected(404, str(exc)) from exc


async def upload_file(qdrant: QdrantControl, path: str, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
    """Send a snapshot, which the server puts in place; raises as a recovery."""
    checked = f"&checksum={sha256}" if sha256 else ""
    with recovery_errors():
        await qdrant.send_file(f"{path}/upload?wait=true&priority={PRIORITY}{checked}", content, name=RECEIVED)


def _snapshots(physical: str) -> str:
    return f"/collections/{quote(physical, safe='')}/snapshots"


def _snapshot(physical: str, name: str) -> str:
    return f"{_snapshots(physical)}/{quote(name, safe='')}"


def read_file(told: Mapping[str, Any]) -> SnapshotFile:
    """A snapshot as the server tells it."""
    created = told.get("creation_time")
    # The server tells UTC without saying so.
    created_ms = int(datetime.fromisoformat(created).replace(tzinfo=UTC).timestamp() * 1000) if created else 0
    checksum = told.get("checksum")
    return SnapshotFile(str(told["name"]), int(told["size"]), str(checksum) if checksum else None, created_ms)
