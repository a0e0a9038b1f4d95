"""A restore in place on a real engine: rehearsal, safety snapshot, undo, kills."""

import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import cast

import pytest

from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.collections.rules.epochs import CLOSED_KEY, read_epoch, read_reopening_epoch
from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.collections.takeover_requests import TakeoverRequests
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.controllers.status_writer import with_closing
from agentmemory_operator.errors import StoreRejected, StoreUnavailable, TransientError
from agentmemory_operator.lifecycle.erasure_restore import RestoredErasureReplay
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import MEMORY_SNAPSHOT, QDRANT_CONNECTION, Key, key_of
from agentmemory_operator.snapshots.controller import SnapshotPasses
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.verify import Verification
from tests.support.engine.fakes import FakeSecrets
from tests.support.engine.interleaved_store import ProcessKilled
from tests.support.job.job_world import NAMESPACE
from tests.support.job.restore_world import RestoreWorld
from tests.support.web.http_server import check_success

POINTS = 10


class InPlaceWorld(RestoreWorld):
    """An agent, its snapshots, and an operator with simulated AgentMemory passes."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        parts = (self.table, self.servers, self.cluster, self.clock, self.requested.append)
        self.making = SnapshotPasses(
            *parts,
            prover=Verification(ScratchCollections(self.cluster.cluster_id)),
            copies=Copies(Storages(FakeSecrets(), S3Objects)),
            scratch=ScratchCollections(self.cluster.cluster_id),
            takeover_requests=TakeoverRequests(self.table),
        )
        self.closed_while: list[str] = []

    def write(self, ids: Sequence[int], text: str) -> None:
        """Write memories as the API does."""
        self.clock.move(ms=1000)
        now_ms = self.clock.now_ms()
        payload = {"userId": "u", "type": "fact", "content": text, "rev": now_ms, "updatedAt": now_ms}
        body = [{"id": number, "vector": [1, 0, 0, number], "payload": payload} for number in ids]
        self.http.put(f"/collections/{self.alias}/points?wait=true", json={"points": body}).raise_for_status()

    def contents(self) -> dict[int, str]:
        rows = self.http.post(f"/collections/{self.alias}/points/scroll", json={"limit": 1000}).raise_for_status()
        return {point["id"]: point["payload"]["content"] for point in rows.json()["result"]["points"]}

    async def begin(self) -> Key:
        """Take a snapshot of ten old memories, change some, and request a restore of the snapshot."""
        await self.create_agent(points=0)
        self.write(range(POINTS), "old")
        self.clock.move(ms=600_000)
        key = self.apply(MEMORY_SNAPSHOT, "before", agentMemoryRef={"name": self.agent}, verify="None")
        await self.making.run(key)
        self.clock.move(ms=600_000)
        self.write(range(5, 15), "new")
        return self.restore(mode="InPlace")

    async def turn(self, key: Key) -> None:
        """Run one pass of every object, then advance the clock by 5 s."""
        with contextlib.suppress(TransientError):
            await self.restores.run(key)
        document = self.must_get(self.memory)
        status = with_closing(document.get("status") or {}, self.memory, self.table)
        self.table.put(document | {"status": status})
        for snapshot in self.table.keys(MEMORY_SNAPSHOT):
            await self.making.run(snapshot)
        self.clock.move(ms=5_000)

    async def finish(self, key: Key, *, turns: int = 40) -> Json:
        for _ in range(turns):
            await self.turn(key)
            if "endTime" in self.status(key) and "closedSince" not in self.status(key):
                await self.turn(key)
                return self.status(key)
        raise AssertionError(self.status(key))

    def is_open(self) -> bool:
        closed = self.metadata(self.physical).get(CLOSED_KEY)
        return (
            not closed and not self.table.claims.min_epoch_of(self.agent) and "closed" not in self.status(self.memory)
        )


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[InPlaceWorld]:
    world = InPlaceWorld(qdrant_url)
    yield world
    await world.close()


OLD = dict.fromkeys(range(POINTS), "old")
NEW = dict.fromkeys(range(5), "old") | dict.fromkeys(range(5, 15), "new")


async def test_replaces_contents_and_takes_safety_snapshot(
    world: InPlaceWorld,
) -> None:
    key = await world.begin()

    status = await world.finish(key)

    assert world.condition(key, "Succeeded") == "True/Restored", status["conditions"]
    assert (world.contents(), world.aliases()) == (OLD, {world.alias: world.physical})
    assert world.is_open()
    assert status["safetySnapshot"] == {"name": "undo-before", "attempt": 1, "writesSince": 10}
    assert (status["points"]["before"], status["points"]["after"]) == (15, POINTS)
    assert world.condition(Key(MEMORY_SNAPSHOT, NAMESPACE, "undo-before"), "Verified") == "True/Verified"
    assert world.collections() == [world.physical]
    assert [step["name"] for step in status["steps"]] == [
        *("Rehearse", "Close", "Safeguard", "Recover", "Compare", "Open")
    ]


async def test_keeps_rebuild_record_and_drops_move(world: InPlaceWorld) -> None:
    """The rebuild record of the snapshot counts as done."""
    key = await world.begin()
    record = {"source": "a__0", "target": world.physical, "digest": "d", "begunMs": 1, "sinceMs": 1, "kind": "Rebuild"}
    moving = {"from": world.physical, "to": "a__9", "phase": "Final"}
    metadata = {"agentmemoryRebuild": record | {"step": "Drain"}, "agentmemoryMoving": moving}
    await world.with_server(lambda server: server.snapshots.write_metadata(world.physical, metadata))

    await world.finish(key)

    assert world.condition(key, "Succeeded") == "True/Restored"
    found = world.metadata(world.alias)
    assert found["agentmemoryRebuild"]["step"] == "Done"
    assert "agentmemoryMoving" not in found


async def test_api_is_closed_during_safety_snapshot(world: InPlaceWorld) -> None:
    key = await world.begin()
    closed: dict[str, bool] = {}
    while "endTime" not in world.status(key):
        await world.turn(key)
        steps = world.status(key).get("steps") or [{"name": "none"}]
        closed[steps[-1]["name"]] = not world.is_open()

    assert closed["Safeguard"]
    assert world.contents() == OLD


async def test_rollback_restores_safety_snapshot(world: InPlaceWorld) -> None:
    key = await world.begin()
    await world.finish(key)
    document = world.must_get(key)
    annotations = {"agentmemory.dev/rollback": "now"}
    world.table.put(document | {"metadata": document["metadata"] | {"annotations": annotations}})

    await world.turn(key)
    back = Key("MemoryRestore", NAMESPACE, "undo-rollback")
    await world.finish(back)
    await world.turn(key)

    assert world.contents() == NEW
    assert world.condition(key, "RolledBack") == "True/RolledBack"
    assert world.is_open()


async def test_rollback_without_safety_snapshot_is_refused(world: InPlaceWorld) -> None:
    await world.finish(key := await world.begin())
    world.table.remove(key)
    await world.finish(again := world.restore(mode="InPlace"))
    assert world.condition(again, "AlreadyApplied") == "True/AlreadyApplied"

    world.annotate(again, {"agentmemory.dev/rollback": "now"})
    await world.turn(again)

    assert world.condition(again, "RolledBack") == "False/PreviousGone"
    assert world.table.get(Key("MemoryRestore", NAMESPACE, "undo-rollback")) is None
    assert world.contents() == OLD


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"index": {"vectors": {"memory": "Cold"}}}, "index.vectors.memory Cached instead of Cold"),
        ({"index": {"keyword": {"enabled": True}}}, "index.keyword.enabled"),
    ],
)
async def test_different_vectors_are_refused(world: InPlaceWorld, spec, named) -> None:
    key = await world.begin()
    vectors = {"vectors": {"": {"on_disk": True}}}
    if "keyword" in named:
        path = f"/collections/{world.physical}/vectors/agentmemory_keyword?wait=true"
        world.http.put(path, json={"sparse": {"modifier": "idf"}}).raise_for_status()
    else:
        world.http.patch(f"/collections/{world.physical}", json=vectors).raise_for_status()

    await world.finish(key)

    assert world.condition(key, "Succeeded") == "False/SnapshotUnfit"
    assert named in str(world.status(key)["conditions"])
    assert (world.contents(), world.is_open(), world.collections()) == (NEW, True, [world.physical])


async def test_direct_write_causes_new_safety_snapshot(world: InPlaceWorld) -> None:
    key = await world.begin()
    while not world.files(world.physical) or "safetySnapshot" not in world.status(key):
        await world.turn(key)
    world.write([99], "late")

    status = await world.finish(key)

    assert status["safetySnapshot"]["name"] == "undo-before-2"
    assert world.contents() == OLD


async def test_endless_direct_writes_fail_restore(world: InPlaceWorld) -> None:
    """The restore fails before it changes the collection."""
    key = await world.begin()
    for _ in range(40):
        await world.turn(key)
        world.write([99], "late")
        if "endTime" in world.status(key):
            break
    await world.finish(key)

    assert world.condition(key, "Succeeded") == "False/WritesGoOn"
    assert (world.contents(), world.is_open()) == (NEW | {99: "late"}, True)


@pytest.fixture
async def recovered(world: InPlaceWorld) -> Key:
    """A restore that has recovered the snapshot, and waits for Qdrant before it compares the collection."""
    key = await world.begin()
    # Remove an index: otherwise the recovered collection may need no change at all.
    index = f"/collections/{world.physical}/index/tags?wait=true"
    world.after = {"recover": lambda: check_success(world.http.delete(index))}
    while "safetySnapshot" not in world.status(key):
        await world.turn(key)
    world.fails = {"apply": StoreUnavailable("away")}
    while not any(step["name"] == "Compare" for step in world.status(key).get("steps") or ()):
        await world.turn(key)
    world.after = {}
    return key


async def test_failure_after_recovery_is_undone(world: InPlaceWorld, recovered: Key) -> None:
    assert world.contents() == OLD
    world.fails = {"apply": StoreRejected(400, "no")}
    await world.turn(recovered)
    world.fails = {}

    status = await world.finish(recovered)

    assert world.condition(recovered, "Succeeded").startswith("False/")
    assert (world.contents(), world.is_open()) == (NEW, True)
    assert status["steps"][-1]["name"] == "Undo"


async def test_postponed_cleanup_keeps_the_failure(world: InPlaceWorld, recovered: Key) -> None:
    world.fails = {"apply": StoreRejected(400, "no")}
    await world.turn(recovered)
    world.fails = {}
    failure, end_time = world.condition(recovered, "Succeeded"), world.status(recovered)["endTime"]
    (connection,) = world.table.documents(QDRANT_CONNECTION)
    world.table.remove(key_of(connection))
    world.clock.move(ms=60_000)

    await world.turn(recovered)

    assert (world.condition(recovered, "Succeeded"), world.is_open()) == (failure, False)
    world.table.put(connection)
    status = await world.finish(recovered)
    assert (world.condition(recovered, "Succeeded"), status["endTime"]) == (failure, end_time)
    assert (world.contents(), world.is_open()) == (NEW, True)


async def fail_after_recovery(world: InPlaceWorld, key: Key) -> None:
    """Fail a recovered restore; the next pass undoes it."""
    world.fails = {"apply": StoreRejected(400, "no")}
    await world.turn(key)
    world.fails = {}


def kill() -> None:
    raise ProcessKilled


LATE = dict.fromkeys((98, 99), "late")


@pytest.mark.parametrize("last_call", ["save", "write_status"])
async def test_killed_undo_keeps_later_writes(world: InPlaceWorld, recovered: Key, last_call: str) -> None:
    """The operator is killed after it has opened the agent, and the API acknowledges writes before the next pass."""
    await fail_after_recovery(world, recovered)
    # After `save`, the claim no longer closes the agent.
    world.after = {"save": kill if last_call == "save" else lambda: world.after.update(write_status=kill)}
    with pytest.raises(ProcessKilled):
        await world.turn(recovered)
    world.after = {}
    assert (world.contents(), world.metadata(world.physical).get(CLOSED_KEY)) == (NEW, None)
    world.write([*LATE], "late")

    world.restores = world.passes()
    await world.finish(recovered)

    assert world.contents() == NEW | LATE
    assert (world.is_open(), world.must_get(recovered)["metadata"]["finalizers"]) == (True, [])


async def test_undo_with_changed_object_keeps_later_writes(world: InPlaceWorld, recovered: Key) -> None:
    """The API server rejects the finalizer's removal by an older resourceVersion, as after each write of the status."""
    await fail_after_recovery(world, recovered)
    world.fails = {"write_finalizers": StoreUnavailable("the object has changed since it was read")}
    await world.turn(recovered)
    world.fails = {}
    assert world.is_open()
    world.write([*LATE], "late")

    await world.turn(recovered)

    assert (world.contents(), world.is_open()) == (NEW | LATE, True)
    assert world.must_get(recovered)["metadata"]["finalizers"] == []


