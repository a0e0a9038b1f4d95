"""The point store over HTTP: the effect of each call, and the error of each rejection."""

from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.errors import NotFound, OutcomeUnknown, StoreRejected, StoreUnavailable
from agentmemory_operator.ports.points import PointStore
from tests.support.engine.agents import World, vector_of

ID = "00000000-0000-4000-8000-00000000000"


def point(number: int, **payload: Any) -> dict[str, Any]:
    return {"id": f"{ID}{number}", "vector": vector_of(number), "payload": {"n": number, **payload}}


@pytest.fixture
def store(world: World) -> PointStore:
    return world.agent.store


@pytest.fixture
def alias(world: World) -> str:
    return world.agent.alias


async def payloads(store: PointStore, alias: str) -> dict[str, dict[str, Any]]:
    points, _ = await store.scroll(alias, {"limit": 100, "with_payload": True})
    return {found["id"][-1]: found["payload"] for found in points}


async def test_describe_returns_configuration(store: PointStore, alias: str) -> None:
    described = await store.describe(alias)

    assert described["config"]["params"]["vectors"]["size"] == 8


async def test_describe_of_missing_collection_raises(store: PointStore) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        await store.describe("nowhere")


async def test_points_are_found_by_id_and_vector(store: PointStore, alias: str) -> None:
    await store.upsert(alias, [point(1), point(2)])

    (retrieved,) = await store.retrieve(alias, [f"{ID}1", f"{ID}9"])
    (nearest, *_) = await store.query(alias, {"query": vector_of(2), "limit": 2, "with_payload": True})

    assert retrieved["payload"] == {"n": 1}
    assert nearest["payload"] == {"n": 2}
    assert nearest["score"] == pytest.approx(1)


async def test_estimate_excludes_deleted_points(store: PointStore, alias: str) -> None:
    """Qdrant 1.18 multiplies the selectivities of conditions, and `is_empty` counts deleted points until they are
    removed.
    """
    for _ in range(6):
        await store.upsert(alias, [point(number, userId="u") for number in range(9)])
        await store.delete(alias, {"must": []})
    await store.upsert(alias, [point(number, userId="u") for number in range(5)])
    empty = [{"is_empty": {"key": key}} for key in ("deletedAt", "supersededById", "expiresAt")]

    for must in (empty, [{"key": "userId", "match": {"value": "u"}}, *empty]):
        assert await store.count(alias, {"must": must}, exact=False) <= 5


async def test_batch_queries_keep_their_order(store: PointStore, alias: str) -> None:
    await store.upsert(alias, [point(1), point(2)])

    answers = await store.query_batch(alias, [{"query": vector_of(number), "limit": 1} for number in (2, 1)])

    assert [found["id"][-1] for (found,) in answers] == ["2", "1"]


async def test_scroll_pages(store: PointStore, alias: str) -> None:
    await store.upsert(alias, [point(1), point(2), point(3)])

    first, offset = await store.scroll(alias, {"limit": 2})
    second, end = await store.scroll(alias, {"limit": 2, "offset": offset})

    assert [len(first), len(second), end] == [2, 1, None]


async def test_count_applies_the_filter(store: PointStore, alias: str) -> None:
    await store.upsert(alias, [point(1), point(2)])

    assert await store.count(alias, None) == 2
    assert await store.count(alias, {"must": [{"key": "n", "match": {"value": 2}}]}) == 1


async def test_insert_only_keeps_existing_points(store: PointStore, alias: str) -> None:
    await store.upsert(alias, [point(1)])

    await store.upsert(alias, [point(1, new=True), point(2, new=True)], insert_only=True, strong=True)

    assert await payloads(store, alias) == {"1": {"n": 1}, "2": {"n": 2, "new": True}}


async def test_update_filter_replaces_and_inserts_nothing(store: PointStore, alias: str) -> None:
    await store.upsert(alias, [point(1), point(2)])

    matches = {"must": [{"key": "n", "match": {"value": 1}}]}
    await store.upsert(alias, [point(number, new=True) for number in (1, 2, 3)], update_filter=matches, strong=True)

    assert await payloads(store, alias) == {"1": {"n": 1, "new": True}, "2": {"n": 2}}


