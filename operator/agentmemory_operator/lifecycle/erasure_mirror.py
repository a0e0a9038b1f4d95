"""Copy the traces of erasures to object storage, because a lost server cannot report them.

If the operator copies snapshots to object storage, it copies receipts and tombstones too, as lines of JSON without any
erased content. It never changes a written object. Each run writes the lines that are new. A run is complete when its
last object exists. After an interrupted run, the next run writes the lines that are still missing.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from agentmemory_operator.collections.replaced_collection import has_owner
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.guarded_secrets import attribute_reads_to
from agentmemory_operator.connections.resolve import Server, Servers, connection_of
from agentmemory_operator.connections.rules.object_keys import erasure_folder
from agentmemory_operator.connections.streams import CheckedStream
from agentmemory_operator.errors import AgentMemoryError, ChecksumMismatch, LeadershipLost, NotFound, StoreUnavailable
from agentmemory_operator.lifecycle.erasure_replay import CLOCK_MARGIN_MS, ErasureReplay
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.objects import ObjectStore, StoredObject
from agentmemory_operator.runtime.cluster_identity import ClusterId
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, Key, ObjectTable, key_of_memory, owned_memory
from agentmemory_operator.runtime.work_queue import run_periodically
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.spec_snapshot import S3Storage
from agentmemory_operator.spec.naming import alias_of

log = logging.getLogger(__name__)

PERIOD_S = 300.0
# Seconds before the first run, in which the watch delivers the existing objects.
START_DELAY_S = 20.0
PART_BYTES = 4 << 20
# Maximum number of concurrent runs for one namespace. In total there may be twice as many. Each run keeps two parts in
# memory.
MAX_CONCURRENT_MIRRORS = 2
LAST_PART_SUFFIX = "-last.ndjson"


@dataclass(slots=True)
class _Known:
    """Traces of one agent's erasures that one storage contains.

    Attributes:
        since_ms: Start of the newest complete run, Unix milliseconds; 0 before the first.
        lines: Start of the run by digest of the line, for runs since two hours before `since_ms`.
    """

    since_ms: int = 0
    lines: dict[bytes, int] = field(default_factory=dict)

    def note(self, lines: list[bytes], run_ms: int) -> None:
        """Record lines that a run has written."""
        self.lines |= {_digest(line): run_ms for line in lines}

    def finish(self, run_ms: int) -> None:
        """Record that a run is complete, and drop lines that no later run exports."""
        self.since_ms = run_ms
        self.lines = {line: ms for line, ms in self.lines.items() if ms >= run_ms - 2 * CLOCK_MARGIN_MS}


@dataclass(frozen=True, slots=True)
class _Run:
    """Lines that a run writes to the storage.

    Attributes:
        started_ms: Start of the run, Unix milliseconds.
        known: Traces that the storage contains. The run adds the traces that it writes.
        first, rest: New lines, in parts.
    """

    started_ms: int
    known: _Known
    first: list[bytes]
    rest: AsyncIterator[list[bytes]]


@dataclass(slots=True)
class ErasureMirror:
    """Writes traces of erasures to object storage, and repeats the erasures from there.

    Attributes:
        cluster_id: Returns the id of this cluster. Collections of other clusters are ignored.
        period_s: Seconds between two passes over all agents.
        part_bytes: Size in bytes from which lines are written as one object. The last object of a run may be smaller.
    """

    table: ObjectTable
    servers: Servers
    storages: Storages
    erasures: ErasureReplay
    clock: Clock
    cluster_id: ClusterId
    period_s: float = PERIOD_S
    part_bytes: int = PART_BYTES
    _known: dict[tuple[str, S3Storage], _Known] = field(default_factory=dict)

    async def run(self) -> None:
        """Pass over all agents periodically, until cancelled. Only the leading operator runs it."""
        await asyncio.sleep(START_DELAY_S)
        await run_periodically(
            self.table, AGENT_MEMORY, self.mirror_object, period_s=self.period_s, share=MAX_CONCURRENT_MIRRORS
        )

    async def mirror_object(self, key: Key) -> None:
        """Write the new traces of an agent, if its object has a collection and a storage and owns its slug.

        An AgentMemoryError other than LeadershipLost is logged, and the next pass tries again.

        Raises:
            LeadershipLost: If this process may no longer write.
        """
        try:
            memory = self._served(key)
            if memory is not None:
                with attribute_reads_to(key):
                    await self.write_new_traces(memory)
        except LeadershipLost:
            raise
        except AgentMemoryError as exc:
            log.warning("copying the erasures of %s off the server is postponed: %s", key, exc)

    def _served(self, key: Key) -> AgentMemory | None:
        """Return the agent if the object owns its slug and has both a collection and a storage, else None."""
        memory = owned_memory(self.table, key)
        if memory is None or snapshot_storage(memory) is None:
            return None
        return memory if memory.reported_physical else None

    async def write_new_traces(self, memory: AgentMemory) -> int:
        """Write to an agent's storage the traces of its erasures that are new; return the number of lines written.

        Return 0 if the agent has no storage for snapshots.

        Raises:
            AgentMemoryError: If Qdrant or the storage is unavailable or refuses the call, or the collection is missing
                or has another owner. Some lines may have been written; repeating the call writes the rest.
        """
        storage, namespace = snapshot_storage(memory), memory.metadata.namespace
        if storage is None:
            return 0

        stored = await self._known_of(memory, storage)

        async def operation(server: Server) -> int:
            since_ms = max(0, stored.since_ms - CLOCK_MARGIN_MS)
            alias, run_ms = alias_of(memory.slug), self.clock.now_ms()
            if not await has_owner(server, alias, key_of_memory(memory), self.cluster_id):
                raise StoreUnavailable(f"{alias} does not exist or belongs to another owner")
            exported = self.erasures.export_receipts(server.points, alias, memory, since_ms=since_ms)
            parts = _new_parts(exported, stored, self.part_bytes)
            # Do not open the storage if there is nothing new, as usually.
            if (first := await anext(parts, None)) is None:
                return 0
            async with self.storages.open_bucket(storage, namespace, encryption=storage.encryption) as objects:
                return await _write(objects, _folder_of(storage, memory), _Run(run_ms, stored, first, parts))

        return await self.servers.use(connection_of(memory), operation, namespace=namespace)

    async def _known_of(self, memory: AgentMemory, storage: S3Storage) -> _Known:
        key = (memory.metadata.uid, storage)
        if key not in self._known:
            uids = {document["metadata"].get("uid") for document in self.table.documents(AGENT_MEMORY)}
            self._known = {known: lines for known, lines in self._known.items() if known[0] in uids}
            async with self.storages.open_bucket(storage, memory.metadata.namespace) as objects:
                self._known[key] = await _read_known(objects, _folder_of(storage, memory))
        return self._known[key]

    async def reapply(self, server: Server, physical: str, memory: AgentMemory, *, slug: str, since_ms: int) -> int:
        """Repeat in a collection the erasures that the storage lists; return the number of points erased.

        Return 0 if the agent has no storage for snapshots, or that storage has no runs of that time.

        Args:
            physical: Physical name of the collection.
            slug: Slug of the agent to read the traces of: another agent of the namespace if the collection is a clone.
            since_ms: When the collection was copied, Unix milliseconds. Runs up to two hours earlier are included.

        Raises:
            NotFound: If the collection does not exist, or an object was deleted while its folder was read.
            ChecksumMismatch: If an object does not have the content that was written.
            SpecInvalid: If the bucket or its Secret cannot be used, or the namespace may not read that agent's folder.
            RequestInvalid: If a line contains no trace. The lines before it may have been applied.
            StoreRejected: If Qdrant or the storage rejects a call.
            TransientError: If Qdrant or the storage is unavailable. Repeating the call erases the rest.
        """
        storage, namespace = snapshot_storage(memory), memory.metadata.namespace
        if storage is None:
            return 0
        async with self.storages.open_bucket(storage, namespace) as objects:
            folder = erasure_folder(storage, namespace=namespace, slug=slug)
            listed = [stored async for stored in objects.list(folder)]
            newer = [stored.key for stored in listed if _run_ms(stored) >= since_ms - 2 * CLOCK_MARGIN_MS]
            if not newer:
                return 0
            return await self.erasures.import_receipts(server.points, physical, memory, _lines_of(objects, newer))


def snapshot_storage(memory: AgentMemory) -> S3Storage | None:
    """Return the storage that an agent's snapshots are copied to, or None."""
    snapshots = memory.spec.snapshots
    return snapshots.storage.s3 if snapshots and snapshots.storage else None