async def test_deletion_without_undo_keeps_later_writes(world: InPlaceWorld, recovered: Key) -> None:
    """The safety snapshot is rejected, so the agent opens without it. It is not restored once that works again."""
    await fail_after_recovery(world, recovered)
    world.delete(recovered)
    world.fails = {
        "recover": StoreRejected(400, "no"),
        "write_finalizers": StoreUnavailable("the object has changed since it was read"),
    }
    await world.turn(recovered)
    world.fails = {}
    assert world.metadata(world.physical).get(CLOSED_KEY) is None
    world.write([*LATE], "late")

    await world.turn(recovered)

    assert world.table.get(recovered) is None
    assert world.contents() == OLD | LATE


async def test_overdue_restore_reports_safety_snapshot(world: InPlaceWorld, recovered: Key) -> None:
    world.clock.move(ms=3_600_000)

    await world.turn(recovered)

    assert world.condition(recovered, "Succeeded") == "False/DeadlineExceeded"
    assert "The safety snapshot undo-before is restored" in world.message(recovered, "Succeeded")


@pytest.mark.parametrize("lost", ["object", "file"])
async def test_agent_without_safety_snapshot_opens_after_deletion(
    world: InPlaceWorld, recovered: Key, lost: str
) -> None:
    """Until then the agent stays closed, because the collection may contain part of the snapshot."""
    safety = Key(MEMORY_SNAPSHOT, NAMESPACE, "undo-before")
    (location,) = world.status(safety)["locations"]
    check_success(world.http.delete(f"/collections/{world.physical}/snapshots/{location['name']}?wait=true"))
    if lost == "object":
        world.table.remove(safety)
    world.fails = {"apply": StoreRejected(400, "no")}
    for _ in range(2):
        await world.turn(recovered)

    assert world.condition(recovered, "Succeeded") == "False/NotUndone"
    assert "another one with mode Swap" in world.message(recovered, "Succeeded")
    assert not world.is_open()
    world.delete(recovered)
    await world.turn(recovered)
    assert (world.table.get(recovered), world.metadata(world.physical).get(CLOSED_KEY)) == (None, None)


