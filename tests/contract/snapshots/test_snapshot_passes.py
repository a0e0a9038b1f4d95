"""Passes over MemorySnapshots against a server: success, retry, failure, recheck and deletion."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots
from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.collections.replaced_collection import delete_keeping_snapshots
from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.collections.takeover_requests import TakeoverRequests
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.errors import (
    AgentMemoryError,
    ServerFullRetryable,
    SpecInvalid,
    StorageRejected,
    StorageUnavailable,
    StoreRejected,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.snapshots import SnapshotFile
from agentmemory_operator.runtime.object_table import Key
from agentmemory_operator.snapshots.controller import SnapshotPasses
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.rules.steps import FINALIZER
from agentmemory_operator.snapshots.snapshot_creation import Verifier
from agentmemory_operator.snapshots.verify import Verification
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, find_condition
from tests.support.job.job_world import JobWorld, TableCluster
from tests.support.web.s3_server import BUCKET, KEY, S3Server

GOOD = ConditionState("Verified", True, "Verified", "10 memories")
BAD = ConditionState("Verified", False, "CopyDiffers", "3 points are missing")


@dataclass
class FixedVerdicts:
    """Returns the given verdicts in order, the last one repeatedly."""

    verdicts: list[ConditionState | AgentMemoryError] = field(default_factory=lambda: [GOOD])
    modes: list[str] = field(default_factory=list)

    async def verify_status(self, server: Server, metadata: Metadata, status: Json) -> ConditionState:
        self.modes.append(status["verify"])
        verdict = self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]
        if isinstance(verdict, AgentMemoryError):
            raise verdict
        return verdict


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[JobWorld]:
    world = JobWorld(qdrant_url)
    yield world
    await world.close()


def passes_of(world: JobWorld, prover: Verifier | None = None) -> SnapshotPasses:
    parts = (world.table, world.servers, world.cluster, world.clock, world.requested.append)
    copies = Copies(Storages(world.secrets, S3Objects))
    scratch = ScratchCollections(world.cluster.cluster_id)
    takeover_requests = TakeoverRequests(world.table)
    return SnapshotPasses(
        *parts, prover=prover or FixedVerdicts(), copies=copies, scratch=scratch, takeover_requests=takeover_requests
    )


def request_snapshot(world: JobWorld, name: str = "one", **spec: Any) -> Key:
    return world.apply("MemorySnapshot", name, agentMemoryRef={"name": world.agent}, **spec)


async def take_snapshot(world: JobWorld, passes: SnapshotPasses, name: str = "one", **spec: Any) -> Key:
    key = request_snapshot(world, name, **spec)
    await passes.run(key)
    await passes.run(key)
    return key


async def test_snapshot_is_taken_once_and_recorded(world: JobWorld) -> None:
    await world.create_agent(points=10)
    passes = passes_of(world)

    key = await take_snapshot(world, passes)
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


async def test_finalizer_is_held_only_during_creation(world: JobWorld) -> None:
    await world.create_agent()
    passes, key = passes_of(world), request_snapshot(world)

    await passes.run(key)
    assert world.must_get(key)["metadata"]["finalizers"] == [FINALIZER]

    await passes.run(key)
    assert world.must_get(key)["metadata"]["finalizers"] == []


@pytest.mark.parametrize(
    ("own", "agent_mode", "verify"), [(None, None, "Full"), (None, "Checksum", "Checksum"), ("None", "Full", "None")]
)
async def test_verify_mode_defaults_to_agent_then_full(
    world: JobWorld, own: str | None, agent_mode: str | None, verify: str
) -> None:
    await world.create_agent(**({"snapshots": {"verify": agent_mode}} if agent_mode else {}))
    prover = FixedVerdicts()

    await take_snapshot(world, passes_of(world, prover), **({"verify": own} if own else {}))

    assert prover.modes == [verify]


async def test_waits_for_a_later_agent(world: JobWorld) -> None:
    passes, key = passes_of(world), request_snapshot(world)

    await passes.run(key)
    assert world.condition(key, "Succeeded") == "Unknown/AgentMemoryNotFound"

    await world.create_agent()
    await passes.run(key)
    assert world.condition(key, "Succeeded") == "True/SnapshotTaken"


async def test_missing_agent_fails_permanently(world: JobWorld) -> None:
    passes, key = passes_of(world), request_snapshot(world)
    await passes.run(key)
    world.clock.move(ms=700_000)

    await passes.run(key)
    assert world.condition(key, "Succeeded") == "False/AgentMemoryNotFound"

    await world.create_agent()
    await passes.run(key)
    assert world.condition(key, "Succeeded") == "False/AgentMemoryNotFound"
    assert world.files() == []


async def test_foreign_collection_is_not_snapshotted(world: JobWorld) -> None:
    await world.create_agent()
    world.cluster.identity = "another cluster"

    key = await take_snapshot(world, passes_of(world))

    assert world.condition(key, "Succeeded") == "False/CollectionNotOwned"
    assert world.files() == []


async def test_file_of_a_killed_operator_is_found_again(world: JobWorld) -> None:
    await world.create_agent()
    passes, key = passes_of(world), request_snapshot(world)
    before = await take_snapshot(world, passes, "before")
    await lose_answer(world, passes, key)
    lost = [name for name in world.files() if name != world.status(before)["name"]]

    await passes_of(world).run(key)

    assert [world.status(key)["name"]] == lost
    assert len(world.files()) == 2


async def lose_answer(world: JobWorld, passes: SnapshotPasses, key: Key) -> None:
    """Let the server create the file and the operator fail before it receives the response."""
    (server,) = world.opened
    create = server.snapshots.create

    async def create_and_die(physical: str) -> Any:
        await create(physical)
        raise StoreUnavailable("the operator died")

    server.snapshots.create = create_and_die  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await passes.run(key)
    server.snapshots.create = create  # type: ignore[method-assign]


async def test_unfit_snapshot_is_removed_with_reason(world: JobWorld) -> None:
    await world.create_agent()
    key = await take_snapshot(world, passes_of(world, FixedVerdicts([BAD])))

    assert world.condition(key, "Succeeded") == "False/CopyDiffers"
    assert world.condition(key, "Verified") == "False/CopyDiffers"
    assert world.files() == []
    assert "locations" not in world.status(key)
    assert world.events() == ["SnapshotNotMade"]
    assert world.must_get(key)["metadata"]["finalizers"] == []


async def test_transient_error_is_recorded_and_retried(world: JobWorld) -> None:
    await world.create_agent()
    prover = FixedVerdicts([StoreUnavailable("Qdrant is away"), GOOD])
    passes, key = passes_of(world, prover), request_snapshot(world)

    with pytest.raises(StoreUnavailable):
        await passes.run(key)
    assert world.condition(key, "Progressing") == "True/QdrantUnavailable"

    await passes.run(key)
    assert world.condition(key, "Succeeded") == "True/SnapshotTaken"
    assert len(world.files()) == 1


async def test_creation_past_deadline_leaves_nothing(world: JobWorld) -> None:
    await world.create_agent()
    passes, key = passes_of(world), request_snapshot(world)
    await world.with_server(lambda server: server.snapshots.collections())
    await lose_answer(world, passes, key)
    assert len(world.files()) == 1
    world.clock.move(ms=(4 * 3600 + 100) * 1000)
    world.opened[0].snapshots.files, files = raise_unavailable, world.opened[0].snapshots.files  # type: ignore[method-assign]

    with pytest.raises(StoreUnavailable):
        await passes.run(key)
    world.opened[0].snapshots.files = files  # type: ignore[method-assign]
    await passes.run(key)

    assert world.condition(key, "Succeeded") == "False/DeadlineExceeded"
    assert world.files() == []


async def raise_unavailable(*_: Any) -> Any:
    raise StoreUnavailable("Qdrant is away")


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("no room"),
        ServerFullRetryable("no room"),
        StorageUnavailable("no room"),
        StorageRejected(403, "AccessDenied", "the key was revoked"),
        StoreRejected(401, "the key was revoked"),
        SpecInvalid(Reason.SECRET_NOT_FOUND, "the Secret was deleted"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_verification_past_deadline_keeps_the_file(world: JobWorld, error: AgentMemoryError) -> None:
    await world.create_agent()
    passes, key = passes_of(world, FixedVerdicts([error])), request_snapshot(world)
    with suppress(TransientError):
        await passes.run(key)
    assert world.condition(key, "Succeeded").startswith("Unknown")
    world.clock.move(days=1)

    await passes.run(key)

    assert world.condition(key, "Succeeded") == "True/SnapshotTaken"
    assert world.condition(key, "Verified") == "Unknown/DeadlineExceeded"
    assert len(world.files()) == 1


async def test_failed_status_write_past_deadline_is_retried(world: JobWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.create_agent()
    passes, key = passes_of(world, FixedVerdicts([StoreUnavailable("no room"), GOOD])), request_snapshot(world)
    with pytest.raises(StoreUnavailable):
        await passes.run(key)
    world.clock.move(days=1)
    write_status, errors = TableCluster.write_status, [TransientError("the object has changed")]

    async def fail_once(*args: Any) -> str:
        if errors:
            raise errors.pop()
        return await write_status(*args)

    monkeypatch.setattr(TableCluster, "write_status", fail_once)
    with pytest.raises(TransientError, match="has changed"):
        await passes.run(key)
    await passes.run(key)

    assert world.condition(key, "Verified") == "True/Verified"
    assert world.files() == [world.status(key)["name"]]


async def test_restore_verifies_and_leaves_no_scratch(world: JobWorld) -> None:
    await world.create_agent(points=10)
    verification = Verification(ScratchCollections(world.cluster.cluster_id))

    key = await take_snapshot(world, passes_of(world, verification))

    assert world.condition(key, "Verified") == "True/Verified"
    assert world.collections() == [world.physical]


async def test_invalid_spec_fails(world: JobWorld) -> None:
    key = await take_snapshot(world, passes_of(world), verify="Perhaps")

    assert world.condition(key, "Succeeded") == "False/InvalidSpec"


async def test_missing_spec_fails_and_can_be_deleted(world: JobWorld) -> None:
    passes, key = passes_of(world), request_snapshot(world)
    world.table.put(world.must_get(key) | {"spec": None})

    await passes.run(key)
    assert world.condition(key, "Succeeded") == "False/InvalidSpec"

    await passes.run(key)
    world.delete(key)
    await passes.run(key)
    assert world.table.get(key) is None


class TestQdrantObjectStorage:
    """Qdrant reports the size of a snapshot in its own object storage, but no checksum."""

    @pytest.fixture
    async def world(self, qdrant_url: str) -> AsyncIterator[JobWorld]:
        world = WorldWithoutChecksums(qdrant_url)
        yield world
        await world.close()

    async def test_location_is_object_storage(self, world: JobWorld) -> None:
        await world.create_agent()

        key = await take_snapshot(world, passes_of(world))

        status = world.status(key)
        assert [place["keptIn"] for place in status["locations"]] == ["ObjectStorage"]
        assert "sha256" not in status
        message = next(item["message"] for item in status["conditions"] if item["type"] == "Succeeded")
        assert message.endswith("in Qdrant's own object storage for snapshots")

    async def test_copy_has_sha256_of_its_bytes(self, world: JobWorld, storage: S3Server) -> None:
        await TestCopies.create_agent(world, storage)

        key = await take_snapshot(world, passes_of(world))

        _, in_storage = world.status(key)["locations"]
        assert world.status(key)["sha256"] == sha256(storage.file(in_storage["key"]).read_bytes()).hexdigest()


class WorldWithoutChecksums(JobWorld):
    """A server that keeps snapshots in its own object storage."""

    def open_server(self, endpoint: Endpoint) -> Server:
        self.opened.append(replace(super().open_server(endpoint), snapshots=SnapshotsWithoutChecksums(endpoint.url)))
        return self.opened[-1]


class SnapshotsWithoutChecksums(QdrantSnapshots):
    """Behaves like Qdrant with `snapshots_storage: s3`."""

    async def create(self, physical: str) -> SnapshotFile:
        return replace(await super().create(physical), sha256=None)


class TestCopies:
    """The agent has a storage for copies."""

    @staticmethod
    async def create_agent(world: JobWorld, storage: S3Server) -> None:
        bucket = {"endpoint": storage.url, "bucket": BUCKET, "prefix": world.agent, "secretRef": {"name": "s3"}}
        await world.create_agent(snapshots={"storage": {"s3": bucket}})
        keys = {"access-key-id": KEY.id, "secret-access-key": KEY.secret}
        world.secrets.values = {("agents", "s3", name): value for name, value in keys.items()}

    async def test_copy_is_stored_and_recorded(self, world: JobWorld, storage: S3Server) -> None:
        await self.create_agent(world, storage)

        key = await take_snapshot(world, passes_of(world))

        on_server, in_storage = world.status(key)["locations"]
        data = storage.file(in_storage["key"]).read_bytes()
        assert (on_server["type"], in_storage["type"]) == ("Qdrant", "S3")
        assert in_storage["key"] == f"{world.agent}/agents/{world.agent}/one_uid-one/{on_server['name']}"
        assert sha256(data).hexdigest() == world.status(key)["sha256"]
        message = next(item["message"] for item in world.status(key)["conditions"] if item["type"] == "Succeeded")
        assert "off the server too" in message

    async def test_deletion_policy_delete_removes_the_copy(self, world: JobWorld, storage: S3Server) -> None:
        await self.create_agent(world, storage)
        passes = passes_of(world)
        key = await take_snapshot(world, passes, deletionPolicy="Delete")
        in_storage = storage.file(world.status(key)["locations"][1]["key"])
        assert in_storage.exists()

        world.delete(key)
        await passes.run(key)

        assert not in_storage.exists()
        assert world.files() == []

    @pytest.mark.parametrize("is_ended", [True, False], ids=["removed", "written over"])
    async def test_forged_location_is_not_touched(self, world: JobWorld, storage: S3Server, is_ended: bool) -> None:
        """A forged status names another object, and the namespace's Secret could open it."""
        await self.create_agent(world, storage)
        key = await take_snapshot(world, passes_of(world), deletionPolicy="Delete")
        dump = storage.file(f"{world.agent}/database.dump")
        dump.write_bytes(b"no copy of a snapshot")
        status = world.status(key)
        on_server, in_storage = status["locations"]
        forged = status | {"locations": [on_server, in_storage | {"key": f"{world.agent}/database.dump"}]}
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

    async def test_unfit_snapshot_leaves_no_copy(self, world: JobWorld, storage: S3Server) -> None:
        await self.create_agent(world, storage)

        await take_snapshot(world, passes_of(world, FixedVerdicts([BAD])))

        assert [path for path in storage.folder.rglob(f"{world.agent}/**/*") if path.is_file()] == []
        assert world.files() == []

    async def test_lost_server_file_leaves_the_record(self, world: JobWorld, storage: S3Server) -> None:
        await self.create_agent(world, storage)
        passes = passes_of(world)
        key = await take_snapshot(world, passes)
        world.http.delete(f"/collections/{world.physical}/snapshots/{world.status(key)['name']}")

        await passes.run(key)
        world.clock.move(ms=int(passes.periods.recheck_s * 1000))
        await passes.run(key)

        assert [place["type"] for place in world.status(key)["locations"]] == ["S3"]
        assert world.condition(key, "Verified") == "True/Verified"

    async def test_rejecting_storage_is_retried_then_fails(self, world: JobWorld, storage: S3Server) -> None:
        await self.create_agent(world, storage)
        world.secrets.values = dict.fromkeys(world.secrets.values, "wrong")
        passes, key = passes_of(world), request_snapshot(world)

        await passes.run(key)
        assert world.condition(key, "Succeeded") == "Unknown/StorageRejected"

        world.clock.move(ms=700_000)
        await passes.run(key)
        assert world.condition(key, "Succeeded") == "False/StorageRejected"
        assert world.files() == []


