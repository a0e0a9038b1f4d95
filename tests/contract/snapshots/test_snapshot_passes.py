"""Passes over MemorySnapshots against a server: made once, gone on with, failed, looked after, deleted."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots
from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.collections.retire import delete_keeping_snapshots
from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.collections.takeover_requests import TakeoverRequests
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import AgentMemoryError, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.snapshots import SnapshotFile
from agentmemory_operator.runtime.object_table import Key
from agentmemory_operator.snapshots.controller import SnapshotPasses
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.rules.steps import FINALIZER
from agentmemory_operator.snapshots.snapshot_creation import Verifier
from agentmemory_operator.snapshots.verify import Verification
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.conditions import ConditionState, find_condition
from tests.support.job.job_world import JobWorld
from tests.support.web.s3_server import BUCKET, KEY, S3Server

GOOD = ConditionState("Verified", True, "Verified", "10 memories")
BAD = ConditionState("Verified", False, "CopyDiffers", "3 points are missing")


@dataclass
class Said:
    """Proves nothing, and says what the test wants said, the last of it for ever."""

    answers: list[ConditionState | AgentMemoryError] = field(default_factory=lambda: [GOOD])
    asked: list[str] = field(default_factory=list)

    async def verify_status(self, server: Server, metadata: Metadata, status: Json) -> ConditionState:
        self.asked.append(status["verify"])
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, AgentMemoryError):
            raise answer
        return answer


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[JobWorld]:
    world = JobWorld(qdrant_url)
    yield world
    await world.close()


def passes_of(world: JobWorld, prover: Verifier | None = None) -> SnapshotPasses:
    parts = (world.table, world.servers, world.cluster, world.clock, world.requested.append)
    copies = Copies(Storages(world.secrets, S3Objects))
    scratch = ScratchCollections(world.cluster.cluster_id)
    asking = TakeoverRequests(world.table)
    return SnapshotPasses(*parts, prover=prover or Said(), copies=copies, scratch=scratch, takeover_requests=asking)


def asked(world: JobWorld, name: str = "one", **spec: Any) -> Key:
    return world.apply("MemorySnapshot", name, agentMemoryRef={"name": world.agent}, **spec)


async def made(world: JobWorld, passes: SnapshotPasses, name: str = "one", **spec: Any) -> Key:
    key = asked(world, name, **spec)
    await passes.run(key)
    await passes.run(key)
    return key


async def test_a_snapshot_is_made_once_and_everything_about_it_is_on_record(world: JobWorld) -> None:
    await world.create_agent(points=10)
    passes = passes_of(world)

    key = await made(world, passes)
    await passes.run(key)

    (file,) = world.files()
    status = world.status(key)
    assert (world.condition(key, "Succeeded"), world.condition(key, "Verified")) == (
        "True/SnapshotTaken",
        "True/Verified",
    )
    assert (status["name"], status["physical"], status["agent"]) == (file, world.physical, world.agent)
    assert status["points"] == {"before": 10, "after": 10}
    assert status["locations"] == [{"type": "Qdrant", "physical": world.physical, "name": file}]
    assert status["owner"]["name"] == world.agent
    assert status["embedding"] == {"provider": "none", "dimensions": 4}
    assert status["connection"] == {"namespace": "agents", "name": "main"}
    assert len(status["sha256"]) == 64
    assert status["sizeBytes"] > 0
    assert {"qdrantVersion", "configHash", "startTime", "endTime"} <= set(status)
    assert {"step", "progress"}.isdisjoint(status)
    assert world.condition(key, "Progressing") == ""
    assert "same disk" in next(item["message"] for item in status["conditions"] if item["type"] == "Succeeded")
    assert world.events() == ["SnapshotMade"]
    assert Key("AgentMemory", "agents", world.agent) in world.requested


async def test_the_deletion_is_held_up_while_it_is_made_and_no_longer(world: JobWorld) -> None:
    await world.create_agent()
    passes, key = passes_of(world), asked(world)

    await passes.run(key)
    assert world.must_get(key)["metadata"]["finalizers"] == [FINALIZER]

    await passes.run(key)
    assert world.must_get(key)["metadata"]["finalizers"] == []


@pytest.mark.parametrize(
    ("own", "of_agent", "verify"), [(None, None, "Full"), (None, "Checksum", "Checksum"), ("None", "Full", "None")]
)
async def test_what_is_verified_is_said_by_the_snapshot_else_by_the_agent_else_full(
    world: JobWorld, own: str | None, of_agent: str | None, verify: str
) -> None:
    await world.create_agent(**({"snapshots": {"verify": of_agent}} if of_agent else {}))
    prover = Said()

    await made(world, passes_of(world, prover), **({"verify": own} if own else {}))

    assert prover.asked == [verify]


async def test_it_waits_for_an_agent_that_is_applied_after_it(world: JobWorld) -> None:
    passes, key = passes_of(world), asked(world)

    await passes.run(key)
    assert world.condition(key, "Succeeded") == "Unknown/AgentMemoryNotFound"

    await world.create_agent()
    await passes.run(key)
    assert world.condition(key, "Succeeded") == "True/SnapshotTaken"


async def test_an_agent_that_does_not_come_fails_it_for_good(world: JobWorld) -> None:
    passes, key = passes_of(world), asked(world)
    await passes.run(key)
    world.clock.move(ms=700_000)

    await passes.run(key)
    assert world.condition(key, "Succeeded") == "False/AgentMemoryNotFound"

    await world.create_agent()
    await passes.run(key)
    assert world.condition(key, "Succeeded") == "False/AgentMemoryNotFound"
    assert world.files() == []


async def test_another_owner_s_collection_is_not_snapshotted(world: JobWorld) -> None:
    await world.create_agent()
    world.cluster.identity = "another cluster"

    key = await made(world, passes_of(world))

    assert world.condition(key, "Succeeded") == "False/CollectionNotOwned"
    assert world.files() == []


async def test_a_file_whose_making_nobody_saw_the_end_of_is_found_again(world: JobWorld) -> None:
    await world.create_agent()
    passes, key = passes_of(world), asked(world)
    before = await made(world, passes, "before")
    await lose_answer(world, passes, key)
    lost = [name for name in world.files() if name != world.status(before)["name"]]

    await passes_of(world).run(key)

    assert [world.status(key)["name"]] == lost
    assert len(world.files()) == 2


async def lose_answer(world: JobWorld, passes: SnapshotPasses, key: Key) -> None:
    """Have the server make the file, and the operator die before it hears of it."""
    (server,) = world.opened
    create = server.snapshots.create

    async def create_and_die(physical: str) -> Any:
        await create(physical)
        raise StoreUnavailable("the operator died")

    server.snapshots.create = create_and_die  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await passes.run(key)
    server.snapshots.create = create  # type: ignore[method-assign]


async def test_a_snapshot_that_is_unfit_is_removed_and_says_why(world: JobWorld) -> None:
    await world.create_agent()
    key = await made(world, passes_of(world, Said([BAD])))

    assert world.condition(key, "Succeeded") == "False/CopyDiffers"
    assert world.condition(key, "Verified") == "False/CopyDiffers"
    assert world.files() == []
    assert "locations" not in world.status(key)
    assert world.events() == ["SnapshotNotMade"]
    assert world.must_get(key)["metadata"]["finalizers"] == []


async def test_trouble_that_may_pass_is_written_down_and_tried_again(world: JobWorld) -> None:
    await world.create_agent()
    prover = Said([StoreUnavailable("Qdrant is away"), GOOD])
    passes, key = passes_of(world, prover), asked(world)

    with pytest.raises(StoreUnavailable):
        await passes.run(key)
    assert world.condition(key, "Progressing") == "True/QdrantUnavailable"

    await passes.run(key)
    assert world.condition(key, "Succeeded") == "True/SnapshotTaken"
    assert len(world.files()) == 1


async def test_one_that_cannot_be_made_in_time_fails_and_leaves_nothing(world: JobWorld) -> None:
    await world.create_agent()
    passes, key = passes_of(world), asked(world)
    await world.with_server(lambda server: server.snapshots.collections())
    await lose_answer(world, passes, key)
    assert len(world.files()) == 1
    world.clock.move(ms=(4 * 3600 + 100) * 1000)
    world.opened[0].snapshots.files, files = refuse, world.opened[0].snapshots.files  # type: ignore[method-assign]

    with pytest.raises(StoreUnavailable):
        await passes.run(key)
    world.opened[0].snapshots.files = files  # type: ignore[method-assign]
    await passes.run(key)

    assert world.condition(key, "Succeeded") == "False/DeadlineExceeded"
    assert world.files() == []


async def refuse(*_: Any) -> Any:
    raise StoreUnavailable("Qdrant is away")


async def test_one_that_cannot_be_verified_in_time_is_kept_unverified(world: JobWorld) -> None:
    await world.create_agent()
    passes, key = passes_of(world, Said([StoreUnavailable("no room")])), asked(world)
    with pytest.raises(StoreUnavailable):
        await passes.run(key)
    world.clock.move(days=1)

    await passes.run(key)

    assert world.condition(key, "Succeeded") == "True/SnapshotTaken"
    assert world.condition(key, "Verified") == "Unknown/DeadlineExceeded"
    assert len(world.files()) == 1


async def test_a_snapshot_is_proven_by_a_restore_and_leaves_no_scratch(world: JobWorld) -> None:
    await world.create_agent(points=10)
    verification = Verification(ScratchCollections(world.cluster.cluster_id))

    key = await made(world, passes_of(world, verification))

    assert world.condition(key, "Verified") == "True/Verified"
    assert world.collections() == [world.physical]


async def test_a_specification_that_is_no_good_fails(world: JobWorld) -> None:
    key = await made(world, passes_of(world), verify="Perhaps")

    assert world.condition(key, "Succeeded") == "False/InvalidSpec"


async def test_an_object_without_a_specification_fails_and_can_be_deleted(world: JobWorld) -> None:
    passes, key = passes_of(world), asked(world)
    world.table.put(world.must_get(key) | {"spec": None})

    await passes.run(key)
    assert world.condition(key, "Succeeded") == "False/InvalidSpec"

    await passes.run(key)
    world.delete(key)
    await passes.run(key)
    assert world.table.get(key) is None


class TestSnapshotsThatQdrantKeepsInObjectStorage:
    """The server tells their size, and no checksum."""

    @pytest.fixture
    async def world(self, qdrant_url: str) -> AsyncIterator[JobWorld]:
        world = WorldWithoutChecksums(qdrant_url)
        yield world
        await world.close()

    async def test_it_is_recognised_and_not_called_on_the_same_disk(self, world: JobWorld) -> None:
        await world.create_agent()

        key = await made(world, passes_of(world))

        status = world.status(key)
        assert [place["keptIn"] for place in status["locations"]] == ["ObjectStorage"]
        assert "sha256" not in status
        told = next(item["message"] for item in status["conditions"] if item["type"] == "Succeeded")
        assert told.endswith("in Qdrant's own object storage for snapshots")

    async def test_a_copy_of_it_has_the_sha256_of_its_bytes(self, world: JobWorld, storage: S3Server) -> None:
        await TestCopies.create_agent(world, storage)

        key = await made(world, passes_of(world))

        _, there = world.status(key)["locations"]
        assert world.status(key)["sha256"] == sha256(storage.file(there["key"]).read_bytes()).hexdigest()


class WorldWithoutChecksums(JobWorld):
    """Its server keeps snapshots in an object storage of its own."""

    def open_server(self, endpoint: Endpoint) -> Server:
        self.opened.append(replace(super().open_server(endpoint), snapshots=SnapshotsWithoutChecksums(endpoint.url)))
        return self.opened[-1]


class SnapshotsWithoutChecksums(QdrantSnapshots):
    """As Qdrant with `snapshots_storage: s3`."""

    async def create(self, physical: str) -> SnapshotFile:
        return replace(await super().create(physical), sha256=None)


class TestCopies:
    """The agent asks for copies off the server."""

    @staticmethod
    async def create_agent(world: JobWorld, storage: S3Server) -> None:
        bucket = {"endpoint": storage.url, "bucket": BUCKET, "prefix": world.agent, "secretRef": {"name": "s3"}}
        await world.create_agent(snapshots={"storage": {"s3": bucket}})
        keys = {"access-key-id": KEY.id, "secret-access-key": KEY.secret}
        world.secrets.values = {("agents", "s3", name): value for name, value in keys.items()}

    async def test_a_copy_lies_in_the_bucket_and_on_record(self, world: JobWorld, storage: S3Server) -> None:
        await self.create_agent(world, storage)

        key = await made(world, passes_of(world))

        here, there = world.status(key)["locations"]
        data = storage.file(there["key"]).read_bytes()
        assert (here["type"], there["type"]) == ("Qdrant", "S3")
        assert there["key"] == f"{world.agent}/agents/{world.agent}/one_uid-one/{here['name']}"
        assert sha256(data).hexdigest() == world.status(key)["sha256"]
        told = next(item["message"] for item in world.status(key)["conditions"] if item["type"] == "Succeeded")
        assert "off the server too" in told

    async def test_it_is_removed_with_its_object_where_that_is_asked_for(
        self, world: JobWorld, storage: S3Server
    ) -> None:
        await self.create_agent(world, storage)
        passes = passes_of(world)
        key = await made(world, passes, deletionPolicy="Delete")
        there = storage.file(world.status(key)["locations"][1]["key"])
        assert there.exists()

        world.delete(key)
        await passes.run(key)

        assert not there.exists()
        assert world.files() == []

    @pytest.mark.parametrize("is_ended", [True, False], ids=["removed", "written over"])
    async def test_an_object_that_only_the_status_names_is_neither_removed_nor_written_over(
        self, world: JobWorld, storage: S3Server, is_ended: bool
    ) -> None:
        """Whoever may write a status, and no Secret: the namespace's own opens the bucket."""
        await self.create_agent(world, storage)
        key = await made(world, passes_of(world), deletionPolicy="Delete")
        dump = storage.file(f"{world.agent}/database.dump")
        dump.write_bytes(b"no copy of a snapshot")
        status = world.status(key)
        here, there = status["locations"]
        forged = status | {"locations": [here, there | {"key": f"{world.agent}/database.dump"}]}
        if not is_ended:
            forged |= {"step": "Copy", "conditions": []}
        world.table.put(world.must_get(key) | {"status": forged})

        passes = passes_of(world)
        if not is_ended:
            await passes.run(key)
            assert world.condition(key, "Succeeded") == "False/SourceNotAllowed"
        world.delete(key)
        await passes.run(key)

        assert world.table.get(key) is None
        assert dump.read_bytes() == b"no copy of a snapshot"
        assert world.files() == []

    async def test_one_that_turns_out_unfit_leaves_no_copy(self, world: JobWorld, storage: S3Server) -> None:
        await self.create_agent(world, storage)

        await made(world, passes_of(world, Said([BAD])))

        assert [path for path in storage.folder.rglob(f"{world.agent}/**/*") if path.is_file()] == []
        assert world.files() == []

    async def test_a_file_that_qdrant_has_no_more_is_taken_from_the_record(
        self, world: JobWorld, storage: S3Server
    ) -> None:
        await self.create_agent(world, storage)
        passes = passes_of(world)
        key = await made(world, passes)
        world.http.delete(f"/collections/{world.physical}/snapshots/{world.status(key)['name']}")

        await passes.run(key)
        world.clock.move(ms=int(passes.periods.recheck_s * 1000))
        await passes.run(key)

        assert [place["type"] for place in world.status(key)["locations"]] == ["S3"]
        assert world.condition(key, "Verified") == "True/Verified"

    async def test_storage_that_refuses_is_waited_for_and_then_fails_it(
        self, world: JobWorld, storage: S3Server
    ) -> None:
        await self.create_agent(world, storage)
        world.secrets.values = dict.fromkeys(world.secrets.values, "wrong")
        passes, key = passes_of(world), asked(world)

        await passes.run(key)
        assert world.condition(key, "Succeeded") == "Unknown/StorageRejected"

        world.clock.move(ms=700_000)
        await passes.run(key)
        assert world.condition(key, "Succeeded") == "False/StorageRejected"
        assert world.files() == []