def _folder_of(storage: S3Storage, memory: AgentMemory) -> str:
    return erasure_folder(storage, namespace=memory.metadata.namespace, slug=memory.slug)


async def _read_known(objects: ObjectStore, folder: str) -> _Known:
    """Read the traces in a storage, from two hours before the newest complete run."""
    listed = [stored async for stored in objects.list(folder)]
    result = _Known(max((_run_ms(stored) for stored in listed if stored.key.endswith(LAST_PART_SUFFIX)), default=0))
    for stored in listed:
        if _run_ms(stored) >= result.since_ms - 2 * CLOCK_MARGIN_MS:
            try:
                content = b"".join([chunk async for chunk in _lines_of(objects, [stored.key])])
            except ChecksumMismatch:
                # Skip an object with other content. Its lines count as unknown, so the next run writes them again.
                log.warning("%s does not have the content that was written", stored.key)
                continue
            result.note(content.splitlines(keepends=True), _run_ms(stored))
    return result


async def _lines_of(objects: ObjectStore, keys: list[str]) -> AsyncIterator[bytes]:
    """Yield the content of objects, one after the other.

    Raises:
        NotFound: If an object no longer exists.
        ChecksumMismatch: If its content differs from its size or SHA-256.
    """
    for key in keys:
        stored = await objects.head(key)
        if stored is None:
            raise NotFound(f"{key} no longer exists")
        async with objects.get(key) as content:
            async for chunk in CheckedStream(content, name=key, size=stored.size, sha256=stored.sha256 or ""):
                yield chunk


