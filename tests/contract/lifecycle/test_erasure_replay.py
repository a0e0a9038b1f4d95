"""Erasures are applied again to copies of a collection, over a real engine."""

import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.errors import RequestInvalid, StoreUnavailable, TransientError
from agentmemory_operator.lifecycle.erasure_replay import CLOCK_MARGIN_MS, ErasureReplay
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.criteria_json import parse_filters
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.stored_memories import change_head, delete_head
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import (
    EVERYTHING,
    World,
    create_copy,
    delete_collection,
    move_alias,
    tombstones_with_vectors,
    vector_of,
)
from tests.support.engine.interleaved_store import CrashingStore, Event, InterleavedStore, writes
from tests.support.engine.reused_agents import reuse_world
from tests.support.spec.documents import memory_document

pytestmark = pytest.mark.usefixtures("keeps_and_empties")
SOURCE = KeywordSource(language="english", window=2)
TYPES = (MemoryType("fact", 30), MemoryType("status", 30, supersede_by="subject"))


@dataclass(slots=True)
class CopiedAgent:
    """An agent, and a copy of its collection at some time."""

    url: str
    world: World
    memory: AgentMemory
    copy: str

    @property
    def live(self) -> str:
        return f"{self.world.agent.alias}__1"

    async def snapshot(self) -> None:
        """Replace the points of the copy by those of the live collection."""
        store = self.world.agent.store
        body = {"filter": {"must": []}, "limit": 5_000, "with_payload": True, "with_vector": True}
        points, _ = await store.scroll(self.live, body)
        bare = [{"id": p["id"], "vector": p.get("vector") or {}, "payload": p["payload"]} for p in points]
        await store.delete(self.copy, {"must": []})
        if bare:
            await store.upsert(self.copy, bare)

    async def reapply(self, source: str | None = None, target: str | None = None, *, since_ms: int = 0) -> int:
        erasures = ErasureReplay(self.world.clock)
        store = self.world.agent.store
        return await erasures.reapply(store, source or self.live, target or self.copy, self.memory, since_ms=since_ms)

    async def serve_copy(self) -> None:
        await move_alias(self.url, self.world.agent.settings, self.copy)

    async def rows(self, physical: str) -> list[dict[str, Any]]:
        points, _ = await self.world.agent.store.scroll(
            physical, {"filter": {"must": []}, "limit": 5_000, "with_payload": True}
        )
        return [point["payload"] for point in points]

    async def contents(self, physical: str) -> set[str]:
        return {row["content"] for row in await self.rows(physical) if "content" in row}


@pytest.fixture
async def site(qdrant_url: str) -> AsyncIterator[CopiedAgent]:
    ranking = replace(EVERYTHING, types=TYPES)
    async with reuse_world(qdrant_url, keyword=SOURCE, ranking=ranking, copies=1) as world:
        settings = world.agent.settings
        memory = parse_agent_memory(memory_document(settings.slug, agent=settings.slug))
        yield CopiedAgent(qdrant_url, world, memory, copy=f"{settings.alias}__2")


async def forget(site: CopiedAgent, filters: dict[str, Any] | None = None, **more: Any) -> None:
    criterion = parse_filters(filters or {})
    scope = ErasureScope(user_id="u", criterion=criterion, is_whole=criterion is None and not more, **more)
    await site.world.forgetting.forget(site.world.agent, ForgetRequest(scope=scope, filters=filters or {}))


async def fill(site: CopiedAgent) -> None:
    world = site.world
    first = await world.add("apple", session_id="s", type="fact")
    await world.add("pear", session_id="s", type="fact")
    await world.add("plum", type="fact", supersedes=first)
    for state in ("open", "closed"):
        await world.add(state, type="status", subject="ticket")
    await world.add("other's", user_id="other")


async def test_erased_user_is_erased_in_the_copy(site: CopiedAgent) -> None:
    await fill(site)
    await site.snapshot()
    await forget(site)

    assert await site.reapply() == 5

    assert await site.contents(site.copy) == {"other's"}
    assert "userId" not in json.dumps([row for row in await site.rows(site.copy) if "content" not in row])
    assert not [row for row in await site.rows(site.copy) if row.get("pending") or row.get("windowDue")]


async def test_memory_stored_after_forget_stays(site: CopiedAgent) -> None:
    """The clock of the process that forgot is 20 s ahead."""
    clock = site.world.clock
    await site.world.add("before")
    clock.move(ms=20_000)
    await forget(site)
    clock.move(ms=-20_000)
    await site.world.add("after")
    await site.snapshot()

    await site.reapply()

    assert await site.contents(site.copy) == {"after"}


