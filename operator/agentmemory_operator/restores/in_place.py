"""Restore a snapshot into the live collection itself, while the API serves no request for the agent.

`restores/rules/in_place_steps.py` lists the steps. Each may be repeated after any failure. Only Recover and later steps
change the contents of the collection. After a failure in Recover or Compare, the safety snapshot is restored.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from agentmemory_operator.collections.announce import MoveAnnouncer, check_announced
from agentmemory_operator.collections.claim_registry import ClaimRegistry
from agentmemory_operator.collections.reconcile import PassPermit, reconcile
from agentmemory_operator.collections.rules.announcement import MOVING_KEY
from agentmemory_operator.collections.rules.collection import METADATA_KEY, Observation, marker_to_json, with_owner
from agentmemory_operator.collections.rules.desired import build_pass_terms
from agentmemory_operator.collections.rules.drift import DriftPolicy
from agentmemory_operator.collections.rules.epochs import (
    CLOSED_KEY,
    Epoch,
    closed_to_json,
    epoch_to_json,
    next_epoch,
    read_epoch,
    read_reopening_epoch,
)
from agentmemory_operator.collections.rules.rebuild_record import keep_as_completed
from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import ChecksumMismatch, NotFound, SpecInvalid, StoreRejected
from agentmemory_operator.lifecycle.erasure_restore import RestoredErasureReplay, resolve_pending_chains
from agentmemory_operator.memories.point_scan import count_changed
from agentmemory_operator.memories.rules.findings import Check
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import observe_physical
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.restores.job import RestoreJob, RestoreRun
from agentmemory_operator.restores.rules.in_place_steps import InPlaceStep, check_equal_layout, rollback_name
from agentmemory_operator.restores.rules.status import (
    SUCCEEDED,
    current_step,
    has_ended,
    has_succeeded,
    needs_undo,
    not_rolled_back_status,
    rolled_back_in_place_status,
    undone_status,
    with_fields,
)
from agentmemory_operator.restores.rules.swap_checks import (
    RestoreRecord,
    check_fit,
    check_origin,
    merge_records,
    parse_records,
    records_to_json,
)
from agentmemory_operator.restores.safety_snapshot import (
    SafetyLimits,
    SafetySnapshots,
    build_rollback_manifest,
    read_safety_name,
)
from agentmemory_operator.runtime.jobs import run_steps
from agentmemory_operator.runtime.object_table import MEMORY_RESTORE, Key, ObjectTable
from agentmemory_operator.snapshots.copy_comparison import ComparedSnapshot, compare
from agentmemory_operator.snapshots.rules.copy_verdict import CLOCK_MARGIN_MS, SnapshotRecord
from agentmemory_operator.snapshots.verify import restore_into
from agentmemory_operator.spec.kinds.conditions import Reason, find_condition
from agentmemory_operator.spec.times import parse_time

# Only checks of the contents count here. Others may fail, because the live collection keeps its own settings and owner.
_CONTENTS = (Check.RESTORE, Check.MISSING, Check.SAMPLE, Check.PROBES)


@dataclass(slots=True)
class InPlaceRestore:
    """Runs restores into the live collection itself.

    Attributes:
        scratch: Scratch collections for the rehearsal, the comparison, and the safety snapshot's erasures.
        request: Requests a pass over another object.
        erasures: Repeats erasures in restored collections.
        claims: Records the minimum epoch of a closed agent. None records the closing only in the collection's metadata.
    """

    table: ObjectTable
    cluster: Cluster
    scratch: ScratchCollections
    request: Callable[[Key], None]
    erasures: RestoredErasureReplay
    claims: ClaimRegistry | None = None
    announcer: MoveAnnouncer = field(default_factory=MoveAnnouncer)
    limits: SafetyLimits = field(default_factory=SafetyLimits)
    safety: SafetySnapshots = field(init=False)

    def __post_init__(self) -> None:
        self.safety = SafetySnapshots(self.table, self.cluster, self.limits)

    async def run(self, task: RestoreRun) -> None:
        """Run the steps to the end, or until a step must wait. Another pass then continues.

        Raises:
            SpecInvalid, NotOwned, StoreRejected: If the restore cannot be completed. The caller must call `undo`.
            TransientError: If a step must be repeated by another call.
        """
        first = current_step(task.job.status, InPlaceStep) or InPlaceStep.REHEARSE
        result = await run_steps(self._steps, task, first=first, begin=RestoreRun.start_step)
        if result is not None:
            await self._succeed(task, result)

    @property
    def _steps(self) -> Mapping[InPlaceStep, Callable[[RestoreRun], Awaitable[str | None]]]:
        """Function of each step, which returns its result, or None while it waits."""
        return {
            InPlaceStep.REHEARSE: self._rehearse,
            InPlaceStep.CLOSE: self._close,
            InPlaceStep.SAFEGUARD: self.safety.advance,
            InPlaceStep.RECOVER: self._recover,
            InPlaceStep.COMPARE: self._compare,
            InPlaceStep.OPEN: self._open,
        }

    async def _rehearse(self, task: RestoreRun) -> str:
        live = await _observe_live(task)
        async with self.scratch.reserve(task.server, task.job.metadata.uid) as name:
            await self._restore(task, name)
            copy = await observe_physical(task.server.collections, name)
            if copy is None:
                raise SpecInvalid(Reason.SNAPSHOT_REFUSED, "Qdrant restored no collection of the snapshot")
            check_origin(copy.collection.marker, task.marker, is_from_snapshot_object=False, takeover=task.takeover)
            check_equal_layout(live.collection, copy.collection)
            check_fit(task.desired, copy, live)
            number = await task.server.collections.count(name)
        return f"{number} memories, restored into a scratch collection, compatible"

    async def _close(self, task: RestoreRun) -> str:
        job, server, physical = task.job, task.server, task.physical
        if "closedSince" not in job.status:
            await job.write(with_fields(job.status, {"closedSince": job.stamp.now}))
        # Request a pass, which shows the closing in the status of the AgentMemory.
        self.request(job.target_key)
        announcement = await self.announcer.announce(server, physical, physical)
        await self.announcer.wait_until_effective(announcement)
        epoch = _epoch_after(job, await check_announced(server, announcement))
        # Write the claim before the metadata: the recovery overwrites the metadata.
        if self.claims is not None:
            await self.claims.set_min_epoch(job.slug, epoch)
        await server.snapshots.write_metadata(physical, _closing_metadata(job, epoch) | {MOVING_KEY: None})
        # Wait for late writes, so that the safety snapshot contains them. After Recover, such a write could match a
        # revision of the snapshot.
        await self.announcer.wait_for_late_writes(server)
        return "the API answers 503"

    async def _recover(self, task: RestoreRun) -> str:
        old_metadata = await task.server.snapshots.metadata(task.physical)
        await self._restore(task, task.physical)
        metadata = await task.server.snapshots.metadata(task.physical) or {}
        new = RestoreRecord(identity=task.job.identity, source=task.source.description, applied_at=task.job.stamp.now)
        changes = records_to_json(merge_records(parse_records(old_metadata), parse_records(metadata), new))
        changes |= keep_as_completed(old_metadata) | _closed_metadata(task.job, old_metadata)
        await task.server.snapshots.write_metadata(task.physical, changes | await self._new_marker(task))
        return f"from {task.source.description}"

    async def _new_marker(self, task: RestoreRun) -> Json:
        """Return the metadata field that makes this AgentMemory the owner; empty if the snapshot has no marker."""
        marker = (await _observe_live(task)).collection.marker
        return {METADATA_KEY: marker_to_json(with_owner(marker, task.marker))} if marker else {}

    async def _compare(self, task: RestoreRun) -> str:
        await self._converge(task)
        uid = task.job.metadata.uid
        async with self.scratch.reserve(task.server, uid) as name:
            await self._restore(task, name)
            # Set a start in the future. `compare` requires only points from before the start, and so requires all.
            recorded = SnapshotRecord(started_ms=task.job.now_ms + 2 * CLOCK_MARGIN_MS)
            subject = ComparedSnapshot(uid=uid, physical=name, name="", recorded=recorded, live=name)
            verdict = await compare(task.physical, subject, task.server)
        messages = [item.message for item in verdict.findings if item.is_good is False and item.check in _CONTENTS]
        if messages:
            raise SpecInvalid(Reason.NOT_VERIFIED, f"the collection differs from the snapshot: {'; '.join(messages)}")
        summary = await self._erase(task)
        await resolve_pending_chains(task.server, task.physical, task.memory, task.job.book.clock)
        return f"{verdict.message}; {summary}"

    async def _converge(self, task: RestoreRun) -> None:
        """Change the collection to what the AgentMemory specifies.

        A recovery keeps the settings of an existing collection, but may drop payload indexes.
        """
        terms = replace(build_pass_terms(task.memory, cluster_id=task.cluster_id), drift_policy=DriftPolicy.CORRECT)
        await reconcile(
            task.physical,
            task.desired,
            store=task.server.collections,
            last_physical=task.physical,
            last_points=1,
            permit=PassPermit(terms=terms),
        )

    async def _erase(self, task: RestoreRun) -> str:
        """Repeat the erasures since the snapshot; return their number, as text for users.

        Erasures in the live collection are read from the safety snapshot, restored into a scratch collection.
        """
        async with self.scratch.reserve(task.server, task.job.metadata.uid) as name:
            await restore_into(name, self.safety.subject(task.job), task.server)
            origin, since_ms = task.source.agent, task.source.started_ms or 0
            number = await self.erasures.replay_all(
                task.server, name, task.physical, task.memory, origin=origin, since_ms=since_ms
            )
        return f"{number} memories erased since the snapshot were erased again"

    async def _open(self, task: RestoreRun) -> str:
        count = await task.server.collections.count(task.physical)
        start_time = task.job.status.get("closedSince")
        changes = await count_changed(task.server.points, task.physical, parse_time(start_time)) if start_time else 0
        points = {**(task.job.status.get("points") or {}), "after": count}
        await task.job.write(with_fields(task.job.status, {"points": points}))
        await self._serve(task.job, task.server)
        return f"{count} memories; {changes} written directly in the meantime stay" if changes else f"{count} memories"

    async def _serve(self, job: RestoreJob, server: Server) -> None:
        await reopen(server, str(job.physical), job.slug, table=self.table, claims=self.claims)
        await job.write(with_fields({key: job.status[key] for key in job.status if key != "closedSince"}, {}))
        self.request(job.target_key)

    async def _succeed(self, task: RestoreRun, result: str) -> None:
        safety_snapshot = task.job.status.get("safetySnapshot") or {}
        message = (
            f"{result} restored from {task.source.description} into {task.physical} in place; its previous contents "
            f"are in MemorySnapshot {safety_snapshot.get('name')}"
        )
        await task.succeed(message, result)

    async def undo(self, job: RestoreJob, server: Server) -> None:
        """Undo a restore that failed or was deleted: restore the safety snapshot if needed, and reopen the agent.

        Does nothing while the agent is open: before Close, and after an earlier call, since when clients may write.

        Raises:
            TransientError: If the undoing must be repeated.
            SpecInvalid: If the safety snapshot was deleted in Qdrant, or Qdrant rejects it. The API keeps answering
                503, unless the restore's object is being deleted.
        """
        if "closedSince" not in job.status:
            return
        if needs_undo(job.status):
            await self._restore_safety(job, server)
        await self._serve(job, server)

    async def _restore_safety(self, job: RestoreJob, server: Server) -> None:
        physical = str(job.physical)
        old_metadata = await server.snapshots.metadata(physical)
        try:
            subject = self.safety.subject(job)
            await restore_file_over(physical, subject, server)
        except (SpecInvalid, StoreRejected, NotFound, ChecksumMismatch) as exc:
            if job.metadata.deletion_timestamp:
                # No further pass of this restore can open the collection once the object is deleted.
                await job.write(undone_status(job.status, "the safety snapshot is not restorable", job.stamp))
                await self._serve(job, server)
            raise SpecInvalid(
                Reason.NOT_UNDONE,
                f"{physical} may hold part of the snapshot, and the safety snapshot is not restorable ({exc}): restore "
                f"MemorySnapshot {read_safety_name(job)} or another one with mode Swap, then delete this restore",
            ) from exc
        remaining = tuple(record for record in parse_records(old_metadata) if record.identity != job.identity)
        changes = records_to_json(remaining) | keep_as_completed(old_metadata) | _closed_metadata(job, old_metadata)
        await server.snapshots.write_metadata(physical, changes)
        await job.write(undone_status(job.status, f"{subject.name} is back", job.stamp))

    async def roll_back(self, job: RestoreJob) -> bool:
        """Roll a restore in place back by another MemoryRestore, from the safety snapshot.

        Creates that object if it does not exist. Once it has ended, records in the status of `job` whether the rollback
        succeeded. Without a safety snapshot, as after AlreadyApplied, it records that a rollback is impossible.

        Returns:
            True if the other restore has ended, successfully or not, or none is possible.
        """
        safety_name = read_safety_name(job)
        key = Key(MEMORY_RESTORE, job.key.namespace, rollback_name(job.key.name))
        document = self.table.get(key)
        if document is None and not safety_name:
            message = "this restore took no safety snapshot: restore from another snapshot instead"
            await job.write(not_rolled_back_status(job.status, Reason.PREVIOUS_GONE, message, job.stamp))
            return True
        if document is None:
            await self.cluster.create_object(build_rollback_manifest(key, job.restore.spec.target.name, safety_name))
            return False
        status = document.get("status") or {}
        if not has_ended(status):
            return False
        succeeded = find_condition(status, SUCCEEDED)
        message = f"MemoryRestore {key.name}: {succeeded['message']}"
        if has_succeeded(status):
            await job.write(rolled_back_in_place_status(job.status, message, job.stamp))
            await job.post_event("Normal", Reason.ROLLED_BACK, message)
        else:
            await job.write(not_rolled_back_status(job.status, succeeded["reason"], message, job.stamp))
        return True

    @staticmethod
    async def _restore(task: RestoreRun, target: str) -> None:
        try:
            await task.source.recover(task.server, target)
        except (StoreRejected, NotFound, ChecksumMismatch) as exc:
            raise SpecInvalid(Reason.SNAPSHOT_REFUSED, f"the snapshot cannot be recovered: {exc}") from exc


async def restore_file_over(physical: str, subject: ComparedSnapshot, server: Server) -> None:
    """Have the server replace a collection's contents by one of its own snapshot files.

    Args:
        physical: Collection to overwrite.
        subject: Snapshot file, which may be of another collection of the same server.

    Errors are those of `SnapshotStore.recover`.
    """
    location = await server.snapshots.own_location(subject.physical, subject.name)
    await server.snapshots.recover(physical, location, sha256=subject.sha256)


def _epoch_after(job: RestoreJob, metadata: Json | None) -> int:
    """Return the epoch for opening the collection: the claim's minimum if higher than its own, else a new epoch.

    Args:
        metadata: Metadata of the collection; None counts as epoch 0.
    """
    number, closed_until = read_epoch(metadata).number, read_reopening_epoch(metadata) or 0
    if job.min_epoch > number:
        return job.min_epoch
    return next_epoch(Epoch(number=max(number, closed_until)), job.now_ms, copies_writes=False).number


def _closing_metadata(job: RestoreJob, epoch: int) -> Json:
    return closed_to_json(str(job.key), job.status.get("closedSince"), epoch)


def _closed_metadata(job: RestoreJob, metadata: Json | None) -> Json:
    """Return the metadata that replaces the snapshot's: the next epoch, and the mark of a closed collection.

    Args:
        metadata: Metadata of the collection before the recovery.
    """
    epoch = _epoch_after(job, metadata)
    return _closing_metadata(job, epoch) | epoch_to_json(Epoch(number=epoch, contents=epoch))


async def _observe_live(task: RestoreRun) -> Observation:
    observed = await observe_physical(task.server.collections, task.physical)
    if observed is None:
        raise SpecInvalid(Reason.NOT_VERIFIED, f"{task.physical} was deleted in Qdrant")
    return observed


async def reopen(server: Server, physical: str, slug: str, *, table: ObjectTable, claims: ClaimRegistry | None) -> None:
    """Open a closed collection for the API again, with the epoch that was recorded when it was closed.

    Removes the mark of a closed collection and any announcement, then the claim's minimum epoch. If the collection was
    deleted, only the claim changes.

    Args:
        claims: Writes the slug's claim; None if no claims are kept.

    Raises:
        TransientError: If the call must be repeated.
    """
    metadata = await server.snapshots.metadata(physical)
    if metadata is not None:
        epoch = read_epoch(metadata)
        number = max(table.claims.min_epoch_of(slug), read_reopening_epoch(metadata) or 0)
        changes: Json = dict.fromkeys((CLOSED_KEY, MOVING_KEY))
        if number > epoch.number:
            changes |= epoch_to_json(Epoch(number=number, contents=number))
        await server.snapshots.write_metadata(physical, changes)
    # Change the claim last: an API process that still has the old claim then finds an epoch that the claim accepts.
    if claims is not None:
        await claims.set_min_epoch(slug, 0)


async def is_abandoned(metadata: Json | None, memory: Key, cluster: Cluster) -> bool:
    """Return whether a collection is closed, but the restore that has closed it will not open it again.

    Such a restore was deleted, is not named in the metadata, or has no `closedSince` in its status. Its object is read
    from the API server, because the watch may lag.

    Args:
        metadata: Metadata of the collection; None if the collection does not exist, which returns False.
        memory: Key of the AgentMemory, in whose namespace the restore is.
    """
    if read_reopening_epoch(metadata) is None:
        return False
    closing = (metadata or {})[CLOSED_KEY]
    name = str(closing.get("restore") if isinstance(closing, dict) else "").rpartition("/")[2]
    try:
        restore = await cluster.read_object(MEMORY_RESTORE, memory.namespace, name) if name else {}
    except NotFound:
        return True
    return "closedSince" not in (restore.get("status") or {})
