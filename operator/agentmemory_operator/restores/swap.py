"""Restore by swap: recover into a new collection, prepare it, and make it live by one move of the alias.

`restores/rules/swap_checks.py` lists the steps. Each may be repeated after any failure. No step changes the memories of
the replaced collection.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from agentmemory_operator.collections.announce import AliasLocks, AliasSwitch, MoveAnnouncer, release_writers
from agentmemory_operator.collections.reconcile import PassPermit, reconcile
from agentmemory_operator.collections.replaced_collection import drop_rebuild_index, mark_previous
from agentmemory_operator.collections.rules.collection import (
    METADATA_KEY,
    ORIGIN_KEY,
    PREVIOUS_KEY,
    RED,
    Collection,
    Marker,
    Observation,
    marker_to_json,
    with_owner,
)
from agentmemory_operator.collections.rules.desired import PassTerms, build_pass_terms, newest_collection
from agentmemory_operator.collections.rules.drift import DriftPolicy
from agentmemory_operator.collections.rules.rebuild_record import clear_copied_keys
from agentmemory_operator.errors import ChecksumMismatch, NotFound, SpecInvalid, StoreRejected
from agentmemory_operator.lifecycle.erasure_restore import (
    RestoredErasureReplay,
    repair_late_links,
    resolve_pending_chains,
)
from agentmemory_operator.memories.point_scan import count_changed, count_deleted, find_newest_change
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import observe_physical
from agentmemory_operator.restores.job import RestoreRun
from agentmemory_operator.restores.rules.status import current_step, with_fields
from agentmemory_operator.restores.rules.swap_checks import (
    RestoreRecord,
    SwapStep,
    check_fit,
    check_origin,
    merge_records,
    parse_records,
    records_to_json,
    resume_at,
)
from agentmemory_operator.runtime.jobs import run_steps
from agentmemory_operator.snapshots.rules.copy_verdict import (
    CLOCK_MARGIN_MS,
    SnapshotRecord,
    compare_configuration,
    compare_count,
)
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.times import parse_time, render_time


@dataclass(slots=True)
class SwapRestore:
    """Runs restores by swap.

    Attributes:
        locks: Locks of the aliases, shared by all modules that move aliases.
        erasures: Repeats erasures in the restored collection.
    """

    locks: AliasLocks
    erasures: RestoredErasureReplay
    announcer: MoveAnnouncer = field(default_factory=MoveAnnouncer)

    async def run(self, task: RestoreRun) -> None:
        """Run a swap from its current step to its end.

        Raises:
            SpecInvalid, NotOwned, StoreRejected: If the swap cannot be completed. The caller must remove the collection
                that it created.
            TransientError: If a step must be repeated by another call.
        """
        live = await task.read_live()
        is_switched = live is not None and live.physical == task.physical
        first = resume_at(current_step(task.job.status, SwapStep), is_switched=is_switched)
        result = await run_steps(self._steps, task, first=first, begin=RestoreRun.start_step)
        await self._succeed(task, result or "")

    @property
    def _steps(self) -> Mapping[SwapStep, Callable[[RestoreRun], Awaitable[str]]]:
        return {
            SwapStep.RECOVER: self._recover,
            SwapStep.CLAIM: self._claim,
            SwapStep.VERIFY: self._verify,
            SwapStep.CONVERGE: self._converge,
            SwapStep.ERASE: self._erase,
            SwapStep.COUNT: self._count,
            SwapStep.SWITCH: self._switch,
            SwapStep.SETTLE: self._settle,
        }

    async def _recover(self, task: RestoreRun) -> str:
        # Delete the partial copy of a killed run. It is not live, because `run` resumes at Settle if the alias moved.
        await task.server.collections.delete(task.physical)
        try:
            await task.source.recover(task.server, task.physical)
        except (StoreRejected, NotFound, ChecksumMismatch) as exc:
            raise SpecInvalid(Reason.SNAPSHOT_REFUSED, f"the snapshot cannot be recovered: {exc}") from exc
        return f"from {task.source.description}"

    async def _claim(self, task: RestoreRun) -> str:
        observed = await self._observe(task)
        metadata = await task.server.snapshots.metadata(task.physical) or {}
        found_marker, own_marker = observed.collection.marker, task.marker
        check_origin(found_marker, own_marker, is_from_snapshot_object=task.source.is_named, takeover=task.takeover)
        memory = task.memory_with(found_marker)
        check_fit(newest_collection(memory, cluster_id=task.cluster_id), observed, await task.read_live())
        await drop_rebuild_index(task.server, task.physical)
        changes = records_to_json(await self._records(task, parse_records(metadata), found_marker))
        changes |= clear_copied_keys() | {PREVIOUS_KEY: None}
        if found_marker is not None:
            changes |= {METADATA_KEY: marker_to_json(with_owner(found_marker, own_marker))}
            if not found_marker.is_same_object(own_marker):
                origin = metadata.get(ORIGIN_KEY) or task.source.agent or found_marker.agent or found_marker.name
                changes |= {ORIGIN_KEY: origin}
        # Write marker and ORIGIN_KEY in one call, because a marker that names this agent no longer names the owner.
        await task.server.snapshots.write_metadata(task.physical, changes)
        return f"it was {found_marker.namespace}/{found_marker.name}'s" if found_marker else "it had no owner"

    async def _records(
        self, task: RestoreRun, recovered: tuple[RestoreRecord, ...], found_marker: Marker | None
    ) -> tuple[RestoreRecord, ...]:
        """Return the records for the restored collection: of the live one, of the snapshot, and of this restore."""
        job, live = task.job, await task.read_live()
        live_records = parse_records(await task.server.snapshots.metadata(live.physical)) if live else ()
        is_same = found_marker is not None and found_marker.is_same_object(task.marker)
        new = RestoreRecord(identity=job.identity, source=task.source.description, applied_at=job.stamp.now)
        return merge_records(live_records, recovered if is_same else (), new)

    async def _verify(self, task: RestoreRun) -> str:
        observed, source = await self._observe(task), task.source
        if observed.state == RED:
            raise SpecInvalid(Reason.COPY_DIFFERS, f"the restored collection is red in Qdrant: {observed.fault}")
        recorded = SnapshotRecord(before=source.before, after=source.after, config_hashes=source.config_hashes)
        started_ms = source.started_ms or 0
        # Count deletions as the verification of snapshots does, so that a verified snapshot passes here too.
        since_deleted_ms = started_ms - CLOCK_MARGIN_MS
        deleted = await count_deleted(task.server.points, task.physical, since_deleted_ms) if started_ms else 0
        count = await task.server.collections.count(task.physical)
        count_finding = compare_count(count, recorded, deleted)
        findings = (*compare_configuration(observed.collection, None, source.config_hashes), count_finding)
        # Check only the minimum. More memories than counted are no loss, because the snapshot may precede a deletion.
        min_expected = min((number for number in (source.before, source.after) if number is not None), default=0)
        faults = [
            finding.message
            for finding in findings
            if finding.is_good is False and (finding is not count_finding or count < min_expected)
        ]
        if faults:
            raise SpecInvalid(
                Reason.COPY_DIFFERS, f"the restored collection differs from the snapshot: {'; '.join(faults)}"
            )
        since_ms = source.started_ms or await find_newest_change(task.server.points, task.physical)
        if since_ms is not None and task.job.previous:
            previous = {**task.job.status["previousCollection"], "since": render_time(since_ms)}
            await task.job.write(with_fields(task.job.status, {"previousCollection": previous}))
        return count_finding.message

    async def _converge(self, task: RestoreRun) -> str:
        def decide(restored: Marker | None) -> tuple[Collection, PassTerms]:
            memory, cluster_id = task.memory_with(restored), task.cluster_id
            terms = replace(build_pass_terms(memory, cluster_id=cluster_id), drift_policy=DriftPolicy.CORRECT)
            return newest_collection(memory, cluster_id=cluster_id), terms

        result = await reconcile(
            task.physical,
            task.desired,
            store=task.server.collections,
            last_physical=task.physical,
            # A last number above 0 makes a missing collection count as lost, so that it is not created again empty.
            last_points=1,
            permit=PassPermit(decide=decide),
        )
        changed = ", ".join(type(change).__name__ for change in result.applied.changes)
        return f"changed: {changed}" if changed else "matches the AgentMemory"

    async def _erase(self, task: RestoreRun) -> str:
        number = await self._erase_again(task, await task.read_live())
        await resolve_pending_chains(task.server, task.physical, task.memory, task.job.book.clock)
        return f"{number} memories erased since the snapshot were erased again"

    async def _erase_again(self, task: RestoreRun, live: Observation | None) -> int:
        return await self.erasures.replay_all(
            *(task.server, live.physical if live else None, task.physical, task.memory),
            origin=task.source.agent,
            since_ms=task.source.started_ms or 0,
        )

    async def _count(self, task: RestoreRun) -> str:
        live = await task.read_live()
        if live is None:
            return "there is no live collection"
        points, changed = await task.server.collections.count(live.physical), await self._changes(task, live.physical)
        previous = {**(task.job.status.get("previousCollection") or {}), "physical": live.physical}
        if changed is not None:
            previous["writesSince"] = changed
        fields = {"previousCollection": previous, "points": {"before": points}}
        await task.job.write(with_fields(task.job.status, fields))
        return _describe_changes(changed)

    async def _changes(self, task: RestoreRun, physical: str) -> int | None:
        """Return how many memories of a collection changed since the snapshot; None if its time is unknown."""
        switched_at = (task.job.status.get("previousCollection") or {}).get("since")
        return await count_changed(task.server.points, physical, parse_time(switched_at)) if switched_at else None

    async def _switch(self, task: RestoreRun) -> str:
        live = await task.read_live()
        if live is not None and live.physical != task.job.previous:
            # Count again if the alias was moved after the restore started: its current target is to be replaced.
            await self._count(task)

        async def check() -> None:
            # Check right before the move: no alias may be created for a deleted agent, or to a deleted collection.
            await task.check_target()
            await self._observe(task)

        switch = AliasSwitch(
            server=task.server,
            slug=task.memory.slug,
            alias=task.alias,
            target=task.physical,
            now_ms=lambda: task.job.now_ms,
            check=check,
            min_epoch=task.job.min_epoch,
        )
        await switch.run(self.locks, self.announcer, expected_target=task.job.previous)
        return f"{task.alias} points to {task.physical}"

    async def _settle(self, task: RestoreRun) -> str:
        job, previous = task.job, task.job.previous
        summary, after = "nothing was replaced", await task.server.collections.count(task.physical)
        fields: Json = {"points": {**(job.status.get("points") or {}), "after": after}}
        if previous and await self._is_kept(task, previous):
            since_ms = task.source.started_ms or 0
            await self.erasures.replay_collection(task.server, previous, task.physical, task.memory, since_ms=since_ms)
            await self.announcer.wait_for_late_writes(task.server)
            await repair_late_links(task.server, task.physical, task.memory, job.book.clock)
            changed = await self._changes(task, previous)
            change_fields = {} if changed is None else {"writesSince": changed}
            summary, expires_at = _describe_changes(changed), job.keep_until
            replaced_by = {"restore": str(job.key)}
            await release_writers(task.server, previous)
            await mark_previous(
                task.server, previous, since=job.stamp.now, removal_time=expires_at, reference=replaced_by
            )
            fields["previousCollection"] = {**job.status["previousCollection"], **change_fields, "until": expires_at}
        await job.write(with_fields(job.status, fields))
        return summary

    @staticmethod
    async def _is_kept(task: RestoreRun, previous: str) -> bool:
        """Return whether the replaced collection exists and belongs to this namespace."""
        return await task.server.may_use(previous) and await task.server.snapshots.metadata(previous) is not None

    async def _succeed(self, task: RestoreRun, result: str) -> None:
        job, previous = task.job, task.job.previous
        points = (job.status.get("points") or {}).get("after", 0)
        message = f"{points} memories restored from {task.source.description} into {task.physical}"
        if previous:
            message += f"; {previous} is kept until {job.status['previousCollection'].get('until')}, {result}"
        await task.succeed(message, result)

    @staticmethod
    async def _observe(task: RestoreRun) -> Observation:
        observed = await observe_physical(task.server.collections, task.physical)
        if observed is None:
            raise SpecInvalid(Reason.COPY_DIFFERS, f"{task.physical} was deleted in Qdrant")
        return observed


def _describe_changes(changed: int | None) -> str:
    if changed is None:
        return "the time of its snapshot is unknown, and so are changes since then"
    return f"{changed} memories changed in it since the snapshot"
