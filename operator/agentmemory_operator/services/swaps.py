"""A restore by swap: into a collection of its own, made ready there, and live by one move of the alias.

`domain/restoring.py` has the steps. Each may be run again after any failure; nothing of the live collection is changed.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from agentmemory_operator.domain.changes import SetAlias
from agentmemory_operator.domain.collection import (
    METADATA_KEY,
    ORIGIN_KEY,
    PREVIOUS_KEY,
    RED,
    Collection,
    Marker,
    Observed,
    marker_to_json,
)
from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.domain.desired import terms_of
from agentmemory_operator.domain.drift import DriftPolicy
from agentmemory_operator.domain.naming import alias_of
from agentmemory_operator.domain.rebuilding import copied_elsewhere
from agentmemory_operator.domain.resources import TAKEOVER, AgentMemory
from agentmemory_operator.domain.restore_reporting import current_step, noted_status, step_status, succeeded_status
from agentmemory_operator.domain.restoring import (
    Record,
    Step,
    check_fit,
    check_origin,
    merged_records,
    records_from,
    records_to_json,
    resume_at,
    step_after,
)
from agentmemory_operator.domain.times import parse_time, render_time
from agentmemory_operator.domain.verification import Recorded, compare_configuration, compare_count
from agentmemory_operator.errors import BytesDiffer, NotFound, SpecInvalid, StoreRejected
from agentmemory_operator.ports import Json
from agentmemory_operator.services.aliases import AliasLocks
from agentmemory_operator.services.catching_up import restore_source
from agentmemory_operator.services.changes_since import count_changed, count_deleted, newest_change
from agentmemory_operator.services.previous import live_behind, mark_previous
from agentmemory_operator.services.reconcile import Permit, reconcile
from agentmemory_operator.services.restore_jobs import RestoreJob
from agentmemory_operator.services.restore_sources import Source
from agentmemory_operator.services.restored_erasures import RestoredErasures
from agentmemory_operator.services.servers import Server

# A write that was begun before the snapshot may have been given its time before that.
SKEW_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One swap under way.

    Attributes:
        desired: what the AgentMemory asks for.
        check_target: raises SpecInvalid once it is not to be restored any more.
    """

    job: RestoreJob
    server: Server
    memory: AgentMemory
    source: Source
    desired: Collection
    cluster_id: str
    check_target: Callable[[], Awaitable[None]]

    @property
    def alias(self) -> str:
        """The agent's."""
        return alias_of(self.memory.slug)

    @property
    def physical(self) -> str:
        """The collection that is made."""
        return str(self.job.physical)

    @property
    def ours(self) -> Marker:
        """Of the AgentMemory."""
        assert self.desired.marker is not None
        return self.desired.marker

    async def live(self) -> Observed | None:
        """Return what the alias leads to."""
        return await live_behind(self.server, self.alias, self.job.previous)


