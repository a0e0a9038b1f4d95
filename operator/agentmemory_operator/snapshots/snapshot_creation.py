"""Create a snapshot: choose the collection, have the server create the file, copy it, and verify it.

1. Prepare: read the collection and record its name, owner and settings, as the AgentMemory may be deleted later.
2. Create: record the attempt, then have the server create the file. If a response was lost, find the file by its time.
3. Copy: send the file to object storage, if the agent has one.
4. Verify.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentmemory_operator.collections.rules.collection import Marker, Observation
from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.collections.rules.refusals import build_slug_taken, check_ownership
from agentmemory_operator.connections.resolve import Server, Servers, connection_of
from agentmemory_operator.connections.rules.object_keys import check_copy, copy_location
from agentmemory_operator.errors import NotFound, NotOwned, SpecInvalid, StoreRejected, StoreUnavailable
from agentmemory_operator.memories.point_scan import page_size, read_deleted_after
from agentmemory_operator.memories.rules.comparison import Rows
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import observe_physical
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.ports.snapshots import SnapshotFile
from agentmemory_operator.runtime.jobs import Job
from agentmemory_operator.runtime.object_table import (
    AGENT_MEMORY,
    MEMORY_SNAPSHOT,
    QDRANT_CONNECTION,
    Key,
    ObjectTable,
    documents_in,
    key_of,
)
from agentmemory_operator.snapshots.copies import Copies, ServerFile
from agentmemory_operator.snapshots.rules.copy_verdict import CLOCK_MARGIN_MS, hash_configuration
from agentmemory_operator.snapshots.rules.steps import (
    DEFAULT_VERIFY,
    QDRANT,
    S3,
    SnapshotStep,
    current_step,
    location_of,
    owner_status,
    qdrant_location,
    recorded_files,
    resumed_step,
    running_status,
    unrecorded_files,
)
from agentmemory_operator.snapshots.snapshot_import import SnapshotImport
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory, MemorySnapshot, Metadata
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason
from agentmemory_operator.spec.kinds.spec_snapshot import S3Object, S3Storage
from agentmemory_operator.spec.naming import alias_of, is_snapshot_file_of, physical_names
from agentmemory_operator.spec.times import parse_time

# Minimum seconds between snapshots of one collection, because Qdrant's file names contain whole seconds.
MIN_INTERVAL_S = 1.1
# Status fields that are only valid for one collection. They are removed if the collection no longer exists.
_COLLECTION_FIELDS = ("step", "attempts", "newestBefore", "physical")

log = logging.getLogger(__name__)


class Verifier(Protocol):
    """Verifies snapshots (`snapshots/verify.py: Verification`)."""

    async def verify_status(self, server: Server, metadata: Metadata, status: Json) -> ConditionState:
        """Verify an existing snapshot as `status.verify` requires; return the condition Verified.

        Status False means that the snapshot is unusable. Unknown means that the verification gave no result, or that
        `status.verify` is the string None.

        Raises:
            TransientError: If the verification must be repeated.
            StoreRejected: If Qdrant rejects a call that reads the live or the restored collection, or the object
                storage rejects a call.
            SpecInvalid: If a user must fix the storage of the copy or its Secret, or list the nodes of the server.
        """
        ...


@dataclass(slots=True)
class _CollectionLock:
    """Lock that serialises the creation of snapshots of one collection.

    Attributes:
        ended_s: Time at which the last creation ended, in seconds of the event loop's clock.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ended_s: float = float("-inf")


