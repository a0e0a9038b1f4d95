"""How an existing snapshot is taken in: restored into a scratch collection, looked at, put on record where it lies."""

from dataclasses import dataclass

from agentmemory_operator.collections.rules.collection import Observed
from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.collections.scratch import Scratch
from agentmemory_operator.collections.takeover import terms_for
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.connections.rules.bucket_places import object_location
from agentmemory_operator.errors import SpecInvalid, StorageRejected, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.restores.rules.checks import check_origin
from agentmemory_operator.runtime.cache import Key, ObjectTable
from agentmemory_operator.runtime.jobs import Job
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.rules.steps import VERIFIED, SnapshotStep, owner_status
from agentmemory_operator.snapshots.rules.verdict import hash_configuration
from agentmemory_operator.snapshots.verify import ATTEMPTS
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason
from agentmemory_operator.spec.kinds.spec_snapshot import S3Object


@dataclass(slots=True)
class SnapshotImport:
    """Takes snapshots in; nothing of the object storage is changed.

    Until its owner is known, its place is not on record: what fails to be taken in is never removed.
    """

    table: ObjectTable
    cluster: Cluster
    copies: Copies
    scratch: Scratch

    async def take_in(
        self, job: Job, memory: AgentMemory, place: S3Object, *, connection: Key, server: Server
    ) -> tuple[Json, ConditionState]:
        """What is put on record of a snapshot, and the condition Verified.

        Raises:
            NotOwned: it is another agent's, and no annotation says that it may be taken.
            SpecInvalid: it is not there, nobody knows its SHA-256, or the server makes nothing of it.
            BytesDiffer: its bytes are others.
        """
        marker = desired_collection(memory, cluster_id=await self.cluster.cluster_id()).marker
        namespace = job.metadata.namespace
        async with self.scratch.hold(server, job.metadata.uid) as name:
            known = await self.copies.check(place, namespace=namespace)
            observed = await self._restored(job, place, name, server)
            found = observed.collection.marker
            if marker is not None:
                takeover = terms_for(memory, self.table, job.metadata.annotations)
                check_origin(found, marker, is_named=False, takeover=takeover)
            points = await server.collections.count(name)
        record: Json = {
            "agent": memory.slug,
            "connection": {"namespace": connection.namespace, "name": connection.name},
            "sizeBytes": known.size,
            "sha256": known.sha256,
            "points": {"before": points, "after": points},
            "configHash": hash_configuration(observed.collection),
            "verify": "Full",
            "locations": [object_location(place)],
            "step": SnapshotStep.VERIFY,
        }
        told = f"restored into a scratch collection: {points} memories; no record to compare them with"
        proof = ConditionState(VERIFIED, True, Reason.COMPARED_WITH_RECORD, told)
        return record | (owner_status(found) if found else {}), proof

    async def _restored(self, job: Job, place: S3Object, name: str, server: Server) -> Observed:
        try:
            await self.copies.recover(place, server.snapshots, name, namespace=job.metadata.namespace)
        except StorageRejected:
            raise
        except StoreRejected as exc:
            raise SpecInvalid(Reason.NOT_RESTORABLE, f"the server rejects it: {exc}") from exc
        except StoreUnavailable as exc:
            # One that is away raises here too, and then nothing was found out.
            await server.snapshots.collections()
            if job.status["attempts"] < ATTEMPTS:
                raise
            raise SpecInvalid(Reason.NOT_RESTORABLE, f"the server failed {ATTEMPTS} times: {exc}") from exc
        observed = await server.collections.observe(name, name, is_linked=True)
        if observed is None:
            raise SpecInvalid(Reason.NOT_RESTORABLE, "it is a snapshot of an empty placeholder")
        return observed
