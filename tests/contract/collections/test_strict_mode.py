"""Agents on a collection with a strict mode that rejects exact counts, facets and searches with a 400.

The administrator of the server sets that limit, in its configuration or by an API call; no object of this operator
does.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.errors import DeletionPending, StoreRejected
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.runtime.object_table import MEMORY_SNAPSHOT
from agentmemory_operator.search.counts import MAX_LISTED, count_memories
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.presets import Lifecycle
from agentmemory_operator.spec.presets.table import Reranking
from tests.contract.controllers.test_release import Stage
from tests.contract.lifecycle.test_cleanup import clean
from tests.contract.restores.test_in_place import OLD, InPlaceWorld
from tests.support.engine.agents import World, open_world, search_request, vector_of
from tests.support.job.job_world import JobWorld
from tests.support.job.rebuild_world import FullWorld
from tests.support.job.restore_world import POINTS, RestoreWorld
from tests.support.web.http_server import check_success

# Smaller than the number of points in every test.
MAX_QUERY_LIMIT = 7
EVERYTHING: dict[str, Any] = {"must": []}


def forbid(url: str, collection: str, **limits: Any) -> None:
    """Set a strict mode that forbids exact calls, and `limits`."""
    strict = {"enabled": True, "search_allow_exact": False} | limits
    check_success(httpx.patch(f"{url}/collections/{collection}", json={"strict_mode_config": strict}))


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    """An agent with 30 memories on a collection that forbids exact calls, opened with `allows_exact=False`."""
    async with open_world(qdrant_url, keyword=KeywordSource(language="english", window=2)) as world:
        for number in range(30):
            await world.add(f"m{number}", type="fact" if number % 3 else "task")
        forbid(qdrant_url, world.agent.alias)
        world.agent = replace(world.agent, allows_exact=False)
        yield world


@pytest.mark.parametrize("asked", [{}, {"exact": True}, {"exact": True, "filter": EVERYTHING}], ids=str)
async def test_server_rejects_exact_calls(world: World, qdrant_url: str, asked) -> None:
    points = f"{qdrant_url}/collections/{world.agent.alias}"
    calls = {
        "points/count": asked,
        "facet": {"key": "type", "exact": True},
        "points/query": {"query": vector_of("q"), "params": {"exact": True}},
    }

    answers = [httpx.post(f"{points}/{path}", json=body) for path, body in calls.items()]

    responses = {(answer.status_code, answer.json()["status"]["error"]) for answer in answers}
    assert responses == {(400, "Bad request: Exact search disabled!. Help: Set exact=false.")}
    assert httpx.post(f"{points}/points/count", json={"exact": False}).status_code == 200


@pytest.mark.parametrize("asked", [{"per_session": 1}, {"query": "m"}], ids=["capped", "reranked"])
async def test_search_fetches_no_more_than_allowed(world: World, qdrant_url: str, asked: dict[str, Any]) -> None:
    forbid(qdrant_url, world.agent.alias, max_query_limit=MAX_QUERY_LIMIT)
    rerank = Reranking(model="m", candidates=MAX_QUERY_LIMIT + 1) if "query" in asked else None
    world.set_ranking(replace(world.agent.settings.ranking, max_query_limit=MAX_QUERY_LIMIT, rerank=rerank))

    answer = await world.recall.search(world.agent, search_request(vector=vector_of("q"), top_k=3, **asked))

    assert len(answer.results) == 3
    assert [query for _, query, _ in world.reranker.read] == (["m"] if rerank else [])


async def test_counts_list_points_in_allowed_pages(world: World, qdrant_url: str) -> None:
    deleted = (await world.rows())[0]
    await delete_head(world.agent, deleted.id, user_id="u")
    forbid(qdrant_url, world.agent.alias, max_query_limit=MAX_QUERY_LIMIT)
    store, collections = world.agent.store, QdrantCollections(qdrant_url)
    by_type = {"must": [{"key": "type", "match": {"value": "task"}}]}

    assert await store.count(world.agent.alias, None) == 30
    assert await collections.count(f"{world.agent.alias}__1") == 29
    assert await collections.count_memories(f"{world.agent.alias}__1") == 29
    assert 0 < await collections.count_memories(f"{world.agent.alias}__1", exact=False) <= 30
    assert await collections.count("agent_memory_nobody__1") == 0
    tasks = await store.count(world.agent.alias, by_type)
    assert await store.facet(world.agent.alias, "type", EVERYTHING, limit=10) == {"fact": 30 - tasks, "task": tasks}
    assert await store.facet(world.agent.alias, "type", EVERYTHING, limit=1) == {"fact": 30 - tasks}
    assert await collections.count_unlisted(f"{world.agent.alias}__1", ["fact"]) == {
        "task": tasks - (deleted.type == "task")
    }
    await collections.close()


async def test_other_rejections_are_raised(world: World, qdrant_url: str) -> None:
    with pytest.raises(StoreRejected):
        await world.agent.store.count(world.agent.alias, {"must": [{"key": 5}]})


async def test_searches_work_and_are_not_exact(world: World) -> None:
    asked = [
        search_request(vector=vector_of("m1"), top_k=5),
        search_request(vector=vector_of("m1"), top_k=5, explain=True),
        search_request(vector=vector_of("m1"), query="m1", top_k=5, explain=True),
    ]

    answers = [await world.recall.search(world.agent, request) for request in asked]

    for answer in answers:
        assert answer.results[0].record.content == "m1"
        assert (len(answer.results), answer.total_candidates) == (5, 30)
    explained = answers[1].candidates
    assert explained is not None
    assert (explained.scored, explained.eligible, explained.is_exact) == (30, 30, False)


async def test_candidate_lists_need_no_exact_search(world: World) -> None:
    world.set_ranking(replace(world.agent.settings.ranking, candidates=12))

    answer = await world.recall.search(world.agent, search_request(vector=vector_of("m1"), top_k=5, explain=True))

    assert (len(answer.results), answer.results[0].record.content) == (5, "m1")


async def test_large_counts_are_estimated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()
    count = world.agent.store.count

    async def counted(collection: str, filter_: Any, *, exact: bool = True) -> int:
        asked.append(exact)
        return MAX_LISTED + 1 if not exact else await count(collection, filter_, exact=exact)

    monkeypatch.setattr(world.agent.store, "count", counted)
    answer = await world.recall.search(world.agent, search_request(vector=vector_of("m1"), top_k=5))

    assert (answer.results[0].record.content, asked) == ("m1", [False])


async def test_statistics_cleanup_and_erasure_work(world: World) -> None:
    counted = await count_memories(world.agent, "u")
    assert {name: sum(states.values()) for name, states in counted.types.items()} == {"fact": 20, "task": 10}

    removed = await clean(world, Lifecycle(max_memories_per_user=20, max_removal_percent=100))
    assert sum(removed.values()) == 10
    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    assert await world.rows() == []


async def test_in_place_restore_works(qdrant_url: str) -> None:
    world = InPlaceWorld(qdrant_url)
    key = await world.begin()
    forbid(world.url, world.physical, max_query_limit=MAX_QUERY_LIMIT)
    taken = world.apply(MEMORY_SNAPSHOT, "later", agentMemoryRef={"name": world.agent}, verify="Full")
    await world.making.run(taken)
    await world.finish(key)
    forbid(world.url, world.physical, max_query_limit=1000)

    assert world.condition(taken, "Verified") == "True/Verified", world.status(taken)
    assert world.status(taken)["points"] == {"before": 15, "after": 15}
    assert (world.condition(key, "Succeeded"), world.contents()) == ("True/Restored", OLD), world.status(key)
    await world.close()


async def test_restore_into_a_new_collection_works(qdrant_url: str) -> None:
    world = RestoreWorld(qdrant_url)
    await world.create_agent(POINTS)
    count = world.count()
    forbid(world.url, world.physical, max_query_limit=MAX_QUERY_LIMIT)
    world.count = lambda collection=None: count  # type: ignore[method-assign]
    await world.snapshot()
    world.store(5, first=100)
    key = world.restore()

    await world.run(key)

    assert world.condition(key, "Succeeded") == "True/Restored", world.status(key)
    assert world.status(key)["points"] == {"before": POINTS + 5, "after": POINTS}
    await world.close()


async def test_rebuild_and_rollback_work(qdrant_url: str) -> None:
    world = FullWorld(qdrant_url)
    await world.begin()
    first, second = world.physical, f"{world.alias}__2"
    forbid(world.url, first, max_query_limit=MAX_QUERY_LIMIT)

    await world.rebuild()
    assert world.aliases() == {world.alias: second}, world.rebuild_status
    forbid(world.url, second)
    world.roll_back()
    await world.rebuild()

    assert world.aliases() == {world.alias: first}, world.rebuild_status
    assert world.events()[-1] == Reason.ROLLED_BACK
    await world.close()


async def test_final_snapshot_works(qdrant_url: str) -> None:
    world = JobWorld(qdrant_url)
    stage = Stage(world)
    await stage.create(deletionPolicy="Snapshot")
    forbid(world.url, world.physical, max_query_limit=MAX_QUERY_LIMIT)

    with pytest.raises(DeletionPending, match="-final-uid-j-"):
        await stage.run()
    await stage.snapshots.run(stage.final)
    await stage.run()

    assert stage.is_deleted
    assert stage.world.condition(stage.final, "Verified") == "True/Verified"
    await stage.store.close()
    await world.close()
