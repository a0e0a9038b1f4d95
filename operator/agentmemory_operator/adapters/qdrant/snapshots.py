"""Snapshots of a single Qdrant server: long calls through the routes of the official client, and streams."""

import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any, Unpack
from urllib.parse import quote

import aiohttp
from qdrant_client import models

from agentmemory_operator.adapters.qdrant.call_hooks import CallHooks
from agentmemory_operator.adapters.qdrant.control import ControlOptions, QdrantControl, result_of
from agentmemory_operator.adapters.qdrant.response_limits import map_parse_errors
from agentmemory_operator.collections.rules.collection import Tenant, is_placeholder, placeholder_metadata
from agentmemory_operator.errors import (
    AgentMemoryError,
    CollectionNotFound,
    LeadershipLost,
    NotFound,
    RecoveryOutcomeUnknown,
    SpecInvalid,
    StoreRejected,
    StoreUnavailable,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.snapshots import SnapshotFile
from agentmemory_operator.spec.kinds.conditions import Reason

# The snapshot takes precedence over existing points. Sent explicitly, because the server's default differs from its
# documentation.
PRIORITY = models.SnapshotPriority.SNAPSHOT
# Name of an uploaded file on the server.
UPLOAD_NAME = "agentmemory-received.snapshot"
_NO_SHARD = re.compile(r"\bshard \d+ not found")

log = logging.getLogger(__name__)


class QdrantSnapshots:
    """Implements ports.SnapshotStore for a single server. Connections and errors are those of `QdrantControl`.

    Attributes:
        qdrant: Client of the server.
    """

    def __init__(self, url: str, **options: Unpack[ControlOptions]) -> None:
        self.qdrant = QdrantControl(url, **options)

    def watch_calls(self, watch: CallHooks) -> None:
        """Run each later call inside the hooks of `watch`, which replace earlier ones."""
        self.qdrant.watch = watch

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self.qdrant.close()

    async def create(self, physical: str) -> SnapshotFile:
        """Create a snapshot and wait until it is complete.

        Raises:
            NotFound: If there is no such collection.
            SpecInvalid: If the server is a cluster of several nodes.
        """
        await self._check_single_node()
        result = await result_of(self.qdrant.snapshots.create_snapshot(physical, wait=True))
        with map_parse_errors():
            return parse_snapshot(result)

    async def files(self, physical: str) -> list[SnapshotFile]:
        """Return the snapshots of a collection, oldest first; empty if the collection is deleted."""
        try:
            result = await result_of(self.qdrant.snapshots.list_snapshots(physical))
        except NotFound:
            return []
        with map_parse_errors():
            return sorted(map(parse_snapshot, result), key=lambda file: (file.created_ms, file.name))

    def download(self, physical: str, name: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open the content of a snapshot. Errors are those of `QdrantControl.download`."""
        return self.qdrant.download(_snapshot(physical, name))

    async def recover(self, physical: str, location: str, *, sha256: str | None) -> None:
        """Make the server fetch and recover a snapshot, with the API key only if `location` is on this server.

        Raises:
            SpecInvalid: If the server is a cluster of several nodes.
            AgentMemoryError: Errors of `recovery_errors`.
        """
        await self._check_single_node()
        api_key = self.qdrant.api_key if location.startswith(f"{self.qdrant.url}/") else None
        source = models.SnapshotRecover(location=location, priority=PRIORITY, checksum=sha256, api_key=api_key)
        with recovery_errors():
            await self.qdrant.snapshots.recover_from_snapshot(physical, wait=True, snapshot_recover=source)

    async def upload(self, physical: str, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
        """Send a snapshot, which the server recovers. Then delete the server's copy of it, except on LeadershipLost.

        Raises:
            SpecInvalid: If the server is a cluster of several nodes; nothing was sent.
            AgentMemoryError: Errors of `recovery_errors` and of `content`.
        """
        await self._check_single_node()
        try:
            await upload_file(self.qdrant, _snapshots(physical), content, sha256=sha256)
        except AgentMemoryError as exc:
            if not isinstance(exc, LeadershipLost):
                await self._delete_received(physical)
            raise
        await self._delete_received(physical)

    async def _delete_received(self, physical: str) -> None:
        """Delete the file that the server keeps of an upload, whether the server has recovered it or not.

        If that fails, the next upload for the same collection replaces the file.
        """
        try:
            if await self.metadata(physical) is not None:
                await self.delete_file(physical, UPLOAD_NAME)
                return
            # Create a placeholder: snapshot files are reachable only while a collection of their name exists.
            await self.create_placeholder(physical)
            await self.delete_file(physical, UPLOAD_NAME)
            # Delete the collection only if it is still the placeholder: a recovery that had timed out may have created
            # the real collection in the meantime.
            if is_placeholder(await self.metadata(physical)):
                await self.qdrant.collections.delete_collection(physical)
        except (StoreRejected, StoreUnavailable) as exc:
            log.warning("an uploaded snapshot file of %s may be left on Qdrant: %s", physical, exc)

    async def _check_single_node(self) -> None:
        """Raise if the server is one node of a cluster, which would create or recover only its part of a snapshot.

        Raises:
            SpecInvalid: If the cluster has several nodes. The remedy is to list them in `spec.nodes`.
        """
        status = await result_of(self.qdrant.cluster.cluster_status())
        with map_parse_errors():
            count = len(status.get("peers") or ())
        if count > 1:
            raise SpecInvalid(
                Reason.NODES_NOT_LISTED,
                f"{self.qdrant.url} is a cluster of {count} nodes, and each node creates and restores its own part of "
                f"a snapshot: list the URL of each in spec.nodes of the connection",
            )

    async def delete_file(self, physical: str, name: str) -> None:
        """Delete a snapshot; an absent snapshot is no error."""
        try:
            await self.qdrant.snapshots.delete_snapshot(physical, name, wait=True)
        except NotFound:
            return

    async def own_location(self, physical: str, name: str) -> str:
        """Return the URL of a snapshot, below the URL of this store's client."""
        return self.qdrant.url + _snapshot(physical, name)

    async def collections(self) -> list[str]:
        """Return the names of all collections, placeholders included, sorted."""
        return await self.qdrant.names()

    async def create_placeholder(self, physical: str, owner: Tenant | None = None) -> None:
        """Create an empty collection marked as a placeholder; an existing collection is no error.

        Args:
            owner: Owner of the snapshots, for the metadata. None writes no owner.
        """
        await self.qdrant.create_empty(physical, placeholder_metadata(owner))

    async def metadata(self, physical: str) -> Json | None:
        """Return the metadata of a collection, {} if it has none; None if the collection does not exist."""
        return await self.qdrant.metadata(physical)

    async def write_metadata(self, physical: str, changes: Json) -> None:
        """Merge changes into the metadata of a collection; a null value deletes its key."""
        try:
            await self.qdrant.write_metadata(physical, changes)
        except NotFound as exc:
            raise StoreUnavailable(f"{physical} disappeared during the call: {exc}") from exc


@contextmanager
def recovery_errors() -> Iterator[None]:
    """Convert the errors of a recovery call.

    Raises:
        RecoveryOutcomeUnknown: If the response timed out or was cut off: the server may still complete the recovery.
        StoreUnavailable: If the server was unavailable, or the collection or a shard was deleted during the call.
        StoreRejected: If the server rejected the call, or anything else, such as the snapshot, was not found.
    """
    try:
        yield
    except StoreUnavailable as exc:
        if not isinstance(exc.__cause__, TimeoutError | aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
            raise
        raise RecoveryOutcomeUnknown(f"{exc}; Qdrant may still finish the recovery") from exc
    except NotFound as exc:
        if isinstance(exc, CollectionNotFound) or _NO_SHARD.search(str(exc)):
            raise StoreUnavailable(f"the collection was deleted during its recovery: retry ({exc})") from exc
        raise StoreRejected(404, str(exc)) from exc


async def upload_file(qdrant: QdrantControl, path: str, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
    """Send a snapshot, which the server recovers. Errors: see `recovery_errors`; those of `content` pass through.

    Args:
        path: URL path of the snapshots of the collection or shard, encoded.
        sha256: Checksum that the server verifies, hex. None skips the verification.
    """
    checksum = f"&checksum={sha256}" if sha256 else ""
    with recovery_errors():
        await qdrant.send_file(f"{path}/upload?wait=true&priority={PRIORITY}{checksum}", content, name=UPLOAD_NAME)


def _snapshots(physical: str) -> str:
    return f"/collections/{quote(physical, safe='')}/snapshots"


def _snapshot(physical: str, name: str) -> str:
    return f"{_snapshots(physical)}/{quote(name, safe='')}"


def parse_snapshot(entry: Mapping[str, Any]) -> SnapshotFile:
    """Parse one entry of the server's list of snapshots.

    Raises:
        KeyError, TypeError, ValueError: If it is no such entry. Call this inside `map_parse_errors`.
    """
    created = entry.get("creation_time")
    # The server reports UTC without a time zone.
    created_ms = int(datetime.fromisoformat(created).replace(tzinfo=UTC).timestamp() * 1000) if created else 0
    checksum = entry.get("checksum")
    return SnapshotFile(str(entry["name"]), int(entry["size"]), str(checksum) if checksum else None, created_ms)