class TestImport:
    """Import of a snapshot from a bucket."""

    @staticmethod
    async def put_in_bucket(world: JobWorld, storage: S3Server, **more: Any) -> dict[str, Any]:
        """Put a snapshot of the agent into the bucket; return the spec that imports it."""
        await TestCopies.create_agent(world, storage)
        passes = passes_of(world)
        source = world.status(await take_snapshot(world, passes, "before"))
        in_storage = source["locations"][1]
        place = {
            "endpoint": in_storage["endpoint"],
            "bucket": BUCKET,
            "key": in_storage["key"],
            "secretRef": {"name": "s3"},
        }
        return {"import": {"s3": place | {"sha256": source["sha256"]} | more}}

    async def test_import_is_verified_and_recorded(self, world: JobWorld, storage: S3Server) -> None:
        spec = await self.put_in_bucket(world, storage)
        files = world.files()

        key = await take_snapshot(world, passes_of(world), "taken", **spec)

        status = world.status(key)
        assert world.condition(key, "Succeeded") == "True/SnapshotTaken"
        assert world.condition(key, "Verified") == "True/ComparedWithRecord"
        assert [place["type"] for place in status["locations"]] == ["S3"]
        assert status["points"] == {"before": 10, "after": 10}
        assert (status["owner"]["name"], status["sha256"]) == (world.agent, spec["import"]["s3"]["sha256"])
        assert (world.collections(), world.files()) == ([world.physical], files)

    async def test_foreign_snapshot_needs_a_takeover_entry(self, world: JobWorld, storage: S3Server) -> None:
        """The owner of the connection lists the other cluster; an annotation is not enough."""
        spec = await self.put_in_bucket(world, storage)
        made_in, world.cluster.identity = world.cluster.identity, f"another than {world.agent}'s"
        passes = passes_of(world)

        refused = await take_snapshot(world, passes, "refused", **spec)
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
    async def test_mismatch_is_rejected_and_object_kept(
        self, world: JobWorld, storage: S3Server, more: dict[str, Any], reason: str
    ) -> None:
        spec = await self.put_in_bucket(world, storage, **more)
        before = {path for path in storage.folder.rglob("*") if path.is_file()}

        key = await take_snapshot(world, passes_of(world), "wrong", deletionPolicy="Delete", **spec)
        assert world.condition(key, "Succeeded") == f"False/{reason}"

        world.delete(key)
        await passes_of(world).run(key)
        assert {path for path in storage.folder.rglob("*") if path.is_file()} == before
        assert world.collections() == [world.physical]

    async def test_invalid_snapshot_bytes_are_rejected(self, world: JobWorld, storage: S3Server) -> None:
        spec = await self.put_in_bucket(world, storage)
        place = spec["import"]["s3"]
        storage.file(place["key"]).write_bytes(b"no snapshot")
        place["sha256"] = sha256(b"no snapshot").hexdigest()

        passes, key = passes_of(world), request_snapshot(world, "wrong", **spec)
        for _ in range(3):
            with suppress(StoreUnavailable):
                await passes.run(key)

        assert world.condition(key, "Succeeded") == "False/NotRestorable"
        assert world.collections() == [world.physical]


