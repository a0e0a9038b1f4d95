"""Reading, listing and deleting memories on a real engine."""

import asyncio
import random
from typing import Any

import pytest

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import Conflict, NotFound, RequestInvalid
from agentmemory_operator.memories import stored_memories
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.point_pages import read_memories
from agentmemory_operator.memories.stored_memories import count_stored, delete_head, list_page, read_memory
from tests.support.engine.agents import World, list_request, vector_of

UNKNOWN = "018f0000-0000-7000-8000-000000000000"


async def read_pages(world: World, limit: int) -> list[list[str]]:
    """Read all pages; return the contents of each."""
    found, cursor = [], None
    while True:
        page = await list_page(world.agent, list_request(user_id="u", limit=limit, cursor=cursor))
        found.append([record.content for record in page.records])
        cursor = page.next_cursor
        if cursor is None:
            return found


async def store_at(world: World, *times: int) -> None:
    memories = [
        IncomingMemory(user_id="u", content=str(place), created_at=time, vector=vector_of(place))
        for place, time in enumerate(times)
    ]
    await world.remember.store(world.agent, memories)


@pytest.mark.parametrize("memory_id", [UNKNOWN, "not-an-id"])
async def test_unknown_id_is_not_found(world: World, memory_id: str) -> None:
    with pytest.raises(NotFound):
        await read_memory(world.agent, memory_id, user_id="u")
    with pytest.raises(NotFound):
        await delete_head(world.agent, memory_id, user_id="u")


async def test_other_users_memory_is_not_found(world: World) -> None:
    mine = await world.add("mine")

    with pytest.raises(NotFound):
        await read_memory(world.agent, mine, user_id="v")
    with pytest.raises(NotFound):
        await delete_head(world.agent, mine, user_id="v")
    assert await world.heads() == ["mine"]


async def test_expired_memory_is_not_found(world: World) -> None:
    short = await world.add("short", expires_at=world.clock.now_ms() + 10)
    assert await world.heads() == ["short"]

    world.clock.move(ms=10)

    with pytest.raises(NotFound):
        await read_memory(world.agent, short, user_id="u")
    assert await world.heads() == []


async def test_list_is_newest_first(world: World) -> None:
    await store_at(world, 20, 10, 30)

    assert await world.heads() == ["2", "0", "1"]


async def test_empty_list_has_one_empty_page(world: World) -> None:
    assert await read_pages(world, 10) == [[]]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 7])
async def test_pages_contain_each_memory_once(world: World, limit: int) -> None:
    await store_at(world, 9, 7, 7, 7, 5, 7)

    found = await read_pages(world, limit)

    assert [content for page in found for content in page] == ["0", "1", "2", "3", "5", "4"]
    assert all(len(page) == limit for page in found[:-1])
    assert found[-1]


async def test_memories_of_equal_time_are_paged(world: World) -> None:
    await store_at(world, 11, *[10] * 1000, 9)

    found = [content for page in await read_pages(world, 97) for content in page]

    assert len(found) == 1002
    assert set(found) == {str(place) for place in range(1002)}
    assert (found[0], found[-1]) == ("0", "1001")