async def test_set_payload_merges_and_null_removes(store: PointStore, alias: str) -> None:
    await store.upsert(alias, [point(1, old=1), point(2, old=1)])

    await store.set_payload(alias, {"old": None, "new": 1}, {"must": [{"has_id": [f"{ID}1"]}]}, strong=True)

    found = await payloads(store, alias)
    assert found["1"].get("old") is None
    assert found["1"]["new"] == 1
    assert found["2"] == {"n": 2, "old": 1}


async def test_batch_runs_in_order(store: PointStore, alias: str) -> None:
    everything: dict[str, Any] = {"must": []}
    operations = [
        {"upsert": {"points": [point(1)]}},
        {"set_payload": {"payload": {"m": 1}, "filter": {"must": [{"has_id": [f"{ID}1"]}]}}},
        {"delete": {"filter": everything}},
        {"upsert": {"points": [point(2)]}},
    ]

    await store.batch(alias, operations, strong=True)

    assert await payloads(store, alias) == {"2": {"n": 2}}


async def test_delete_applies_the_filter(store: PointStore, alias: str) -> None:
    await store.upsert(alias, [point(1), point(2)])

    await store.delete(alias, {"must": [{"key": "n", "match": {"value": 1}}]})

    assert set(await payloads(store, alias)) == {"2"}


async def test_tombstone_has_no_vector(store: PointStore, alias: str) -> None:
    await store.upsert(alias, [point(1)])
    await store.upsert(alias, [{"id": f"{ID}1", "vector": {}, "payload": {}}], update_filter={"must": []})

    assert await store.query(alias, {"query": vector_of(1), "limit": 5}) == []
    assert await store.count(alias, None) == 1


async def test_delete_vectors_applies_the_filter(store: PointStore, alias: str) -> None:
    await store.upsert(alias, [point(1), point(2)])
    tombstone = {"id": f"{ID}1", "vector": {}, "payload": {"deletedAt": 5}}
    deleted = {"must": [{"has_id": [f"{ID}1", f"{ID}2"]}, {"key": "deletedAt", "range": {"gte": 0}}]}
    has_vector = {"should": [{"has_vector": ""}]}
    assert await store.count(alias, has_vector) == 2

    await store.batch(
        alias,
        [{"upsert": {"points": [tombstone]}}, {"delete_vectors": {"filter": deleted, "vector": [""]}}],
        strong=True,
    )

    points = {found["id"][-1]: found for found in await store.retrieve(alias, [f"{ID}1", f"{ID}2"], vectors=True)}
    assert (points["1"]["vector"], points["1"]["payload"]) == ({}, {"deletedAt": 5})
    assert len(points["2"]["vector"]) == 8
    assert await store.count(alias, has_vector) == 1
    assert await store.count(alias, {"should": [{"has_vector": "none of its own"}]}) == 0


async def test_missing_collection_is_unavailable(store: PointStore) -> None:
    with pytest.raises(StoreUnavailable):
        await store.count("nowhere", None)
    with pytest.raises(StoreUnavailable):
        await store.upsert("nowhere", [point(1)])


async def test_rejection_has_status_and_message(store: PointStore, alias: str) -> None:
    with pytest.raises(StoreRejected, match="400") as refused:
        await store.query(alias, {"query": [1.0, 2.0], "limit": 1})

    assert refused.value.status == 400
    assert "dimension" in refused.value.server_message


async def test_unreachable_server_is_no_unknown_outcome(unused_tcp_port: int) -> None:
    async with QdrantPoints(f"http://127.0.0.1:{unused_tcp_port}") as store:
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await store.count("any", None)
        with pytest.raises(StoreUnavailable, match="cannot be reached") as refused:
            await store.upsert("any", [point(1)])

    assert not isinstance(refused.value, OutcomeUnknown)


async def test_closed_store_reopens(store: PointStore, alias: str) -> None:
    assert isinstance(store, QdrantPoints)
    await store.close()
    await store.close()

    assert await store.count(alias, None) == 0
