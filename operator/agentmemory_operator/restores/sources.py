"""Sources of restores: the facts known before the recovery, and the call that recovers a collection from the source."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.replaced_collection import keep_snapshots_available
from agentmemory_operator.connections.resolve import Server, Servers, connection_of
from agentmemory_operator.connections.rules.object_keys import parse_location
from agentmemory_operator.connections.streams import CheckedStream
from agentmemory_operator.errors import (
    AgentMemoryError,
    ChecksumMismatch,
    NotFound,
    NotOwned,
    SpecInvalid,
    StorageUnavailable,
    StoreRejected,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.ports.objects import WebFiles
from agentmemory_operator.restores.rules.swap_checks import check_url
from agentmemory_operator.runtime.object_table import MEMORY_SNAPSHOT, QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.copy_comparison import ComparedSnapshot
from agentmemory_operator.snapshots.rules.steps import locations_of, recorded_hashes
from agentmemory_operator.snapshots.verify import restore_into
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory, MemorySnapshot
from agentmemory_operator.spec.kinds.conditions import Reason, is_true
from agentmemory_operator.spec.kinds.parse import parse_connection, parse_snapshot
from agentmemory_operator.spec.kinds.spec_snapshot import RestoreSource, S3Object
from agentmemory_operator.spec.times import parse_time

QDRANT = "Qdrant"

RecoverInto = Callable[[Server, str], Awaitable[None]]
"""Recovers a snapshot into the collection of a given name on a server. The call can be repeated."""


class SourceWaiting(TransientError):
    """The MemorySnapshot does not exist yet, or is in progress.

    Args:
        is_missing: True if there is no such object.
    """

    def __init__(self, message: str, *, is_missing: bool) -> None:
        super().__init__(message)
        self.is_missing = is_missing


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSource:
    """Snapshot that a restore recovers, and the facts about it that are known before the recovery.

    Attributes:
        recover: Recovers the snapshot into a collection; see `RecoverInto`.
        version: Qdrant version that created the snapshot; None if unknown.
        dimensions: Size of the snapshot's vectors; None if unknown.
        started_ms: Start of the snapshot, which contains every earlier write; Unix milliseconds. None if unknown.
        before, after: Number of memories in the collection before and after the snapshot; None if not counted.
        config_hashes: Hashes of the settings, see `SnapshotRecord`; empty if unknown.
        agent: Slug of the agent that the memories belong to; None if unknown.
        is_named: True if the restore references a MemorySnapshot of its own namespace. False for a file or URL, whose
            marker is the only evidence of its owner.
    """

    description: str
    recover: RecoverInto
    version: str | None = None
    dimensions: int | None = None
    started_ms: int | None = None
    before: int | None = None
    after: int | None = None
    config_hashes: tuple[str, ...] = ()
    agent: str | None = None
    is_named: bool = False


@dataclass(frozen=True, slots=True)
class RestoreSources:
    """Finds the sources of restores.

    Attributes:
        copies: Reads snapshots in object storage.
        files: Reads files of web servers over HTTPS.
    """

    table: ObjectTable
    servers: Servers
    copies: Copies
    files: WebFiles

    def find(self, source: RestoreSource, memory: AgentMemory) -> SnapshotSource:
        """Return the source of a restore into an AgentMemory.

        Raises:
            SourceWaiting: If the MemorySnapshot does not exist or is not complete.
            SpecInvalid: If the MemorySnapshot or the connection is invalid, the MemorySnapshot failed or failed
                verification, or the URL is not allowed.
        """
        namespace = memory.metadata.namespace
        if source.snapshot_ref:
            return self._of_snapshot(Key(MEMORY_SNAPSHOT, namespace, source.snapshot_ref.name), memory)
        if source.s3:
            description = f"s3://{source.s3.bucket}/{source.s3.key}"
            return SnapshotSource(description=description, recover=self._from_storage(source.s3, namespace))
        return self._of_url(str(source.url), source.sha256, memory)

    def _of_url(self, url: str, sha256: str | None, memory: AgentMemory) -> SnapshotSource:
        document = self.table.get(connection_of(memory))
        hosts = parse_connection(document).spec.restore_sources if document else None
        digest = check_url(url, sha256, hosts=hosts or ())
        description = url.partition("?")[0]

        async def recover(server: Server, physical: str) -> None:
            # Stream through this process, because a server that downloads by itself follows every redirect.
            async with self.files.open(url) as content:
                stream = CheckedStream(content, name=description, size=None, sha256=digest)
                await server.snapshots.upload(physical, aiter(stream), sha256=digest)

        return SnapshotSource(description=description, recover=recover)

    def _of_snapshot(self, key: Key, memory: AgentMemory) -> SnapshotSource:
        document = self.table.get(key)
        if document is None:
            raise SourceWaiting(
                f"there is no MemorySnapshot {key.name}: create it or restore from another", is_missing=True
            )
        snapshot = parse_snapshot(document)
        _check_completed(key.name, snapshot.status)
        status, points = snapshot.status, snapshot.status.get("points") or {}
        start_time = status.get("startTime")
        return SnapshotSource(
            description=f"MemorySnapshot {key.name}",
            recover=self._from_anywhere(snapshot, memory),
            version=status.get("qdrantVersion"),
            dimensions=(status.get("embedding") or {}).get("dimensions"),
            started_ms=parse_time(start_time) if start_time else None,
            before=points.get("before"),
            after=points.get("after"),
            config_hashes=recorded_hashes(status),
            agent=self._agent_of(status, key.namespace),
            is_named=True,
        )

    def _agent_of(self, status: Mapping[str, Any], namespace: str) -> str | None:
        """Return the slug in a snapshot's status, or None if it has none or not its own namespace has that slug."""
        agent = status.get("agent")
        return agent if agent and self.table.find_namespace(agent) == namespace else None

    def _from_anywhere(self, snapshot: MemorySnapshot, memory: AgentMemory) -> RecoverInto:
        """Return a call that recovers a snapshot from the first of its locations for which this succeeds.

        If all fail, the call raises a transient error if a location may become available again, else SpecInvalid or
        NotOwned.
        """
        recoveries = [self._from_place(location, snapshot, memory) for location in locations_of(snapshot.status)]

        async def recover(server: Server, physical: str) -> None:
            failure: AgentMemoryError | None = None
            for location in recoveries:
                try:
                    await location(server, physical)
                except (StoreRejected, NotFound, SpecInvalid, NotOwned, ChecksumMismatch) as exc:
                    failure = failure or exc
                except (_OriginUnavailable, StorageUnavailable) as exc:
                    # Report this error rather than a permanent one, because the location may become available again.
                    failure = exc
                else:
                    return
            if isinstance(failure, TransientError | NotOwned):
                raise failure
            detail = f": {failure}" if failure else ""
            raise SpecInvalid(
                Reason.SNAPSHOT_REFUSED,
                f"MemorySnapshot {snapshot.metadata.name} cannot be recovered from any of its locations{detail}: "
                f"restore from another one",
            ) from failure

        return recover

    def _from_place(self, location: Mapping[str, Any], snapshot: MemorySnapshot, memory: AgentMemory) -> RecoverInto:
        sha256, namespace = snapshot.status.get("sha256"), snapshot.metadata.namespace
        if location["type"] != QDRANT:
            return self._from_storage(parse_location(location, sha256=sha256), namespace)
        recorded = snapshot.status.get("connection") or {}
        connection = Key(QDRANT_CONNECTION, recorded.get("namespace") or "", recorded.get("name") or "")
        file = ComparedSnapshot(
            uid=snapshot.metadata.uid, physical=location["physical"], name=location["name"], sha256=sha256
        )
        return _from_own(file) if connection == connection_of(memory) else self._from_other(connection, namespace, file)

    def _from_other(self, connection: Key, namespace: str, file: ComparedSnapshot) -> RecoverInto:
        """Return a call that streams a file from another server. The servers need not reach each other."""

        async def recover(server: Server, physical: str) -> None:
            async def send(source_server: Server) -> None:
                await _check_available(source_server, file)
                async with source_server.snapshots.download(file.physical, file.name) as content:
                    await server.snapshots.upload(physical, content, sha256=file.sha256)

            await self.servers.use(connection, send, namespace=namespace)

        return recover

    def _from_storage(self, s3_object: S3Object, namespace: str) -> RecoverInto:
        async def recover(server: Server, physical: str) -> None:
            await self.copies.recover(s3_object, server.snapshots, physical, namespace=namespace)

        return recover


