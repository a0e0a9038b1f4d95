"""How a snapshot is made: found out what of, made by the server or found again, recorded, proven."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentmemory_operator.collections.rules.collection import Marker, Observed
from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.collections.rules.refusals import check_ownership, slug_taken
from agentmemory_operator.connections.resolve import Server, Servers, connection_of
from agentmemory_operator.connections.rules.bucket_places import check_copy, copy_location
from agentmemory_operator.errors import NotFound, NotOwned, SpecInvalid, StoreRejected, StoreUnavailable
from agentmemory_operator.memories.point_scan import deleted_after, page_of
from agentmemory_operator.memories.rules.comparison import Rows
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.ports.snapshots import SnapshotFile
from agentmemory_operator.runtime.cache import (
    AGENT_MEMORY,
    MEMORY_SNAPSHOT,
    QDRANT_CONNECTION,
    Key,
    ObjectTable,
    documents_in,
    key_of,
)
from agentmemory_operator.runtime.jobs import Job
from agentmemory_operator.snapshots.adopt import SnapshotImport
from agentmemory_operator.snapshots.copies import Copies, ServerFile
from agentmemory_operator.snapshots.rules.steps import (
    DEFAULT_VERIFY,
    QDRANT,
    S3,
    SnapshotStep,
    files_named,
    location_of,
    lost_files,
    owner_status,
    qdrant_location,
    resumed_step,
    running,
    step_of,
)
from agentmemory_operator.snapshots.rules.verdict import SURELY_BEFORE_MS, hash_configuration
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory, MemorySnapshot, Metadata
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason
from agentmemory_operator.spec.kinds.spec_snapshot import S3Object, S3Storage
from agentmemory_operator.spec.naming import alias_of, is_file_of, physical_names
from agentmemory_operator.spec.times import parse_time

# Of one collection: their files are named by the second.
APART_S = 1.1
# Written down for one collection alone: found out anew where that one is gone.
_OF_COLLECTION = ("step", "attempts", "newestBefore", "physical")

log = logging.getLogger(__name__)


class Prover(Protocol):
    """Proves snapshots."""

    async def prove(self, server: Server, metadata: Metadata, status: Json) -> ConditionState:
        """The condition Verified of a snapshot that was made, as its `status.verify` asks for.

        False is one that is unfit, Unknown one of which nothing can be said.

        Raises:
            TransientError: it is to be tried again.
        """
        ...


@dataclass(slots=True)
class _Turn:
    """One collection's snapshots come one after the other.

    Attributes:
        ended_s: when the last one ended, by the loop's clock.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ended_s: float = float("-inf")