async def test_reused_key_does_not_keep_old_content(site: CopiedAgent) -> None:
    world, address = site.world, Address(user_id="u", namespace=("memories",), key="k")
    await world.items.put(world.agent, address, ItemContent(content="before", vector=vector_of("before")))
    await site.snapshot()
    world.clock.move(ms=20_000)
    await forget(site)
    world.clock.move(ms=-19_000)
    await world.items.put(world.agent, address, ItemContent(content="after", vector=vector_of("after")))

    await site.reapply()

    assert "before" not in json.dumps(await site.rows(site.copy))


async def test_row_missing_in_live_is_erased_in_the_copy(site: CopiedAgent) -> None:
    memory_id = await site.world.add("deleted before")
    await site.snapshot()
    await delete_head(site.world.agent, memory_id, user_id="u")
    await site.world.agent.store.delete(site.live, {"must": [{"has_id": [memory_id]}]})
    await forget(site)

    await site.reapply()

    assert await site.contents(site.copy) == set()


async def test_age_limit_is_applied_without_ids(site: CopiedAgent) -> None:
    old = await site.world.add("old", created_at=1_000)
    await site.world.add("new", created_at=3_000)
    await site.snapshot()
    await site.world.agent.store.delete(site.live, {"must": [{"has_id": [old]}]})
    await forget(site, older_than=2_000)

    await site.reapply()

    assert await site.contents(site.copy) == {"new"}


async def test_filtered_erasure_closes_the_chain(site: CopiedAgent) -> None:
    first = await site.world.add("first", type="fact")
    second = await site.world.add("second", type="fact", supersedes=first, tags=("x",))
    third = await site.world.add("third", type="fact", supersedes=second)
    await site.snapshot()
    await forget(site, {"tags": "x"})

    await site.reapply()

    rows = {row["id"]: row for row in await site.rows(site.copy)}
    assert await site.contents(site.copy) == {"first", "third"}
    assert (rows[first]["supersededById"], rows[third]["supersedesId"]) == (third, first)


@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize("clock_ms", [1, -10_000])
async def test_reused_identity_is_erased_in_the_copy(site: CopiedAgent, is_mirrored: bool, clock_ms: int) -> None:
    """The same id is stored again by a process whose clock may be behind."""
    world, erasures = site.world, ErasureReplay(site.world.clock)
    address = Address(user_id="u", namespace=("memories",), key="k")
    await world.add("open", type="status", subject="ticket", tags=("x",))
    await world.items.put(world.agent, address, ItemContent(content="old", vector=vector_of("old"), tags=("x",)))
    await site.snapshot()
    await forget(site, {"tags": "x"})
    world.clock.move(ms=clock_ms)
    await world.add("closed", type="status", subject="ticket")
    await world.items.put(world.agent, address, ItemContent(content="new", vector=vector_of("new")))

    if is_mirrored:
        mirrored = erasures.export_receipts(world.agent.store, site.live, site.memory)
        await erasures.import_receipts(world.agent.store, site.copy, site.memory, mirrored)
    else:
        await site.reapply()
    erased = await site.contents(site.copy)
    await site.snapshot()
    await site.reapply()

    assert (erased, await site.contents(site.copy)) == (set(), {"closed", "new"})


async def test_erased_head_restores_no_earlier_version(site: CopiedAgent) -> None:
    first = await site.world.add("first", type="fact")
    second = await site.world.add("second", type="fact", supersedes=first, tags=("x",))
    await site.snapshot()
    await site.world.add("third", type="fact", supersedes=second)
    await forget(site, {"tags": "x"})

    await site.reapply()

    assert await site.contents(site.copy) == set()
    assert await site.contents(site.live) == {"first", "third"}


async def test_erased_words_leave_keyword_texts(site: CopiedAgent) -> None:
    await site.world.add("apple", session_id="s", tags=("x",))
    site.world.clock.move(ms=1_000)
    await site.world.add("pear", session_id="s")
    await site.snapshot()
    await forget(site, {"tags": "x"})

    await site.reapply()

    query = {"query": {"text": "apple", "model": "qdrant/bm25", "options": {"language": "english"}}}
    assert await site.world.agent.store.query(site.copy, query | {"using": "agentmemory_keyword", "limit": 9}) == []


