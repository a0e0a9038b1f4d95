"""Retention on a real engine and storage: everything expired is removed, whatever call a crash interrupts."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.collections.replaced_collection import delete_keeping_snapshots
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

KEEP_NEWEST_ONLY = {"keepLast": 1, "daily": 0, "weekly": 0, "monthly": 0}
DAY_MS = 86_400_000


@dataclass(slots=True)
class CallBudget:
    """The number of calls until the process is killed."""

    calls: int

    def spend(self) -> None:
        if not self.calls:
            raise ProcessKilled
        self.calls -= 1


class Killable:
    """Forwards calls until the process is killed."""

    def __init__(self, store: object, budget: CallBudget) -> None:
        self._store, self._budget = store, budget

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        async def counted(*arguments: Any, **more: Any) -> Any:
            self._budget.spend()
            return await call(*arguments, **more)

        # Streams and attributes are not counted.
        return counted if name in CHANGING else call


CHANGING = (
    *("write_status", "delete_object", "post_event"),
    *("metadata", "files", "create_placeholder", "delete_file"),
    *("delete", "abort_uploads"),
)


class Operator:
    """An operator over a world's objects that may be killed; the next one continues its work."""

    def __init__(self, world: JobWorld, calls: int = 1_000_000) -> None:
        self.world, self.budget = world, CallBudget(calls)
        cluster: Any = Killable(world.cluster, self.budget)
        servers = Servers(world.table, world.secrets, self.open_server, cluster_id=world.cluster.cluster_id)
        copies = Copies(
            Storages(world.secrets, lambda *arguments, **more: Killable(S3Objects(*arguments, **more), self.budget))
        )
        parts = (world.table, servers, cluster, world.clock, world.requested.append)
        scratch = ScratchCollections(world.cluster.cluster_id)
        prover = Verification(scratch, None, copies.open_copy)
        takeover_requests = TakeoverRequests(world.table)
        self.passes = SnapshotPasses(
            *parts, prover=prover, copies=copies, scratch=scratch, takeover_requests=takeover_requests
        )
        parts = (world.table, cluster, world.clock, world.requested.append)
        self.retention = SnapshotSchedule(*parts, self.passes.removal).retention

    def open_server(self, endpoint: Endpoint) -> Server:
        server = self.world.open_server(endpoint)
        killable: tuple[Any, Any] = Killable(server.collections, self.budget), Killable(server.snapshots, self.budget)
        return replace(server, collections=killable[0], snapshots=killable[1])

    async def take(self, name: str) -> Key:
        """Take a snapshot under retention, a day after the previous one."""
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
        """Run retention until nothing is left to do."""
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
    block: dict[str, Any] = {"retention": KEEP_NEWEST_ONLY}
    if storage is not None:
        bucket = {"endpoint": storage.url, "bucket": BUCKET, "prefix": world.agent, "secretRef": {"name": "s3"}}
        block["storage"] = {"s3": bucket}
        keys = {"access-key-id": KEY.id, "secret-access-key": KEY.secret}
        world.secrets.values = {("agents", "s3", name): value for name, value in keys.items()}
    await world.create_agent(snapshots=block)
    version = (await world.with_server(lambda server: server.collections.server())).version
    world.table.put(world.must_get(world.connection) | {"status": {"version": version}})


def list_bucket(world: JobWorld, storage: S3Server) -> list[str]:
    return sorted(path.name for path in storage.folder.rglob(f"{world.agent}/**/*") if path.is_file())


async def test_killed_removal_is_completed(world: JobWorld, storage: S3Server) -> None:
    """Each operator makes one call more than the previous one and is then killed."""
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
        locations = {place["type"]: place for place in world.status(old)["locations"]} if world.table.get(old) else {}
        assert set(world.files()) <= {kept, locations.get("Qdrant", {}).get("name")}
        assert locations or list_bucket(world, storage) == [kept]

    assert kills >= 7
    assert world.table.get(old) is None
    assert (world.files(), list_bucket(world, storage)) == ([kept], [kept])
    assert world.condition(new, "Succeeded") == "True/SnapshotTaken"
    assert world.collections() == [world.physical]


async def test_last_snapshot_takes_its_placeholder_along(world: JobWorld) -> None:
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
