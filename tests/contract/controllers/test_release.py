"""Deletion of an AgentMemory with snapshots or a final snapshot, against a server."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.collections.reconcile import reconcile
from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.collections.scratch import ScratchCollections
from agentmemory_operator.collections.takeover_requests import TakeoverRequests
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.controllers.deletion import FINALIZER, Deletion
from agentmemory_operator.errors import DeletionPending, NamespaceTerminating, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import Key
from agentmemory_operator.snapshots.controller import SnapshotPasses
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.verify import Verification
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.conditions import ConditionState
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.job.job_world import EMBEDDING, JobWorld
from tests.support.spec.documents import memory_document


class Stage:
    """One agent under deletion, and the use cases that delete it."""

    def __init__(self, world: JobWorld) -> None:
        self.world = world
        self.store = QdrantCollections(world.url)
        self.connections = Connections(world.table, world.secrets, lambda _: self.store)
        parts = (world.table, world.servers, world.cluster, world.clock, world.requested.append)
        copies, scratch = Copies(Storages(world.secrets, S3Objects)), ScratchCollections(world.cluster.cluster_id)
        self.snapshots = SnapshotPasses(
            *parts,
            prover=Verification(scratch),
            copies=copies,
            scratch=scratch,
            takeover_requests=TakeoverRequests(world.table),
        )
        self.release = Deletion(
            world.table, self.connections, world.cluster, world.requested.append, world.servers, None
        )

    @property
    def memory(self) -> Key:
        return Key("AgentMemory", "agents", self.world.agent)

    @property
    def final(self) -> Key:
        (key,) = [key for key in self.world.table.keys("MemorySnapshot") if "-final-" in key.name]
        return key

    async def create(self, points: int = 10, **spec: Any) -> None:
        await self.world.create_agent(points, **spec)
        document = self.world.must_get(self.memory)
        self.world.table.put(document | {"metadata": document["metadata"] | {"finalizers": [FINALIZER]}})
        self.world.delete(self.memory)

    async def run(self, *, is_overdue: bool = False) -> None:
        document = self.world.must_get(self.memory)
        await self.release.run(document, Metadata.model_validate(document["metadata"]), is_overdue=is_overdue)

    async def snapshot(self, name: str = "one") -> None:
        key = self.world.apply("MemorySnapshot", name, agentMemoryRef={"name": self.world.agent})
        await self.snapshots.run(key)

    @property
    def is_deleted(self) -> bool:
        return self.world.table.get(self.memory) is None


@pytest.fixture
async def stage(qdrant_url: str) -> AsyncIterator[Stage]:
    world = JobWorld(qdrant_url)
    stage = Stage(world)
    yield stage
    await stage.store.close()
    await world.close()


class TestFinalSnapshot:
    async def test_deletion_waits_for_it(self, stage: Stage) -> None:
        await stage.create(deletionPolicy="Snapshot")

        with pytest.raises(DeletionPending, match="-final-uid-j-"):
            await stage.run()
        assert not stage.is_deleted
        await stage.snapshots.run(stage.final)
        await stage.run()

        assert stage.is_deleted
        assert stage.world.condition(stage.final, "Verified") == "True/Verified"
        event = stage.world.cluster.events[-1]
        assert (event.reason, stage.final.name in event.message) == ("CollectionDeleted", True)
        assert stage.world.files() == [stage.world.status(stage.final)["name"]]

    async def test_event_counts_later_writes(self, stage: Stage) -> None:
        await stage.create(deletionPolicy="Snapshot")
        with pytest.raises(DeletionPending):
            await stage.run()
        await stage.snapshots.run(stage.final)
        stage.world.store(2, first=100)

        await stage.run()

        assert "has them, except 2 written later" in stage.world.cluster.events[-1].message

    async def test_is_requested_once(self, stage: Stage) -> None:
        await stage.create(deletionPolicy="Snapshot")

        for _ in range(3):
            with pytest.raises(DeletionPending):
                await stage.run()

        assert len(stage.world.cluster.created) == 1

    async def test_failed_snapshot_keeps_the_collection(self, stage: Stage) -> None:
        await stage.create(deletionPolicy="Snapshot")
        with pytest.raises(DeletionPending):
            await stage.run()
        stage.snapshots.creator.prover = RejectingVerifier()
        await stage.snapshots.run(stage.final)

        await stage.run()

        assert stage.is_deleted
        event = stage.world.cluster.events[-1]
        assert (event.reason, "3 points are missing" in event.message) == ("CollectionKept", True)
        assert stage.world.collections() == [stage.world.physical]

    async def test_empty_collection_needs_none(self, stage: Stage) -> None:
        await stage.create(points=0, deletionPolicy="Snapshot")

        await stage.run()

        assert (stage.is_deleted, stage.world.collections()) == (True, [])
        assert stage.world.table.keys("MemorySnapshot") == []

    async def test_is_verified_even_if_verify_is_none(self, stage: Stage) -> None:
        await stage.create(deletionPolicy="Snapshot", snapshots={"verify": "None"})

        with pytest.raises(DeletionPending):
            await stage.run()

        assert stage.world.must_get(stage.final)["spec"]["verify"] == "Full"

    async def test_terminating_namespace_keeps_the_collection(self, stage: Stage) -> None:
        """The deletion is not blocked."""
        await stage.create(deletionPolicy="Snapshot")
        stage.world.cluster.creation_error = NamespaceTerminating("because it is being terminated")

        await stage.run()

        assert (stage.is_deleted, stage.world.collections()) == (True, [stage.world.physical])
        assert stage.world.events()[-1] == "CollectionKept"

    async def test_suspended_agent_keeps_the_collection(self, stage: Stage) -> None:
        await stage.create(deletionPolicy="Snapshot", suspend=True)

        await stage.run()

        assert (stage.is_deleted, stage.world.collections()) == (True, [stage.world.physical])
        assert stage.world.table.keys("MemorySnapshot") == []


@dataclass
class RejectingVerifier:
    """A verifier that rejects every snapshot."""

    async def verify_status(self, server: Server, metadata: Metadata, status: Json) -> ConditionState:
        return ConditionState("Verified", False, "CopyDiffers", "3 points are missing")


class TestPlaceholder:
    async def test_snapshots_outlive_a_deleted_agent(self, stage: Stage) -> None:
        confirm = {"agentmemory.dev/confirm-delete": stage.world.alias}
        await stage.world.create_agent()
        await stage.snapshot()
        document = stage.world.must_get(stage.memory)
        metadata = document["metadata"] | {"finalizers": [FINALIZER], "annotations": confirm}
        stage.world.table.put(
            document | {"metadata": metadata, "spec": document["spec"] | {"deletionPolicy": "Delete"}}
        )
        stage.world.delete(stage.memory)

        await stage.run()

        assert stage.is_deleted
        assert "1 of its snapshots" in stage.world.cluster.events[-1].message
        assert len(stage.world.files()) == 1

    async def test_is_created_by_the_next_pass_after_a_kill(self, stage: Stage) -> None:
        await stage.create(deletionPolicy="Delete")
        await stage.snapshot()
        stage.world.http.delete(f"/collections/{stage.world.physical}")

        await stage.run()

        assert stage.is_deleted
        assert len(stage.world.files()) == 1

    async def test_new_agent_uses_another_number(self, stage: Stage) -> None:
        world = stage.world
        await stage.create(deletionPolicy="Delete")
        await stage.snapshot()
        world.http.delete(f"/collections/{world.physical}")
        await stage.run()
        document = memory_document(world.agent, embedding=EMBEDDING)
        desired = desired_collection(parse_agent_memory(document), cluster_id=world.cluster.identity)

        async def create(server: Server) -> str:
            done = await reconcile(world.alias, desired, store=server.collections, last_physical=None, last_points=0)
            return done.observed.physical

        assert await world.with_server(create) == f"{world.alias}__2"
        assert await world.with_server(create) == f"{world.alias}__2"
        assert len(world.files()) == 1

    async def test_killed_creation_resumes_beside_placeholder(self, stage: Stage) -> None:
        world = stage.world
        await world.create_agent(points=0)
        await world.with_server(lambda server: server.snapshots.create_placeholder(f"{world.alias}__3"))
        document = world.must_get(stage.memory)
        desired = desired_collection(parse_agent_memory(document), cluster_id=world.cluster.identity)

        async def create_and_fail(server: Server) -> None:
            await server.collections.delete(world.physical)
            await server.snapshots.create_placeholder(world.physical)
            server.collections.apply, apply = fail_at_alias(server), server.collections.apply  # type: ignore[method-assign]
            with pytest.raises(StoreUnavailable):
                await reconcile(world.alias, desired, store=server.collections, last_physical=None, last_points=0)
            server.collections.apply = apply  # type: ignore[method-assign]
            await reconcile(world.alias, desired, store=server.collections, last_physical=None, last_points=0)

        await world.with_server(create_and_fail)

        assert world.collections() == [world.physical, f"{world.alias}__2", f"{world.alias}__3"]

    async def test_placeholder_is_not_observed(self, stage: Stage) -> None:
        world = stage.world
        await world.with_server(lambda server: server.snapshots.create_placeholder(world.physical))

        async def read(server: Server) -> tuple[Any, list[str]]:
            observed = await server.collections.observe(world.alias, world.physical)
            holdings = await server.collections.list_agent_collections()  # type: ignore[attr-defined]
            return observed, [holding.physical for holding in holdings]

        observed, held = await world.with_server(read)
        assert observed is None
        assert world.physical not in held


def fail_at_alias(server: Server) -> Any:
    apply = server.collections.apply

    async def apply_until_alias(physical: str, change: Any) -> None:
        if type(change).__name__ == "SetAlias":
            raise StoreUnavailable("the operator died")
        await apply(physical, change)

    return apply_until_alias


async def test_replaced_collection_is_deleted_too(stage: Stage) -> None:
    await stage.create(points=0, deletionPolicy="Delete")
    replaced = f"{stage.world.alias}__7"
    unrelated = f"{stage.world.alias}-too__7"
    body = {"vectors": {"size": 4, "distance": "Cosine"}, "metadata": {"agentmemoryPrevious": {"keepUntil": "x"}}}
    for name in (replaced, unrelated):
        stage.world.http.put(f"/collections/{name}", json=body).raise_for_status()

    await stage.run()

    assert stage.is_deleted
    assert stage.world.collections() == [unrelated]