async def test_memories_stored_later_in_the_copy_stay(site: CopiedAgent) -> None:
    await fill(site)
    await site.snapshot()
    await forget(site)
    await site.reapply()
    await site.serve_copy()
    site.world.clock.move(ms=1_000)

    await fill(site)
    old = await site.world.add("old history", created_at=1)

    assert await site.reapply() == 0
    assert old in {row["id"] for row in await site.rows(site.copy)}
    assert len(await site.world.rows(include_superseded=True)) == 6


async def test_access_after_the_switch_protects_nothing(site: CopiedAgent) -> None:
    """An access makes a row newer without new content."""
    memory_id = await site.world.add("old")
    await site.snapshot()
    await forget(site)
    site.world.clock.move(ms=60_000)
    await site.serve_copy()
    site.world.counts.note(site.world.agent.settings.slug, [memory_id] * 3)
    await site.world.counts.flush()

    await site.reapply()

    assert await site.contents(site.copy) == set()


async def test_receipt_only_in_the_copy_is_applied(site: CopiedAgent) -> None:
    """The alias may move between the last read of a forget and its receipt."""
    await fill(site)
    await site.snapshot()
    await forget(site)
    receipts = [row for row in await site.rows(site.live) if "receipt" in row]
    points = [{"id": row["id"], "vector": {}, "payload": row} for row in receipts]
    await site.world.agent.store.upsert(site.copy, points)
    await site.world.agent.store.delete(site.live, {"must": []})

    assert await site.reapply() == 5
    assert await site.contents(site.copy) == {"other's"}


async def test_receipts_are_copied_to_older_copies(site: CopiedAgent) -> None:
    await fill(site)
    await site.snapshot()
    await forget(site)
    await site.reapply()
    later = await create_copy(site.url, site.world.agent.settings, keyword=SOURCE, number=3)
    try:
        await site.reapply(target=later)
        receipts = [row for row in await site.rows(later) if "receipt" in row]
        tombstones = [row for row in await site.rows(later) if "erasureId" in row]
    finally:
        await delete_collection(site.url, site.world.agent.settings, number=3)

    assert (len(receipts), len(tombstones)) == (1, 5)


async def test_exported_receipts_erase_in_the_copy(site: CopiedAgent) -> None:
    await fill(site)
    await site.snapshot()
    await forget(site)
    erasures, store = ErasureReplay(site.world.clock), site.world.agent.store
    mirrored = b"".join([part async for part in erasures.export_receipts(store, site.live, site.memory)])

    async def chunks(size: int = 100) -> AsyncIterator[bytes]:
        for start in range(0, len(mirrored), size):
            yield mirrored[start : start + size]

    assert await erasures.import_receipts(store, site.copy, site.memory, chunks()) == 5
    assert await erasures.import_receipts(store, site.copy, site.memory, chunks()) == 0

    assert await site.contents(site.copy) == {"other's"}
    assert b"apple" not in mirrored
    assert b'"u"' not in mirrored


async def test_invalid_line_is_named(site: CopiedAgent) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'\n{"content": "x"}\n'

    with pytest.raises(RequestInvalid, match="line 2"):
        await ErasureReplay(site.world.clock).import_receipts(site.world.agent.store, site.copy, site.memory, chunks())


