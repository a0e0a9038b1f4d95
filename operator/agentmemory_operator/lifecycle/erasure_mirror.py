"""What erasures have left of an agent, kept off the server too: a lost server cannot tell what it forgot.

Where snapshots are copied to an object storage, receipts and tombstones go there: lines of JSON that say nothing of
what was erased, in objects that are never changed. Each run writes what is new. One that is killed is made anew: only a
run whose last object is there counts.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from agentmemory_operator.collections.previous import is_of
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.resolve import Server, Servers, connection_of
from agentmemory_operator.connections.rules.bucket_places import erasure_folder
from agentmemory_operator.connections.secret_hosts import used_by
from agentmemory_operator.connections.streams import CheckedStream
from agentmemory_operator.errors import AgentMemoryError, BytesDiffer, LeadershipLost, NotFound, StoreUnavailable
from agentmemory_operator.lifecycle.erasure_replay import MARGIN_MS, Erasures
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.objects import ObjectStore, StoredObject
from agentmemory_operator.runtime.cache import AGENT_MEMORY, Key, ObjectTable, key_of_memory, owned_memory
from agentmemory_operator.runtime.cluster_identity import ClusterId
from agentmemory_operator.runtime.queue import rounds
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.spec_snapshot import S3Storage
from agentmemory_operator.spec.naming import alias_of

log = logging.getLogger(__name__)

PERIOD_S = 300.0
# The objects have come by then.
START_S = 20.0
PART_BYTES = 4 << 20
# Of one namespace; each holds two parts.
AGENTS_AT_ONCE = 2
LAST = "-last.ndjson"


@dataclass(slots=True)
class _Known:
    """What one storage has of one agent.

    Attributes:
        since_ms: when the newest whole run was begun, Unix milliseconds; 0 before the first.
        lines: digests of what was written about then and since, by the time of the run.
    """

    since_ms: int = 0
    lines: dict[bytes, int] = field(default_factory=dict)

    def note(self, lines: list[bytes], run_ms: int) -> None:
        """Take in what a run has written."""
        self.lines |= {_digest(line): run_ms for line in lines}

    def finish(self, run_ms: int) -> None:
        """Take in that a run is whole; what no later one looks at is forgotten."""
        self.since_ms = run_ms
        self.lines = {line: ms for line, ms in self.lines.items() if ms >= run_ms - 2 * MARGIN_MS}


@dataclass(frozen=True, slots=True)
class _Run:
    """What is to be written at once.

    Attributes:
        began_ms: Unix milliseconds.
        first, rest: the new lines, in parts.
    """

    began_ms: int
    known: _Known
    first: list[bytes]
    rest: AsyncIterator[list[bytes]]


@dataclass(slots=True)
class ErasureMirror:
    """Writes what erasures leave to object storage, and makes them again from there.

    Attributes:
        cluster_id: which cluster this is: what another's agents forgot is not told to anybody here.
        period_s: between two looks at all agents.
        part_bytes: about the size of an object.
    """

    table: ObjectTable
    servers: Servers
    storages: Storages
    erasures: Erasures
    clock: Clock
    cluster_id: ClusterId
    period_s: float = PERIOD_S
    part_bytes: int = PART_BYTES
    _known: dict[tuple[str, S3Storage], _Known] = field(default_factory=dict)

    async def run(self) -> None:
        """Look at all agents from time to time, until cancelled; only the operator that leads runs it."""
        await asyncio.sleep(START_S)
        await rounds(self.table, AGENT_MEMORY, self.look, period_s=self.period_s, share=AGENTS_AT_ONCE)

    async def look(self, key: Key) -> None:
        """Write what is new of an agent; what cannot be written now is later."""
        try:
            memory = self._served(key)
            if memory is not None:
                with used_by(key):
                    await self.mirror(memory)
        except LeadershipLost:
            raise
        except AgentMemoryError as exc:
            log.warning("copying the erasures of %s off the server is postponed: %s", key, exc)

    def _served(self, key: Key) -> AgentMemory | None:
        """The agent if it is this object's and has both a collection and a storage."""
        memory = owned_memory(self.table, key)
        if memory is None or storage_of(memory) is None:
            return None
        return memory if memory.told_physical else None

    async def mirror(self, memory: AgentMemory) -> int:
        """Write what erasures have left since the last time; return how many lines were new.

        Raises:
            AgentMemoryError: some may not be written; the same again writes the rest.
        """
        storage, namespace = storage_of(memory), memory.metadata.namespace
        if storage is None:
            return 0

        known = await self._known_of(memory, storage)

        async def work(server: Server) -> int:
            since_ms = max(0, known.since_ms - MARGIN_MS)
            alias, run_ms = alias_of(memory.slug), self.clock.now_ms()
            if not await is_of(server, alias, key_of_memory(memory), self.cluster_id):
                raise StoreUnavailable(f"{alias} does not exist or belongs to another owner")
            exported = self.erasures.export_receipts(server.points, alias, memory, since_ms=since_ms)
            parts = _new_parts(exported, known, self.part_bytes)
            # Most often there is nothing new, and nothing to open.
            if (first := await anext(parts, None)) is None:
                return 0
            async with self.storages.open_bucket(storage, namespace, encryption=storage.encryption) as objects:
                return await _write(objects, _folder_of(storage, memory), _Run(run_ms, known, first, parts))

        return await self.servers.use(connection_of(memory), work, namespace=namespace)

    async def _known_of(self, memory: AgentMemory, storage: S3Storage) -> _Known:
        place = (memory.metadata.uid, storage)
        if place not in self._known:
            async with self.storages.open_bucket(storage, memory.metadata.namespace) as objects:
                self._known[place] = await _read_known(objects, _folder_of(storage, memory))
        return self._known[place]

    async def reapply(self, server: Server, physical: str, memory: AgentMemory, *, slug: str, since_ms: int) -> int:
        """Erase in a collection what the storage tells of; return how many memories that were.

        Args:
            slug: of the agent whose memories they were, where the collection is a clone of one of the namespace.
            since_ms: when the collection was copied, Unix milliseconds; what was erased hours before is looked at too.

        Raises:
            BytesDiffer: an object there is not what was written.
            SpecInvalid: what the storage tells of that agent is another namespace's.
        """
        storage, namespace = storage_of(memory), memory.metadata.namespace
        if storage is None:
            return 0
        async with self.storages.open_bucket(storage, namespace) as objects:
            folder = erasure_folder(storage, namespace=namespace, slug=slug)
            found = [stored async for stored in objects.list(folder)]
            newer = [stored.key for stored in found if _run_ms(stored) >= since_ms - 2 * MARGIN_MS]
            if not newer:
                return 0
            return await self.erasures.import_receipts(server.points, physical, memory, _lines_of(objects, newer))