class TestImport:
    """A snapshot that lies in a bucket is taken in."""

    @staticmethod
    async def lay(world: JobWorld, storage: S3Server, **more: Any) -> dict[str, Any]:
        """Put a snapshot of the agent into the bucket; return the spec that names it."""
        await TestCopies.create_agent(world, storage)
        passes = passes_of(world)
        made_before = world.status(await made(world, passes, "before"))
        there = made_before["locations"][1]
        place = {"endpoint": there["endpoint"], "bucket": BUCKET, "key": there["key"], "secretRef": {"name": "s3"}}
        return {"import": {"s3": place | {"sha256": made_before["sha256"]} | more}}

    async def test_it_is_restored_beside_the_agent_and_put_on_record_where_it_lies(
        self, world: JobWorld, storage: S3Server
    ) -> None:
        spec = await self.lay(world, storage)
        files = world.files()

        key = await made(world, passes_of(world), "taken", **spec)

        status = world.status(key)
        assert world.condition(key, "Succeeded") == "True/SnapshotTaken"
        assert world.condition(key, "Verified") == "True/ComparedWithRecord"
        assert [place["type"] for place in status["locations"]] == ["S3"]
        assert status["points"] == {"before": 10, "after": 10}
        assert (status["owner"]["name"], status["sha256"]) == (world.agent, spec["import"]["s3"]["sha256"])
        assert (world.collections(), world.files()) == ([world.physical], files)

    async def test_another_cluster_s_is_refused_unless_the_connection_s_owner_gives_it(
        self, world: JobWorld, storage: S3Server
    ) -> None:
        spec = await self.lay(world, storage)
        made_in, world.cluster.identity = world.cluster.identity, f"another than {world.agent}'s"
        passes = passes_of(world)

        refused = await made(world, passes, "refused", **spec)
        assert world.condition(refused, "Succeeded") == "False/SnapshotNotOwned"
        assert "locations" not in world.status(refused)

        annotations = {"agentmemory.dev/takeover": f"uid-{world.agent}"}
        named = {"agentMemoryRef": {"name": world.agent}, **spec}
        await passes.run(annotated := world.apply("MemorySnapshot", "annotated", annotations=annotations, **named))
        assert world.condition(annotated, "Succeeded") == "False/SnapshotNotOwned"

        world.reconnect(takeovers=[{"fromClusterId": made_in}])
        await passes.run(allowed := world.apply("MemorySnapshot", "allowed", **named))
        assert world.condition(allowed, "Succeeded") == "True/SnapshotTaken"

    @pytest.mark.parametrize(
        ("more", "reason"),
        [
            ({"sha256": "0" * 64}, "ChecksumDiffers"),
            ({"key": "no/such/object"}, "SourceNotAllowed"),
        ],
    )
    async def test_what_is_not_as_it_says_is_refused_and_stays_where_it_is(
        self, world: JobWorld, storage: S3Server, more: dict[str, Any], reason: str
    ) -> None:
        spec = await self.lay(world, storage, **more)
        before = {path for path in storage.folder.rglob("*") if path.is_file()}

        key = await made(world, passes_of(world), "wrong", deletionPolicy="Delete", **spec)
        assert world.condition(key, "Succeeded") == f"False/{reason}"

        world.delete(key)
        await passes_of(world).run(key)
        assert {path for path in storage.folder.rglob("*") if path.is_file()} == before
        assert world.collections() == [world.physical]

    async def test_bytes_that_are_no_snapshot_are_refused(self, world: JobWorld, storage: S3Server) -> None:
        spec = await self.lay(world, storage)
        place = spec["import"]["s3"]
        storage.file(place["key"]).write_bytes(b"no snapshot")
        place["sha256"] = sha256(b"no snapshot").hexdigest()

        passes, key = passes_of(world), asked(world, "wrong", **spec)
        for _ in range(3):
            with suppress(StoreUnavailable):
                await passes.run(key)

        assert world.condition(key, "Succeeded") == "False/NotRestorable"
        assert world.collections() == [world.physical]