@dataclass(slots=True)
class SnapshotMaking:
    """Makes snapshots; a job that was begun is gone on with.

    Attributes:
        prover: proves what was made.
        copies: takes it off the server.
        imports: takes existing ones in.
    """

    table: ObjectTable
    servers: Servers
    cluster: Cluster
    prover: Prover
    copies: Copies
    imports: SnapshotImport
    # What was deleted shortly before those that are being made, and how many points a call may ask for.
    _deleted: dict[Key, tuple[Rows | None, int]] = field(default_factory=dict)
    _turns: defaultdict[tuple[Key, str], _Turn] = field(default_factory=lambda: defaultdict(_Turn))

    async def make(self, job: Job, snapshot: MemorySnapshot) -> ConditionState:
        """Do what is left to do; return the condition Verified of what was made.

        Raises:
            AgentMemoryError: it is to be tried again, or there is nothing to make.
        """
        connection = recorded_connection(job.status) or connection_of(self._memory(job, snapshot))

        async def work(server: Server) -> ConditionState:
            if snapshot.spec.import_ is not None:
                return await self._take_in(job, snapshot, snapshot.spec.import_.s3, server)
            if resumed_step(job.status) is None:
                await self._prepare(job, snapshot, connection, server)
            if step_of(job.status) is SnapshotStep.CREATE:
                await self._create(job, snapshot, connection, server)
            if step_of(job.status) is SnapshotStep.COPY:
                await self._copy(job, snapshot, server)
            return await self.prover.prove(server, job.metadata, job.status)

        try:
            return await self.servers.use(connection, work, namespace=job.metadata.namespace)
        finally:
            self._deleted.pop(job.key, None)

    async def _take_in(self, job: Job, snapshot: MemorySnapshot, place: S3Object, server: Server) -> ConditionState:
        memory = self._memory(job, snapshot)
        await tell(job, job.status | {"step": SnapshotStep.TAKE_IN, "attempts": job.status.get("attempts", 0) + 1})
        record, proof = await self.imports.take_in(
            *(job, memory, place), connection=connection_of(memory), server=server
        )
        job.status = job.status | record
        return proof

    def left_by(self, job: Job, files: list[SnapshotFile]) -> list[str]:
        """The files that attempts of a snapshot have left and that it has not on record, oldest first."""
        if not job.status.get("attempts") or "name" in job.status or "newestBefore" not in job.status:
            return []
        physical = job.status.get("physical", "")
        return lost_files(
            # What bears another name somebody else has put there.
            [(file.created_ms, file.name) for file in files if is_file_of(physical, file.name)],
            newest_before_ms=job.status["newestBefore"],
            named=files_named(statuses_beside(self.table, job.key), physical),
        )

    def _memory(self, job: Job, snapshot: MemorySnapshot) -> AgentMemory:
        """The AgentMemory whose snapshot it is.

        Raises:
            SpecInvalid: there is none.
            NotOwned: its slug is another's.
        """
        key = Key(AGENT_MEMORY, job.metadata.namespace, snapshot.spec.agent_memory_ref.name)
        document = self.table.get(key)
        if document is None:
            raise SpecInvalid(
                Reason.AGENT_MEMORY_NOT_FOUND,
                f"spec.agentMemoryRef: there is no AgentMemory {key.namespace}/{key.name}: create it or use another",
            )
        memory = self.table.parse(document)
        owner = self.table.owner_of(memory.slug)
        if owner is None or owner.namespace != key.namespace:
            raise slug_taken(memory.slug)
        if owner != key:
            raise NotOwned(
                Reason.SLUG_TAKEN, f"agent {memory.slug!r} belongs to AgentMemory {owner.name}: name that one"
            )
        return memory

    async def _prepare(self, job: Job, snapshot: MemorySnapshot, connection: Key, server: Server) -> None:
        """Find out what it is made of, and put on record what is needed once the AgentMemory is gone."""
        memory = self._memory(job, snapshot)
        observed, marker = await self._collection(memory, server)
        files = await server.snapshots.files(observed.physical)
        wanted, page = memory.spec.snapshots, page_of(observed.collection)
        self._deleted[job.key] = await self._tombstones(job, server, observed.physical, page), page
        found: Json = {
            "step": SnapshotStep.CREATE,
            "agent": memory.slug,
            "connection": {"namespace": connection.namespace, "name": connection.name},
            "physical": observed.physical,
            "points": {"before": await server.collections.count(observed.physical)},
            "qdrantVersion": (await server.collections.server()).version,
            "configHash": hash_configuration(observed.collection),
            "verify": snapshot.spec.verify or (wanted and wanted.verify) or DEFAULT_VERIFY,
            "newestBefore": max((file.created_ms for file in files), default=0),
            "attempts": 0,
        }
        job.status = job.status | found | owner_status(marker)

    async def _collection(self, memory: AgentMemory, server: Server) -> tuple[Observed, Marker]:
        alias = alias_of(memory.slug)
        likely, _ = physical_names(alias, memory.told_physical)
        observed = await server.collections.observe(alias, likely)
        marker = observed.collection.marker if observed else None
        if observed is None or marker is None:
            raise SpecInvalid(Reason.NO_COLLECTION, f"{alias} does not exist yet: see the AgentMemory's conditions")
        check_ownership(observed, desired_collection(memory, cluster_id=await self.cluster.cluster_id()))
        return observed, marker

    async def _create(self, job: Job, snapshot: MemorySnapshot, connection: Key, server: Server) -> None:
        """Have the server make the file, or find the one whose making was not seen to its end."""
        physical = job.status["physical"]
        turn = self._turns[connection, physical]
        async with turn.lock:
            file = await self._found(job, server) or await self._made(job, turn, server)
            points = job.status["points"] | {"after": await server.collections.count(physical)}
            told: Json = {"name": file.name, "sizeBytes": file.size, "points": points}
            told |= await self._deleted_meanwhile(job, server)
            told |= {"sha256": file.sha256} if file.sha256 else {}
            told |= {"shards": shards_status(file)} if file.shards else {}
            storage, slug = self._storage(job, snapshot), job.status["agent"]
            copy = [copy_location(storage, job.metadata, slug=slug, file=file.name)] if storage else []
            # Qdrant tells the checksum of every file that it makes, unless it keeps them in an object storage.
            is_on_disk = all(part.sha256 for part in file.shards or (file,))
            here = qdrant_location(physical, file.name, is_on_disk=is_on_disk)
            told |= {"locations": [here, *copy]}
            # Before the next one's turn, who might take the file for one of its own.
            await tell(job, job.status | told | {"step": SnapshotStep.COPY if copy else SnapshotStep.VERIFY})

    async def _tombstones(self, job: Job, server: Server, physical: str, page: int) -> Rows | None:
        since_ms = parse_time(job.status.get("startTime") or job.now) - SURELY_BEFORE_MS
        try:
            return await deleted_after(server.points, physical, since_ms, page)
        except StoreRejected as exc:
            log.info("deletions while %s is taken are not counted: %s", job.key, exc)
            return None

    async def _deleted_meanwhile(self, job: Job, server: Server) -> Json:
        """How many memories were deleted while it was made, nothing where that is not known.

        What was deleted shortly before bears a fresh time too; after a restart nobody knows which that was.
        """
        before, page = self._deleted.pop(job.key, (None, 0))
        now = None if before is None else await self._tombstones(job, server, job.status["physical"], page)
        if before is None or now is None:
            return {}
        return {"deletedMeanwhile": sum(before.get(id_) != row for id_, row in now.items())}

    def _storage(self, job: Job, snapshot: MemorySnapshot) -> S3Storage | None:
        wanted = self._memory(job, snapshot).spec.snapshots
        return wanted.storage.s3 if wanted and wanted.storage else None

    async def _copy(self, job: Job, snapshot: MemorySnapshot, server: Server) -> None:
        """Copy the file to where the status says it goes.

        Raises:
            SpecInvalid: the AgentMemory is gone, or wants no copy any more: how it is to be encrypted is not known. Or
                the place is none of this snapshot's.
        """
        here, there = location_of(job.status, QDRANT), location_of(job.status, S3)
        storage = self._storage(job, snapshot)
        if here is None or there is None or storage is None:
            raise SpecInvalid(Reason.STORAGE_GONE, "spec.snapshots.storage was removed from the AgentMemory")
        check_copy(there, job.document)
        file = ServerFile(
            store=server.snapshots,
            physical=here["physical"],
            name=here["name"],
            size=job.status["sizeBytes"],
            sha256=job.status.get("sha256"),
        )

        async def told(done: int, total: int) -> None:
            await tell(job, job.status, detail=f"{done} of {total} bytes")

        slug, namespace = job.status["agent"], job.metadata.namespace
        sha256 = await self.copies.send(file, there, storage=storage, slug=slug, namespace=namespace, progress=told)
        await tell(job, job.status | {"sha256": sha256, "step": SnapshotStep.VERIFY})

    async def _found(self, job: Job, server: Server) -> SnapshotFile | None:
        """The newest file that attempts have left, None where there is none; older ones are removed."""
        if not job.status["attempts"]:
            return None
        physical = job.status["physical"]
        files = await server.snapshots.files(physical)
        left = self.left_by(job, files)
        for name in left[:-1]:
            await server.snapshots.delete_file(physical, name)
        return next((file for file in files if file.name in left[-1:]), None)

    async def _made(self, job: Job, turn: _Turn, server: Server) -> SnapshotFile:
        physical, loop = job.status["physical"], asyncio.get_running_loop()
        await tell(job, job.status | {"attempts": job.status["attempts"] + 1})
        await asyncio.sleep(max(0.0, turn.ended_s + APART_S - loop.time()))
        try:
            return await server.snapshots.create(physical)
        except NotFound as exc:
            # A restore has put another in its place.
            job.status = {key: value for key, value in job.status.items() if key not in _OF_COLLECTION}
            raise StoreUnavailable(f"{physical} no longer exists: {exc}") from exc
        finally:
            turn.ended_s = loop.time()


