"""A plain collection behind an alias of its own name, over a real engine: whole, and gone on with after any kill."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.announce import AliasLocks
from agentmemory_operator.collections.reconcile import PassPermit, reconcile
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
    """The agent over a collection that somebody made by hand, of the alias's own name."""

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
        self.stays: Exception | None = None
        self.dies_then = False

    def with_crash_points(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return the call, where the end of the plain collection may be refused."""
        watched = super().with_crash_points(name, call)

        async def unless_it_stays(*args: Any, **more: Any) -> Any:
            if self.stays and (name, args[0]) == ("delete", self.alias):
                raise self.stays
            answer = await watched(*args, **more)
            if self.dies_then and (name, args[0]) == ("delete", self.alias):
                raise ProcessKilled
            return answer

        return unless_it_stays

    @property
    def first(self) -> str:
        return f"{self.alias}__1"

    @property
    def way_back(self) -> str:
        return f"{self.alias}__2"

    async def adopt(self, points: list[Json], **spec: Any) -> None:
        """Make the plain collection, and have it adopted; the alias is asked for."""
        plain = {"vectors": {"size": 4, "distance": "Cosine"}}
        self.http.put(f"/collections/{self.alias}", json=plain).raise_for_status()
        self.write(points)
        document = memory_document(self.agent, embedding=EMBEDDING, changePolicy="Apply", **spec)
        document["metadata"]["annotations"] = {MOVE_TO_ALIAS: "true"}
        self.table.put(document)
        await self.look()

    async def look(self) -> None:
        """Do what of a pass is about the collection, as the operator that comes next does first."""
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
    made = PlainWorld(qdrant_url)
    await made.adopt(FOREIGN)
    yield made
    await made.close()


async def test_everything_is_behind_the_alias_and_once_more_in_the_way_back(world: PlainWorld) -> None:
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


async def test_unasked_it_stays_as_it_is(world: PlainWorld) -> None:
    world.annotate(world.memory, {})

    await world.rebuild()

    assert (world.aliases(), world.collections()) == ({}, [world.alias])


async def test_what_was_written_before_the_move_is_in_both(world: PlainWorld) -> None:
    made = world.steps[RebuildStep.KEEP]

    async def keep_and_write(task: Any) -> str:
        told = await made(task)
        now_ms = world.clock.now_ms()
        payload = {"userId": "u", "type": "fact", "rev": 1, "updatedAt": now_ms}
        world.write([{"id": 50, "vector": [1, 0, 0, 1], "payload": payload}])
        world.write([{"id": 51, "vector": [1, 0, 0, 1], "payload": {"foreign": True}}])
        return told

    world.rebuilds.steps = dict(world.steps) | {RebuildStep.KEEP: keep_and_write}
    await world.rebuild()

    assert {50, 51} <= world.contents(world.alias).keys()
    assert world.contents(world.way_back) == world.contents(world.alias)


async def test_killed_at_ever_later_calls_it_is_gone_on_with_by_the_next_operator(world: PlainWorld) -> None:
    before = world.contents(world.alias)
    later = 1
    while True:
        world.crash_at = world.calls + later
        try:
            world.rebuilds = world.operator()
            await world.rebuild()
            break
        except ProcessKilled:
            await world.look()
            later += 1

    assert later > 10
    assert world.aliases() == {world.alias: world.first}
    assert world.contents(world.first) == world.contents(world.rebuild_status["source"]) == before
    assert world.collections() == [world.first, world.rebuild_status["source"]]


async def test_killed_before_there_is_an_alias_the_next_pass_makes_it_first_of_all(world: PlainWorld) -> None:
    before = world.contents(world.alias)
    world.dies_then = True
    with pytest.raises(ProcessKilled):
        await world.rebuild()
    assert world.alias not in [*world.aliases(), *world.collections()]

    await world.look()

    assert world.contents(world.alias) == before
    world.rebuilds = world.operator()
    await world.rebuild()
    assert (world.rebuild_status["state"], world.rebuild_status["source"]) == ("Done", world.way_back)


async def test_it_is_taken_back_to_the_copy(world: PlainWorld) -> None:
    before = world.contents(world.alias)
    await world.rebuild()
    await world.look()
    world.annotate(world.memory, {ROLLBACK_REBUILD: world.first})

    await world.rebuild()

    assert world.aliases() == {world.alias: world.way_back}
    assert world.contents(world.alias) == before


async def test_a_collection_that_refuses_to_go_leaves_writers_free(world: PlainWorld) -> None:
    world.stays = StoreRejected(403, "not allowed")

    await world.rebuild()

    assert (world.aliases(), world.collections()) == ({}, [world.alias])
    assert "agentmemoryMoving" not in world.metadata(world.alias)
    assert world.rebuild_status["state"] == "Failed"


async def test_no_other_name_is_ever_lost_when_the_object_asks_no_more(world: PlainWorld) -> None:
    """The collection may be gone already for all that is known: it is gone on with."""
    world.stays = StoreUnavailable("no answer")
    with pytest.raises(TransientError):
        await world.rebuild()
    assert world.metadata(world.alias)["agentmemoryMoving"]["phase"] == "Final"
    world.stays = None
    world.annotate(world.memory, {})

    await world.rebuild()

    assert world.aliases() == {world.alias: world.first}
    assert len(world.contents(world.alias)) == len(FOREIGN)