@pytest.fixture
async def not_undone(world: InPlaceWorld, recovered: Key) -> Key:
    """A failed restore whose safety snapshot Qdrant has rejected once."""
    await fail_after_recovery(world, recovered)
    world.fails = {"recover": StoreRejected(400, "no")}
    await world.turn(recovered)
    world.fails = {}
    assert world.condition(recovered, "Succeeded") == "False/NotUndone"
    return recovered


@pytest.mark.parametrize("state", ["failed", "deleted"])
async def test_waits_until_another_is_undone(world: InPlaceWorld, not_undone: Key, state: str) -> None:
    """Otherwise the other one would restore its safety snapshot over later writes."""
    if state == "deleted":
        world.delete(not_undone)
    second = world.restore("again", mode="InPlace")
    for _ in range(12):
        await world.turn(second)

    assert world.condition(second, "Progressing") == "True/WaitsForRestore"
    assert "MemoryRestore undo to be undone" in world.message(second, "Progressing")
    await world.turn(not_undone)
    assert world.contents() == NEW
    await world.finish(second)
    world.write([*LATE], "late")
    if world.table.get(not_undone):
        await world.turn(not_undone)
    assert (world.contents(), world.is_open()) == (OLD | LATE, True)


async def test_swap_is_not_rolled_back_until_another_is_undone(world: InPlaceWorld, not_undone: Key) -> None:
    """The rollback of a swap makes the collection live again that the other restore has closed."""
    closed, swap = world.physical, world.restore("again")
    for _ in range(4):
        await world.turn(swap)
    found = world.metadata(world.alias)
    assert read_reopening_epoch(found) is None
    assert read_epoch(found).number >= world.table.claims.min_epoch_of(world.agent), "the agent is open"
    world.write([*LATE], "late")
    world.annotate(swap, {"agentmemory.dev/rollback": "now"})
    for _ in range(2):
        await world.turn(swap)

    assert world.condition(swap, "RolledBack") == "False/WaitsForRestore"
    assert "MemoryRestore undo to be undone" in world.message(swap, "RolledBack")
    assert world.contents() == OLD | LATE
    await world.turn(not_undone)
    assert world.contents() == OLD | LATE, "only the replaced collection is overwritten"
    await world.turn(swap)
    assert world.condition(swap, "RolledBack") == "True/RolledBack"
    assert (world.aliases()[world.alias], world.contents()) == (closed, NEW)