@pytest.mark.parametrize(("times", "reads"), [((9, 8, 7), 1), ((9, 8, 8), 2), ((9, 9, 7), 1)])
async def test_page_is_read_again_only_for_equal_times(
    world: World, times: tuple[int, ...], reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store_at(world, *times)
    bodies: list[Any] = []

    async def counted(agent: Agent, body: Any) -> Any:
        bodies.append(body)
        return await read_memories(agent, body)

    monkeypatch.setattr(stored_memories, "read_memories", counted)
    page = await list_page(world.agent, list_request(user_id="u", limit=2))

    assert ([record.content for record in page.records], len(bodies)) == (["0", "1"], reads)


async def test_cursor_survives_deletion_of_its_memory(world: World) -> None:
    await store_at(world, 7, 7, 7)
    first = await list_page(world.agent, list_request(user_id="u", limit=1))
    await delete_head(world.agent, first.records[0].id, user_id="u")

    rest = await list_page(world.agent, list_request(user_id="u", cursor=first.next_cursor))

    assert [record.content for record in rest.records] == ["1", "2"]


@pytest.mark.parametrize("seed", range(4))
async def test_pages_are_complete_despite_writes(world: World, seed: int) -> None:
    draw = random.Random(seed)
    now_ms = world.clock.now_ms()

    async def add(content: str, **more: Any) -> str:
        return await world.add(content, created_at=now_ms - draw.randint(0, 12), **more)

    ids = {content: await add(content) for content in map(str, range(40))}
    staying = set(draw.sample(sorted(ids), 20))
    leaving = sorted(set(ids) - staying)
    found, cursor = [], None
    while True:
        page = await list_page(world.agent, list_request(user_id="u", limit=3, cursor=cursor))
        found += [record.content for record in page.records]
        cursor = page.next_cursor
        if cursor is None:
            break
        await add(f"late {len(found)}")
        if leaving:
            await delete_head(world.agent, ids[leaving.pop()], user_id="u")
        if leaving:
            await add("newer", supersedes=ids[leaving.pop()])

    assert len([content for content in found if content in staying]) == len(staying)
    assert staying <= set(found)


async def test_altered_cursor_is_refused(world: World) -> None:
    await store_at(world, 3, 2, 1)
    cursor = (await list_page(world.agent, list_request(user_id="u", limit=1))).next_cursor
    assert cursor is not None
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=+"

    for place in range(len(cursor)):
        for letter in random.Random(place).sample(letters, 4):
            changed = cursor[:place] + letter + cursor[place + 1 :]
            if changed != cursor:
                with pytest.raises(RequestInvalid, match="cursor"):
                    await list_page(world.agent, list_request(user_id="u", cursor=changed))


@pytest.mark.parametrize(
    "other", [{"user_id": "v"}, {"tags": ("x",)}, {"include_superseded": True}, {"namespace": ("a",)}]
)
async def test_cursor_of_other_list_is_refused(world: World, other: dict[str, Any]) -> None:
    await store_at(world, 3, 2, 1)
    cursor = (await list_page(world.agent, list_request(user_id="u", limit=1))).next_cursor

    with pytest.raises(RequestInvalid, match="first page"):
        await list_page(world.agent, list_request(**{"user_id": "u", "cursor": cursor} | other))


@pytest.mark.parametrize(
    "cursor", ["", "x", "bm90IGpzb24=", "WzFd", "WyJhIiwgImIiXQ==", "WzEsICJ4Il0=", "WzEsICJ4IiwgInkiXQ==", "é"]
)
async def test_malformed_cursor_is_refused(world: World, cursor: str) -> None:
    with pytest.raises(RequestInvalid, match="cursor"):
        await list_page(world.agent, list_request(user_id="u", cursor=cursor))


async def test_list_filters_by_type_tag_and_session(world: World) -> None:
    await world.add("a", type="task", tags=("x", "y"), session_id="s")
    await world.add("b", tags=("x",))
    await world.add("c", user_id="v", type="task", tags=("x",), session_id="s")

    async def contents(**more: Any) -> list[str]:
        return [record.content for record in await world.rows(**more)]

    assert await contents(types=("task",)) == ["a"]
    assert sorted(await contents(tags=("x",))) == ["a", "b"]
    assert sorted(await contents(tags=("x", "y"))) == ["a", "b"]
    assert await contents(tags=("x", "y"), tags_match="all") == ["a"]
    assert await contents(session_id="s") == ["a"]
    assert await contents(types=("task",), tags=("z",)) == []


async def test_superseded_versions_are_listed_on_request(world: World) -> None:
    await world.add("new", supersedes=await world.add("old"))

    everything = await world.rows(include_superseded=True)

    assert sorted(record.content for record in everything) == ["new", "old"]


async def test_deleting_head_restores_predecessor(world: World) -> None:
    first = await world.add("first")
    second = await world.add("second", supersedes=first)
    third = await world.add("third", supersedes=second)
    heads = [await world.heads()]
    for memory_id in (third, second, first):
        await delete_head(world.agent, memory_id, user_id="u")
        heads.append(await world.heads())

    assert heads == [["third"], ["second"], ["first"], []]


async def test_restored_version_can_be_superseded(world: World) -> None:
    first = await world.add("first")
    await delete_head(world.agent, await world.add("second", supersedes=first), user_id="u")

    await world.add("other", supersedes=first)

    assert await world.heads() == ["other"]


async def test_deleting_superseded_version_names_head(world: World) -> None:
    old = await world.add("old")
    head = await world.add("new", supersedes=old)

    with pytest.raises(Conflict, match=head):
        await delete_head(world.agent, old, user_id="u")

    assert len(await world.rows(include_superseded=True)) == 2


async def test_second_deletion_is_not_found(world: World) -> None:
    memory_id = await world.add("a")
    await delete_head(world.agent, memory_id, user_id="u")

    with pytest.raises(NotFound):
        await delete_head(world.agent, memory_id, user_id="u")
    with pytest.raises(NotFound):
        await read_memory(world.agent, memory_id, user_id="u")


async def test_deleted_memory_leaves_no_content(world: World) -> None:
    memory_id = await world.add("secret words", tags=("private",), metadata={"k": "v"})

    await delete_head(world.agent, memory_id, user_id="u")

    (point,) = await world.agent.store.retrieve(world.agent.alias, [memory_id])
    times = {"updatedAt", "deletedAt", "loggedAt"}
    assert set(point["payload"]) == {"id", "agentId", "userId", "type", "rev", "pending"} | times


async def test_deletion_and_supersession_exclude_each_other(world: World) -> None:
    for round_ in range(10):
        head = await world.add(f"head {round_}", user_id=f"u{round_}")

        superseded, deleted = await asyncio.gather(
            world.try_add("newer", supersedes=head, user_id=f"u{round_}"),
            delete_head(world.agent, head, user_id=f"u{round_}"),
            return_exceptions=True,
        )

        assert isinstance(superseded, Exception) != isinstance(deleted, Exception)
        assert await world.heads(f"u{round_}") == ([] if deleted is None else ["newer"])


async def test_count_excludes_deleted_memories(world: World) -> None:
    old = await world.add("old")
    await world.add("new", supersedes=old)
    await delete_head(world.agent, await world.add("gone"), user_id="u")

    assert await count_stored(world.agent) == 2


async def test_supersession_sets_valid_to(world: World) -> None:
    old = await world.add("old", created_at=100)
    await world.add("new", supersedes=old, created_at=200, valid_from=150)

    assert (await read_memory(world.agent, old, user_id="u")).valid_to == 150


@pytest.mark.parametrize(("stated", "valid_to"), [(120, 120), (900, 200)])
async def test_successor_shortens_stated_valid_to(world: World, stated: int, valid_to: int) -> None:
    """Deleting the successor restores the stated value."""
    old = await world.add("old", created_at=100, valid_to=stated)
    new = await world.add("new", supersedes=old, created_at=200)
    superseded = await read_memory(world.agent, old, user_id="u")

    await delete_head(world.agent, new, user_id="u")

    assert superseded.valid_to == valid_to
    assert (await read_memory(world.agent, old, user_id="u")).valid_to == stated


async def test_deleting_successor_clears_valid_to(world: World) -> None:
    old = await world.add("old")
    await delete_head(world.agent, await world.add("new", supersedes=old), user_id="u")

    assert (await read_memory(world.agent, old, user_id="u")).valid_to is None


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [
        (("memories",), ["a", "b"]),
        (("memories", "u"), ["a", "b"]),
        (("memories", "u", "work"), ["a"]),
        (("u",), []),
        (("memoriesu",), []),
        (("memories", "u", "work", "more"), []),
        ((), ["a", "b", "c"]),
    ],
)
async def test_namespace_filter_matches_prefixes(world: World, namespace: tuple[str, ...], expected: list[str]) -> None:
    await world.add("a", namespace=("memories", "u", "work"))
    await world.add("b", namespace=("memories", "u"))
    await world.add("c")

    assert sorted(record.content for record in await world.rows(namespace=namespace)) == expected


async def test_other_users_namespace_is_refused(world: World) -> None:
    outcome = await world.try_add("a", user_id="u", namespace=("memories", "v"))

    assert isinstance(outcome, RequestInvalid)
    assert [error.field for error in outcome.errors] == ["namespace"]


async def test_empty_validity_is_refused(world: World) -> None:
    outcome = await world.try_add("a", valid_from=5, valid_to=5)

    assert isinstance(outcome, RequestInvalid)
    assert [error.field for error in outcome.errors] == ["valid_to"]
