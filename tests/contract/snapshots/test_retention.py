"""What retention removes on a real engine and a real storage: every byte of it, whoever is killed, and nothing else."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.collections.retire import delete_keeping_snapshots
from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.collections.takeover_requests import TakeoverRequests
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, MEMORY_SNAPSHOT, Key
from agentmemory_operator.snapshots.controller import SnapshotPasses
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.retention import PERIOD_S
from agentmemory_operator.snapshots.rules.facts import RETENTION_LABEL, UNDER_RETENTION
from agentmemory_operator.snapshots.schedule import SnapshotSchedule
from agentmemory_operator.snapshots.verify import Verification
from tests.support.engine.interleaved_store import ProcessKilled
from tests.support.job.job_world import JobWorld
from tests.support.web.s3_server import BUCKET, KEY, S3Server

NONE_BUT_THE_NEWEST = {"keepLast": 1, "daily": 0, "weekly": 0, "monthly": 0}
DAY_MS = 86_400_000


@dataclass(slots=True)
class Life:
    """How many more calls there are."""

    calls: int

    def spend(self) -> None:
        if not self.calls:
            raise ProcessKilled
        self.calls -= 1


class Mortal:
    """Passes calls on until the process is killed."""

    def __init__(self, store: object, life: Life) -> None:
        self._store, self._life = store, life

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        async def counted(*given: Any, **more: Any) -> Any:
            self._life.spend()
            return await call(*given, **more)

        # Streams and what is no call at all are not counted.
        return counted if name in CHANGING else call


CHANGING = (
    *("write_status", "delete_object", "post_event"),
    *("metadata", "files", "create_placeholder", "delete_file"),
    *("delete", "abort_uploads"),
)


class Operator:
    """One operator over a world's objects, which may be killed; another one finds what it left."""

    def __init__(self, world: JobWorld, calls: int = 1_000_000) -> None:
        self.world, self.life = world, Life(calls)
        cluster: Any = Mortal(world.cluster, self.life)
        servers = Servers(world.table, world.secrets, self.open_server, cluster_id=world.cluster.cluster_id)
        copies = Copies(Storages(world.secrets, lambda *given, **more: Mortal(S3Objects(*given, **more), self.life)))
        parts = (world.table, servers, cluster, world.clock, world.requested.append)
        scratch = ScratchCollections(world.cluster.cluster_id)
        prover = Verification(scratch, None, copies.open_copy)
        asking = TakeoverRequests(world.table)
        self.passes = SnapshotPasses(*parts, prover=prover, copies=copies, scratch=scratch, takeover_requests=asking)
        parts = (world.table, cluster, world.clock, world.requested.append)
        self.retention = SnapshotSchedule(*parts, self.passes.removal).retention

    def open_server(self, endpoint: Endpoint) -> Server:
        server = self.world.open_server(endpoint)
        mortal: tuple[Any, Any] = Mortal(server.collections, self.life), Mortal(server.snapshots, self.life)
        return replace(server, collections=mortal[0], snapshots=mortal[1])

    async def take(self, name: str) -> Key:
        """Make a snapshot of the schedule, a day after the one before."""
        self.world.clock.move(days=1)
        key = self.world.apply(MEMORY_SNAPSHOT, name, agentMemoryRef={"name": self.world.agent}, verify="Checksum")
        document = self.world.must_get(key)
        self.world.table.put(
            document | {"metadata": document["metadata"] | {"labels": {RETENTION_LABEL: UNDER_RETENTION}}}
        )
        for _ in range(2):
            await self.passes.run(key)
        assert self.world.condition(key, "Succeeded") == "True/SnapshotTaken"
        return key

    async def retain(self) -> None:
        """Run retention until it has nothing left to do."""
        for _ in range(20):
            due_s = await self.retention.run(Key(AGENT_MEMORY, "agents", self.world.agent))
            for kind, name in self.world.cluster.deleted:
                if self.world.table.get(key := Key(kind, "agents", name)) is not None:
                    self.world.table.remove(key)
            if due_s == PERIOD_S:
                return
        raise AssertionError("it never settles")


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[JobWorld]:
    world = JobWorld(qdrant_url)
    yield world
    await world.close()


async def create_agent(world: JobWorld, storage: S3Server | None = None) -> None:
    block: dict[str, Any] = {"retention": NONE_BUT_THE_NEWEST}
    if storage is not None:
        bucket = {"endpoint": storage.url, "bucket": BUCKET, "prefix": world.agent, "secretRef": {"name": "s3"}}
        block["storage"] = {"s3": bucket}
        keys = {"access-key-id": KEY.id, "secret-access-key": KEY.secret}
        world.secrets.values = {("agents", "s3", name): value for name, value in keys.items()}
    await world.create_agent(snapshots=block)
    version = (await world.with_server(lambda server: server.collections.server())).version
    world.table.put(world.must_get(world.connection) | {"status": {"version": version}})


def bucket_of(world: JobWorld, storage: S3Server) -> list[str]:
    return sorted(path.name for path in storage.folder.rglob(f"{world.agent}/**/*") if path.is_file())


async def test_the_copy_the_file_and_the_object_go_whoever_is_killed_at_whatever_call(
    world: JobWorld, storage: S3Server
) -> None:
    """Each operator does one call more than the one before it, and is killed at the next."""
    await create_agent(world, storage)
    first = Operator(world)
    old, new = await first.take("old"), await first.take("new")
    (kept,) = (place["name"] for place in world.status(new)["locations"] if place["type"] == "Qdrant")
    kills = 0
    while True:
        try:
            await Operator(world, calls=kills).retain()
            break
        except ProcessKilled:
            kills += 1
        named = {place["type"]: place for place in world.status(old)["locations"]} if world.table.get(old) else {}
        assert set(world.files()) <= {kept, named.get("Qdrant", {}).get("name")}
        assert named or bucket_of(world, storage) == [kept]

    assert kills >= 7
    assert world.table.get(old) is None
    assert (world.files(), bucket_of(world, storage)) == ([kept], [kept])
    assert world.condition(new, "Succeeded") == "True/SnapshotTaken"
    assert world.collections() == [world.physical]


async def test_the_placeholder_of_a_collection_that_was_replaced_goes_with_its_last_snapshot(world: JobWorld) -> None:
    await create_agent(world)
    operator = Operator(world)
    await operator.take("old")
    await world.with_server(
        lambda server: delete_keeping_snapshots(server.collections, server.snapshots, world.physical)
    )
    assert world.collections() == [world.physical]
    second = f"{world.alias}__2"
    world.http.put(f"/collections/{second}", json={"vectors": {"size": 4, "distance": "Cosine"}}).raise_for_status()
    key = world.apply(MEMORY_SNAPSHOT, "new", agentMemoryRef={"name": world.agent})
    document, old = world.must_get(key), world.status(Key(MEMORY_SNAPSHOT, "agents", "old"))
    newer = old | {"startTime": "2030-01-01T00:00:00Z", "physical": second, "locations": []}
    labels = {"labels": {RETENTION_LABEL: UNDER_RETENTION}}
    world.table.put(document | {"status": newer, "metadata": document["metadata"] | labels})

    await operator.retain()

    assert world.collections() == [second]
    assert world.table.get(Key(MEMORY_SNAPSHOT, "agents", "old")) is None