class TestDeletion:
    async def test_removes_the_file(self, world: JobWorld) -> None:
        await world.create_agent()
        passes = passes_of(world)
        key = await take_snapshot(world, passes, deletionPolicy="Delete")

        world.delete(key)
        await passes.run(key)

        assert world.table.get(key) is None
        assert world.files() == []

    async def test_removes_the_file_of_an_unfinished_one(self, world: JobWorld) -> None:
        await world.create_agent()
        passes, key = passes_of(world, FixedVerdicts([StoreUnavailable("no room")])), request_snapshot(world)
        with pytest.raises(StoreUnavailable):
            await passes.run(key)

        world.delete(key)
        await passes.run(key)

        assert world.table.get(key) is None
        assert world.files() == []

    async def test_removes_a_file_not_yet_recorded(self, world: JobWorld) -> None:
        await world.create_agent()
        passes, key = passes_of(world), request_snapshot(world)
        await world.with_server(lambda server: server.snapshots.collections())
        await lose_answer(world, passes, key)

        world.delete(key)
        await passes.run(key)

        assert world.table.get(key) is None
        assert world.files() == []

    async def test_waits_a_while_for_unavailable_server(self, world: JobWorld) -> None:
        await world.create_agent()
        passes = passes_of(world)
        key = await take_snapshot(world, passes, deletionPolicy="Delete")
        world.opened[0].snapshots.metadata = raise_unavailable  # type: ignore[method-assign]
        world.delete(key)
        world.clock.value_ms = 1_767_225_600_000 + 1_000

        with pytest.raises(StoreUnavailable):
            await passes.run(key)
        world.clock.move(ms=400_000)
        await passes.run(key)

        assert world.table.get(key) is None
        assert world.events()[-1] == "SnapshotKept"

    async def test_last_snapshot_removes_the_placeholder(self, world: JobWorld) -> None:
        await world.create_agent()
        passes = passes_of(world)
        keys = [await take_snapshot(world, passes, name, deletionPolicy="Delete") for name in ("one", "two")]
        assert (
            await world.with_server(lambda s: delete_keeping_snapshots(s.collections, s.snapshots, world.physical)) == 2
        )

        for key, left in zip(keys, ([world.physical], []), strict=True):
            world.delete(key)
            await passes.run(key)
            assert world.collections() == left