class _OriginUnavailable(StoreUnavailable):
    """The server that has the file of a snapshot is unavailable. It is not the server that restores the snapshot."""


async def _check_available(source_server: Server, file: ComparedSnapshot) -> None:
    try:
        await source_server.snapshots.files(file.physical)
    except StoreUnavailable as exc:
        raise _OriginUnavailable(f"the server that it was made on: {exc}") from exc


def _from_own(file: ComparedSnapshot) -> RecoverInto:
    """Return a call that has a server recover a file of its own."""

    async def recover(server: Server, physical: str) -> None:
        # Qdrant serves the file of a deleted collection only while a collection of that name, a placeholder, exists.
        await keep_snapshots_available(server.collections, server.snapshots, file.physical)
        await restore_into(physical, file, server)

    return recover


def _check_completed(name: str, status: Mapping[str, Any]) -> None:
    """Raise SourceWaiting if a MemorySnapshot is in progress, SpecInvalid if it or its verification failed."""
    conditions = status.get("conditions") or []
    if is_true(conditions, "Succeeded"):
        failing = next((item for item in conditions if (item["type"], item["status"]) == ("Verified", "False")), None)
        # Accept the snapshot while it is being verified again: the failed result is then outdated.
        if failing is None or is_true(conditions, "Progressing"):
            return
        raise SpecInvalid(
            Reason.SNAPSHOT_REFUSED,
            f"MemorySnapshot {name} was not verified: {failing['message']}: restore from another one",
        )
    failed = next((item for item in conditions if (item["type"], item["status"]) == ("Succeeded", "False")), None)
    if failed is None:
        raise SourceWaiting(f"MemorySnapshot {name} is being taken", is_missing=False)
    raise SpecInvalid(
        Reason.SNAPSHOT_REFUSED, f"MemorySnapshot {name} failed: {failed['message']}: restore from another one"
    )