class TestDeletion:
    async def test_the_bytes_of_a_deleted_one_go(self, world: JobWorld) -> None:
        await world.create_agent()
        passes = passes_of(world)
        key = await made(world, passes, deletionPolicy="Delete")

        world.delete(key)
        await passes.run(key)

        assert world.table.get(key) is None
        assert world.files() == []

    async def test_what_is_not_finished_is_removed_with_its_object(self, world: JobWorld) -> None:
        await world.create_agent()
        passes, key = passes_of(world, Said([StoreUnavailable("no room")])), asked(world)
        with pytest.raises(StoreUnavailable):
            await passes.run(key)

        world.delete(key)
        await passes.run(key)

        assert world.table.get(key) is None
        assert world.files() == []

    async def test_a_file_that_was_not_recorded_yet_is_removed_with_its_object(self, world: JobWorld) -> None:
        await world.create_agent()
        passes, key = passes_of(world), asked(world)
        await world.with_server(lambda server: server.snapshots.collections())
        await lose_answer(world, passes, key)

        world.delete(key)
        await passes.run(key)

        assert world.table.get(key) is None
        assert world.files() == []

    async def test_a_server_that_is_away_holds_a_deletion_up_for_a_while(self, world: JobWorld) -> None:
        await world.create_agent()
        passes = passes_of(world)
        key = await made(world, passes, deletionPolicy="Delete")
        world.opened[0].snapshots.metadata = refuse  # type: ignore[method-assign]
        world.delete(key)
        world.clock.value_ms = 1_767_225_600_000 + 1_000

        with pytest.raises(StoreUnavailable):
            await passes.run(key)
        world.clock.move(ms=400_000)
        await passes.run(key)

        assert world.table.get(key) is None
        assert world.events()[-1] == "SnapshotKept"

    async def test_the_last_one_of_a_collection_that_is_gone_takes_the_placeholder_along(self, world: JobWorld) -> None:
        await world.create_agent()
        passes = passes_of(world)
        keys = [await made(world, passes, name, deletionPolicy="Delete") for name in ("one", "two")]
        assert (
            await world.with_server(lambda s: delete_keeping_snapshots(s.collections, s.snapshots, world.physical)) == 2
        )

        for key, left in zip(keys, ([world.physical], []), strict=True):
            world.delete(key)
            await passes.run(key)
            assert world.collections() == left