@dataclass(slots=True)
class SnapshotCreator:
    """Creates snapshots, and resumes interrupted ones.

    Attributes:
        prover: Verifies snapshots.
        copies: Copies snapshots to object storage.
        imports: Imports existing snapshots.
    """

    table: ObjectTable
    servers: Servers
    cluster: Cluster
    prover: Verifier
    copies: Copies
    imports: SnapshotImport
    # For each snapshot in progress: tombstones written shortly before it (None if they cannot be read), and the number
    # of points that one read may return.
    _deleted: dict[Key, tuple[Rows | None, int]] = field(default_factory=dict)
    _locks: defaultdict[tuple[Key, str], _CollectionLock] = field(default_factory=lambda: defaultdict(_CollectionLock))

    async def create(self, job: Job, snapshot: MemorySnapshot) -> ConditionState:
        """Run the remaining steps of a snapshot, or an import, and verify it; return the condition Verified.

        Each step writes `job.status`, so that another call continues there.

        Raises:
            TransientError: If the current step must be repeated.
            AgentMemoryError: Any other, if the snapshot cannot be created.
        """
        connection = recorded_connection(job.status) or connection_of(self._memory(job, snapshot))

        async def run_steps(server: Server) -> ConditionState:
            if snapshot.spec.import_ is not None:
                return await self._take_in(job, snapshot, snapshot.spec.import_.s3, server)
            if resumed_step(job.status) is None:
                await self._prepare(job, snapshot, connection, server)
            if current_step(job.status) is SnapshotStep.CREATE:
                await self._create(job, snapshot, connection, server)
            if current_step(job.status) is SnapshotStep.COPY:
                await self._copy(job, snapshot, server)
            return await self.prover.verify_status(server, job.metadata, job.status)

        try:
            return await self.servers.use(connection, run_steps, namespace=job.metadata.namespace)
        finally:
            self._deleted.pop(job.key, None)

    async def _take_in(self, job: Job, snapshot: MemorySnapshot, s3_object: S3Object, server: Server) -> ConditionState:
        memory = self._memory(job, snapshot)
        await write_progress(
            job, job.status | {"step": SnapshotStep.TAKE_IN, "attempts": job.status.get("attempts", 0) + 1}
        )
        record, proof = await self.imports.import_snapshot(
            *(job, memory, s3_object), connection=connection_of(memory), server=server
        )
        job.status = job.status | record
        return proof

    def leftover_files(self, job: Job, files: list[SnapshotFile]) -> list[str]:
        """Return the names of the files that attempts of a snapshot created but did not record, oldest first."""
        if not job.status.get("attempts") or "name" in job.status or "newestBefore" not in job.status:
            return []
        physical = job.status.get("physical", "")
        return unrecorded_files(
            # Leave out files with other names: Qdrant did not create them, a user has put them there.
            [(file.created_ms, file.name) for file in files if is_snapshot_file_of(physical, file.name)],
            newest_before_ms=job.status["newestBefore"],
            named=recorded_files(other_statuses(self.table, job.key), physical),
        )

    def _memory(self, job: Job, snapshot: MemorySnapshot) -> AgentMemory:
        """Return the AgentMemory of a snapshot.

        Raises:
            SpecInvalid: If the AgentMemory does not exist or is invalid.
            NotOwned: If its slug belongs to another object.
        """
        key = Key(AGENT_MEMORY, job.metadata.namespace, snapshot.spec.agent_memory_ref.name)
        document = self.table.get(key)
        if document is None:
            raise SpecInvalid(
                Reason.AGENT_MEMORY_NOT_FOUND,
                f"spec.agentMemoryRef: there is no AgentMemory {key.namespace}/{key.name}: create it or use another",
            )
        memory = self.table.parse(document)
        owner = self.table.find_owner(memory.slug)
        if owner is None or owner.namespace != key.namespace:
            raise build_slug_taken(memory.slug)
        if owner != key:
            raise NotOwned(
                Reason.SLUG_TAKEN, f"agent {memory.slug!r} belongs to AgentMemory {owner.name}: name that one"
            )
        return memory

    async def _prepare(self, job: Job, snapshot: MemorySnapshot, connection: Key, server: Server) -> None:
        """Choose the collection, and set the status fields that later steps need if the AgentMemory is deleted."""
        memory = self._memory(job, snapshot)
        observed, marker = await self._collection(memory, server)
        files = await server.snapshots.files(observed.physical)
        snapshots_spec, page = memory.spec.snapshots, page_size(observed.collection)
        self._deleted[job.key] = await self._tombstones(job, server, observed.physical, page), page
        fields: Json = {
            "step": SnapshotStep.CREATE,
            "agent": memory.slug,
            "connection": {"namespace": connection.namespace, "name": connection.name},
            "physical": observed.physical,
            "points": {"before": await server.collections.count(observed.physical)},
            "qdrantVersion": (await server.collections.server()).version,
            "configHash": hash_configuration(observed.collection),
            "verify": snapshot.spec.verify or (snapshots_spec and snapshots_spec.verify) or DEFAULT_VERIFY,
            "newestBefore": max((file.created_ms for file in files), default=0),
            "attempts": 0,
        }
        job.status = job.status | fields | owner_status(marker)

    async def _collection(self, memory: AgentMemory, server: Server) -> tuple[Observation, Marker]:
        alias = alias_of(memory.slug)
        expected, _ = physical_names(alias, memory.reported_physical)
        observed = await server.collections.observe(alias, expected)
        marker = observed.collection.marker if observed else None
        if observed is None or marker is None:
            raise SpecInvalid(Reason.NO_COLLECTION, f"{alias} does not exist yet: see the AgentMemory's conditions")
        check_ownership(observed, desired_collection(memory, cluster_id=await self.cluster.cluster_id()))
        return observed, marker

    async def _create(self, job: Job, snapshot: MemorySnapshot, connection: Key, server: Server) -> None:
        """Find the file of an interrupted attempt or have the server create one, and record it."""
        physical = job.status["physical"]
        lock = self._locks[connection, physical]
        async with lock.lock:
            file = await self._find_created(job, server) or await self._create_file(job, lock, server)
            points = job.status["points"] | {"after": await server.collections.count(physical)}
            fields: Json = {"name": file.name, "sizeBytes": file.size, "points": points}
            fields |= await self._count_deleted(job, server)
            fields |= await _changed_hash(job, server)
            fields |= {"sha256": file.sha256} if file.sha256 else {}
            fields |= {"shards": shards_status(file)} if file.shards else {}
            storage, slug = self._storage(job, snapshot), job.status["agent"]
            copy = [copy_location(storage, job.metadata, slug=slug, file=file.name)] if storage else []
            # A file without a checksum is in object storage: Qdrant lists one for every other file that it creates.
            is_on_disk = all(part.sha256 for part in file.shards or (file,))
            location = qdrant_location(physical, file.name, is_on_disk=is_on_disk)
            fields |= {"locations": [location, *copy]}
            # Record the file before the lock is released, because the next snapshot could treat it as its own.
            await write_progress(
                job, job.status | fields | {"step": SnapshotStep.COPY if copy else SnapshotStep.VERIFY}
            )

    async def _tombstones(self, job: Job, server: Server, physical: str, page: int) -> Rows | None:
        since_ms = parse_time(job.status.get("startTime") or job.now) - CLOCK_MARGIN_MS
        try:
            return await read_deleted_after(server.points, physical, since_ms, page)
        except StoreRejected as exc:
            log.info("deletions while %s is taken are not counted: %s", job.key, exc)
            return None

    async def _count_deleted(self, job: Job, server: Server) -> Json:
        """Return the number of memories deleted during the snapshot as a status field; empty if it is unknown.

        The tombstones before and after are compared. Their times alone do not suffice, because clocks differ. After a
        restart of the operator the tombstones from before are unknown.
        """
        before, page = self._deleted.pop(job.key, (None, 0))
        now = None if before is None else await self._tombstones(job, server, job.status["physical"], page)
        if before is None or now is None:
            return {}
        return {"deletedMeanwhile": sum(before.get(id_) != row for id_, row in now.items())}

    def _storage(self, job: Job, snapshot: MemorySnapshot) -> S3Storage | None:
        snapshots_spec = self._memory(job, snapshot).spec.snapshots
        return snapshots_spec.storage.s3 if snapshots_spec and snapshots_spec.storage else None

    async def _copy(self, job: Job, snapshot: MemorySnapshot, server: Server) -> None:
        """Copy the file to the location in the status.

        Raises:
            SpecInvalid: If the AgentMemory was deleted or no longer has a storage, so the encryption is unknown; or if
                the location does not belong to this snapshot.
        """
        location, copy = location_of(job.status, QDRANT), location_of(job.status, S3)
        storage = self._storage(job, snapshot)
        if location is None or copy is None or storage is None:
            raise SpecInvalid(Reason.STORAGE_GONE, "spec.snapshots.storage was removed from the AgentMemory")
        check_copy(copy, job.document)
        file = ServerFile(
            store=server.snapshots,
            physical=location["physical"],
            name=location["name"],
            size=job.status["sizeBytes"],
            sha256=job.status.get("sha256"),
        )

        async def report(done: int, total: int) -> None:
            await write_progress(job, job.status, detail=f"{done} of {total} bytes")

        slug, namespace = job.status["agent"], job.metadata.namespace
        sha256 = await self.copies.send(file, copy, storage=storage, slug=slug, namespace=namespace, progress=report)
        await write_progress(job, job.status | {"sha256": sha256, "step": SnapshotStep.VERIFY})

    async def _find_created(self, job: Job, server: Server) -> SnapshotFile | None:
        """Return the newest file that earlier attempts created, or None. Their older files are deleted."""
        if not job.status["attempts"]:
            return None
        physical = job.status["physical"]
        files = await server.snapshots.files(physical)
        leftovers = self.leftover_files(job, files)
        for name in leftovers[:-1]:
            await server.snapshots.delete_file(physical, name)
        return next((file for file in files if file.name in leftovers[-1:]), None)

    async def _create_file(self, job: Job, lock: _CollectionLock, server: Server) -> SnapshotFile:
        physical, loop = job.status["physical"], asyncio.get_running_loop()
        await write_progress(job, job.status | {"attempts": job.status["attempts"] + 1})
        await asyncio.sleep(max(0.0, lock.ended_s + MIN_INTERVAL_S - loop.time()))
        try:
            return await server.snapshots.create(physical)
        except NotFound as exc:
            # Let the next pass choose the collection again: it no longer exists, for example because of a restore.
            job.status = {key: value for key, value in job.status.items() if key not in _COLLECTION_FIELDS}
            raise StoreUnavailable(f"{physical} no longer exists: {exc}") from exc
        finally:
            lock.ended_s = loop.time()