async def test_deleted_collection_gets_a_placeholder(
    world: JobWorld,
) -> None:
    await world.create_agent()
    passes = passes_of(world)
    key = await take_snapshot(world, passes)
    world.http.delete(f"/collections/{world.physical}")

    await passes.run(key)

    assert world.files() == [world.status(key)["name"]]
    assert world.condition(key, "Verified") == "True/Verified"


async def test_lost_file_is_reported(world: JobWorld) -> None:
    await world.create_agent()
    passes = passes_of(world)
    key = await take_snapshot(world, passes)
    world.http.delete(f"/collections/{world.physical}/snapshots/{world.status(key)['name']}")

    assert await passes.run(key) == passes.periods.recheck_s
    world.clock.move(ms=int(passes.periods.recheck_s * 1000))
    await passes.run(key)

    assert world.condition(key, "Verified") == "False/SnapshotLost"
    assert world.status(key)["locations"] == []
    assert world.events()[-1] == "BytesLost"


async def test_one_missing_listing_changes_nothing(world: JobWorld) -> None:
    """Only two missing listings at least `recheck_s` apart count, and a listing with the file restarts the wait."""
    await world.create_agent()
    passes = passes_of(world)
    key = await take_snapshot(world, passes)
    before, again_s = world.status(key), passes.periods.recheck_s
    hidden = HiddenFiles(world)

    for is_hidden, due_s in ((True, again_s), (True, again_s - 20), (False, None), (True, again_s)):
        hidden.is_on = is_hidden
        assert await passes.run(key) == (passes.periods.check_period_s if due_s is None else due_s)
        world.clock.move(ms=20_000 if is_hidden else 3_600_000)

    assert world.status(key) == before
    assert "BytesLost" not in world.events()


