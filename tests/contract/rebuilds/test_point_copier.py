"""Points copied from one collection of an agent to another, on a real engine."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.errors import RebuildPaused
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.rules.evidence import EVIDENCE_KEY
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY
from agentmemory_operator.memories.stored_memories import delete_head
from agentmemory_operator.memories.tombstone_writes import delete_remaining_vectors
from agentmemory_operator.ports.base import Json
from agentmemory_operator.rebuilds.point_conversion import CopyEnd
from agentmemory_operator.rebuilds.point_copier import CopyCounts, PointCopier
from tests.support.engine.agents import (
    SIZE,
    FakeEmbedder,
    World,
    collection_of,
    create_copy,
    delete_collection,
    tombstones_with_vectors,
    vector_of,
)
from tests.support.engine.reused_agents import reuse_world

pytestmark = pytest.mark.usefixtures("keeps_vectors")

ENGLISH = KeywordSource(language="english", window=2)
GERMAN = KeywordSource(language="german", window=2)


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    """An agent with memories in a session: one superseded, one deleted, one erased."""
    async with reuse_world(qdrant_url, keyword=ENGLISH) as world:
        old = await world.add("we met in Oslo", session_id="s", metadata={"deep": {"a": [1, 2.5, None]}})
        await world.add("the trains were late", session_id="s")
        await world.add("we met in Bergen", session_id="s", supersedes=old)
        deleted = await world.add("a secret", session_id="s")
        await delete_head(world.agent, deleted, user_id="u")
        await world.add("of somebody else", user_id="v", pinned=True)
        await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="v", is_whole=True)))
        await world.add("the last", importance=0.123456789)
        yield world


class Target:
    """The other collection, and the copier that fills it."""

    def __init__(self, world: World, url: str) -> None:
        self.world, self.url = world, url
        self.physical = ""

    async def open(
        self, *, keyword: KeywordSource | None = ENGLISH, embedder: Any = None, **vectors: Any
    ) -> PointCopier:
        self.physical = await create_copy(self.url, self.world.agent.settings, keyword=keyword, **vectors)
        shape = collection_of(keyword=keyword, size=vectors.get("size", SIZE))
        source = CopyEnd(physical=f"{self.world.agent.alias}__1", collection=collection_of(keyword=ENGLISH))
        target = CopyEnd(physical=self.physical, collection=shape)
        return PointCopier(self.world.agent.store, source, target, embedder=embedder)

    async def points(self, physical: str | None = None) -> dict[str, Json]:
        body = {"limit": 1000, "with_payload": True, "with_vector": True}
        points, _ = await self.world.agent.store.scroll(physical or self.physical, body)
        return {point["id"]: point for point in points}

    async def source(self) -> dict[str, Json]:
        return await self.points(f"{self.world.agent.alias}__1")


@pytest.fixture
async def target(world: World, qdrant_url: str) -> AsyncIterator[Target]:
    target = Target(world, qdrant_url)
    yield target
    if target.physical:
        assert await tombstones_with_vectors(world.agent.store, target.physical) == []
        await delete_collection(qdrant_url, world.agent.settings, number=2)


async def copy_all(copier: PointCopier) -> None:
    offset = None
    while True:
        points, offset = await copier.read(offset=offset, limit=3)
        await copier.insert(points)
        if offset is None:
            return


async def test_copy_is_identical(target: Target) -> None:
    await copy_all(await target.open())

    source = await target.source()
    assert await target.points() == source
    assert sum(TOMBSTONE_KEY in point["payload"] for point in source.values()) == 3
    assert sum(KEYWORD_VECTOR in point["vector"] for point in source.values()) == 4


async def test_half_precision_rounds_vectors(target: Target) -> None:
    await copy_all(await target.open(datatype="float16"))

    source, copied = await target.source(), await target.points()
    for id_, point in copied.items():
        expected = source[id_]["vector"].get("", [])
        assert point["vector"].get("", []) == pytest.approx(expected, abs=1e-3)


async def test_other_language_recomputes_keyword_vectors(target: Target, world: World) -> None:
    """Keyword vectors cover the memory and the ones before it in the session."""
    await world.add("die Häuser gestern, yesterday", session_id="t", speaker="Bob")
    world.clock.move(ms=1000)
    await world.add("und die Züge", session_id="t")
    await copy_all(await target.open(keyword=GERMAN))

    query = {"text": "Haus", "model": "qdrant/bm25", "options": {"language": "german"}}
    body = {"query": query, "using": KEYWORD_VECTOR, "limit": 9, "with_payload": ["content"]}
    found = await world.agent.store.query(target.physical, body)
    assert {point["payload"]["content"] for point in found} == {
        "die Häuser gestern, yesterday",
        "und die Züge",
    }
    source, copied = await target.source(), await target.points()
    evidence = [{id_: point["payload"].pop(EVIDENCE_KEY, {}) for id_, point in of.items()} for of in (source, copied)]
    assert {id_: point["payload"] for id_, point in copied.items()} == {
        id_: point["payload"] for id_, point in source.items()
    }
    [first] = (point["id"] for point in found if "gestern" in point["payload"]["content"])
    assert [of[first]["marks"] for of in evidence] == [["time", "by bob"], ["by bob"]]


async def test_keyword_vectors_are_dropped_if_disabled(target: Target) -> None:
    await copy_all(await target.open(keyword=None))

    source, copied = await target.source(), await target.points()
    assert copied.keys() == source.keys()
    for id_, point in copied.items():
        dense = source[id_]["vector"].get("")
        assert point["vector"] == (dense if dense else {})


async def test_other_embedding_keeps_keyword_vectors(target: Target, world: World) -> None:
    embedder = FakeEmbedder(size=4)
    await copy_all(await target.open(size=4, distance="Dot", embedder=embedder))

    source, copied = await target.source(), await target.points()
    for id_, point in copied.items():
        content = point["payload"].get("content")
        words = source[id_]["vector"].get(KEYWORD_VECTOR)
        expected = {"": pytest.approx(vector_of(content, 4), abs=1e-6), KEYWORD_VECTOR: words} if content else {}
        assert point["vector"] == expected
    assert "a secret" not in embedder.texts


async def test_refused_content_is_reported_by_id(target: Target, world: World) -> None:
    """The message does not quote the content."""
    id_ = await world.add("far too long")
    copier = await target.open(size=4, embedder=FakeEmbedder(size=4, refused="far too long"))

    with pytest.raises(RebuildPaused, match=id_) as refused:
        await copy_all(copier)
    assert "far too long" not in str(refused.value)


async def test_update_copies_only_differences(target: Target, world: World) -> None:
    copier = await target.open()
    await copy_all(copier)
    (changed,) = [record.id for record in await world.rows() if record.content == "the last"]
    await delete_head(world.agent, changed, user_id="u")
    await world.add("since")
    points, _ = await copier.read()

    assert await copier.update(points) == CopyCounts(inserted=1, replaced=1)
    assert await copier.update(points) == CopyCounts()
    assert await target.points() == await target.source()


async def test_newer_target_points_are_kept(target: Target, world: World) -> None:
    copier = await target.open()
    stale, _ = await copier.read()
    for record in await world.rows():
        await delete_head(world.agent, record.id, user_id="u")
    await copy_all(copier)
    newest = await target.points()

    await copier.insert(stale)
    assert await copier.update(stale) == CopyCounts()
    assert await target.points() == newest


async def test_deletion_removes_vector_from_target(target: Target, world: World) -> None:
    copier = await target.open()
    await copy_all(copier)
    [last] = [record.id for record in await world.rows() if record.content == "the last"]
    await delete_head(world.agent, last, user_id="u")

    points, _ = await copier.read({"must": [{"has_id": [last]}]})
    assert await copier.update(points) == CopyCounts(replaced=1)

    assert (await target.points())[last]["vector"] == {}


async def test_tombstone_is_copied_without_vectors(target: Target, world: World) -> None:
    [last] = [record.id for record in await world.rows() if record.content == "the last"]
    operations = [
        {"set_payload": {"payload": {"deletedAt": 5, "rev": 2}, "points": [last]}},
        {"delete_payload": {"keys": ["content"], "points": [last]}},
    ]
    await world.agent.store.batch(world.agent.alias, operations)

    await copy_all(await target.open())

    assert (await target.source())[last]["vector"].keys() == {"", KEYWORD_VECTOR}
    assert (await target.points())[last]["vector"] == {}
    await delete_remaining_vectors(world.agent)


async def test_missing_keyword_vector_is_removed(target: Target, world: World) -> None:
    """The copier computes the keyword vector again from the new content. A stale vector would look like the new one."""
    copier = await target.open()
    await copy_all(copier)
    [last] = [record.id for record in await world.rows() if record.content == "the last"]
    operations = [
        {"set_payload": {"payload": {"content": "another", "rev": 9}, "points": [last]}},
        {"delete_vectors": {"points": [last], "vector": [KEYWORD_VECTOR]}},
    ]
    await world.agent.store.batch(world.agent.alias, operations)

    points, _ = await copier.read({"must": [{"has_id": [last]}]})
    await copier.update(points)

    assert KEYWORD_VECTOR not in (await target.points())[last]["vector"]


async def test_change_after_move_beats_higher_rev(target: Target, world: World) -> None:
    copier = await target.open()
    await copy_all(copier)
    moved_ms = world.clock.now_ms() + 1000
    points, _ = await copier.read()
    before, after = [point["id"] for point in points if "content" in point["payload"]][:2]
    changed = {"rev": 90, "updatedAt": moved_ms}
    await world.agent.store.set_payload(target.physical, changed, {"must": [{"has_id": [after]}]})
    for point in points:
        point["payload"]["rev"] = 99

    copied = await copier.update(points, before_ms=moved_ms)
    revisions = {id_: point["payload"]["rev"] for id_, point in (await target.points()).items()}
    assert copied == CopyCounts(replaced=len(points) - 1)
    assert (revisions[before], revisions[after]) == (99, 90)


async def test_foreign_points_are_copied_once(target: Target, world: World) -> None:
    # An adopted collection may have numeric ids, no revision and no payload.
    physical = f"{world.agent.alias}__1"
    await world.agent.store.upsert(physical, [{"id": 7, "vector": vector_of(7)}, {"id": 8, "vector": vector_of(8)}])
    copier = await target.open()
    points, _ = await copier.read()

    assert (await copier.update(points)).inserted == len(points)
    assert await copier.update(points) == CopyCounts()
    assert await target.points() == await target.source()