async def test_deletion_midway_leaves_agent_unchanged(world: InPlaceWorld) -> None:
    key = await world.begin()
    while "closedSince" not in world.status(key):
        await world.turn(key)
    world.delete(key)

    for _ in range(5):
        if world.table.get(key):
            await world.turn(key)

    assert world.table.get(key) is None
    assert (world.contents(), world.metadata(world.physical).get(CLOSED_KEY)) == (NEW, None)
    assert not world.table.claims.min_epoch_of(world.agent)


async def test_claim_keeps_min_epoch_during_recovery(
    world: InPlaceWorld,
) -> None:
    """The recovery overwrites the metadata of the collection, which has the epoch too."""
    key, observed = await world.begin(), list[tuple[int, int, bool]]()

    def observe() -> None:
        metadata = world.metadata(world.physical)
        min_epoch = world.table.claims.min_epoch_of(world.agent)
        observed.append((min_epoch, read_epoch(metadata).number, read_reopening_epoch(metadata) is not None))

    def recover() -> None:
        # The development server keeps the metadata of the target of a recovery.
        if world.status(key)["steps"][-1]["name"] == "Recover":
            body = {"metadata": {CLOSED_KEY: None}}
            world.http.patch(f"/collections/{world.physical}", json=body).raise_for_status()
        observe()

    world.after = {"write_metadata": observe, "recover": recover, "save": observe}
    await world.finish(key)

    min_epoch = max(sample[0] for sample in observed)
    recovered = observed.index((min_epoch, 0, False), observed.index((min_epoch, 0, True)))
    assert observed[recovered + 1] == (min_epoch, min_epoch, True), "metadata of the snapshot, then the next epoch"
    assert observed[-1] == (min_epoch, min_epoch, False), "the collection opens before the claim is reset"
    assert world.is_open()
    assert read_epoch(world.metadata(world.physical)).contents == min_epoch


