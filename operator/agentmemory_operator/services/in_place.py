"""A restore into the collection itself: rehearsed, with the API closed and a safety snapshot made, undone if it fails.

`domain/replacing.py` has the steps. Each may be run again after any failure. The collection that clients reach is
touched by Recover alone, and from then on the safety snapshot is what a failure leads back to.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from agentmemory_operator.domain.collection import METADATA_KEY, Marker, Observed, marker_to_json
from agentmemory_operator.domain.conditions import Reason, condition_of
from agentmemory_operator.domain.desired import terms_of
from agentmemory_operator.domain.drift import DriftPolicy
from agentmemory_operator.domain.rebuilding import copied_back
from agentmemory_operator.domain.replacing import (
    UNDO,
    InPlaceStep,
    check_same,
    rollback_name,
    safety_name,
    step_after,
)
from agentmemory_operator.domain.resources import API_VERSION, TAKEOVER
from agentmemory_operator.domain.restore_reporting import (
    SUCCEEDED,
    current_step,
    has_ended,
    has_succeeded,
    not_rolled_back_status,
    noted_status,
    put_back_status,
    step_status,
    succeeded_status,
)
from agentmemory_operator.domain.restoring import (
    Record,
    check_fit,
    check_origin,
    merged_records,
    records_from,
    records_to_json,
)
from agentmemory_operator.domain.snapshot_facts import AGENT_MEMORY_LABEL, PIN
from agentmemory_operator.domain.snapshotting import QDRANT, is_ended, is_verified, location_of
from agentmemory_operator.domain.times import parse_time, render_second
from agentmemory_operator.domain.verification import SKEW_MS, Check, Recorded
from agentmemory_operator.errors import BytesDiffer, NotFound, SpecInvalid, StoreRejected
from agentmemory_operator.ports import Cluster, Json
from agentmemory_operator.services.changes_since import count_changed
from agentmemory_operator.services.closing import CLOSED_KEY, is_closed
from agentmemory_operator.services.comparison import Subject, compare
from agentmemory_operator.services.objects import (
    AGENT_MEMORY,
    MEMORY_RESTORE,
    MEMORY_SNAPSHOT,
    Key,
    ObjectTable,
)
from agentmemory_operator.services.reconcile import Permit, reconcile
from agentmemory_operator.services.restore_jobs import RestoreJob
from agentmemory_operator.services.restored_erasures import RestoredErasures
from agentmemory_operator.services.scratch import Scratch
from agentmemory_operator.services.servers import Server
from agentmemory_operator.services.swaps import Task
from agentmemory_operator.services.verification import restore_into

# Of the checks those that speak of contents: the collection keeps settings of its own.
_CONTENTS = (Check.RESTORE, Check.MISSING, Check.SAMPLE, Check.PROBES)


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlaceLimits:
    """How long it waits, and how often it tries.

    Attributes:
        drain_s: from closing to the safety snapshot: what is under way ends, and watches catch up.
        seen_s: how long the AgentMemory's status is waited for that says so.
        safety_attempts: safety snapshots that writers past the API may make worthless.
    """

    drain_s: float = 10.0
    seen_s: float = 60.0
    safety_attempts: int = 3


@dataclass(slots=True)
class InPlace:
    """Carries out restores into the collection itself.

    Attributes:
        request: asks for a pass over another object.
    """

    table: ObjectTable
    cluster: Cluster
    scratch: Scratch
    request: Callable[[Key], None]
    erasures: RestoredErasures
    limits: InPlaceLimits = field(default_factory=InPlaceLimits)

    async def run(self, task: Task) -> None:
        """Go on as far as it goes now; what it waits for, another pass looks at.

        Raises:
            SpecInvalid, NotOwned, StoreRejected: it cannot be done; `undo` is to follow.
            TransientError: it is to be gone on with.
        """
        step: InPlaceStep | None = current_step(task.job.status, InPlaceStep) or InPlaceStep.REHEARSE
        came_to: str | None = ""
        while step is not None:
            if step is not InPlaceStep.OPEN:
                await task.check_target()
            await task.job.job.write(step_status(task.job.status, step, task.job.moment, came_to=came_to or ""))
            came_to = await self._steps[step](task)
            if came_to is None:
                return
            step = step_after(step)
        await self._succeed(task, came_to or "")

    @property
    def _steps(self) -> Mapping[InPlaceStep, Callable[[Task], Awaitable[str | None]]]:
        """Return what does each step; it returns what it came to, None while it waits."""
        return {
            InPlaceStep.REHEARSE: self._rehearse,
            InPlaceStep.CLOSE: self._close,
            InPlaceStep.SAFEGUARD: self._safeguard,
            InPlaceStep.RECOVER: self._recover,
            InPlaceStep.COMPARE: self._compare,
            InPlaceStep.OPEN: self._open,
        }

    async def _rehearse(self, task: Task) -> str:
        live = await _live(task)
        async with self.scratch.hold(task.server, task.job.metadata.uid) as name:
            await self._restore(task, name)
            copy = await task.server.collections.observe(name, name, is_linked=True)
            if copy is None:
                raise SpecInvalid(Reason.SNAPSHOT_REFUSED, "Qdrant restored no collection of the snapshot")
            takeover = task.job.metadata.annotations.get(TAKEOVER)
            check_origin(copy.collection.marker, task.ours, is_named=False, takeover=takeover)
            check_same(live.collection, copy.collection)
            check_fit(task.desired, copy, live)
            number = await task.server.collections.count(name)
        return f"{number} memories, restored into a scratch collection and fit"

    async def _close(self, task: Task) -> str | None:
        job, status = task.job, task.job.status
        if "closedSince" not in status:
            await job.job.write(noted_status(status, {"closedSince": job.moment.now}))
        since_s = job.age_s(job.status["closedSince"])
        memory = _memory_key(job)
        if not is_closed(self.table.get(memory) or {}) and since_s < self.limits.seen_s:
            self.request(memory)
            return None
        mark = {CLOSED_KEY: {"restore": f"{job.key.namespace}/{job.key.name}", "since": job.status["closedSince"]}}
        await task.server.snapshots.write_metadata(task.physical, mark)
        return "the API answers 503" if since_s >= self.limits.drain_s else None

    async def _safeguard(self, task: Task) -> str | None:
        job = task.job
        attempt = (job.status.get("safetySnapshot") or {}).get("attempt", 1)
        name = safety_name(job.key.name, attempt)
        await job.job.write(noted_status(job.status, {"safetySnapshot": {"name": name, "attempt": attempt}}))
        key = Key(MEMORY_SNAPSHOT, job.key.namespace, name)
        document = self.table.get(key)
        if document is None:
            await self.cluster.create_object(_safety_document(key, task.memory.metadata.name))
            return None
        status = document.get("status") or {}
        if not is_ended(status):
            return None
        if not is_verified(status):
            told = "; ".join(item["message"] for item in status["conditions"] if item["status"] != "True")
            raise SpecInvalid(Reason.SNAPSHOT_REFUSED, f"the safety snapshot {name} is not proven: {told}")
        written = await count_changed(task.server.points, task.physical, parse_time(status["startTime"]))
        if not written:
            return await self._safe(task, name)
        if attempt >= self.limits.safety_attempts:
            raise SpecInvalid(
                Reason.WRITES_GO_ON,
                f"{written} memories were written past the API while {attempt} safety snapshots were made: stop who "
                f"writes, or restore with mode Swap",
            )
        await job.job.write(noted_status(job.status, {"safetySnapshot": {"name": name, "attempt": attempt + 1}}))
        return None

    async def _safe(self, task: Task, name: str) -> str:
        """Note how many writes the restore undoes: all of them are in the safety snapshot."""
        points, begun_ms = task.server.points, task.source.begun_ms
        undone = await count_changed(points, task.physical, begun_ms) if begun_ms is not None else None
        safety = {**task.job.status["safetySnapshot"]} | ({} if undone is None else {"writesSince": undone})
        count = await task.server.collections.count(task.physical)
        noted = {"safetySnapshot": safety, "points": {"before": count}}
        await task.job.job.write(noted_status(task.job.status, noted))
        since = "an unknown number of" if undone is None else str(undone)
        return f"{name} holds {count} memories, {since} changes since the snapshot among them"

    async def _recover(self, task: Task) -> str:
        before = await task.server.snapshots.metadata(task.physical)
        await self._restore(task, task.physical)
        metadata = await task.server.snapshots.metadata(task.physical) or {}
        new = Record(identity=task.job.identity, source=task.source.described, applied_at=task.job.moment.now)
        changes = records_to_json(merged_records(records_from(before), records_from(metadata), new))
        changes |= copied_back(before)
        await task.server.snapshots.write_metadata(task.physical, changes | await self._marked(task))
        return f"from {task.source.described}"

    async def _marked(self, task: Task) -> Json:
        """Return the marker as it has to be, and that the collection is still closed: whatever the server kept."""
        observed = await _live(task)
        marker = observed.collection.marker
        closed = {CLOSED_KEY: {"restore": str(task.job.key), "since": task.job.status["closedSince"]}}
        return closed | ({METADATA_KEY: marker_to_json(_handed_over(marker, task.ours))} if marker else {})

    async def _compare(self, task: Task) -> str:
        await self._converge(task)
        uid = task.job.metadata.uid
        async with self.scratch.hold(task.server, uid) as name:
            await self._restore(task, name)
            # Every point of the scratch collection is older than that, so none may be missing.
            recorded = Recorded(begun_ms=task.job.now_ms + 2 * SKEW_MS)
            subject = Subject(uid=uid, physical=name, name="", recorded=recorded, live=name)
            verdict = await compare(task.physical, subject, task.server)
        bad = [one.message for one in verdict.findings if one.is_good is False and one.check in _CONTENTS]
        if bad:
            raise SpecInvalid(Reason.NOT_VERIFIED, f"the collection is not the snapshot: {'; '.join(bad)}")
        erased = await self._erase(task)
        return f"{verdict.message}; {erased}"

    async def _converge(self, task: Task) -> None:
        """Carry out what the AgentMemory asks for: the server kept its settings, not every index."""
        terms = replace(terms_of(task.memory, cluster_id=task.cluster_id), drift_policy=DriftPolicy.CORRECT)
        await reconcile(
            task.physical,
            task.desired,
            store=task.server.collections,
            last_physical=task.physical,
            last_points=1,
            permit=Permit(terms=terms),
        )

    async def _erase(self, task: Task) -> str:
        """Erase what was erased since the snapshot; the safety snapshot tells, restored once more."""
        async with self.scratch.hold(task.server, task.job.metadata.uid) as name:
            await restore_into(name, self._safety_subject(task.job), task.server)
            origin, since_ms = task.source.agent, task.source.begun_ms or 0
            number = await self.erasures.carry_all(
                task.server, name, task.physical, task.memory, origin=origin, since_ms=since_ms
            )
        return f"{number} memories erased since were erased again"

    async def _open(self, task: Task) -> str:
        count = await task.server.collections.count(task.physical)
        since = task.job.status.get("closedSince")
        written = await count_changed(task.server.points, task.physical, parse_time(since)) if since else 0
        points = {**(task.job.status.get("points") or {}), "after": count}
        await task.job.job.write(noted_status(task.job.status, {"points": points}))
        await self._serve(task.job, task.server)
        return f"{count} memories; {written} written past the API meanwhile stay" if written else f"{count} memories"

    async def _serve(self, job: RestoreJob, server: Server) -> None:
        physical = str(job.physical)
        if await server.snapshots.metadata(physical) is not None:
            await server.snapshots.write_metadata(physical, {CLOSED_KEY: None})
        await job.job.write(noted_status({key: job.status[key] for key in job.status if key != "closedSince"}, {}))
        self.request(_memory_key(job))

    async def _succeed(self, task: Task, came_to: str) -> None:
        safety = task.job.status.get("safetySnapshot") or {}
        message = (
            f"{came_to} restored from {task.source.described} into {task.physical} itself; what it held before is in "
            f"MemorySnapshot {safety.get('name')}"
        )
        await task.job.job.write(succeeded_status(task.job.status, message, task.job.moment, came_to=came_to))
        await task.job.tell("Normal", Reason.RESTORED, message)

    async def undo(self, job: RestoreJob, server: Server) -> None:
        """Put the collection back as it was before a restore that failed or is not wanted, and let the API serve.

        Raises:
            TransientError: it is to be gone on with.
            SpecInvalid: the collection cannot be put back; says what to do. The API stays closed.
        """
        step = current_step(job.status, InPlaceStep)
        if step in (InPlaceStep.RECOVER, InPlaceStep.COMPARE):
            await self._put_back(job, server)
        if "closedSince" in job.status:
            await self._serve(job, server)

    async def _put_back(self, job: RestoreJob, server: Server) -> None:
        subject, physical = self._safety_subject(job), str(job.physical)
        before = await server.snapshots.metadata(physical)
        try:
            await restore_over(physical, subject, server)
        except StoreRejected as exc:
            if job.metadata.deletion_timestamp:
                # Nobody else opens it once the object is gone.
                await self._serve(job, server)
            raise SpecInvalid(
                Reason.NOT_UNDONE,
                f"{physical} may hold part of the snapshot, and Qdrant refuses the safety snapshot ({exc}): restore "
                f"MemorySnapshot {job.status['safetySnapshot']['name']} with mode Swap, then delete this restore",
            ) from exc
        kept = tuple(record for record in records_from(before) if record.identity != job.identity)
        await server.snapshots.write_metadata(physical, records_to_json(kept) | copied_back(before))
        undone = {"name": UNDO, "endTime": render_second(job.now_ms / 1000), "message": f"{subject.name} is back"}
        steps = [one for one in job.status.get("steps") or () if one["name"] != UNDO]
        await job.job.write(noted_status(job.status, {"steps": [*steps, undone]}))

    async def roll_back(self, job: RestoreJob) -> bool:
        """Have another restore put the safety snapshot back; tell whether that has ended."""
        safety = (job.status.get("safetySnapshot") or {}).get("name")
        key = Key(MEMORY_RESTORE, job.key.namespace, rollback_name(job.key.name))
        document = self.table.get(key)
        if document is None:
            await self.cluster.create_object(_rollback_document(key, job.restore.spec.target.name, str(safety)))
            return False
        status = document.get("status") or {}
        if not has_ended(status):
            return False
        told = condition_of(status, SUCCEEDED)
        message = f"MemoryRestore {key.name}: {told['message']}"
        if has_succeeded(status):
            await job.job.write(put_back_status(job.status, message, job.moment))
            await job.tell("Normal", Reason.ROLLED_BACK, message)
        else:
            await job.job.write(not_rolled_back_status(job.status, told["reason"], message, job.moment))
        return True

    def _safety_subject(self, job: RestoreJob) -> Subject:
        name = job.status["safetySnapshot"]["name"]
        document = self.table.get(Key(MEMORY_SNAPSHOT, job.key.namespace, name)) or {}
        status = document.get("status") or {}
        place = location_of(status, QDRANT)
        if place is None:
            raise SpecInvalid(Reason.SNAPSHOT_NOT_FOUND, f"the safety snapshot {name} is gone from Qdrant")
        return Subject(
            uid=job.metadata.uid, physical=place["physical"], name=place["name"], sha256=status.get("sha256")
        )

    @staticmethod
    async def _restore(task: Task, target: str) -> None:
        try:
            await task.source.recover(task.server, target)
        except (StoreRejected, NotFound, BytesDiffer) as exc:
            raise SpecInvalid(Reason.SNAPSHOT_REFUSED, f"the snapshot cannot be recovered: {exc}") from exc


async def restore_over(physical: str, subject: Subject, server: Server) -> None:
    """Have the server put a snapshot of its own in the place of a collection's contents."""
    location = await server.snapshots.own_location(subject.physical, subject.name)
    await server.snapshots.recover(physical, location, sha256=subject.sha256)


