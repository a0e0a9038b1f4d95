"""Import an existing snapshot: restore it into a scratch collection, check it, and record its location."""

from dataclasses import dataclass

from agentmemory_operator.collections.rules.collection import Observation
from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.collections.takeover_requests import terms_for
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.connections.rules.object_keys import object_location
from agentmemory_operator.errors import SpecInvalid, StorageRejected, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import observe_physical
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.restores.rules.swap_checks import check_origin
from agentmemory_operator.runtime.jobs import Job
from agentmemory_operator.runtime.object_table import Key, ObjectTable
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.rules.copy_verdict import hash_configuration
from agentmemory_operator.snapshots.rules.steps import VERIFIED, SnapshotStep, owner_status
from agentmemory_operator.snapshots.verify import MAX_RESTORE_ATTEMPTS
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason
from agentmemory_operator.spec.kinds.spec_snapshot import S3Object


@dataclass(slots=True)
class SnapshotImport:
    """Imports snapshots. Nothing in the object storage is changed.

    `import_snapshot` returns the location only after it has checked the owner. So the status of a failed import has no
    location, and its cleanup does not delete the object.
    """

    table: ObjectTable
    cluster: Cluster
    copies: Copies
    scratch: ScratchCollections

    async def import_snapshot(
        self, job: Job, memory: AgentMemory, location: S3Object, *, connection: Key, server: Server
    ) -> tuple[Json, ConditionState]:
        """Import a snapshot; return the status fields to record, and the condition Verified.

        Args:
            location: Object in storage.
            connection: Connection of `server`, which restores the snapshot.

        Raises:
            NotOwned: If the snapshot belongs to another agent and no annotation allows a takeover.
            SpecInvalid: If object, SHA-256, storage or Secret is missing or unusable, or the server cannot restore it.
            ChecksumMismatch: If its content differs from its SHA-256.
            StorageRejected: If the storage rejects a call; a user must fix it.
            TransientError: If the import must be repeated.
        """
        marker = desired_collection(memory, cluster_id=await self.cluster.cluster_id()).marker
        namespace = job.metadata.namespace
        async with self.scratch.reserve(server, job.metadata.uid) as name:
            stored = await self.copies.check(location, namespace=namespace)
            observed = await self._restored(job, location, name, server)
            found_marker = observed.collection.marker
            if marker is not None:
                takeover = terms_for(memory, self.table, job.metadata.annotations)
                check_origin(found_marker, marker, is_from_snapshot_object=False, takeover=takeover)
            points = await server.collections.count(name)
        record: Json = {
            "agent": memory.slug,
            "connection": {"namespace": connection.namespace, "name": connection.name},
            "sizeBytes": stored.size,
            "sha256": stored.sha256,
            "points": {"before": points, "after": points},
            "configHash": hash_configuration(observed.collection),
            "verify": "Full",
            "locations": [object_location(location)],
            "step": SnapshotStep.VERIFY,
        }
        message = f"restored into a scratch collection: {points} memories; no record to compare them with"
        proof = ConditionState(VERIFIED, True, Reason.COMPARED_WITH_RECORD, message)
        return record | (owner_status(found_marker) if found_marker else {}), proof

    async def _restored(self, job: Job, s3_object: S3Object, name: str, server: Server) -> Observation:
        try:
            await self.copies.recover(s3_object, server.snapshots, name, namespace=job.metadata.namespace)
        except StorageRejected:
            raise
        except StoreRejected as exc:
            raise SpecInvalid(Reason.NOT_RESTORABLE, f"the server rejects it: {exc}") from exc
        except StoreUnavailable as exc:
            # Raise if the server is unavailable: then the failure shows nothing about the snapshot.
            await server.snapshots.collections()
            if job.status["attempts"] < MAX_RESTORE_ATTEMPTS:
                raise
            raise SpecInvalid(Reason.NOT_RESTORABLE, f"the server failed {MAX_RESTORE_ATTEMPTS} times: {exc}") from exc
        observed = await observe_physical(server.collections, name)
        if observed is None:
            raise SpecInvalid(Reason.NOT_RESTORABLE, "it is a snapshot of an empty placeholder")
        return observed