async def test_a_collection_deleted_by_another_hand_is_replaced_so_that_the_file_stays_in_reach(
    world: JobWorld,
) -> None:
    await world.create_agent()
    passes = passes_of(world)
    key = await made(world, passes)
    world.http.delete(f"/collections/{world.physical}")

    await passes.run(key)

    assert world.files() == [world.status(key)["name"]]
    assert world.condition(key, "Verified") == "True/Verified"


async def test_a_file_deleted_by_another_hand_is_told(world: JobWorld) -> None:
    await world.create_agent()
    passes = passes_of(world)
    key = await made(world, passes)
    world.http.delete(f"/collections/{world.physical}/snapshots/{world.status(key)['name']}")

    assert await passes.run(key) == passes.periods.recheck_s
    world.clock.move(ms=int(passes.periods.recheck_s * 1000))
    await passes.run(key)

    assert world.condition(key, "Verified") == "False/SnapshotLost"
    assert world.status(key)["locations"] == []
    assert world.events()[-1] == "BytesLost"


async def test_one_look_that_does_not_find_a_file_takes_nothing_from_the_record(world: JobWorld) -> None:
    """However often a pass comes meanwhile; and a look that finds it begins again."""
    await world.create_agent()
    passes = passes_of(world)
    key = await made(world, passes)
    before, again_s = world.status(key), passes.periods.recheck_s
    hidden = Hidden(world)

    for is_hidden, due_s in ((True, again_s), (True, again_s - 20), (False, None), (True, again_s)):
        hidden.is_on = is_hidden
        assert await passes.run(key) == (passes.periods.check_period_s if due_s is None else due_s)
        world.clock.move(ms=20_000 if is_hidden else 3_600_000)

    assert world.status(key) == before
    assert "BytesLost" not in world.events()


