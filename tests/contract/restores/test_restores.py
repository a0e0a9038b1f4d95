"""A restore over a real engine: live by one move of the alias, killed anywhere and gone on with, and taken back."""

import contextlib
import uuid
from collections.abc import AsyncIterator

import pytest

from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.collections.reconcile import reconcile
from agentmemory_operator.collections.rules.announcement import copies_writes, phase_of
from agentmemory_operator.collections.rules.desired import newest_collection
from agentmemory_operator.collections.rules.epochs import (
    Epoch,
    closed_to_json,
    epoch_to_json,
    read_closed_until,
    read_epoch,
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
    async with open_restore(qdrant_url, since=5) as made:
        yield made


def _announced(metadata: Json) -> tuple[str, bool]:
    """Return the phase that a collection tells of, and whether what is written in it is carried over."""
    phase = phase_of(metadata)
    return phase or "", copies_writes(metadata)


class TestSwap:
    async def test_the_alias_leads_to_what_the_snapshot_had_and_the_previous_is_kept(self, world: RestoreWorld) -> None:
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

    async def test_a_move_that_was_announced_when_the_snapshot_was_made_holds_nobody(self, world: RestoreWorld) -> None:
        record = {"source": "a__0", "target": world.physical, "digest": "d", "begunMs": 1, "sinceMs": 1}
        told = {
            "agentmemoryMoving": {"from": world.physical, "to": f"{world.alias}__9", "phase": "Final"},
            "agentmemoryRebuild": record | {"kind": "Rebuild", "step": "Drain"},
        }

        async def begin_a_rebuild(server: Server) -> None:
            source = await server.collections.observe(world.physical, world.physical)
            assert source is not None
            await create_time_index(server, source)
            await server.snapshots.write_metadata(world.physical, told)

        await world.with_server(begin_a_rebuild)
        await world.snapshot("moving")

        await world.run(world.restore(source={"snapshotRef": {"name": "moving"}}))

        assert world.aliases() == {world.alias: f"{world.alias}__2"}
        assert sorted(world.metadata(world.alias)) == ["agentmemory", "agentmemoryEpoch", "agentmemoryRestores"]
        described = world.http.get(f"/collections/{world.alias}").json()["result"]
        assert "updatedAt" not in described["payload_schema"]

    async def test_the_move_is_announced_then_final_and_nothing_is_carried(self, world: RestoreWorld) -> None:
        said: list[tuple[str, bool]] = []
        world.after["write_metadata"] = lambda: said.append(_announced(world.metadata(world.physical)))

        await world.run(world.restore())

        assert [one for one in dict.fromkeys(said) if one[0]] == [("Announced", False), ("Final", False)]
        assert said[-1] == ("", True), "what was replaced holds nobody"
        epoch = read_epoch(world.metadata(world.alias))
        assert epoch.number == epoch.contents > read_epoch(world.metadata(world.physical)).number

    async def test_what_the_snapshot_said_of_its_epoch_and_of_being_closed_is_dropped(
        self, world: RestoreWorld
    ) -> None:
        told = closed_to_json("agents/another", None, 7) | epoch_to_json(Epoch(number=5, contents=5))
        await world.with_server(lambda server: server.snapshots.write_metadata(world.physical, told))
        await world.snapshot("closed")

        await world.run(world.restore(source={"snapshotRef": {"name": "closed"}}))

        found = world.metadata(world.alias)
        assert read_closed_until(found) is None
        assert read_epoch(found).number > 7

    @pytest.mark.parametrize(
        ("error", "left"), [(StoreRejected(400, "no"), ""), (StoreUnavailable("the answer was lost"), "Final")]
    )
    async def test_a_move_that_is_refused_lets_writers_go_on_and_one_that_may_come_holds_them(
        self, world: RestoreWorld, error: Exception, left: str
    ) -> None:
        world.after["write_metadata"] = lambda: world.fails.update(
            {"apply": error} if _announced(world.metadata(world.physical))[0] == "Final" else {}
        )
        key = world.restore()

        with contextlib.suppress(StoreUnavailable, OutcomeUnknown):
            await world.run(key)

        assert world.aliases() == {world.alias: world.physical}
        assert _announced(world.metadata(world.physical))[0] == left
        world.after, world.fails = {}, {}
        await world.run(key)
        assert _announced(world.metadata(world.physical))[0] == ""

    async def test_what_a_killed_operator_left_of_a_copy_goes_before_another_is_made(self, world: RestoreWorld) -> None:
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

    async def test_what_the_alias_has_come_to_lead_to_is_counted_before_it_is_replaced(
        self, world: RestoreWorld
    ) -> None:
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

    async def test_what_changed_since_is_counted_and_said_where_it_remains(self, world: RestoreWorld) -> None:
        since = {"updatedAt": 1_767_225_700_000}
        world.http.post(
            f"/collections/{world.alias}/points/payload?wait=true", json={"payload": since, "points": [1, 2]}
        )
        key = world.restore()

        await world.run(key)

        assert world.status(key)["previousCollection"]["writesSince"] == 2
        assert "2 memories changed in it since the snapshot" in world.message(key, "Succeeded")

    async def test_the_marker_is_the_agent_s_and_the_restore_is_on_record(self, world: RestoreWorld) -> None:
        before = world.metadata(world.alias)["agentmemory"]

        await world.run(world.restore())

        found = world.metadata(world.alias)
        assert found["agentmemory"] == before
        assert [record["name"] for record in found["agentmemoryRestores"]] == ["undo"]
        assert "agentmemoryOrigin" not in found
        assert world.metadata(world.physical)["agentmemoryPrevious"]["restore"].endswith("/undo")

    async def test_what_the_object_asks_for_since_is_carried_out_before_the_alias_moves(
        self, world: RestoreWorld
    ) -> None:
        world.change(index={"hnsw": {"m": 24}})

        await world.run(world.restore())

        config = world.http.get(f"/collections/{world.alias}").json()["result"]["config"]
        assert config["hnsw_config"]["m"] == 24

    async def test_a_lost_collection_comes_back(self, world: RestoreWorld) -> None:
        world.http.delete(f"/collections/{world.physical}")
        world.http.put(f"/collections/{world.physical}", json=PLACEHOLDER).raise_for_status()
        key = world.restore()

        await world.run(key)

        assert world.condition(key, "Succeeded") == "True/Restored"
        assert world.aliases() == {world.alias: f"{world.alias}__2"}
        assert world.count() == POINTS
        assert "previousCollection" not in world.status(key)

    async def test_the_same_restore_applied_again_does_nothing(self, world: RestoreWorld) -> None:
        await world.run(world.restore())
        world.store(1, first=200)
        world.table.remove(Key(MEMORY_RESTORE, NAMESPACE, "undo"))
        # The snapshot went with the old cluster: nothing is asked of it.
        world.table.remove(Key(MEMORY_SNAPSHOT, NAMESPACE, "before"))

        again = world.restore()
        await world.run(again)

        assert world.condition(again, "AlreadyApplied") == "True/AlreadyApplied"
        assert world.condition(again, "Succeeded") == "True/AlreadyApplied"
        assert world.count() == POINTS + 1

    async def test_a_restore_from_before_another_one_does_not_let_that_one_be_applied_again(
        self, world: RestoreWorld
    ) -> None:
        await world.run(world.restore("first"))
        await world.run(world.restore("second"))
        world.table.remove(Key(MEMORY_RESTORE, NAMESPACE, "first"))

        await world.run(again := world.restore("first"))

        assert world.condition(again, "AlreadyApplied") == "True/AlreadyApplied"
        assert world.aliases() == {world.alias: f"{world.alias}__3"}


class TestRefusals:
    async def test_a_snapshot_of_another_minor_is_refused_and_nothing_is_made(self, world: RestoreWorld) -> None:
        await world.snapshot("old", qdrantVersion="1.17.0")

        await world.run(key := world.restore(source={"snapshotRef": {"name": "old"}}))

        assert world.condition(key, "Succeeded") == "False/VersionMismatch"
        world.check_untouched(key)

    async def test_bytes_that_are_not_those_recorded_are_refused(self, world: RestoreWorld) -> None:
        await world.snapshot("bad", sha256="0" * 64)

        await world.run(key := world.restore(source={"snapshotRef": {"name": "bad"}}))

        assert world.condition(key, "Succeeded") == "False/SnapshotRefused"
        world.check_untouched(key)

    @pytest.mark.parametrize(
        ("behind_s", "ends"), [(0, "True/Restored"), (200, "True/Restored"), (400, "False/CopyDiffers")]
    )
    async def test_what_a_clock_that_is_behind_deleted_meanwhile_is_not_missing(
        self, world: RestoreWorld, behind_s: int, ends: str
    ) -> None:
        """As far as a check of the snapshot allows that clock to be behind."""
        begun_ms = parse_time("2026-01-01T00:00:00Z")
        tombstone = {"payload": {TOMBSTONE_KEY: begun_ms - behind_s * 1000}, "points": [0]}
        world.http.post(f"/collections/{world.physical}/points/payload", params={"wait": "true"}, json=tombstone)
        await world.snapshot("deleted", points={"before": POINTS + 5, "after": POINTS + 5})

        key = world.restore(source={"snapshotRef": {"name": "deleted"}})
        await world.run(key)

        assert world.condition(key, "Succeeded") == ends

    async def test_fewer_memories_than_were_counted_are_refused(self, world: RestoreWorld) -> None:
        await world.snapshot("short", points={"before": 99, "after": 99})

        await world.run(key := world.restore(source={"snapshotRef": {"name": "short"}}))

        assert world.condition(key, "Succeeded") == "False/CopyDiffers"
        world.check_untouched(key)

    async def test_vectors_of_another_size_are_refused(self, world: RestoreWorld) -> None:
        world.change(embedding={"provider": "none", "dimensions": 7})
        world.http.delete(f"/collections/{world.physical}").raise_for_status()
        world.http.put(f"/collections/{world.physical}", json=PLACEHOLDER).raise_for_status()

        await world.run(key := world.restore())

        assert world.condition(key, "Succeeded") == "False/SnapshotUnfit"
        assert "embedding.dimensions 4" in world.message(key, "Succeeded")
        assert world.collections() == [world.physical]

    async def test_a_snapshot_that_failed_or_was_not_proven_is_refused(self, world: RestoreWorld) -> None:
        succeeded = {"type": "Succeeded", "status": "True", "reason": "SnapshotTaken", "message": ""}
        unproven = [succeeded, {"type": "Verified", "status": "False", "reason": "Differs", "message": "3 are missing"}]
        await world.snapshot("unproven", conditions=unproven)

        await world.run(key := world.restore(source={"snapshotRef": {"name": "unproven"}}))

        assert world.condition(key, "Succeeded") == "False/SnapshotRefused"
        assert "3 are missing" in world.message(key, "Succeeded")

    async def test_a_snapshot_that_is_nowhere_is_waited_for_and_then_refused(self, world: RestoreWorld) -> None:
        key = world.restore(source={"snapshotRef": {"name": "none"}})
        world.set_created_now(key)

        await world.restores.run(key)
        assert world.condition(key, "Progressing") == "True/SnapshotNotReady"
        world.clock.move(ms=61_000)
        await world.run(key)

        assert world.condition(key, "Succeeded") == "False/SnapshotNotFound"

    async def test_a_url_of_a_host_that_is_not_listed_is_refused(self, world: RestoreWorld) -> None:
        source = {"url": "https://backups.example.com/a.snapshot", "sha256": "ab" * 32}

        await world.run(key := world.restore(source=source))

        assert world.condition(key, "Succeeded") == "False/SourceNotAllowed"
        world.check_untouched(key)

    async def test_what_qdrant_cannot_do_for_now_is_tried_again_until_it_is_given_up(self, world: RestoreWorld) -> None:
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
    async def test_a_restore_deleted_midway_leaves_nothing(self, world: RestoreWorld) -> None:
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

    async def test_an_agent_deleted_midway_is_not_restored(self, world: RestoreWorld) -> None:
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

    async def test_an_agent_created_again_midway_is_not_restored(self, world: RestoreWorld) -> None:
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
    async def test_an_agent_that_is_deleted_right_before_the_move_is_not_restored_though_the_watch_lags(
        self, world: RestoreWorld, change: Json | None
    ) -> None:
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
    async def test_the_second_of_two_waits_and_says_for_what(self, world: RestoreWorld) -> None:
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
    async def test_a_restore_waits_for_a_rebuild_that_moves_the_alias(self, world: RestoreWorld, step: str) -> None:
        key = world.restore()
        world.set_rebuild_status(state="Running", step=step)

        await world.restores.run(key)

        assert world.condition(key, "Progressing") == "True/WaitsForRebuild"
        assert f"a rebuild of {world.agent}, which is at {step}" in world.message(key, "Progressing")
        world.set_rebuild_status(state="Done", step="Done")
        await world.run(key)
        assert world.condition(key, "Succeeded") == "True/Restored"

    @pytest.mark.parametrize("step", ["Copy", "Verify"])
    async def test_a_restore_goes_before_a_rebuild_that_only_makes_its_copy(
        self, world: RestoreWorld, step: str
    ) -> None:
        key = world.restore()
        world.set_rebuild_status(state="Running", step=step)

        await world.run(key)

        assert world.condition(key, "Succeeded") == "True/Restored"

    async def test_a_rebuild_that_begins_to_move_right_before_the_restore_is_seen(self, world: RestoreWorld) -> None:
        key = world.restore()
        # The finalizer is the last write before the lock of the alias is taken.
        world.after["write_finalizers"] = lambda: world.set_rebuild_status(state="Running", step="Move")

        with pytest.raises(TransientError, match="at Move"):
            await world.restores.run(key)

        assert world.status(key).get("physical") is None
        assert world.condition(key, "Progressing") == "True/Retrying"

    async def test_a_restore_that_has_begun_does_not_wait_for_a_rebuild_that_waits_for_it(
        self, world: RestoreWorld
    ) -> None:
        world.fails["apply"] = StoreUnavailable("away for a moment")
        key = world.restore()
        with pytest.raises(TransientError):
            await world.restores.run(key)
        world.set_rebuild_status(state="Waiting", step="Move")
        world.fails.clear()

        await world.run(key)

        assert world.condition(key, "Succeeded") == "True/Restored"

    async def test_a_restore_waits_for_its_agent_and_for_one_that_is_suspended(self, world: RestoreWorld) -> None:
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
    """Write what a writer left midway, and what a late write left."""
    rows: list[Json] = [
        {"id": OLD, "supersededById": NEW},
        {"id": NEW, "supersedesId": OLD, "pending": True},
        {"id": OTHER, "supersedesId": OLD, "pending": True},
        {"id": HIDDEN, "supersededById": MISSING},
    ]
    given = {"userId": "u", "type": "fact", "content": "c", "rev": 1, "updatedAt": 1, "createdAt": 1, "pending": False}
    body = [{"id": row["id"], "vector": [1, 0, 0, 0], "payload": given | row} for row in rows]
    check_success(world.http.put(f"/collections/{collection}/points?wait=true", json={"points": body}))


def heads_of(world: RestoreWorld) -> set[str]:
    """Return which of them are the newest versions, and not deleted."""
    filter_ = {"must": [{"is_empty": {"key": key}} for key in ("supersededById", "deletedAt")]}
    body = {"filter": filter_, "with_payload": False, "limit": 100}
    points = check_success(world.http.post(f"/collections/{world.alias}/points/scroll", json=body)).json()["result"][
        "points"
    ]
    return {point["id"] for point in points} & {OLD, NEW, OTHER, HIDDEN}


async def test_what_was_pending_in_the_snapshot_is_undone(world: RestoreWorld) -> None:
    write_unfinished(world, world.alias)
    await world.snapshot("midway")
    await world.run(key := world.restore(source={"snapshotRef": {"name": "midway"}}))

    assert world.condition(key, "Succeeded") == "True/Restored", world.status(key)
    assert heads_of(world) == {OLD, HIDDEN}


class TestRollback:
    async def test_what_was_pending_in_the_previous_collection_is_undone(self, world: RestoreWorld) -> None:
        await world.run(key := world.restore())
        write_unfinished(world, world.physical)

        world.annotate(key, {"agentmemory.dev/rollback": "yes"})
        await world.run(key)

        assert world.condition(key, "RolledBack") == "True/RolledBack"
        assert heads_of(world) == {OLD, HIDDEN}

    async def test_one_annotation_brings_the_previous_collection_back(self, world: RestoreWorld) -> None:
        await world.run(key := world.restore())

        world.annotate(key, {"agentmemory.dev/rollback": "yes"})
        await world.run(key)

        assert world.condition(key, "RolledBack") == "True/RolledBack"
        assert world.aliases() == {world.alias: world.physical}
        assert world.count() == POINTS + 5
        assert world.status(key)["previousCollection"]["physical"] == f"{world.alias}__2"
        assert "agentmemoryPrevious" not in world.metadata(world.physical)

    async def test_one_that_was_taken_back_is_not_applied_again(self, world: RestoreWorld) -> None:
        await world.run(key := world.restore(annotations={"agentmemory.dev/rollback": "yes"}))
        assert world.condition(key, "RolledBack") == "True/RolledBack"
        world.table.remove(key)
        await world.run(key)

        await world.run(again := world.restore())

        assert "rolled back since" in world.message(again, "AlreadyApplied")
        assert world.aliases() == {world.alias: world.physical}

    async def test_a_rollback_past_a_later_restore_is_refused(self, world: RestoreWorld) -> None:
        await world.run(first := world.restore("first"))
        await world.run(world.restore("second"))

        world.annotate(first, {"agentmemory.dev/rollback": "yes"})
        await world.run(first)

        assert world.condition(first, "RolledBack") == "False/NotLive"
        assert world.aliases() == {world.alias: f"{world.alias}__3"}


class TestPrevious:
    async def test_the_previous_collection_goes_when_its_time_is_over_and_its_snapshots_stay(
        self, world: RestoreWorld
    ) -> None:
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

    async def test_it_can_not_be_brought_back_after_that(self, world: RestoreWorld) -> None:
        await world.run(key := world.restore(keepPreviousHours=0))
        assert "removedTime" in world.status(key)["previousCollection"]

        world.annotate(key, {"agentmemory.dev/rollback": "yes"})
        await world.run(key)

        assert world.condition(key, "RolledBack") == "False/PreviousGone"
        assert world.count() == POINTS

    async def test_the_one_of_a_restore_that_was_deleted_goes_too_when_its_time_is_over(
        self, world: RestoreWorld
    ) -> None:
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
    async def test_what_its_marker_does_not_call_this_clusters_is_never_removed(
        self, world: RestoreWorld, owner: dict[str, str]
    ) -> None:
        await world.run(world.restore(keepPreviousHours=2))
        marker = world.metadata(world.physical)["agentmemory"] | owner
        changed = {"metadata": {"agentmemory": marker}}
        world.http.patch(f"/collections/{world.physical}", json=changed).raise_for_status()
        world.clock.move(ms=7_201_000)

        assert await world.with_server(world.sweeper().sweep) == []

    async def test_the_last_that_is_left_of_an_agent_is_not_removed(self, world: RestoreWorld) -> None:
        await world.run(key := world.restore(keepPreviousHours=2))
        world.http.delete(f"/collections/{world.alias}__2").raise_for_status()

        world.clock.move(ms=7_201_000)
        await world.run(key)

        assert world.count(world.physical) == POINTS + 5


class TestClone:
    async def test_another_agent_begins_with_the_memories_and_stays_itself(self, world: RestoreWorld) -> None:
        clone = f"{world.agent}-copy"
        world.table.put(memory_document(clone, embedding=EMBEDDING))
        key = world.restore(target={"name": clone})

        await world.run(key)

        assert world.condition(key, "Succeeded") == "True/Restored"
        found = world.metadata(f"agent_memory_{clone}")
        assert (found["agentmemory"]["name"], found["agentmemoryOrigin"]) == (clone, world.agent)
        assert world.count(f"agent_memory_{clone}") == POINTS
        assert world.count() == POINTS + 5

    async def test_a_snapshot_of_another_cluster_is_refused_but_by_the_connection_s_owner(
        self, world: RestoreWorld
    ) -> None:
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
    async def test_a_collection_is_made_beside_the_placeholder_of_one_that_is_gone(self, world: RestoreWorld) -> None:
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
    """The agent's snapshots are copied off the server."""

    @pytest.fixture
    async def world(self, qdrant_url: str, storage: S3Server) -> AsyncIterator[RestoreWorld]:
        made = RestoreWorld(qdrant_url)
        keys = {"access-key-id": KEY.id, "secret-access-key": KEY.secret}
        made.secrets.values = {(NAMESPACE, "s3", name): value for name, value in keys.items()}
        await made.create_agent(POINTS, snapshots={"storage": {"s3": bucket(storage)}})
        await made.snapshot()
        await self.copy(made, storage)
        made.store(5, first=100)
        yield made
        await made.close()

    @staticmethod
    async def copy(world: RestoreWorld, storage: S3Server) -> None:
        """Copy the snapshot, and write its place down."""
        status, spec = world.status(SNAPSHOT_KEY), S3Storage.model_validate(bucket(storage))
        (here,) = status["locations"]
        snapshot = Metadata.model_validate(world.must_get(SNAPSHOT_KEY)["metadata"])
        there = copy_location(spec, snapshot, slug=world.agent, file=here["name"])
        copies = Copies(Storages(world.secrets, S3Objects))

        async def send(server: Server) -> None:
            (found,) = [file for file in await server.snapshots.files(here["physical"]) if file.name == here["name"]]
            file = ServerFile(
                store=server.snapshots,
                physical=here["physical"],
                name=found.name,
                size=found.size,
                sha256=found.sha256,
            )
            await copies.send(file, there, storage=spec, slug=world.agent, namespace=NAMESPACE)

        await world.with_server(send)
        world.table.put(world.must_get(SNAPSHOT_KEY) | {"status": status | {"locations": [here, there]}})

    async def test_a_snapshot_whose_file_is_lost_comes_back_from_its_copy(self, world: RestoreWorld) -> None:
        (file,) = world.files()
        world.http.delete(f"/collections/{world.physical}/snapshots/{file}")

        await world.run(key := world.restore())

        assert world.condition(key, "Succeeded") == "True/Restored"
        assert world.count() == POINTS

    async def test_it_comes_back_from_its_copy_where_its_own_server_is_away(self, world: RestoreWorld) -> None:
        world.table.put(connection_document("lost", url="http://127.0.0.1:1"))
        status = world.status(SNAPSHOT_KEY) | {"connection": {"namespace": NAMESPACE, "name": "lost"}}
        world.table.put(world.must_get(SNAPSHOT_KEY) | {"status": status})

        await world.run(key := world.restore())

        assert world.condition(key, "Succeeded") == "True/Restored"
        assert world.count() == POINTS

    async def test_what_is_away_everywhere_is_waited_for(self, world: RestoreWorld, storage: S3Server) -> None:
        (file,) = world.files()
        world.http.delete(f"/collections/{world.physical}/snapshots/{file}")
        storage.kill()
        key = world.restore()

        with pytest.raises(StorageUnavailable):
            await world.run(key)
        storage.start()
        await world.run(key)

        assert world.condition(key, "Succeeded") == "True/Restored"

    async def test_a_copy_that_was_altered_is_refused_and_nothing_is_made(
        self, world: RestoreWorld, storage: S3Server
    ) -> None:
        (file,) = world.files()
        world.http.delete(f"/collections/{world.physical}/snapshots/{file}")
        path = storage.file(world.status(SNAPSHOT_KEY)["locations"][1]["key"])
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

        await world.run(key := world.restore())

        assert world.condition(key, "Succeeded") == "False/SnapshotRefused"
        world.check_untouched(key)

    async def test_an_object_is_restored_by_its_key_alone(self, world: RestoreWorld, storage: S3Server) -> None:
        place = bucket(storage) | {"key": world.status(SNAPSHOT_KEY)["locations"][1]["key"]}
        world.table.remove(SNAPSHOT_KEY)

        await world.run(key := world.restore(source={"s3": place}))

        assert world.condition(key, "Succeeded") == "True/Restored"
        assert world.count() == POINTS

    async def test_what_the_lost_server_had_erased_since_stays_erased(
        self, world: RestoreWorld, storage: S3Server
    ) -> None:
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
