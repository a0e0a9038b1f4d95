"""Snapshots of one Qdrant server, over plain HTTP: calls that take their time, and streams."""

import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import aiohttp

from agentmemory_operator.adapters.http.egress import USUAL, Egress
from agentmemory_operator.adapters.qdrant.calls import CallWatch
from agentmemory_operator.adapters.qdrant.transport import QdrantTransport, understood
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

# A real server reads and writes some 100 MB/s: this is time for 300 GB.
DEADLINE_S = 3600.0
# The server's own default differs from its documentation: a restored copy is the one that counts.
PRIORITY = "snapshot"
# What an uploaded file is called on the server.
RECEIVED = "agentmemory-received.snapshot"
_PLACEHOLDER: Json = {"vectors": {"size": 1, "distance": "Dot"}, "shard_number": 1}

_NO_SHARD = re.compile(r"\bshard \d+ not found")

log = logging.getLogger(__name__)


class QdrantSnapshots:
    """Implements ports.SnapshotStore.

    Args:
        url: http(s) address of the server.
        api_key: a key that may manage collections, or None.
        timeout_s: of each call that takes no time.
        ca_pem: certificates of the authorities that may vouch for the server; None is the system's.
        deadline_s: of creating, recovering and uploading.
        egress: says whether the server may be connected to.

    Raises:
        SpecInvalid: `ca_pem` holds no certificate.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: int = 10,
        ca_pem: str | None = None,
        deadline_s: float = DEADLINE_S,
        egress: Egress = USUAL,
    ) -> None:
        self._url = url.rstrip("/")
        self._api_key = api_key
        self._deadline_s = deadline_s
        self._transport = QdrantTransport(url, api_key=api_key, timeout_s=timeout_s, ca_pem=ca_pem, egress=egress)

    def watch_calls(self, watch: CallWatch) -> None:
        """Do around each call what the watch says."""
        self._transport.watch = watch

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def create(self, physical: str) -> SnapshotFile:
        """Make a snapshot and wait for it."""
        await self._check_alone()
        path = f"{_snapshots(physical)}?wait=true"
        told = await self._transport.result("POST", path, timeout_s=self._deadline_s)
        with understood():
            return read_file(told)

    async def files(self, physical: str) -> list[SnapshotFile]:
        """The collection's snapshots, sorted by time; none where the collection is gone."""
        try:
            told = await self._transport.result("GET", _snapshots(physical))
        except NotFound:
            return []
        with understood():
            return sorted(map(read_file, told), key=lambda file: (file.created_ms, file.name))

    def download(self, physical: str, name: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a snapshot's bytes."""
        return self._transport.download(_snapshot(physical, name))

    async def recover(self, physical: str, location: str, *, sha256: str | None) -> None:
        """Have the server fetch a snapshot and make the collection of it; its own file it fetches with our key."""
        await self._check_alone()
        body: Json = {"location": location, "priority": PRIORITY}
        if sha256:
            body["checksum"] = sha256
        if self._api_key and location.startswith(f"{self._url}/"):
            body["api_key"] = self._api_key
        path = f"{_snapshots(physical)}/recover?wait=true"
        with recovery_errors():
            await self._transport.result("PUT", path, body, timeout_s=self._deadline_s)

    async def upload(self, physical: str, content: AsyncIterator[bytes], *, sha256: str | None) -> None:
        """Send a snapshot to the server, which makes the collection of it; the file is not left there."""
        await self._check_alone()
        checked = f"&checksum={sha256}" if sha256 else ""
        path = f"{_snapshots(physical)}/upload?wait=true&priority={PRIORITY}{checked}"
        try:
            with recovery_errors():
                await self._transport.send_file(path, "snapshot", content, name=RECEIVED, timeout_s=self._deadline_s)
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
                await self._transport.result("DELETE", _path(physical))
        except (StoreRejected, StoreUnavailable) as exc:
            log.warning("an uploaded snapshot file of %s may be left on Qdrant: %s", physical, exc)

    async def _check_alone(self) -> None:
        """Pass where one node has everything: what a node of several makes or takes is its part alone.

        Raises:
            SpecInvalid: it is one of a cluster.
        """
        told = await self._transport.result("GET", "/cluster")
        with understood():
            count = len(told.get("peers") or ())
        if count > 1:
            raise SpecInvalid(
                Reason.NODES_NOT_LISTED,
                f"{self._url} is a cluster of {count} nodes, and each node creates and restores its own part of a "
                f"snapshot: list the URL of each in spec.nodes of the connection",
            )

    async def delete_file(self, physical: str, name: str) -> None:
        """Delete a snapshot; one that is gone is no error."""
        try:
            await self._transport.result("DELETE", f"{_snapshot(physical, name)}?wait=true")
        except NotFound:
            return

    async def own_location(self, physical: str, name: str) -> str:
        """The URL under which the server itself reaches one of its snapshots: the one that we reach it by."""
        return self._url + _snapshot(physical, name)

    async def collections(self) -> list[str]:
        """The names of all collections, sorted."""
        told = await self._transport.result("GET", "/collections")
        with understood():
            return sorted(str(entry["name"]) for entry in told["collections"])

    async def create_placeholder(self, physical: str, owner: Tenant | None = None) -> None:
        """Make an empty collection that says of itself that it is a placeholder; one that exists is no error."""
        try:
            body = _PLACEHOLDER | {"metadata": placeholder_metadata(owner)}
            await self._transport.result("PUT", _path(physical), body)
        except StoreRejected as exc:
            if exc.status != 409:
                raise

    async def metadata(self, physical: str) -> Json | None:
        """A collection's metadata, None where it does not exist."""
        try:
            told = await self._transport.result("GET", _path(physical))
        except NotFound:
            return None
        with understood():
            return dict(told["config"].get("metadata") or {})

    async def write_metadata(self, physical: str, changes: Json) -> None:
        """Merge into a collection's metadata; a key that is null is deleted."""
        try:
            await self._transport.result("PATCH", _path(physical), {"metadata": changes})
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


def _path(physical: str) -> str:
    return f"/collections/{quote(physical, safe='')}"


def _snapshots(physical: str) -> str:
    return f"{_path(physical)}/snapshots"


def _snapshot(physical: str, name: str) -> str:
    return f"{_snapshots(physical)}/{quote(name, safe='')}"


def read_file(told: Mapping[str, Any]) -> SnapshotFile:
    """A snapshot as the server tells it."""
    created = told.get("creation_time")
    # The server tells UTC without saying so.
    created_ms = int(datetime.fromisoformat(created).replace(tzinfo=UTC).timestamp() * 1000) if created else 0
    checksum = told.get("checksum")
    return SnapshotFile(str(told["name"]), int(told["size"]), str(checksum) if checksum else None, created_ms)