class Hidden:
    """Has a server not list its files, while it is on."""

    def __init__(self, world: JobWorld) -> None:
        self.is_on = False
        for server in world.opened:
            self._wrap(server.snapshots)

    def _wrap(self, store: Any) -> None:
        listed = store.files

        async def files(physical: str) -> Any:
            return [] if self.is_on else await listed(physical)

        store.files = files


async def test_the_connection_s_trouble_is_waited_for(world: JobWorld) -> None:
    await world.create_agent()
    world.table.remove(world.connection)
    passes, key = passes_of(world), asked(world)

    await passes.run(key)

    assert world.condition(key, "Succeeded") == "Unknown/ConnectionNotFound"


async def ask_again(world: JobWorld, key: Key, request: str) -> None:
    document = world.must_get(key)
    annotations = {"agentmemory.dev/verify-requested-at": request}
    world.table.put(document | {"metadata": document["metadata"] | {"annotations": annotations}})


@pytest.mark.parametrize(("verify", "how"), [("Full", "Full"), ("Checksum", "Checksum"), ("None", "Full")])
async def test_a_snapshot_is_verified_again_once_for_each_time_that_it_is_asked_for(
    world: JobWorld, verify: str, how: str
) -> None:
    await world.create_agent()
    said = Said([GOOD, GOOD, BAD])
    passes = passes_of(world, said)
    key = await made(world, passes, verify=verify)

    for request in ("1", "1", "2"):
        await ask_again(world, key, request)
        await passes.run(key)

    assert said.asked == [verify, how, how]
    assert (world.condition(key, "Succeeded"), world.condition(key, "Verified")) == (
        "True/SnapshotTaken",
        "False/CopyDiffers",
    )
    assert world.status(key)["verifyRequest"] == "2"
    assert len(world.files()) == 1
    assert world.events() == ["SnapshotMade", "SnapshotVerified", "SnapshotVerified"]