class HiddenFiles:
    """Hides the files of a server while `is_on` is set."""

    def __init__(self, world: JobWorld) -> None:
        self.is_on = False
        for server in world.opened:
            self._wrap(server.snapshots)

    def _wrap(self, store: Any) -> None:
        listed = store.files

        async def files(physical: str) -> Any:
            return [] if self.is_on else await listed(physical)

        store.files = files


async def test_missing_connection_is_awaited(world: JobWorld) -> None:
    await world.create_agent()
    world.table.remove(world.connection)
    passes, key = passes_of(world), request_snapshot(world)

    await passes.run(key)

    assert world.condition(key, "Succeeded") == "Unknown/ConnectionNotFound"


async def request_verification(world: JobWorld, key: Key, request: str) -> None:
    document = world.must_get(key)
    annotations = {"agentmemory.dev/verify-requested-at": request}
    world.table.put(document | {"metadata": document["metadata"] | {"annotations": annotations}})


@pytest.mark.parametrize(
    ("verify", "mode", "last", "verified"),
    [
        ("Full", "Full", BAD, "False/CopyDiffers"),
        ("Checksum", "Checksum", BAD, "False/CopyDiffers"),
        ("None", "Full", BAD, "False/CopyDiffers"),
        ("Full", "Full", StoreRejected(401, "invalid key"), "Unknown/QdrantRejected"),
    ],
)
async def test_each_verify_request_is_served_once(world: JobWorld, verify: str, mode: str, last, verified) -> None:
    await world.create_agent()
    verifier = FixedVerdicts([GOOD, GOOD, last])
    passes = passes_of(world, verifier)
    key = await take_snapshot(world, passes, verify=verify)

    for request in ("1", "1", "2"):
        await request_verification(world, key, request)
        await passes.run(key)

    assert verifier.modes == [verify, mode, mode]
    assert (world.condition(key, "Succeeded"), world.condition(key, "Verified")) == (
        "True/SnapshotTaken",
        verified,
    )
    assert world.status(key)["verifyRequest"] == "2"
    assert len(world.files()) == 1
    assert world.events() == ["SnapshotMade", "SnapshotVerified", "SnapshotVerified"]


