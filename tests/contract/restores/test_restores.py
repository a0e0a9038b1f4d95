"""A restore by alias switch on a real engine: refusals, queueing, rollback, retention, object storage."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.collections.reconcile import reconcile
from agentmemory_operator.collections.rules.announcement import copies_writes, phase_of
from agentmemory_operator.collections.rules.desired import newest_collection
from agentmemory_operator.collections.rules.epochs import (
    Epoch,
    closed_to_json,
    epoch_to_json,
    read_epoch,
    read_reopening_epoch,
)
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.connections.rules.object_keys import copy_location
from agentmemory_operator.errors import (
    OutcomeUnknown,
    StorageUnavailable,
    StoreRejected,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.lifecycle.rules.erasure import ErasureReceipt, MemoryCounts, hash_user, trace_to_line
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.ports.base import Json
from agentmemory_operator.rebuilds.catch_up import create_time_index
from agentmemory_operator.restores.rules.status import current_step
from agentmemory_operator.restores.rules.swap_checks import SwapStep
from agentmemory_operator.runtime.object_table import MEMORY_RESTORE, MEMORY_SNAPSHOT, Key
from agentmemory_operator.snapshots.copies import Copies, ServerFile
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.kinds.spec_snapshot import S3Storage
from agentmemory_operator.spec.times import parse_time
from tests.support.job.job_world import EMBEDDING, NAMESPACE
from tests.support.job.restore_world import PLACEHOLDER, POINTS, RestoreWorld, open_restore
from tests.support.spec.documents import connection_document, memory_document
from tests.support.web.http_server import check_success
from tests.support.web.s3_server import BUCKET, KEY, S3Server


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[RestoreWorld]:
    async with open_restore(qdrant_url, since=5) as world:
        yield world


def _announced(metadata: Json) -> tuple[str, bool]:
    """Return the phase of an announced move, and whether writes to the collection are copied."""
    phase = phase_of(metadata)
    return phase or "", copies_writes(metadata)


class TestSwap:
    async def test_alias_points_to_restored_copy(self, world: RestoreWorld) -> None:
        """The previous collection is kept."""
        key = world.restore()

        await world.run(key)

        restored = f"{world.alias}__2"
        assert world.condition(key, "Succeeded") == "True/Restored"
        assert world.aliases() == {world.alias: restored}
        assert (world.count(), world.count(world.physical)) == (POINTS, POINTS + 5)
        status = world.status(key)
        assert status["points"] == {"before": POINTS + 5, "after": POINTS}
        assert status["previousCollection"]["physical"] == world.physical
        assert [step["name"] for step in status["steps"]][-1] == "Settle"
        assert all("endTime" in step for step in status["steps"])
        assert world.must_get(key)["metadata"]["finalizers"] == []
        assert world.memory in world.requested

    async def test_move_announced_in_snapshot_is_dropped(self, world: RestoreWorld) -> None:
        """The restored collection pauses no writers and lacks the index of the rebuild."""
        record = {"source": "a__0", "target": world.physical, "digest": "d", "begunMs": 1, "sinceMs": 1}
        metadata = {
            "agentmemoryMoving": {"from": world.physical, "to": f"{world.alias}__9", "phase": "Final"},
            "agentmemoryRebuild": record | {"kind": "Rebuild", "step": "Drain"},
        }

        async def start_rebuild(server: Server) -> None:
            source = await server.collections.observe(world.physical, world.physical)
            assert source is not None
            await create_time_index(server, source)
            await server.snapshots.write_metadata(world.physical, metadata)

        await world.with_server(start_rebuild)
        await world.snapshot("moving")

        await world.run(world.restore(source={"snapshotRef": {"name": "moving"}}))

        assert world.aliases() == {world.alias: f"{world.alias}__2"}
        assert sorted(world.metadata(world.alias)) == ["agentmemory", "agentmemoryEpoch", "agentmemoryRestores"]
        described = world.http.get(f"/collections/{world.alias}").json()["result"]
        assert "updatedAt" not in described["payload_schema"]

    async def test_move_is_announced_before_it_is_final(self, world: RestoreWorld) -> None:
        """Writes in the old collection are not copied."""
        announcements: list[tuple[str, bool]] = []
        world.after["write_metadata"] = lambda: announcements.append(_announced(world.metadata(world.physical)))

        await world.run(world.restore())

        assert [step for step in dict.fromkeys(announcements) if step[0]] == [("Announced", False), ("Final", False)]
        assert announcements[-1] == ("", True), "the replaced collection pauses no writers"
        epoch = read_epoch(world.metadata(world.alias))
        assert epoch.number == epoch.contents > read_epoch(world.metadata(world.physical)).number

    async def test_epoch_and_closure_of_snapshot_are_dropped(self, world: RestoreWorld) -> None:
        metadata = closed_to_json("agents/another", None, 7) | epoch_to_json(Epoch(number=5, contents=5))
        await world.with_server(lambda server: server.snapshots.write_metadata(world.physical, metadata))
        await world.snapshot("closed")

        await world.run(world.restore(source={"snapshotRef": {"name": "closed"}}))

        found = world.metadata(world.alias)
        assert read_reopening_epoch(found) is None
        assert read_epoch(found).number > 7

    @pytest.mark.parametrize(
        ("error", "remaining_phase"),
        [
            (StoreRejected(400, "no"), ""),
            (StoreUnavailable("the answer was lost"), "Final"),
            (asyncio.CancelledError(), "Final"),
        ],
    )
    async def test_failed_move_releases_writers(self, world: RestoreWorld, error: Any, remaining_phase: str) -> None:
        """Writers stay paused if the response was lost or the task cancelled: the move may still take effect."""
        world.after["write_metadata"] = lambda: world.fails.update(
            {"apply": error} if _announced(world.metadata(world.physical))[0] == "Final" else {}
        )
        key = world.restore()

        with contextlib.suppress(StoreUnavailable, OutcomeUnknown, asyncio.CancelledError):
            await world.run(key)

        assert world.aliases() == {world.alias: world.physical}
        assert _announced(world.metadata(world.physical))[0] == remaining_phase
        world.after, world.fails = {}, {}
        await world.run(key)
        assert _announced(world.metadata(world.physical))[0] == ""

    async def test_partial_copy_is_deleted_first(self, world: RestoreWorld) -> None:
        key = world.restore()
        half = {"vectors": {"size": 4, "distance": "Cosine"}}
        deleted: list[bool] = []

        def recover() -> None:
            deleted.append(world.http.get(f"/collections/{world.alias}__2").status_code == 404)

        world.after["write_status"] = lambda: world.http.put(f"/collections/{world.alias}__2", json=half) and None
        world.after["delete"] = recover
        await world.run(key)

        assert deleted[0]
        assert world.condition(key, "Succeeded") == "True/Restored"

    async def test_alias_moved_midway_is_read_again(self, world: RestoreWorld) -> None:
        key, other = world.restore(), f"{world.alias}__7"

        def move() -> None:
            steps = world.status(key).get("steps") or [{"name": ""}]
            if steps[-1]["name"] == "Switch" and other not in world.collections():
                marked = {"vectors": {"size": 4, "distance": "Cosine"}, "metadata": world.metadata(world.physical)}
                world.http.put(f"/collections/{other}", json=marked).raise_for_status()
                action = {"create_alias": {"collection_name": other, "alias_name": world.alias}}
                world.http.post("/collections/aliases", json={"actions": [action]}).raise_for_status()

        world.after["write_status"] = move
        await world.run(key)

        status = world.status(key)
        assert status["previousCollection"]["physical"] == other
        assert status["points"]["before"] == 0

    async def test_writes_since_snapshot_are_reported(self, world: RestoreWorld) -> None:
        since = {"updatedAt": 1_767_225_700_000}
        world.http.post(
            f"/collections/{world.alias}/points/payload?wait=true", json={"payload": since, "points": [1, 2]}
        )
        key = world.restore()

        await world.run(key)

        assert world.status(key)["previousCollection"]["writesSince"] == 2
        assert "2 memories changed in it since the snapshot" in world.message(key, "Succeeded")

    async def test_marker_is_kept_and_restore_recorded(self, world: RestoreWorld) -> None:
        before = world.metadata(world.alias)["agentmemory"]

        await world.run(world.restore())

        found = world.metadata(world.alias)
        assert found["agentmemory"] == before
        assert [record["name"] for record in found["agentmemoryRestores"]] == ["undo"]
        assert "agentmemoryOrigin" not in found
        assert world.metadata(world.physical)["agentmemoryPrevious"]["restore"].endswith("/undo")

    async def test_spec_change_is_applied_before_the_switch(self, world: RestoreWorld) -> None:
        world.change(index={"hnsw": {"m": 24}})

        await world.run(world.restore())

        config = world.http.get(f"/collections/{world.alias}").json()["result"]["config"]
        assert config["hnsw_config"]["m"] == 24

    async def test_lost_collection_is_restored(self, world: RestoreWorld) -> None:
        world.http.delete(f"/collections/{world.physical}")
        world.http.put(f"/collections/{world.physical}", json=PLACEHOLDER).raise_for_status()
        key = world.restore()

        await world.run(key)

        assert world.condition(key, "Succeeded") == "True/Restored"
        assert world.aliases() == {world.alias: f"{world.alias}__2"}
        assert world.count() == POINTS
        assert "previousCollection" not in world.status(key)

    async def test_same_restore_again_does_nothing(self, world: RestoreWorld) -> None:
        await world.run(world.restore())
        world.store(1, first=200)
        world.table.remove(Key(MEMORY_RESTORE, NAMESPACE, "undo"))
        # The snapshot was lost with the old cluster: the restore does not need it.
        world.table.remove(Key(MEMORY_SNAPSHOT, NAMESPACE, "before"))

        again = world.restore()
        await world.run(again)

        assert world.condition(again, "AlreadyApplied") == "True/AlreadyApplied"
        assert world.condition(again, "Succeeded") == "True/AlreadyApplied"
        assert world.count() == POINTS + 1

    async def test_earlier_restore_is_not_applied_again(self, world: RestoreWorld) -> None:
        await world.run(world.restore("first"))
        await world.run(world.restore("second"))
        world.table.remove(Key(MEMORY_RESTORE, NAMESPACE, "first"))

        await world.run(again := world.restore("first"))

        assert world.condition(again, "AlreadyApplied") == "True/AlreadyApplied"
        assert world.aliases() == {world.alias: f"{world.alias}__3"}


class TestRefusals:
    async def test_other_qdrant_minor_is_refused(self, world: RestoreWorld) -> None:
        await world.snapshot("old", qdrantVersion="1.17.0")

        await world.run(key := world.restore(source={"snapshotRef": {"name": "old"}}))

        assert world.condition(key, "Succeeded") == "False/VersionMismatch"
        world.check_untouched(key)

    async def test_wrong_checksum_is_refused(self, world: RestoreWorld) -> None:
        await world.snapshot("bad", sha256="0" * 64)

        await world.run(key := world.restore(source={"snapshotRef": {"name": "bad"}}))

        assert world.condition(key, "Succeeded") == "False/SnapshotRefused"
        world.check_untouched(key)

    @pytest.mark.parametrize(
        ("behind_s", "outcome"), [(0, "True/Restored"), (200, "True/Restored"), (400, "False/CopyDiffers")]
    )
    async def test_deletion_by_slow_clock_is_not_missing(
        self, world: RestoreWorld, behind_s: int, outcome: str
    ) -> None:
        """A snapshot check tolerates a limited clock skew."""
        start_ms = parse_time("2026-01-01T00:00:00Z")
        tombstone = {"payload": {TOMBSTONE_KEY: start_ms - behind_s * 1000}, "points": [0]}
        world.http.post(f"/collections/{world.physical}/points/payload", params={"wait": "true"}, json=tombstone)
        await world.snapshot("deleted", points={"before": POINTS + 5, "after": POINTS + 5})

        key = world.restore(source={"snapshotRef": {"name": "deleted"}})
        await world.run(key)

        assert world.condition(key, "Succeeded") == outcome

    async def test_fewer_memories_than_recorded_are_refused(self, world: RestoreWorld) -> None:
        await world.snapshot("short", points={"before": 99, "after": 99})

        await world.run(key := world.restore(source={"snapshotRef": {"name": "short"}}))

        assert world.condition(key, "Succeeded") == "False/CopyDiffers"
        world.check_untouched(key)

    async def test_other_vector_size_is_refused(self, world: RestoreWorld) -> None:
        world.change(embedding={"provider": "none", "dimensions": 7})
        world.http.delete(f"/collections/{world.physical}").raise_for_status()
        world.http.put(f"/collections/{world.physical}", json=PLACEHOLDER).raise_for_status()

        await world.run(key := world.restore())

        assert world.condition(key, "Succeeded") == "False/SnapshotUnfit"
        assert "embedding.dimensions 4" in world.message(key, "Succeeded")
        assert world.collections() == [world.physical]

    async def test_unverified_snapshot_is_refused(self, world: RestoreWorld) -> None:
        succeeded = {"type": "Succeeded", "status": "True", "reason": "SnapshotTaken", "message": ""}
        unproven = [succeeded, {"type": "Verified", "status": "False", "reason": "Differs", "message": "3 are missing"}]
        await world.snapshot("unproven", conditions=unproven)

        await world.run(key := world.restore(source={"snapshotRef": {"name": "unproven"}}))

        assert world.condition(key, "Succeeded") == "False/SnapshotRefused"
        assert "3 are missing" in world.message(key, "Succeeded")

    async def test_missing_snapshot_is_awaited_then_refused(self, world: RestoreWorld) -> None:
        key = world.restore(source={"snapshotRef": {"name": "none"}})

        await world.restores.run(key)
        assert world.condition(key, "Progressing") == "True/SnapshotNotReady"
        world.clock.move(ms=61_000)
        await world.run(key)

        assert world.condition(key, "Succeeded") == "False/SnapshotNotFound"

    async def test_wait_for_snapshot_starts_after_obstacle(self, world: RestoreWorld) -> None:
        world.change(suspend=True)
        key = world.restore(source={"snapshotRef": {"name": "none"}})
        await world.restores.run(key)
        assert world.condition(key, "Progressing") == "True/Suspended"
        world.clock.move(ms=61_000)
        world.change(suspend=False)

        for _ in range(2):
            await world.restores.run(key)
            assert world.condition(key, "Progressing") == "True/SnapshotNotReady"
        world.clock.move(ms=61_000)
        await world.run(key)

        assert world.condition(key, "Succeeded") == "False/SnapshotNotFound"

    async def test_snapshot_deleted_after_start_is_awaited(self, world: RestoreWorld) -> None:
        """GitOps may replace the object."""
        world.fails["recover"] = world.fails["upload"] = StoreUnavailable("away for a moment")
        key, snapshot = world.restore(), Key(MEMORY_SNAPSHOT, NAMESPACE, "before")
        with pytest.raises(TransientError):
            await world.restores.run(key)
        world.fails.clear()
        document = world.must_get(snapshot)
        world.table.remove(snapshot)
        world.clock.move(ms=61_000)

        await world.restores.run(key)
        assert world.condition(key, "Progressing") == "True/SnapshotNotReady"
        world.table.put(document)
        await world.run(key)

        assert world.condition(key, "Succeeded") == "True/Restored"

    async def test_unlisted_host_is_refused(self, world: RestoreWorld) -> None:
        source = {"url": "https://backups.example.com/a.snapshot", "sha256": "ab" * 32}

        await world.run(key := world.restore(source=source))

        assert world.condition(key, "Succeeded") == "False/SourceNotAllowed"
        world.check_untouched(key)

    async def test_recovery_is_retried_until_deadline(self, world: RestoreWorld) -> None:
        world.fails["recover"] = world.fails["upload"] = StoreUnavailable("no space left on device")
        key = world.restore()

        with pytest.raises(TransientError):
            await world.restores.run(key)
        assert world.condition(key, "Progressing") == "True/Retrying"
        assert "no space left" in world.message(key, "Progressing")
        world.clock.move(ms=1_801_000)
        await world.run(key)

        assert world.condition(key, "Succeeded") == "False/DeadlineExceeded"
        world.check_untouched(key)


class TestDeletions:
    async def test_deletion_midway_removes_copy(self, world: RestoreWorld) -> None:
        world.fails["apply"] = StoreUnavailable("away for a moment")
        key = world.restore()
        with pytest.raises(TransientError):
            await world.restores.run(key)
        assert world.collections() == [world.physical, f"{world.alias}__2"]

        world.delete(key)
        world.fails.clear()
        await world.run(key)

        assert world.table.get(key) is None
        assert world.collections() == [world.physical]
        assert world.count() == POINTS + 5

    async def test_agent_deleted_midway_is_not_restored(self, world: RestoreWorld) -> None:
        world.fails["apply"] = StoreUnavailable("away for a moment")
        key = world.restore()
        with pytest.raises(TransientError):
            await world.restores.run(key)

        world.table.remove(world.memory)
        world.fails.clear()
        await world.run(key)

        assert world.condition(key, "Succeeded") == "False/TargetGone"
        assert world.collections() == [world.physical]
        assert world.aliases() == {world.alias: world.physical}

    async def test_agent_recreated_midway_is_not_restored(self, world: RestoreWorld) -> None:
        world.fails["apply"] = StoreUnavailable("away for a moment")
        key = world.restore()
        with pytest.raises(TransientError):
            await world.restores.run(key)

        document = world.must_get(world.memory)
        world.table.put(document | {"metadata": document["metadata"] | {"uid": "another"}})
        world.fails.clear()
        await world.run(key)

        assert world.condition(key, "Succeeded") == "False/TargetGone"
        assert world.collections() == [world.physical]

    @pytest.mark.parametrize("change", [None, {"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"uid": "another"}])
    async def test_agent_is_read_again_before_the_switch(self, world: RestoreWorld, change: Json | None) -> None:
        """The watch has not yet delivered the deletion or the replacement of the agent."""
        key, document = world.restore(), world.must_get(world.memory)

        def delete_before_the_move() -> None:
            if current_step(world.status(key), SwapStep) is SwapStep.SWITCH:
                now = change and document | {"metadata": document["metadata"] | change}
                world.cluster.ahead[world.memory] = now

        world.after["write_status"] = delete_before_the_move
        await world.run(key)

        assert world.memory in world.cluster.ahead
        assert world.condition(key, "Succeeded") == "False/TargetGone"
        assert world.collections() == [world.physical]
        assert world.aliases() == {world.alias: world.physical}


class TestQueue:
    async def test_second_restore_waits_for_first(self, world: RestoreWorld) -> None:
        world.fails["apply"] = StoreUnavailable("away for a moment")
        first, second = world.restore("first"), world.restore("second")
        with pytest.raises(TransientError):
            await world.restores.run(first)

        await world.restores.run(second)
        assert world.condition(second, "Progressing") == "True/WaitsForRestore"
        assert "MemoryRestore first" in world.message(second, "Progressing")
        world.fails.clear()
        await world.run(first)
        await world.run(second)

        assert world.condition(second, "Succeeded") == "True/Restored"
        assert world.status(second)["previousCollection"]["physical"] == world.status(first)["physical"]

    @pytest.mark.parametrize("step", ["Keep", "Move", "Drain", "Settle"])
    async def test_waits_for_rebuild_that_moves_alias(self, world: RestoreWorld, step: str) -> None:
        key = world.restore()
        world.set_rebuild_status(state="Running", step=step)

        await world.restores.run(key)

        assert world.condition(key, "Progressing") == "True/WaitsForRebuild"
        assert f"a rebuild of {world.agent}, which is at {step}" in world.message(key, "Progressing")
        world.set_rebuild_status(state="Done", step="Done")
        await world.run(key)
        assert world.condition(key, "Succeeded") == "True/Restored"

    @pytest.mark.parametrize("step", ["Copy", "Verify"])
    async def test_precedes_rebuild_that_copies(self, world: RestoreWorld, step: str) -> None:
        key = world.restore()
        world.set_rebuild_status(state="Running", step=step)

        await world.run(key)

        assert world.condition(key, "Succeeded") == "True/Restored"

    async def test_rebuild_is_checked_again_before_start(self, world: RestoreWorld) -> None:
        key = world.restore()
        # The finalizer is the last write before the lock of the alias is taken.
        world.after["write_finalizers"] = lambda: world.set_rebuild_status(state="Running", step="Move")

        with pytest.raises(TransientError, match="at Move"):
            await world.restores.run(key)

        assert world.status(key).get("physical") is None
        assert world.condition(key, "Progressing") == "True/Retrying"

    async def test_started_restore_ignores_waiting_rebuild(self, world: RestoreWorld) -> None:
        """The rebuild waits for the restore."""
        world.fails["apply"] = StoreUnavailable("away for a moment")
        key = world.restore()
        with pytest.raises(TransientError):
            await world.restores.run(key)
        world.set_rebuild_status(state="Waiting", step="Move")
        world.fails.clear()

        await world.run(key)

        assert world.condition(key, "Succeeded") == "True/Restored"

    async def test_waits_for_missing_or_suspended_agent(self, world: RestoreWorld) -> None:
        orphan = world.restore("orphan", target={"name": "nobody"})
        world.change(suspend=True)
        key = world.restore()

        await world.restores.run(orphan)
        await world.restores.run(key)

        assert world.condition(orphan, "Progressing") == "True/AgentMemoryNotFound"
        assert world.condition(key, "Progressing") == "True/Suspended"
        assert world.collections() == [world.physical]


OLD, NEW, OTHER, HIDDEN, MISSING = (f"00000000-0000-4000-8000-00000000000{number}" for number in range(5))


def write_unfinished(world: RestoreWorld, collection: str) -> None:
    """Write the rows of an interrupted writer and of a late one."""
    rows: list[Json] = [
        {"id": OLD, "supersededById": NEW},
        {"id": NEW, "supersedesId": OLD, "pending": True},
        {"id": OTHER, "supersedesId": OLD, "pending": True},
        {"id": HIDDEN, "supersededById": MISSING},
    ]
    defaults = {
        "userId": "u",
        "type": "fact",
        "content": "c",
        "rev": 1,
        "updatedAt": 1,
        "createdAt": 1,
        "pending": False,
    }
    body = [{"id": row["id"], "vector": [1, 0, 0, 0], "payload": defaults | row} for row in rows]
    check_success(world.http.put(f"/collections/{collection}/points?wait=true", json={"points": body}))


def heads_of(world: RestoreWorld) -> set[str]:
    """Return the ids of the heads among the rows of `write_unfinished`."""
    filter_ = {"must": [{"is_empty": {"key": key}} for key in ("supersededById", "deletedAt")]}
    body = {"filter": filter_, "with_payload": False, "limit": 100}
    points = check_success(world.http.post(f"/collections/{world.alias}/points/scroll", json=body)).json()["result"][
        "points"
    ]
    return {point["id"] for point in points} & {OLD, NEW, OTHER, HIDDEN}


async def test_pending_writes_of_snapshot_are_undone(world: RestoreWorld) -> None:
    write_unfinished(world, world.alias)
    await world.snapshot("midway")
    await world.run(key := world.restore(source={"snapshotRef": {"name": "midway"}}))

    assert world.condition(key, "Succeeded") == "True/Restored", world.status(key)
    assert heads_of(world) == {OLD, HIDDEN}


class TestRollback:
    async def test_pending_writes_of_previous_are_undone(self, world: RestoreWorld) -> None:
        await world.run(key := world.restore())
        write_unfinished(world, world.physical)

        world.annotate(key, {"agentmemory.dev/rollback": "yes"})
        await world.run(key)

        assert world.condition(key, "RolledBack") == "True/RolledBack"
        assert heads_of(world) == {OLD, HIDDEN}

    async def test_repeated_settle_keeps_live_writers(self, world: RestoreWorld) -> None:
        """The operator fails after the move of the alias, and a writer starts before the next pass."""
        await world.run(key := world.restore())
        world.annotate(key, {"agentmemory.dev/rollback": "yes"})
        world.after["apply"] = lambda: world.fails.update(write_metadata=StoreUnavailable("away for a moment"))
        with pytest.raises(TransientError):
            await world.restores.run(key)
        assert world.aliases() == {world.alias: world.physical}
        world.fails.clear()
        write_unfinished(world, world.physical)

        await world.run(key)

        assert world.condition(key, "RolledBack") == "True/RolledBack"
        assert heads_of(world) == {NEW, OTHER, HIDDEN}

    async def test_annotation_restores_previous_collection(self, world: RestoreWorld) -> None:
        await world.run(key := world.restore())

        world.annotate(key, {"agentmemory.dev/rollback": "yes"})
        await world.run(key)

        assert world.condition(key, "RolledBack") == "True/RolledBack"
        assert world.aliases() == {world.alias: world.physical}
        assert world.count() == POINTS + 5
        assert world.status(key)["previousCollection"]["physical"] == f"{world.alias}__2"
        assert "agentmemoryPrevious" not in world.metadata(world.physical)

    async def test_rolled_back_restore_is_not_reapplied(self, world: RestoreWorld) -> None:
        await world.run(key := world.restore(annotations={"agentmemory.dev/rollback": "yes"}))
        assert world.condition(key, "RolledBack") == "True/RolledBack"
        world.table.remove(key)
        await world.run(key)

        await world.run(again := world.restore())

        assert "rolled back since" in world.message(again, "AlreadyApplied")
        assert world.aliases() == {world.alias: world.physical}

    async def test_past_later_restore_is_refused(self, world: RestoreWorld) -> None:
        await world.run(first := world.restore("first"))
        await world.run(world.restore("second"))

        world.annotate(first, {"agentmemory.dev/rollback": "yes"})
        await world.run(first)

        assert world.condition(first, "RolledBack") == "False/NotLive"
        assert world.aliases() == {world.alias: f"{world.alias}__3"}


class TestPrevious:
    async def test_is_removed_after_retention(self, world: RestoreWorld) -> None:
        """A placeholder keeps its snapshots restorable."""
        await world.run(key := world.restore(keepPreviousHours=2))
        await world.restores.run(key)
        assert world.count(world.physical) == POINTS + 5

        world.clock.move(ms=7_201_000)
        await world.run(key)

        assert "removedTime" in world.status(key)["previousCollection"]
        owner = {"clusterId": world.cluster.identity, "namespace": NAMESPACE}
        assert world.metadata(world.physical) == {"agentmemory": {"placeholder": True} | owner}
        assert len(world.files()) == 1
        await world.run(again := world.restore("again"))
        assert world.condition(again, "Succeeded") == "True/Restored"

    async def test_removed_collection_blocks_rollback(self, world: RestoreWorld) -> None:
        await world.run(key := world.restore(keepPreviousHours=0))
        assert "removedTime" in world.status(key)["previousCollection"]

        world.annotate(key, {"agentmemory.dev/rollback": "yes"})
        await world.run(key)

        assert world.condition(key, "RolledBack") == "False/PreviousGone"
        assert world.count() == POINTS

    async def test_sweep_removes_it_for_deleted_restore(self, world: RestoreWorld) -> None:
        await world.run(key := world.restore(keepPreviousHours=2))
        world.delete(key)
        sweeper = world.sweeper()

        assert await world.with_server(sweeper.sweep) == []
        world.clock.move(ms=7_201_000)
        assert await world.with_server(sweeper.sweep) == [world.physical]

        owner = {"clusterId": world.cluster.identity, "namespace": NAMESPACE}
        assert world.metadata(world.physical) == {"agentmemory": {"placeholder": True} | owner}
        assert world.aliases() == {world.alias: f"{world.alias}__2"}
        assert await world.with_server(sweeper.sweep) == []

    @pytest.mark.parametrize("owner", [{"clusterId": "another"}, {"clusterId": ""}, {"namespace": ""}, {"name": ""}])
    async def test_sweep_spares_other_owners(self, world: RestoreWorld, owner: dict[str, str]) -> None:
        await world.run(world.restore(keepPreviousHours=2))
        marker = world.metadata(world.physical)["agentmemory"] | owner
        changed = {"metadata": {"agentmemory": marker}}
        world.http.patch(f"/collections/{world.physical}", json=changed).raise_for_status()
        world.clock.move(ms=7_201_000)

        assert await world.with_server(world.sweeper().sweep) == []

    async def test_last_collection_is_not_removed(self, world: RestoreWorld) -> None:
        await world.run(key := world.restore(keepPreviousHours=2))
        world.http.delete(f"/collections/{world.alias}__2").raise_for_status()

        world.clock.move(ms=7_201_000)
        await world.run(key)

        assert world.count(world.physical) == POINTS + 5


class TestClone:
    async def test_clone_gets_memories_and_keeps_its_identity(self, world: RestoreWorld) -> None:
        clone = f"{world.agent}-copy"
        world.table.put(memory_document(clone, embedding=EMBEDDING))
        key = world.restore(target={"name": clone})

        await world.run(key)

        assert world.condition(key, "Succeeded") == "True/Restored"
        found = world.metadata(f"agent_memory_{clone}")
        assert (found["agentmemory"]["name"], found["agentmemoryOrigin"]) == (clone, world.agent)
        assert world.count(f"agent_memory_{clone}") == POINTS
        assert world.count() == POINTS + 5

    async def test_other_clusters_snapshot_needs_takeover(self, world: RestoreWorld) -> None:
        """Only the owner of the connection can allow the restore; an annotation of the restore cannot."""
        world.change_owner({"clusterId": "old", "uid": "old-uid"})
        await world.snapshot("foreign")
        world.change_owner({"clusterId": world.cluster.identity, "uid": "uid-1"})
        source = {"snapshotRef": {"name": "foreign"}}

        annotated = {"agentmemory.dev/takeover": "old-uid"}
        await world.run(refused := world.restore("refused", source=source, annotations=annotated))
        world.reconnect(takeovers=[{"fromClusterId": "old"}])
        await world.run(allowed := world.restore("allowed", source=source))

        assert world.condition(refused, "Succeeded") == "False/SnapshotNotOwned"
        assert world.condition(allowed, "Succeeded") == "True/Restored"


class TestCreation:
    async def test_placeholder_is_kept_beside_new_collection(self, world: RestoreWorld) -> None:
        world.http.delete(f"/collections/{world.physical}")
        world.http.put(f"/collections/{world.physical}", json=PLACEHOLDER).raise_for_status()
        desired = newest_collection(parse_agent_memory(world.must_get(world.memory)), cluster_id=world.cluster.identity)

        async def create(server: Server) -> str:
            store = server.collections
            done = await reconcile(world.alias, desired, store=store, last_physical=None, last_points=0)
            return done.observed.physical

        assert await world.with_server(create) == f"{world.alias}__2"
        assert world.aliases() == {world.alias: f"{world.alias}__2"}


class TestObjectStorage:
    """Snapshots of an agent that copies them to S3."""

    @pytest.fixture
    async def world(self, qdrant_url: str, storage: S3Server) -> AsyncIterator[RestoreWorld]:
        world = RestoreWorld(qdrant_url)
        keys = {"access-key-id": KEY.id, "secret-access-key": KEY.secret}
        world.secrets.values = {(NAMESPACE, "s3", name): value for name, value in keys.items()}
        await world.create_agent(POINTS, snapshots={"storage": {"s3": bucket(storage)}})
        await world.snapshot()
        await self.copy(world, storage)
        world.store(5, first=100)
        yield world
        await world.close()

    @staticmethod
    async def copy(world: RestoreWorld, storage: S3Server) -> None:
        """Copy the snapshot and add the copy to its locations."""
        status, spec = world.status(SNAPSHOT_KEY), S3Storage.model_validate(bucket(storage))
        (original,) = status["locations"]
        snapshot = Metadata.model_validate(world.must_get(SNAPSHOT_KEY)["metadata"])
        copy_place = copy_location(spec, snapshot, slug=world.agent, file=original["name"])
        copies = Copies(Storages(world.secrets, S3Objects))

        async def send(server: Server) -> None:
            (found,) = [
                file for file in await server.snapshots.files(original["physical"]) if file.name == original["name"]
            ]
            file = ServerFile(
                store=server.snapshots,
                physical=original["physical"],
                name=found.name,
                size=found.size,
                sha256=found.sha256,
            )
            await copies.send(file, copy_place, storage=spec, slug=world.agent, namespace=NAMESPACE)

        await world.with_server(send)
        world.table.put(world.must_get(SNAPSHOT_KEY) | {"status": status | {"locations": [original, copy_place]}})

    async def test_lost_file_is_replaced_by_copy(self, world: RestoreWorld) -> None:
        (file,) = world.files()
        world.http.delete(f"/collections/{world.physical}/snapshots/{file}")

        await world.run(key := world.restore())

        assert world.condition(key, "Succeeded") == "True/Restored"
        assert world.count() == POINTS

    async def test_unavailable_server_is_replaced_by_copy(self, world: RestoreWorld) -> None:
        world.table.put(connection_document("lost", url="http://127.0.0.1:1"))
        status = world.status(SNAPSHOT_KEY) | {"connection": {"namespace": NAMESPACE, "name": "lost"}}
        world.table.put(world.must_get(SNAPSHOT_KEY) | {"status": status})

        await world.run(key := world.restore())

        assert world.condition(key, "Succeeded") == "True/Restored"
        assert world.count() == POINTS

    async def test_waits_if_all_locations_are_unavailable(self, world: RestoreWorld, storage: S3Server) -> None:
        (file,) = world.files()
        world.http.delete(f"/collections/{world.physical}/snapshots/{file}")
        storage.kill()
        key = world.restore()

        with pytest.raises(StorageUnavailable):
            await world.run(key)
        storage.start()
        await world.run(key)

        assert world.condition(key, "Succeeded") == "True/Restored"

    async def test_altered_copy_is_refused(self, world: RestoreWorld, storage: S3Server) -> None:
        (file,) = world.files()
        world.http.delete(f"/collections/{world.physical}/snapshots/{file}")
        path = storage.file(world.status(SNAPSHOT_KEY)["locations"][1]["key"])
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

        await world.run(key := world.restore())

        assert world.condition(key, "Succeeded") == "False/SnapshotRefused"
        world.check_untouched(key)

    async def test_object_key_alone_is_enough(self, world: RestoreWorld, storage: S3Server) -> None:
        place = bucket(storage) | {"key": world.status(SNAPSHOT_KEY)["locations"][1]["key"]}
        world.table.remove(SNAPSHOT_KEY)

        await world.run(key := world.restore(source={"s3": place}))

        assert world.condition(key, "Succeeded") == "True/Restored"
        assert world.count() == POINTS

    async def test_later_erasures_are_repeated(self, world: RestoreWorld, storage: S3Server) -> None:
        receipt = ErasureReceipt(
            id=str(uuid.uuid4()),
            agent_id=world.agent,
            user_hash=hash_user(world.agent, "u"),
            is_whole=True,
            older_than=None,
            until_ms=world.clock.now_ms(),
            at=world.clock.now_ms(),
            counts=MemoryCounts(types={"fact": POINTS}),
            sha256="0" * 64,
            request_hash="0" * 16,
        )
        path = storage.file(f"{NAMESPACE}/{world.agent}/erased/{world.clock.now_ms():013d}-0000-last.ndjson")
        async with Storages(world.secrets, S3Objects).open_bucket(
            S3Storage.model_validate(bucket(storage)), NAMESPACE
        ) as objects:
            await objects.put(f"{NAMESPACE}/{world.agent}/erased/{path.name}", _lines(receipt), metadata={})
        world.http.delete(f"/collections/{world.physical}")

        await world.run(key := world.restore())

        assert world.condition(key, "Succeeded") == "True/Restored"
        erased = next(step for step in world.status(key)["steps"] if step["name"] == "Erase")
        assert erased["message"] == f"{POINTS} memories erased since the snapshot were erased again"


SNAPSHOT_KEY = Key(MEMORY_SNAPSHOT, NAMESPACE, "before")


def bucket(storage: S3Server) -> Json:
    return {"endpoint": storage.url, "bucket": BUCKET, "secretRef": {"name": "s3"}}


async def _lines(*receipts: ErasureReceipt) -> AsyncIterator[bytes]:
    for receipt in receipts:
        yield trace_to_line(receipt)