async def test_what_was_deleted_shortly_before_counts_as_no_deletion_meanwhile(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.create_agent(points=10)

    def delete(*ids: int) -> None:
        body = {"payload": {"deletedAt": world.clock.now_ms(), "rev": 2}, "points": list(ids)}
        world.http.post(f"/collections/{world.alias}/points/payload?wait=true", json=body).raise_for_status()

    delete(1, 2, 3)
    verification = Verification(ScratchCollections(world.cluster.cluster_id))
    before = await made(world, passes_of(world, verification), "before")
    create = QdrantSnapshots.create

    async def create_beside_a_deletion(self: QdrantSnapshots, physical: str) -> SnapshotFile:
        file = await create(self, physical)
        delete(4)
        return file

    monkeypatch.setattr(QdrantSnapshots, "create", create_beside_a_deletion)
    beside = await made(world, passes_of(world, verification), "beside")

    told = [world.status(key) for key in (before, beside)]
    assert [status["deletedMeanwhile"] for status in told] == [0, 1]
    assert [status["points"] for status in told] == [{"before": 7, "after": 7}, {"before": 7, "after": 6}]
    messages = [find_condition(status, "Verified")["message"] for status in told]
    assert "7 memories, 7 before and 7 after it was made;" in messages[0]
    assert "7 memories, 7 before and 6 after it was made, 1 deleted meanwhile" in messages[1]