async def test_waits_until_claims_are_complete(world: InPlaceWorld) -> None:
    key = await world.begin()
    world.table.claims = replace(world.table.claims, is_complete=False)

    for _ in range(3):
        await world.turn(key)

    assert world.contents() == NEW
    assert read_reopening_epoch(world.metadata(world.physical)) is None
    world.table.claims = replace(world.table.claims, is_complete=True)
    await world.finish(key)
    assert world.contents() == OLD


async def test_swap_opens_agent_of_abandoned_restore(world: InPlaceWorld) -> None:
    """The server was unavailable for longer than the deletion of the first restore waits."""
    key = await world.begin()
    while "safetySnapshot" not in world.status(key):
        await world.turn(key)
    world.table.remove(key)
    min_epoch = world.table.claims.min_epoch_of(world.agent)
    assert min_epoch

    swap = world.restore("again")
    for _ in range(4):
        await world.turn(swap)

    found = world.metadata(world.alias)
    assert world.condition(swap, "Succeeded") == "True/Restored"
    assert (read_reopening_epoch(found), read_epoch(found).number > min_epoch) == (None, True)


async def test_erasures_are_replayed_from_safety_snapshot(world: InPlaceWorld) -> None:
    key = await world.begin()
    calls: list[tuple[int, str]] = []

    class Erasing:
        async def replay_all(self, server: Server, live: str, target: str, *_: object, **__: object) -> int:
            calls.append((await server.points.count(live, None), target))
            await server.points.delete(target, {"must": [{"has_id": [3]}]})
            return 1

    world.restores.in_place.erasures = cast(RestoredErasureReplay, Erasing())
    await world.finish(key)

    assert calls == [(15, world.physical)]
    assert world.contents() == {number: text for number, text in OLD.items() if number != 3}


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(2))
async def test_survives_repeated_operator_kills(world: InPlaceWorld, seed: int) -> None:
    chance, deaths = random.Random(seed), 0
    key = await world.begin()
    for _ in range(200):
        world.restores = world.passes()
        world.crash_at = world.calls + chance.randint(2, 24)
        try:
            await world.turn(key)
        except ProcessKilled:
            deaths += 1
            world.clock.move(ms=5_000)
        assert world.contents() in (OLD, NEW)
        if "endTime" in world.status(key):
            break
    world.crash_at = 0
    world.restores = world.passes()
    await world.finish(key)
    await world.with_server(ScratchCollections(world.cluster.cluster_id).sweep)

    assert deaths > 3
    assert world.condition(key, "Succeeded") == "True/Restored"
    assert (world.contents(), world.is_open(), world.collections()) == (OLD, True, [world.physical])
