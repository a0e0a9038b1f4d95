"""The replacement of a plain collection by an alias of the same name, on a real engine."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.announce import AliasLocks
from agentmemory_operator.collections.reconcile import PassPermit, reconcile
from agentmemory_operator.collections.rules.changes import SetAlias
from agentmemory_operator.collections.rules.desired import build_pass_terms, desired_collection
from agentmemory_operator.collections.rules.rebuild_record import REBUILD_KEY, RebuildStep
from agentmemory_operator.errors import StoreRejected, StoreUnavailable, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.rebuilds.catch_up import catch_up
from agentmemory_operator.rebuilds.copy import CopyStep
from agentmemory_operator.rebuilds.drain import mark_source_replaced
from agentmemory_operator.rebuilds.move import MoveStep
from agentmemory_operator.rebuilds.plain_swap import create_way_back
from agentmemory_operator.spec.kinds.agent_memory import MOVE_TO_ALIAS, ROLLBACK_REBUILD
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.interleaved_store import ProcessKilled
from tests.support.job.job_world import EMBEDDING
from tests.support.job.rebuild_world import BARE_STEPS, RebuildWorld
from tests.support.spec.documents import memory_document

UUID = "3f0e1f6a-6a0e-4b8e-9a39-0b8ad63f0c11"
FOREIGN: list[Json] = [
    {"id": 1, "vector": [1, 0, 0, 1], "payload": {"n": 1}},
    {"id": 2, "vector": [0, 1, 0, 1], "payload": {}},
    {"id": UUID, "vector": [0, 0, 1, 1], "payload": {"nested": {"a": [1, None, "x"]}, "updatedAt": "yesterday"}},
    {"id": 7, "vector": [1, 1, 0, 1], "payload": {"userId": "u", "type": "fact", "rev": 3, "updatedAt": 5}},
]


class PlainWorld(RebuildWorld):
    """An agent over a manually created collection with the name of the alias."""

    def __init__(self, url: str) -> None:
        steps = {
            **BARE_STEPS,
            RebuildStep.COPY: CopyStep(),
            RebuildStep.CATCH_UP: catch_up,
            RebuildStep.KEEP: create_way_back,
            RebuildStep.MOVE: MoveStep(AliasLocks(), lambda task: False, announce_s=0.0),
            RebuildStep.SETTLE: mark_source_replaced,
        }
        super().__init__(url, steps)
        self.deletion_error: Exception | None = None
        self.alias_error: Exception | None = None
        self.is_killed_after_deletion = False

    def with_crash_points(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return the call; the deletion of the plain collection can be made to fail."""
        crashing = super().with_crash_points(name, call)

        async def call_or_fail(*args: Any, **more: Any) -> Any:
            if self.deletion_error and (name, args[0]) == ("delete", self.alias):
                raise self.deletion_error
            if self.alias_error and name == "apply" and isinstance(args[1], SetAlias):
                raise self.alias_error
            answer = await crashing(*args, **more)
            if self.is_killed_after_deletion and (name, args[0]) == ("delete", self.alias):
                raise ProcessKilled
            return answer

        return call_or_fail

    @property
    def first(self) -> str:
        return f"{self.alias}__1"

    @property
    def way_back(self) -> str:
        return f"{self.alias}__2"

    async def adopt(self, points: list[Json], **spec: Any) -> None:
        """Create the plain collection, adopt it and request the alias."""
        plain = {"vectors": {"size": 4, "distance": "Cosine"}}
        self.http.put(f"/collections/{self.alias}", json=plain).raise_for_status()
        self.write(points)
        document = memory_document(self.agent, embedding=EMBEDDING, changePolicy="Apply", **spec)
        document["metadata"]["annotations"] = {MOVE_TO_ALIAS: "true"}
        self.table.put(document)
        await self.reconcile_collection()

    async def reconcile_collection(self) -> None:
        """Reconcile the collection, as a restarted operator does first."""
        document = self.must_get(self.memory)
        memory = parse_agent_memory(document)
        last = (document.get("status") or {}).get("collection") or {}
        desired = desired_collection(memory, cluster_id=self.cluster.identity)
        store = QdrantCollections(self.url)
        done = await reconcile(
            self.alias,
            desired,
            store=store,
            last_physical=last.get("physical"),
            last_points=last.get("points") or 0,
            permit=PassPermit(terms=build_pass_terms(memory, cluster_id=self.cluster.identity)),
        )
        await store.close()
        found = {"alias": self.alias, "physical": done.observed.physical, "points": done.observed.points}
        status = (document.get("status") or {}) | {"collection": found}
        self.table.put(document | {"status": status})

    def write(self, points: list[Json]) -> None:
        path = f"/collections/{self.alias}/points?wait=true"
        self.http.put(path, json={"points": points}).raise_for_status()

    def contents(self, collection: str) -> dict[int | str, Json]:
        body = {"limit": 1000, "with_payload": True, "with_vector": True}
        answer = self.http.post(f"/collections/{collection}/points/scroll", json=body).raise_for_status().json()
        return {point["id"]: point for point in answer["result"]["points"]}

    def files_of_all(self) -> list[str]:
        return [file for name in self.collections() for file in self.files(name)]


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[PlainWorld]:
    world = PlainWorld(qdrant_url)
    await world.adopt(FOREIGN)
    yield world
    await world.close()