async def test_since_ms_has_a_clock_margin(site: CopiedAgent) -> None:
    """A snapshot has the time of its end by its server's clock. It may contain memories forgotten shortly before."""
    await fill(site)
    await site.snapshot()
    await forget(site)

    assert await site.reapply(since_ms=site.world.clock.now_ms() + CLOCK_MARGIN_MS // 2) == 5

    assert await site.contents(site.copy) == {"other's"}


async def test_late_write_to_the_copy_is_erased(site: CopiedAgent) -> None:
    """The copy is already served during the last pass, so a write that began before it may end during it."""
    memory_id = await site.world.add("old")
    await site.snapshot()
    (old,) = await site.rows(site.copy)
    # No tombstone names the id: only the user identifies it.
    await site.world.agent.store.delete(site.live, {"must": [{"has_id": [memory_id]}]})
    await forget(site)

    async def store_late() -> None:
        late_row = {"id": str(uuid.uuid4()), "content": "late"}
        point = {"id": late_row["id"], "vector": {}, "payload": old | late_row}
        await site.world.agent.store.upsert(site.copy, [point])

    def finds_memories_of_the_user(name: str, arguments: tuple[Any, ...]) -> bool:
        return name == "scroll" and arguments[0] == site.copy and '"value": "u"' in json.dumps(arguments[1])

    store: Any = InterleavedStore(site.world.agent.store, Event(finds_memories_of_the_user, store_late, after=True))
    await ErasureReplay(site.world.clock).reapply(store, site.live, site.copy, site.memory)

    assert store.is_over
    assert await site.contents(site.copy) == set()


async def test_tombstone_in_the_copy_loses_its_user(site: CopiedAgent) -> None:
    """A deletion keeps the user id. A filtered erasure does not find that tombstone by its filters."""
    memory_id = await site.world.add("secret", tags=("x",))
    await site.world.add("kept")
    await site.snapshot()
    await forget(site, {"tags": "x"})
    await site.serve_copy()
    await delete_head(site.world.agent, memory_id, user_id="u")
    (deleted,) = [row for row in await site.rows(site.copy) if row["id"] == memory_id]
    assert deleted["userId"] == "u"

    await site.reapply()

    (erased,) = [row for row in await site.rows(site.copy) if row["id"] == memory_id]
    (receipt,) = [row for row in await site.rows(site.copy) if "receipt" in row]
    assert "userId" not in erased
    assert erased["erasureId"] == receipt["id"]
    assert await site.contents(site.copy) == {"kept"}


async def test_tombstones_in_the_copy_lose_vectors(site: CopiedAgent) -> None:
    """A snapshot taken during a deletion, or by an earlier version, may contain tombstones with vectors."""
    await site.snapshot()
    vectors = {"": vector_of("x"), KEYWORD_VECTOR: {"indices": [1], "values": [1.0]}}
    ids = [f"00000000-0000-4000-8000-{number:012}" for number in range(250)]
    deleted_payload = {"rev": 2, "deletedAt": 5, "pending": False}
    tombstones = [{"id": id_, "vector": vectors, "payload": deleted_payload | {"id": id_}} for id_ in ids]
    await site.world.agent.store.upsert(site.copy, tombstones)
    assert len(await tombstones_with_vectors(site.world.agent.store, site.copy)) == 250

    assert await site.reapply() == 0

    assert await tombstones_with_vectors(site.world.agent.store, site.copy) == []
    assert len(await site.rows(site.copy)) == 250


async def test_edit_during_erasure_is_filtered_again(site: CopiedAgent) -> None:
    world = site.world
    memory_id = await world.add("edited", tags=("x",))
    await world.add("erased", tags=("x",))

    async def edit() -> None:
        await change_head(world.agent, memory_id, {"tags": ["y"]}, user_id="u")

    store: Any = InterleavedStore(world.agent.store, Event(writes, edit))
    agent = replace(world.agent, store=store)
    request = ForgetRequest(
        scope=ErasureScope(user_id="u", criterion=parse_filters({"tags": "x"})), filters={"tags": "x"}
    )
    receipt = await world.forgetting.forget(agent, request)

    assert store.is_over
    assert receipt.counts.total == 1
    assert await site.contents(site.live) == {"edited"}


async def test_change_during_the_replay_fails_it(site: CopiedAgent) -> None:
    """No receipt with filters finds the memory again, so only a repetition erases it."""
    memory_id = await site.world.add("secret", tags=("x",))
    await site.snapshot()
    await forget(site, {"tags": "x"})

    async def count_access() -> None:
        await site.world.agent.store.set_payload(site.copy, {"rev": 9}, {"must": [{"has_id": [memory_id]}]})

    store: Any = InterleavedStore(site.world.agent.store, Event(lambda name, _: name == "batch", count_access))
    with pytest.raises(StoreUnavailable, match="changed concurrently: retry"):
        await ErasureReplay(site.world.clock).reapply(store, site.live, site.copy, site.memory)

    assert await site.reapply() == 1
    assert await site.contents(site.copy) == set()


async def test_killed_replay_can_be_repeated(site: CopiedAgent) -> None:
    await fill(site)
    await site.snapshot()
    copied = await site.rows(site.copy)
    assert len(copied) > 5
    before = await site.world.agent.store.scroll(
        site.copy, {"filter": {"must": []}, "limit": 100, "with_payload": True, "with_vector": True}
    )
    await forget(site)
    at, is_killed = 0, True
    while is_killed:
        await site.world.agent.store.delete(site.copy, {"must": []})
        points = [{name: point[name] for name in ("id", "vector", "payload")} for point in before[0]]
        await site.world.agent.store.upsert(site.copy, points)
        crashing: Any = CrashingStore(site.world.agent.store, at, "after")
        try:
            await ErasureReplay(site.world.clock).reapply(crashing, site.live, site.copy, site.memory)
            is_killed = False
        except TransientError:
            await site.reapply()
        assert await site.contents(site.copy) == {"other's"}
        assert not [row for row in await site.rows(site.copy) if row.get("pending") or row.get("windowDue")]
        at += 2
    assert at > 10