async def _live(task: Task) -> Observed:
    observed = await task.server.collections.observe(task.physical, task.physical, is_linked=True)
    if observed is None:
        raise SpecInvalid(Reason.NOT_VERIFIED, f"{task.physical} is gone from Qdrant: somebody deleted it")
    return observed


def _memory_key(job: RestoreJob) -> Key:
    return Key(AGENT_MEMORY, job.key.namespace, job.restore.spec.target.name)


def _rollback_document(key: Key, memory: str, safety: str) -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": MEMORY_RESTORE,
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": {"target": {"name": memory}, "source": {"snapshotRef": {"name": safety}}, "mode": "InPlace"},
    }


def _safety_document(key: Key, memory: str) -> Json:
    return {
        "apiVersion": API_VERSION,
        "kind": MEMORY_SNAPSHOT,
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": {AGENT_MEMORY_LABEL: memory},
            "annotations": {PIN: "made before a restore"},
        },
        "spec": {"agentMemoryRef": {"name": memory}, "verify": "Full", "deletionPolicy": "Retain"},
    }


def _handed_over(found: Marker, ours: Marker) -> Marker:
    """Return a marker that says the same of the vectors, and that they are ours."""
    return replace(found, cluster_id=ours.cluster_id, namespace=ours.namespace, name=ours.name, uid=ours.uid)