async def test_alias_target_and_way_back_hold_all_points(world: PlainWorld) -> None:
    before = world.contents(world.alias)

    await world.rebuild()

    assert world.aliases() == {world.alias: world.first}
    assert world.collections() == [world.first, world.way_back]
    assert world.contents(world.first) == world.contents(world.way_back) == before
    assert world.files_of_all() == []
    assert (world.rebuild_status["state"], world.rebuild_status["source"]) == ("Done", world.way_back)
    assert world.rebuild_status["pauseMs"] >= 0
    assert "agentmemoryPrevious" in world.metadata(world.way_back)
    assert REBUILD_KEY not in world.metadata(world.way_back)


async def test_needs_the_annotation(world: PlainWorld) -> None:
    world.annotate(world.memory, {})

    await world.rebuild()

    assert (world.aliases(), world.collections()) == ({}, [world.alias])


async def test_write_before_the_move_is_in_both_copies(world: PlainWorld) -> None:
    keep = world.steps[RebuildStep.KEEP]

    async def keep_and_write(task: Any) -> str:
        message = await keep(task)
        now_ms = world.clock.now_ms()
        payload = {"userId": "u", "type": "fact", "rev": 1, "updatedAt": now_ms}
        world.write([{"id": 50, "vector": [1, 0, 0, 1], "payload": payload}])
        world.write([{"id": 51, "vector": [1, 0, 0, 1], "payload": {"foreign": True}}])
        return message

    world.rebuilds.steps = dict(world.steps) | {RebuildStep.KEEP: keep_and_write}
    await world.rebuild()

    assert {50, 51} <= world.contents(world.alias).keys()
    assert world.contents(world.way_back) == world.contents(world.alias)


async def test_resumes_after_repeated_kills(world: PlainWorld) -> None:
    before = world.contents(world.alias)
    calls_until_kill = 1
    while True:
        world.crash_at = world.calls + calls_until_kill
        try:
            world.rebuilds = world.operator()
            await world.rebuild()
            break
        except ProcessKilled:
            await world.reconcile_collection()
            calls_until_kill += 1

    assert calls_until_kill > 10
    assert world.aliases() == {world.alias: world.first}
    assert world.contents(world.first) == world.contents(world.rebuild_status["source"]) == before
    assert world.collections() == [world.first, world.rebuild_status["source"]]


async def test_missing_alias_is_created_first_after_kill(world: PlainWorld) -> None:
    before = world.contents(world.alias)
    world.is_killed_after_deletion = True
    with pytest.raises(ProcessKilled):
        await world.rebuild()
    assert world.alias not in [*world.aliases(), *world.collections()]

    await world.reconcile_collection()

    assert world.contents(world.alias) == before
    world.rebuilds = world.operator()
    await world.rebuild()
    assert (world.rebuild_status["state"], world.rebuild_status["source"]) == ("Done", world.way_back)


async def test_rollback_uses_the_copy(world: PlainWorld) -> None:
    before = world.contents(world.alias)
    await world.rebuild()
    await world.reconcile_collection()
    world.annotate(world.memory, {ROLLBACK_REBUILD: world.first})

    await world.rebuild()

    assert world.aliases() == {world.alias: world.way_back}
    assert world.contents(world.alias) == before


async def test_refused_deletion_releases_writers(world: PlainWorld) -> None:
    world.deletion_error = StoreRejected(403, "not allowed")

    await world.rebuild()

    assert (world.aliases(), world.collections()) == ({}, [world.alias])
    assert "agentmemoryMoving" not in world.metadata(world.alias)
    assert world.rebuild_status["state"] == "Failed"


async def test_continues_without_annotation_after_deletion(world: PlainWorld) -> None:
    """The outcome of the deletion is unknown: the collection may already be deleted."""
    world.deletion_error = StoreUnavailable("no answer")
    with pytest.raises(TransientError):
        await world.rebuild()
    assert world.metadata(world.alias)["agentmemoryMoving"]["phase"] == "Final"
    world.deletion_error = None
    world.annotate(world.memory, {})

    await world.rebuild()

    assert world.aliases() == {world.alias: world.first}
    assert len(world.contents(world.alias)) == len(FOREIGN)


async def test_refused_alias_is_created_by_the_next_pass(world: PlainWorld) -> None:
    world.alias_error = StoreRejected(403, "not allowed")

    with pytest.raises(TransientError, match="not allowed"):
        await world.rebuild()

    assert world.rebuild_status["state"] == "Waiting"
    assert (world.aliases(), world.alias in world.collections()) == ({}, False)
    world.alias_error = None
    await world.reconcile_collection()
    assert world.aliases() == {world.alias: world.first}
    await world.rebuild()
    assert world.rebuild_status["state"] == "Done"