def storage_of(memory: AgentMemory) -> S3Storage | None:
    """Where an agent's snapshots are copied to."""
    wanted = memory.spec.snapshots
    return wanted.storage.s3 if wanted and wanted.storage else None


def _folder_of(storage: S3Storage, memory: AgentMemory) -> str:
    return erasure_folder(storage, namespace=memory.metadata.namespace, slug=memory.slug)


async def _read_known(objects: ObjectStore, folder: str) -> _Known:
    """The traces in a storage, from the newest complete run on."""
    found = [stored async for stored in objects.list(folder)]
    known = _Known(max((_run_ms(stored) for stored in found if stored.key.endswith(LAST)), default=0))
    for stored in found:
        if _run_ms(stored) >= known.since_ms - 2 * MARGIN_MS:
            try:
                content = b"".join([chunk async for chunk in _lines_of(objects, [stored.key])])
            except BytesDiffer:
                # Written once more, in another object.
                log.warning("%s does not have the content that was written", stored.key)
                continue
            known.note(content.splitlines(keepends=True), _run_ms(stored))
    return known


async def _lines_of(objects: ObjectStore, keys: list[str]) -> AsyncIterator[bytes]:
    """Yield what objects hold, checked."""
    for key in keys:
        stored = await objects.head(key)
        if stored is None:
            raise NotFound(f"{key} no longer exists")
        async with objects.get(key) as content:
            async for chunk in CheckedStream(content, named=key, size=stored.size, sha256=stored.sha256 or ""):
                yield chunk


async def _new_parts(exported: AsyncIterator[bytes], known: _Known, part_bytes: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines that are not known, in parts of about that size."""
    part: list[bytes] = []
    size = 0
    async for block in exported:
        for line in block.splitlines(keepends=True):
            if _digest(line) not in known.lines:
                part.append(line)
                size += len(line)
        if size >= part_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part


async def _write(objects: ObjectStore, folder: str, run: _Run) -> int:
    """Store the parts of a run, the last one under a name that says so; return how many lines they have."""
    waiting, number, count = run.first, 0, len(run.first)
    async for part in run.rest:
        await _put(objects, f"{folder}{run.began_ms:013d}-{number:04d}.ndjson", waiting)
        run.known.note(waiting, run.began_ms)
        waiting, number, count = part, number + 1, count + len(part)
    await _put(objects, f"{folder}{run.began_ms:013d}-{number:04d}{LAST}", waiting)
    run.known.note(waiting, run.began_ms)
    run.known.finish(run.began_ms)
    return count


async def _put(objects: ObjectStore, key: str, lines: list[bytes]) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b"".join(lines)

    await objects.put(key, content(), metadata={})


def _run_ms(stored: StoredObject) -> int:
    """When the run that wrote an object began, Unix milliseconds; 0 for an object that is not ours."""
    name = stored.key.rpartition("/")[2].partition("-")[0]
    return int(name) if name.isascii() and name.isdecimal() else 0


def _digest(line: bytes) -> bytes:
    return hashlib.sha256(line).digest()[:16]