async def _changed_hash(job: Job, server: Server) -> Json:
    """Return the hash of the settings as a status field if they changed since `_prepare`, else an empty dict.

    After a change, the file may have the settings from before or after it.
    """
    physical = job.status["physical"]
    observed = await observe_physical(server.collections, physical)
    after = observed and hash_configuration(observed.collection)
    return {"configHashAfter": after} if after and after != job.status["configHash"] else {}


async def write_progress(
    job: Job, status: Json, *, detail: str = "", reason: str = Reason.RUNNING, proof: ConditionState | None = None
) -> None:
    """Write a running snapshot's status: the step that starts next, or the cause of a wait.

    The arguments are those of `running_status`.
    """
    generation = job.metadata.generation
    await job.write(
        running_status(status, generation=generation, now=job.now, detail=detail, reason=reason, proof=proof)
    )


def other_statuses(table: ObjectTable, own: Key) -> Iterator[Mapping[str, Any]]:
    """Yield the status of every other MemorySnapshot in the namespace of `own`."""
    for document in documents_in(table, MEMORY_SNAPSHOT, own.namespace):
        if key_of(document) != own:
            yield document.get("status") or {}


def recorded_connection(status: Mapping[str, Any]) -> Key | None:
    """Return the connection of the server that a snapshot was created on, or None if none is recorded.

    A missing namespace is `default`.
    """
    connection = status.get("connection") or {}
    name = connection.get("name")
    return Key(QDRANT_CONNECTION, connection.get("namespace") or "default", name) if name else None


def shards_status(file: SnapshotFile) -> list[Json]:
    """Return the status field `shards`: the file of each shard; empty for a single server."""
    return [
        {"shard": shard.shard, "name": shard.name, "sizeBytes": shard.size}
        | ({} if shard.peer is None else {"peer": str(shard.peer)})
        | ({"sha256": shard.sha256} if shard.sha256 else {})
        for shard in file.shards
    ]
