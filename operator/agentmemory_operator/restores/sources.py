"""Where a restore's snapshot comes from: what is known of it before, and how a collection is made of it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentmemory_operator.collections.retire import keep_in_reach
from agentmemory_operator.connections.resolve import Server, Servers, connection_of
from agentmemory_operator.connections.rules.bucket_places import object_at
from agentmemory_operator.connections.streams import CheckedStream
from agentmemory_operator.errors import (
    AgentMemoryError,
    BytesDiffer,
    NotFound,
    NotOwned,
    SpecInvalid,
    StorageUnavailable,
    StoreRejected,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.ports.objects import WebFiles
from agentmemory_operator.restores.rules.checks import check_url
from agentmemory_operator.runtime.cache import MEMORY_SNAPSHOT, QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.snapshots.compare import ComparedSnapshot
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.rules.steps import places_of
from agentmemory_operator.snapshots.verify import restore_into
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory, MemorySnapshot
from agentmemory_operator.spec.kinds.conditions import Reason, is_true
from agentmemory_operator.spec.kinds.parse import parse_connection, parse_snapshot
from agentmemory_operator.spec.kinds.spec_restore import RestoreSource
from agentmemory_operator.spec.kinds.spec_snapshot import S3Object
from agentmemory_operator.spec.times import parse_time

QDRANT = "Qdrant"

Recover = Callable[[Server, str], Awaitable[None]]
"""Makes a collection of that name on a server; run again, it makes the same."""


class SourceWaiting(TransientError):
    """The snapshot is not there yet, or is being made.

    Args:
        is_missing: there is no such object.
    """

    def __init__(self, message: str, *, is_missing: bool) -> None:
        super().__init__(message)
        self.is_missing = is_missing


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSource:
    """What a restore is made of.

    Attributes:
        described: for people.
        version: of the server that made it, None where nobody knows.
        dimensions: numbers in its vectors, None where nobody knows.
        begun_ms: when it was begun: every write of an earlier time is in it; None where nobody knows.
        before, after: points of the collection that it was made of, before and after that; None where nobody counted.
        config_hash: of the collection's settings; None where nobody noted it.
        agent: slug of the agent whose memories they are, None where nobody knows.
        is_named: the restore names a MemorySnapshot, and so whose it is.
    """

    described: str
    recover: Recover
    version: str | None = None
    dimensions: int | None = None
    begun_ms: int | None = None
    before: int | None = None
    after: int | None = None
    config_hash: str | None = None
    agent: str | None = None
    is_named: bool = False


@dataclass(frozen=True, slots=True)
class RestoreSources:
    """Finds the sources of restores.

    Attributes:
        copies: what lies in object storage.
        files: what lies on web servers.
    """

    table: ObjectTable
    servers: Servers
    copies: Copies
    files: WebFiles

    def find(self, source: RestoreSource, memory: AgentMemory) -> SnapshotSource:
        """What a restore into an AgentMemory is made of.

        Raises:
            SourceWaiting: the MemorySnapshot is not there, or is not done.
            SpecInvalid: it failed, or may not be used.
        """
        namespace = memory.metadata.namespace
        if source.snapshot_ref:
            return self._of_snapshot(Key(MEMORY_SNAPSHOT, namespace, source.snapshot_ref.name), memory)
        if source.s3:
            described = f"s3://{source.s3.bucket}/{source.s3.key}"
            return SnapshotSource(described=described, recover=self._from_storage(source.s3, namespace))
        return self._of_url(str(source.url), source.sha256, memory)

    def _of_url(self, url: str, sha256: str | None, memory: AgentMemory) -> SnapshotSource:
        document = self.table.get(connection_of(memory))
        hosts = parse_connection(document).spec.restore_sources if document else None
        digest = check_url(url, sha256, hosts=hosts or ())
        described = url.partition("?")[0]

        async def recover(server: Server, physical: str) -> None:
            # Through here: a server that fetches by itself goes wherever the address leads on to.
            async with self.files.open(url) as content:
                checked = CheckedStream(content, named=described, size=None, sha256=digest)
                await server.snapshots.upload(physical, aiter(checked), sha256=digest)

        return SnapshotSource(described=described, recover=recover)

    def _of_snapshot(self, key: Key, memory: AgentMemory) -> SnapshotSource:
        document = self.table.get(key)
        if document is None:
            raise SourceWaiting(
                f"there is no MemorySnapshot {key.name}: create it or restore from another", is_missing=True
            )
        snapshot = parse_snapshot(document)
        _check_made(key.name, snapshot.status)
        status, points = snapshot.status, snapshot.status.get("points") or {}
        begun = status.get("startTime")
        return SnapshotSource(
            described=f"MemorySnapshot {key.name}",
            recover=self._from_anywhere(snapshot, memory),
            version=status.get("qdrantVersion"),
            dimensions=(status.get("embedding") or {}).get("dimensions"),
            begun_ms=parse_time(begun) if begun else None,
            before=points.get("before"),
            after=points.get("after"),
            config_hash=status.get("configHash"),
            agent=self._agent_of(status, key.namespace),
            is_named=True,
        )

    def _agent_of(self, status: Mapping[str, Any], namespace: str) -> str | None:
        """Whose memories a snapshot of a namespace has, None where the agent it tells of is none of there."""
        agent = status.get("agent")
        return agent if agent and self.table.namespace_of(agent) == namespace else None

    def _from_anywhere(self, snapshot: MemorySnapshot, memory: AgentMemory) -> Recover:
        """What recovers a snapshot from the first of its places that still has it."""
        places = [self._from_place(place, snapshot, memory) for place in places_of(snapshot.status)]

        async def recover(server: Server, physical: str) -> None:
            failure: AgentMemoryError | None = None
            for place in places:
                try:
                    await place(server, physical)
                except (StoreRejected, NotFound, SpecInvalid, NotOwned, BytesDiffer) as exc:
                    failure = failure or exc
                except (_OriginAway, StorageUnavailable) as exc:
                    # That one may come back, where the others have nothing.
                    failure = exc
                else:
                    return
            if isinstance(failure, TransientError | NotOwned):
                raise failure
            told = f": {failure}" if failure else ""
            raise SpecInvalid(
                Reason.SNAPSHOT_REFUSED,
                f"MemorySnapshot {snapshot.metadata.name} cannot be recovered from any of its locations{told}: "
                f"restore from another one",
            ) from failure

        return recover

    def _from_place(self, place: Mapping[str, Any], snapshot: MemorySnapshot, memory: AgentMemory) -> Recover:
        sha256, namespace = snapshot.status.get("sha256"), snapshot.metadata.namespace
        if place["type"] != QDRANT:
            return self._from_storage(object_at(place, sha256=sha256), namespace)
        told = snapshot.status.get("connection") or {}
        connection = Key(QDRANT_CONNECTION, told.get("namespace") or "", told.get("name") or "")
        file = ComparedSnapshot(
            uid=snapshot.metadata.uid, physical=place["physical"], name=place["name"], sha256=sha256
        )
        return _from_own(file) if connection == connection_of(memory) else self._from_other(connection, namespace, file)

    def _from_other(self, connection: Key, namespace: str, file: ComparedSnapshot) -> Recover:
        """What streams a file from another server: the two need not reach one another."""

        async def recover(server: Server, physical: str) -> None:
            async def send(other: Server) -> None:
                await _see(other, file)
                async with other.snapshots.download(file.physical, file.name) as content:
                    await server.snapshots.upload(physical, content, sha256=file.sha256)

            await self.servers.use(connection, send, namespace=namespace)

        return recover

    def _from_storage(self, place: S3Object, namespace: str) -> Recover:
        async def recover(server: Server, physical: str) -> None:
            await self.copies.recover(place, server.snapshots, physical, namespace=namespace)

        return recover


class _OriginAway(StoreUnavailable):
    """The server that has a snapshot does not answer, whoever it is for."""


async def _see(origin: Server, file: ComparedSnapshot) -> None:
    try:
        await origin.snapshots.files(file.physical)
    except StoreUnavailable as exc:
        raise _OriginAway(f"the server that it was made on: {exc}") from exc


def _from_own(file: ComparedSnapshot) -> Recover:
    """What lets a server recover a file of its own."""

    async def recover(server: Server, physical: str) -> None:
        # Of a collection that somebody deleted, the file is there and cannot be reached.
        await keep_in_reach(server.collections, server.snapshots, file.physical)
        await restore_into(physical, file, server)

    return recover


def _check_made(name: str, status: Mapping[str, Any]) -> None:
    """Pass when a MemorySnapshot was made, and was not found wanting."""
    conditions = status.get("conditions") or []
    if is_true(conditions, "Succeeded"):
        bad = next((one for one in conditions if (one["type"], one["status"]) == ("Verified", "False")), None)
        # What is still being proven has no verdict.
        if bad is None or is_true(conditions, "Progressing"):
            return
        raise SpecInvalid(
            Reason.SNAPSHOT_REFUSED,
            f"MemorySnapshot {name} was not verified: {bad['message']}: restore from another one",
        )
    failed = next((one for one in conditions if (one["type"], one["status"]) == ("Succeeded", "False")), None)
    if failed is None:
        raise SourceWaiting(f"MemorySnapshot {name} is being taken", is_missing=False)
    raise SpecInvalid(
        Reason.SNAPSHOT_REFUSED, f"MemorySnapshot {name} failed: {failed['message']}: restore from another one"
    )