@dataclass(slots=True)
class Swap:
    """Carries out swaps.

    Attributes:
        locks: of the aliases; one for all who move them.
    """

    locks: AliasLocks
    erasures: RestoredErasures

    async def run(self, task: Task) -> None:
        """Go on with a swap to its end; the object's status says where it is.

        Raises:
            SpecInvalid, NotOwned, StoreRejected: it cannot be done; what it made is to be cleaned up.
            TransientError: it is to be gone on with.
        """
        live = await task.live()
        is_switched = live is not None and live.physical == task.physical
        step: Step | None = resume_at(current_step(task.job.status, Step), is_switched=is_switched)
        came_to = ""
        while step is not None:
            if step is not Step.SETTLE:
                await task.check_target()
            await task.job.job.write(step_status(task.job.status, step, task.job.moment, came_to=came_to))
            came_to = await self._steps[step](task)
            step = step_after(step)
        await self._succeed(task, came_to)

    @property
    def _steps(self) -> Mapping[Step, Callable[[Task], Awaitable[str]]]:
        return {
            Step.RECOVER: self._recover,
            Step.CLAIM: self._claim,
            Step.VERIFY: self._verify,
            Step.CONVERGE: self._converge,
            Step.ERASE: self._erase,
            Step.COUNT: self._count,
            Step.SWITCH: self._switch,
            Step.SETTLE: self._settle,
        }

    async def _recover(self, task: Task) -> str:
        # What a killed run left may be half a copy; the alias does not lead there, or this step were over.
        await task.server.collections.delete(task.physical)
        try:
            await task.source.recover(task.server, task.physical)
        except (StoreRejected, NotFound, BytesDiffer) as exc:
            raise SpecInvalid(Reason.SNAPSHOT_REFUSED, f"the snapshot cannot be recovered: {exc}") from exc
        return f"from {task.source.described}"

    async def _claim(self, task: Task) -> str:
        observed = await self._observed(task)
        metadata = await task.server.snapshots.metadata(task.physical) or {}
        found, ours = observed.collection.marker, task.ours
        takeover = task.job.metadata.annotations.get(TAKEOVER)
        check_origin(found, ours, is_named=task.source.is_named, takeover=takeover)
        check_fit(task.desired, observed, await task.live())
        await restore_source(task.server, task.physical)
        changes = records_to_json(await self._records(task, records_from(metadata), found))
        changes |= copied_elsewhere() | {PREVIOUS_KEY: None}
        if found is not None:
            changes |= {METADATA_KEY: marker_to_json(_handed_over(found, ours))}
            if not found.is_same_object(ours):
                changes |= {ORIGIN_KEY: metadata.get(ORIGIN_KEY) or task.source.agent or found.name}
        # In one call: once the marker is ours, nothing else tells whose it was.
        await task.server.snapshots.write_metadata(task.physical, changes)
        return f"it was {found.namespace}/{found.name}'s" if found else "it was nobody's"

    async def _records(self, task: Task, recovered: tuple[Record, ...], found: Marker | None) -> tuple[Record, ...]:
        """Return what the restored collection has on record: what the live one has, and this restore."""
        job, live = task.job, await task.live()
        of_live = records_from(await task.server.snapshots.metadata(live.physical)) if live else ()
        is_same = found is not None and found.is_same_object(task.ours)
        new = Record(identity=job.identity, source=task.source.described, applied_at=job.moment.now)
        return merged_records(of_live, recovered if is_same else (), new)

    async def _verify(self, task: Task) -> str:
        observed, source = await self._observed(task), task.source
        if observed.state == RED:
            raise SpecInvalid(Reason.COPY_DIFFERS, f"Qdrant calls the restored collection red: {observed.fault}")
        recorded = Recorded(before=source.before, after=source.after, config_hash=source.config_hash)
        begun_ms = source.begun_ms or 0
        deleted = await count_deleted(task.server.points, task.physical, begun_ms - SKEW_MS) if begun_ms else 0
        copied = await task.server.collections.count(task.physical)
        counted = compare_count(copied, recorded, deleted)
        findings = (*compare_configuration(observed.collection, None, source.config_hash), counted)
        # More than were counted is no loss: what was deleted after the snapshot's moment left no trace in it.
        known = min((number for number in (source.before, source.after) if number is not None), default=0)
        bad = [
            finding.message
            for finding in findings
            if finding.is_good is False and (finding is not counted or copied < known)
        ]
        if bad:
            raise SpecInvalid(Reason.COPY_DIFFERS, f"the restored collection is not the snapshot: {'; '.join(bad)}")
        since_ms = source.begun_ms or await newest_change(task.server.points, task.physical)
        if since_ms is not None and task.job.previous:
            previous = {**task.job.status["previousCollection"], "since": render_time(since_ms)}
            await task.job.job.write(noted_status(task.job.status, {"previousCollection": previous}))
        return counted.message

    async def _converge(self, task: Task) -> str:
        terms = terms_of(task.memory, cluster_id=task.cluster_id)
        done = await reconcile(
            task.physical,
            task.desired,
            store=task.server.collections,
            last_physical=task.physical,
            # One that is gone is lost, and never made anew empty.
            last_points=1,
            permit=Permit(terms=replace(terms, drift_policy=DriftPolicy.CORRECT)),
        )
        changed = ", ".join(type(change).__name__ for change in done.applied.changes)
        return f"changed: {changed}" if changed else "as the AgentMemory asks"

    async def _erase(self, task: Task) -> str:
        number = await self._erase_again(task, await task.live())
        return f"{number} memories erased since were erased again"

    async def _erase_again(self, task: Task, live: Observed | None) -> int:
        return await self.erasures.carry_all(
            *(task.server, live.physical if live else None, task.physical, task.memory),
            origin=task.source.agent,
            since_ms=task.source.begun_ms or 0,
        )

    async def _count(self, task: Task) -> str:
        live = await task.live()
        if live is None:
            return "there is no live collection"
        points, changed = await task.server.collections.count(live.physical), await self._changed(task, live.physical)
        previous = {**(task.job.status.get("previousCollection") or {}), "physical": live.physical}
        if changed is not None:
            previous["writesSince"] = changed
        noted = {"previousCollection": previous, "points": {"before": points}}
        await task.job.job.write(noted_status(task.job.status, noted))
        return _told(changed)

    async def _changed(self, task: Task, physical: str) -> int | None:
        """Return how many memories were changed there since the snapshot, None where its time is not known."""
        since = (task.job.status.get("previousCollection") or {}).get("since")
        return await count_changed(task.server.points, physical, parse_time(since)) if since else None

    async def _switch(self, task: Task) -> str:
        async with self.locks.of(task.memory.slug):
            # Right before the move, and with nobody between: what is deleted stays deleted.
            await task.check_target()
            live = await task.live()
            if live is not None and live.physical != task.job.previous:
                # Somebody moved the alias since: what it leads to now is what is replaced.
                await self._count(task)
            await self._observed(task)
            await task.server.collections.apply(task.physical, SetAlias(task.alias, task.physical))
        return f"{task.alias} leads to {task.physical}"

    async def _settle(self, task: Task) -> str:
        job, previous = task.job, task.job.previous
        told, after = "nothing was replaced", await task.server.collections.count(task.physical)
        noted: Json = {"points": {**(job.status.get("points") or {}), "after": after}}
        if previous and await task.server.snapshots.metadata(previous) is not None:
            since_ms = task.source.begun_ms or 0
            await self.erasures.carry(task.server, previous, task.physical, task.memory, since_ms=since_ms)
            changed = await self._changed(task, previous)
            replaced = {} if changed is None else {"writesSince": changed}
            told, until = _told(changed), job.keep_until
            by = {"restore": str(job.key)}
            await mark_previous(task.server, previous, since=job.moment.now, until=until, by=by)
            noted["previousCollection"] = {**job.status["previousCollection"], **replaced, "until": until}
        await job.job.write(noted_status(job.status, noted))
        return told

    async def _succeed(self, task: Task, came_to: str) -> None:
        job, previous = task.job, task.job.previous
        points = (job.status.get("points") or {}).get("after", 0)
        message = f"{points} memories restored from {task.source.described} into {task.physical}"
        if previous:
            message += f"; {previous} is kept until {job.status['previousCollection'].get('until')}, {came_to}"
        await job.job.write(succeeded_status(job.status, message, job.moment, came_to=came_to))
        await job.tell("Normal", Reason.RESTORED, message)

    @staticmethod
    async def _observed(task: Task) -> Observed:
        observed = await task.server.collections.observe(task.physical, task.physical, is_linked=True)
        if observed is None:
            raise SpecInvalid(Reason.COPY_DIFFERS, f"{task.physical} is gone from Qdrant: somebody deleted it")
        return observed


def _handed_over(found: Marker, ours: Marker) -> Marker:
    """Return a marker that says the same of the vectors, and that they are ours."""
    return replace(found, cluster_id=ours.cluster_id, namespace=ours.namespace, name=ours.name, uid=ours.uid)


def _told(changed: int | None) -> str:
    if changed is None:
        return "when its snapshot was made is not known, nor what was changed since"
    return f"{changed} memories changed in it since the snapshot"