async def tell(
    job: Job, status: Json, *, detail: str = "", reason: str = Reason.RUNNING, proof: ConditionState | None = None
) -> None:
    """Write down what is about to be done, or what it waits for."""
    generation = job.metadata.generation
    await job.write(running(status, generation=generation, now=job.now, detail=detail, reason=reason, proof=proof))


def statuses_beside(table: ObjectTable, own: Key) -> Iterator[Mapping[str, Any]]:
    """Yield the status of every MemorySnapshot of a namespace but one."""
    for document in documents_in(table, MEMORY_SNAPSHOT, own.namespace):
        if key_of(document) != own:
            yield document.get("status") or {}


def recorded_connection(status: Mapping[str, Any]) -> Key | None:
    """The connection of the server that a snapshot was made on."""
    told = status.get("connection") or {}
    name = told.get("name")
    return Key(QDRANT_CONNECTION, told.get("namespace") or "default", name) if name else None


def shards_status(file: SnapshotFile) -> list[Json]:
    """The files of a cluster's shards as a status tells them."""
    return [
        {"shard": each.shard, "name": each.name, "sizeBytes": each.size}
        | ({} if each.peer is None else {"peer": str(each.peer)})
        | ({"sha256": each.sha256} if each.sha256 else {})
        for each in file.shards
    ]