async def test_only_concurrent_deletions_are_counted(world: JobWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.create_agent(points=10)

    def delete(*ids: int) -> None:
        body = {"payload": {"deletedAt": world.clock.now_ms(), "rev": 2}, "points": list(ids)}
        world.http.post(f"/collections/{world.alias}/points/payload?wait=true", json=body).raise_for_status()

    delete(1, 2, 3)
    verification = Verification(ScratchCollections(world.cluster.cluster_id))
    before = await take_snapshot(world, passes_of(world, verification), "before")
    create = QdrantSnapshots.create

    async def create_and_delete(self: QdrantSnapshots, physical: str) -> SnapshotFile:
        file = await create(self, physical)
        delete(4)
        return file

    monkeypatch.setattr(QdrantSnapshots, "create", create_and_delete)
    concurrent = await take_snapshot(world, passes_of(world, verification), "beside")

    statuses = [world.status(key) for key in (before, concurrent)]
    assert [status["deletedMeanwhile"] for status in statuses] == [0, 1]
    assert [status["points"] for status in statuses] == [{"before": 7, "after": 7}, {"before": 7, "after": 6}]
    messages = [find_condition(status, "Verified")["message"] for status in statuses]
    assert "7 memories, 7 before and 7 after it was made;" in messages[0]
    assert "7 memories, 7 before and 6 after it was made, 1 deleted meanwhile" in messages[1]


@pytest.mark.parametrize("is_before_the_file", [True, False], ids=["before the file", "after it"])
async def test_settings_may_change_meanwhile(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch, is_before_the_file: bool
) -> None:
    await world.create_agent(points=10)
    create = QdrantSnapshots.create

    def change(path: str, m: int) -> None:
        world.http.patch(f"/collections/{path}", json={"hnsw_config": {"m": m}}).raise_for_status()

    async def create_and_change(self: QdrantSnapshots, physical: str) -> SnapshotFile:
        if is_before_the_file:
            change(physical, 24)
        file = await create(self, physical)
        change(physical, 24)
        return file

    monkeypatch.setattr(QdrantSnapshots, "create", create_and_change)
    passes = passes_of(world, Verification(ScratchCollections(world.cluster.cluster_id)))
    key = await take_snapshot(world, passes)
    assert world.condition(key, "Verified") == "True/Verified"

    # The record contains both settings, so later changes of the live collection do not matter.
    change(world.physical, 32)
    await request_verification(world, key, "later")
    await passes.run(key)
    assert world.condition(key, "Verified") == "True/Verified"
