"""Forget requests over a real engine: nothing remains, even if a crash interrupts them."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.errors import AgentMemoryError, Conflict, NotFound, TransientError
from agentmemory_operator.lifecycle.cleanup import purge_tombstones
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ORGANISATION_OWNER, ErasureScope
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.history import read_history
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.criteria_json import parse_filters
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.stored_memories import change_head, count_stored, delete_head, read_memory
from agentmemory_operator.memories.working_memory import Session
from agentmemory_operator.search.counts import count_memories
from agentmemory_operator.search.users import name_user, read_profile
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.zones.keyring import AgentKeys, Keyring
from agentmemory_operator.zones.sealed_store import ZoneKeys
from tests.support.engine.agents import EVERYTHING, World, search_request, vector_of
from tests.support.engine.interleaved_store import CrashingStore, Event, InterleavedStore, Moment, writes
from tests.support.engine.reused_agents import reuse_world
from tests.support.zones import RING, FakeKeyShards, FakeWrapping

pytestmark = pytest.mark.usefixtures("keeps_and_empties")

TYPES = (MemoryType("fact", 30), MemoryType("status", 30, supersede_by="subject"), MemoryType("working", None))
SOURCE = KeywordSource(language="english", window=2)
SECRET = "apple"


@pytest.fixture
async def world(qdrant_url: str) -> AsyncIterator[World]:
    async with reuse_world(qdrant_url, keyword=SOURCE, ranking=replace(EVERYTHING, types=TYPES)) as world:
        yield world


def whole_user(user_id: str = "u", **more: Any) -> ForgetRequest:
    return ForgetRequest(scope=ErasureScope(user_id=user_id, is_whole=True), **more)


def select(filters: dict[str, Any] | None = None, *, older_than: int | None = None, **more: Any) -> ForgetRequest:
    scope = ErasureScope(user_id="u", criterion=parse_filters(filters or {}), older_than=older_than)
    return ForgetRequest(scope=scope, filters=filters or {}, **more)


async def points(world: World) -> dict[str, Any]:
    """Return the payload of every point, with tombstones and receipts."""
    body = {"filter": {"must": []}, "limit": 5_000, "with_payload": True, "with_vector": True}
    found, _ = await world.agent.store.scroll(world.agent.alias, body)
    return {point["id"]: point["payload"] | {"vector": point.get("vector") or {}} for point in found}


async def search_keyword(world: World, word: str) -> set[str]:
    query = {"text": word, "model": "qdrant/bm25", "options": {"language": "english"}}
    body = {"query": query, "using": KEYWORD_VECTOR, "limit": 100, "with_payload": True}
    return {point["payload"].get("content", "") for point in await world.agent.store.query(world.agent.alias, body)}


async def fill(world: World, user_id: str = "u") -> int:
    """Store memories of every kind; return their number."""
    memory_ids = [await world.add(f"{SECRET} {n}", user_id=user_id, session_id="s", type="fact") for n in range(3)]
    await world.add(f"{SECRET} new", user_id=user_id, type="fact", supersedes=memory_ids[0], metadata={"seen": SECRET})
    for state in ("open", "closed"):
        await world.add(f"{SECRET} {state}", user_id=user_id, type="status", subject="ticket")
    await world.add(f"{SECRET} child", user_id=user_id, type="fact", parent_id=memory_ids[1], tags=(SECRET,))
    deleted = await world.add(f"{SECRET} deleted", user_id=user_id, type="fact", session_id="s")
    await delete_head(world.agent, deleted, user_id=user_id)
    await world.items.put(world.agent, address(user_id), item(SECRET))
    memory = IncomingMemory(user_id=user_id, content=SECRET, session_id="s", vector=vector_of("w"))
    await world.working.store(world.agent, memory)
    await name_user(world.agent, user_id, f"{SECRET} of {user_id}")
    return 9


def address(user_id: str) -> Address:
    return Address(user_id=user_id, namespace=("memories", user_id), key="k")


def item(content: str) -> ItemContent:
    return ItemContent(content=content, vector=vector_of(content))


async def check_nothing_left(world: World, user_id: str = "u") -> None:
    rows = await points(world)
    assert SECRET not in json.dumps([row for row in rows.values() if row.get("userId", user_id) == user_id])
    assert not [row for row in rows.values() if row.get("userId") == user_id]
    assert not [row for row in rows.values() if "deletedAt" in row and (row.get("pending") or row.get("windowDue"))]
    assert await world.working.read(world.agent, Session(user_id, "s")) == ()
    with pytest.raises(NotFound):
        await world.items.get(world.agent, address(user_id))
    assert await read_profile(world.agent, user_id) is None


async def test_user_is_erased_and_others_are_untouched(world: World) -> None:
    number = await fill(world)
    await fill(world, "other")
    others = {id_: row for id_, row in (await points(world)).items() if row.get("userId") == "other"}

    receipt = await world.forgetting.forget(world.agent, whole_user())

    assert receipt.counts.total == number
    assert receipt.counts.types == {"fact": 6, "status": 2, "working": 1}
    await check_nothing_left(world)
    assert {id_: row for id_, row in (await points(world)).items() if row.get("userId") == "other"} == others


async def test_receipt_hashes_ids_and_hides_the_user(world: World) -> None:
    ids = sorted([await world.add(SECRET, user_id="ada@example.com"), await world.add("b", user_id="ada@example.com")])

    receipt = await world.forgetting.forget(world.agent, whole_user("ada@example.com"))

    assert receipt.sha256 == hashlib.sha256("".join(f"{id_}\n" for id_ in ids).encode()).hexdigest()
    assert "example.com" not in json.dumps(await points(world)), "hexadecimal ids may spell the rest"


async def test_dry_run_counts_and_changes_nothing(world: World) -> None:
    number = await fill(world)
    before = await points(world)

    preview = await world.forgetting.preview(world.agent, whole_user())

    assert (preview.counts.total, len(preview.ids), preview.unlisted_count) == (number, number, 0)
    assert await points(world) == before


async def test_dry_run_lists_100_ids(world: World) -> None:
    memories = [IncomingMemory(user_id="u", content=f"m{n}", vector=vector_of(n)) for n in range(130)]
    await world.remember.store(world.agent, memories)

    preview = await world.forgetting.preview(world.agent, whole_user())

    assert (preview.counts.total, len(preview.ids), preview.unlisted_count) == (130, 100, 30)


async def test_filters_select_memories(world: World) -> None:
    kept = await world.add("kept", tags=("a",))
    await world.add(SECRET, tags=("b",))

    receipt = await world.forgetting.forget(world.agent, select({"tags": {"in": ["b"]}}))

    assert receipt.counts.total == 1
    assert [record.id for record in await world.rows()] == [kept]


async def test_older_than_selects_memories(world: World) -> None:
    await world.add("old", created_at=1_000)
    await world.add("new", created_at=2_000)

    receipt = await world.forgetting.forget(world.agent, select(older_than=2_000))

    assert (receipt.counts.total, receipt.older_than) == (1, 2_000)
    assert await world.heads() == ["new"]


async def test_erased_head_takes_its_earlier_versions(world: World) -> None:
    first = await world.add("first", type="fact")
    second = await world.add("second", type="fact", supersedes=first)
    await world.add("third", type="fact", supersedes=second, tags=("b",))

    preview = await world.forgetting.preview(world.agent, select({"tags": {"in": ["b"]}}))
    receipt = await world.forgetting.forget(world.agent, select({"tags": {"in": ["b"]}}))

    assert (preview.counts.total, receipt.counts.total) == (3, 3)
    assert await world.heads() == []


async def test_earlier_version_is_removed_from_its_chain(world: World) -> None:
    first = await world.add("first", type="fact")
    second = await world.add("second", type="fact", supersedes=first, tags=("b",))
    third = await world.add("third", type="fact", supersedes=second)

    await world.forgetting.forget(world.agent, select({"tags": {"in": ["b"]}}))

    history = await read_history(world.agent, third, user_id="u")
    assert [record.id for record in history.records] == [first, third]


async def test_erased_words_leave_keyword_texts(world: World) -> None:
    for content in ("apple", "pear", "plum"):
        await world.add(content, session_id="s", tags=(content,))
        world.clock.move(ms=1_000)
    assert await search_keyword(world, "apple") == {"apple", "pear", "plum"}

    await world.forgetting.forget(world.agent, select({"tags": {"in": ["apple"]}}))

    assert await search_keyword(world, "apple") == set()
    assert await search_keyword(world, "pear") == {"pear", "plum"}


async def test_memories_can_be_stored_again(world: World) -> None:
    await fill(world)
    await world.forgetting.forget(world.agent, whole_user())
    world.clock.move(ms=10_000)

    await fill(world)

    assert len(await world.rows(include_superseded=True)) == 9
    await world.forgetting.forget(world.agent, whole_user())
    await check_nothing_left(world)


async def test_memory_of_a_fast_clock_is_forgotten(world: World) -> None:
    world.clock.move(ms=600_000)
    await world.add("ahead")
    world.clock.move(ms=-600_000)
    await world.add("on time")

    preview = await world.forgetting.preview(world.agent, whole_user())
    receipt = await world.forgetting.forget(world.agent, whole_user())

    assert (preview.counts.total, receipt.counts.total) == (2, 2)
    await check_nothing_left(world)


async def test_edited_memory_of_a_fast_clock_is_forgotten(world: World) -> None:
    world.clock.move(ms=600_000)
    memory_id = await world.add("ahead")
    world.clock.move(ms=-600_000)

    async def change() -> None:
        await change_head(world.agent, memory_id, {"importance": 0.9}, user_id="u")

    store: Any = InterleavedStore(world.agent.store, Event(writes, change))
    await world.forgetting.forget(replace(world.agent, store=store), whole_user())

    assert store.is_over
    await check_nothing_left(world)


async def test_idempotency_key_returns_the_same_receipt(world: World) -> None:
    await world.add("old")
    first = await world.forgetting.forget(world.agent, whole_user(idempotency_key="k"))
    world.clock.move(ms=60_000)
    await world.add("new")

    again = await world.forgetting.forget(world.agent, whole_user(idempotency_key="k"))

    assert again == first
    assert await world.heads() == ["new"]


@pytest.mark.parametrize(
    "request_", [select(older_than=5), whole_user(deletes_keys_first=True)], ids=["scope", "crypto"]
)
async def test_idempotency_key_with_other_body_conflicts(world: World, request_: ForgetRequest) -> None:
    await world.forgetting.forget(world.agent, whole_user(idempotency_key="k"))

    with pytest.raises(Conflict, match="another body"):
        await world.forgetting.forget(world.agent, replace(request_, idempotency_key="k"))


async def test_receipts_are_paged_newest_first(world: World) -> None:
    created = []
    for user in ("a", "b", "a"):
        created.append(await world.forgetting.forget(world.agent, whole_user(user)))
        world.clock.move(ms=1_000)

    first = await world.forgetting.list_receipts(world.agent, limit=2)
    rest = await world.forgetting.list_receipts(world.agent, limit=2, before=first.next_before)
    of_user = await world.forgetting.list_receipts(world.agent, limit=10, user_id="a")

    assert [*first.receipts, *rest.receipts] == created[::-1]
    assert rest.next_before is None
    assert of_user.receipts == (created[2], created[0])


async def test_receipts_of_one_time_share_a_page(world: World) -> None:
    created = [await world.forgetting.forget(world.agent, whole_user(user)) for user in "abc"]

    page = await world.forgetting.list_receipts(world.agent, limit=2)

    assert {receipt.id for receipt in page.receipts} == {receipt.id for receipt in created}
    assert len(page.receipts) == 3
    assert (await world.forgetting.list_receipts(world.agent, limit=2, before=page.next_before)).receipts == ()


async def test_receipt_is_invisible_to_readers(world: World) -> None:
    receipt = await world.forgetting.forget(world.agent, whole_user())

    assert await count_stored(world.agent) == 0
    assert (await count_memories(world.agent, None)).types == {}
    assert (await world.recall.search(world.agent, search_request(vector=vector_of("x")))).results == ()
    with pytest.raises(NotFound):
        await read_memory(world.agent, receipt.id, user_id="u")
    assert await chains.sweep(world.agent) == 0


async def test_killed_forget_can_be_repeated(world: World) -> None:
    at, is_killed = 0, True
    request = whole_user(idempotency_key="k")
    while is_killed:
        number = await fill(world)
        crashing = replace(world.agent, store=CrashingStore(world.agent.store, at, "after"))
        try:
            await world.forgetting.forget(crashing, request)
            is_killed = False
        except TransientError:
            receipt = await world.forgetting.forget(world.agent, request)
            assert receipt.counts.total in (0, number)
        await check_nothing_left(world)
        await world.agent.store.delete(world.agent.alias, {"must": []})
        at += 3
        world.clock.move(ms=10_000)
    assert at > 20


async def test_repetition_erases_what_a_killed_forget_left(world: World) -> None:
    """The alias moved to a copy that still had the memories, and the process was killed after it wrote the receipt."""
    request, number = whole_user(idempotency_key="k"), await fill(world)
    body = {"filter": {"must": []}, "limit": 100, "with_payload": True, "with_vector": True}
    points, _ = await world.agent.store.scroll(world.agent.alias, body)
    first = await world.forgetting.forget(world.agent, request)
    await world.agent.store.upsert(world.agent.alias, points)
    world.clock.move(ms=60_000)
    await world.add("new")

    again = await world.forgetting.forget(world.agent, request)

    assert await world.heads() == ["new"]
    assert again.id == first.id
    assert (first.counts.total, again.counts.total) == (number, number)


async def test_concurrent_writers_keep_later_memories(world: World) -> None:
    stored_before = {await world.add(f"before {n}", type="status", subject=f"s{n % 3}") for n in range(9)}

    async def write(number: int) -> None:
        await world.try_add(f"during {number}", type="status", subject=f"s{number % 3}")

    await asyncio.gather(world.forgetting.forget(world.agent, whole_user()), *(write(n) for n in range(12)))

    rows = await world.rows(include_superseded=True)
    assert not [record for record in rows if record.content.startswith("before")]
    assert stored_before.isdisjoint(record.id for record in rows if record.content.startswith("before"))
    world.clock.move(ms=10_000)
    for number in range(3):
        outcome = await world.try_add(f"after {number}", type="status", subject=f"s{number}")
        assert not isinstance(outcome, AgentMemoryError), outcome
    assert {f"after {number}" for number in range(3)} <= set(await world.heads())


async def test_access_count_is_not_written_afterwards(world: World) -> None:
    memory_id = await world.add("old")
    world.counts.note(world.agent.settings.slug, [memory_id])

    await world.forgetting.forget(world.agent, whole_user())

    assert world.counts.pending_count == 0
    await world.counts.flush()
    assert "accessCount" not in (await points(world))[memory_id]


def with_keys(world: World) -> tuple[Agent, ZoneKeys]:
    """Give the agent a key store, as in every API process; return both."""
    keyring = Keyring(FakeKeyShards(), world.clock)
    keys = ZoneKeys(keyring, AgentKeys(RING, FakeWrapping()), "bot", "acme")
    return replace(world.agent, zone_keys=keys), keys


@pytest.mark.parametrize("existing_zones", [(), ("SENSITIVE",), ("PERSONAL",), ("SENSITIVE", "PERSONAL")], ids=str)
@pytest.mark.parametrize("is_key_first", [False, True])
async def test_receipt_lists_existing_keys_only(
    world: World, existing_zones: tuple[str, ...], is_key_first: bool
) -> None:
    agent, keys = with_keys(world)
    for zone in existing_zones:
        await keys.get_or_create_key(zone, "u")
    await keys.get_or_create_key("SENSITIVE", "other")

    receipt = await world.forgetting.forget(agent, whole_user(deletes_keys_first=is_key_first))
    again = await world.forgetting.forget(agent, whole_user(deletes_keys_first=is_key_first))

    assert (receipt.keys_deleted, again.keys_deleted) == (existing_zones, ())
    assert await keys.zones_with_keys("u", existing_zones) == []
    assert await keys.zones_with_keys("other", ["SENSITIVE"]) == ["SENSITIVE"]


async def test_receipt_lists_organisation_key_once(world: World) -> None:
    agent, keys = with_keys(world)
    request = ForgetRequest(
        scope=ErasureScope(user_id=ORGANISATION_OWNER, zone="PROFESSIONAL"), deletes_keys_first=True
    )
    none = await world.forgetting.forget(agent, request)
    await keys.get_or_create_key("PROFESSIONAL", "u")

    receipts = [await world.forgetting.forget(agent, request) for _ in range(2)]

    assert [receipt.keys_deleted for receipt in (none, *receipts)] == [(), ("PROFESSIONAL",), ()]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("is_key_first", [False, True])
async def test_killed_forget_lists_its_deleted_keys(world: World, is_key_first: bool, moment: Moment) -> None:
    agent, keys = with_keys(world)
    at, was_key_deleted, is_killed = 0, False, True
    while is_killed:
        await world.add(SECRET)
        await keys.get_or_create_key("PERSONAL", "u")
        request = whole_user(idempotency_key=f"k{at}", deletes_keys_first=is_key_first)
        crashing = replace(agent, store=CrashingStore(world.agent.store, at, moment))
        try:
            receipt = await world.forgetting.forget(crashing, request)
            is_killed = False
        except TransientError:
            was_key_deleted |= await keys.zones_with_keys("u", ["PERSONAL"]) == []
            receipt = await world.forgetting.forget(agent, request)
        assert receipt.keys_deleted == ("PERSONAL",)
        at += 1
        world.clock.move(ms=10_000)
    assert was_key_deleted, "some attempt was killed after it had deleted the key"


@pytest.mark.parametrize("is_key_first", [False, True])
async def test_receipt_lists_keys_of_every_killed_attempt(world: World, is_key_first: bool) -> None:
    """Between the attempts, writes create keys in further zones; each attempt dies after it has deleted its keys."""
    agent, keys = with_keys(world)
    request = whole_user(idempotency_key="k", deletes_keys_first=is_key_first)
    for zone in ("PERSONAL", "SENSITIVE"):
        await keys.get_or_create_key(zone, "u")
        at = 0
        while await keys.zones_with_keys("u", [zone]):
            with pytest.raises(TransientError):
                await world.forgetting.forget(replace(agent, store=CrashingStore(world.agent.store, at)), request)
            at += 1

    receipt = await world.forgetting.forget(agent, request)

    assert sorted(receipt.keys_deleted) == ["PERSONAL", "SENSITIVE"]


async def test_purge_keeps_zones_of_killed_attempt(world: World) -> None:
    agent, keys = with_keys(world)
    await keys.get_or_create_key("PERSONAL", "u")
    request, at = whole_user(idempotency_key="k", deletes_keys_first=True), 0
    while await keys.zones_with_keys("u", ["PERSONAL"]):
        with pytest.raises(TransientError):
            await world.forgetting.forget(replace(agent, store=CrashingStore(world.agent.store, at)), request)
        at += 1
    world.clock.move(ms=1)
    await purge_tombstones(world.agent, world.clock.now_ms(), pause_s=0)

    receipt = await world.forgetting.forget(agent, request)

    assert receipt.keys_deleted == ("PERSONAL",)