async def _new_parts(exported: AsyncIterator[bytes], stored: _Known, part_bytes: int) -> AsyncIterator[list[bytes]]:
    """Yield the exported lines that the storage does not have yet, in parts of about `part_bytes`."""
    part: list[bytes] = []
    size = 0
    async for block in exported:
        for line in block.splitlines(keepends=True):
            if _digest(line) not in stored.lines:
                part.append(line)
                size += len(line)
        if size >= part_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part


async def _write(objects: ObjectStore, folder: str, run: _Run) -> int:
    """Store each part of a run as an object; return the number of lines.

    The name of the last object marks the run as complete.
    """
    last_part, number, count = run.first, 0, len(run.first)
    async for part in run.rest:
        await _put(objects, f"{folder}{run.started_ms:013d}-{number:04d}.ndjson", last_part)
        run.known.note(last_part, run.started_ms)
        last_part, number, count = part, number + 1, count + len(part)
    await _put(objects, f"{folder}{run.started_ms:013d}-{number:04d}{LAST_PART_SUFFIX}", last_part)
    run.known.note(last_part, run.started_ms)
    run.known.finish(run.started_ms)
    return count


async def _put(objects: ObjectStore, key: str, lines: list[bytes]) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b"".join(lines)

    await objects.put(key, content(), metadata={})


def _run_ms(stored: StoredObject) -> int:
    """Return the start of the run that wrote an object, Unix milliseconds; 0 for a foreign object."""
    name = stored.key.rpartition("/")[2].partition("-")[0]
    return int(name) if name.isascii() and name.isdecimal() else 0


def _digest(line: bytes) -> bytes:
    return hashlib.sha256(line).digest()[:16]
