"""Reading, listing and deleting by id over a real engine."""

import asyncio
import random
from typing import Any

import pytest

from agentmemory_operator.errors import Conflict, NotFound, RequestInvalid
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.stored_memories import count_stored, delete_head, list_page, read_memory
from tests.support.engine.agents import World, list_request, vector_of

UNKNOWN = "018f0000-0000-7000-8000-000000000000"


async def pages(world: World, limit: int) -> list[list[str]]:
    """Return the contents of each page."""
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
async def test_an_unknown_id_is_not_found(world: World, memory_id: str) -> None:
    with pytest.raises(NotFound):
        await read_memory(world.agent, memory_id, user_id="u")
    with pytest.raises(NotFound):
        await delete_head(world.agent, memory_id, user_id="u")


async def test_another_users_memory_is_not_found(world: World) -> None:
    mine = await world.add("mine")

    with pytest.raises(NotFound):
        await read_memory(world.agent, mine, user_id="v")
    with pytest.raises(NotFound):
        await delete_head(world.agent, mine, user_id="v")
    assert await world.heads() == ["mine"]


async def test_an_expired_memory_is_not_found_before_it_is_cleaned_up(world: World) -> None:
    short = await world.add("short", expires_at=world.clock.now_ms() + 10)
    assert await world.heads() == ["short"]

    world.clock.move(ms=10)

    with pytest.raises(NotFound):
        await read_memory(world.agent, short, user_id="u")
    assert await world.heads() == []


async def test_the_list_is_newest_first(world: World) -> None:
    await store_at(world, 20, 10, 30)

    assert await world.heads() == ["2", "0", "1"]


async def test_an_empty_list_has_one_empty_page(world: World) -> None:
    assert await pages(world, 10) == [[]]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 7])
async def test_pages_hold_each_memory_once_whatever_their_times(world: World, limit: int) -> None:
    await store_at(world, 9, 7, 7, 7, 5, 7)

    found = await pages(world, limit)

    assert [content for page in found for content in page] == ["0", "1", "2", "3", "5", "4"]
    assert all(len(page) == limit for page in found[:-1])
    assert found[-1]


async def test_a_thousand_memories_of_one_time_are_paged(world: World) -> None:
    await store_at(world, 11, *[10] * 1000, 9)

    found = [content for page in await pages(world, 97) for content in page]

    assert len(found) == 1002
    assert set(found) == {str(place) for place in range(1002)}
    assert (found[0], found[-1]) == ("0", "1001")


async def test_a_page_goes_on_after_its_last_memory_was_deleted(world: World) -> None:
    await store_at(world, 7, 7, 7)
    first = await list_page(world.agent, list_request(user_id="u", limit=1))
    await delete_head(world.agent, first.records[0].id, user_id="u")

    rest = await list_page(world.agent, list_request(user_id="u", cursor=first.next_cursor))

    assert [record.content for record in rest.records] == ["1", "2"]


@pytest.mark.parametrize("seed", range(4))
async def test_pages_hold_what_was_there_throughout_once_whatever_is_written_between(world: World, seed: int) -> None:
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


async def test_a_changed_cursor_is_refused(world: World) -> None:
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
async def test_a_cursor_of_another_list_is_refused(world: World, other: dict[str, Any]) -> None:
    await store_at(world, 3, 2, 1)
    cursor = (await list_page(world.agent, list_request(user_id="u", limit=1))).next_cursor

    with pytest.raises(RequestInvalid, match="first page"):
        await list_page(world.agent, list_request(**{"user_id": "u", "cursor": cursor} | other))


@pytest.mark.parametrize(
    "cursor", ["", "x", "bm90IGpzb24=", "WzFd", "WyJhIiwgImIiXQ==", "WzEsICJ4Il0=", "WzEsICJ4IiwgInkiXQ==", "é"]
)
async def test_a_cursor_that_is_not_ours_is_refused(world: World, cursor: str) -> None:
    with pytest.raises(RequestInvalid, match="cursor"):
        await list_page(world.agent, list_request(user_id="u", cursor=cursor))


async def test_a_list_is_narrowed_by_type_tag_and_session(world: World) -> None:
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


async def test_earlier_versions_are_listed_on_demand(world: World) -> None:
    await world.add("new", supersedes=await world.add("old"))

    everything = await world.rows(include_superseded=True)

    assert sorted(record.content for record in everything) == ["new", "old"]


async def test_deleting_the_head_lets_its_predecessor_answer_again(world: World) -> None:
    first = await world.add("first")
    second = await world.add("second", supersedes=first)
    third = await world.add("third", supersedes=second)
    seen = [await world.heads()]
    for memory_id in (third, second, first):
        await delete_head(world.agent, memory_id, user_id="u")
        seen.append(await world.heads())

    assert seen == [["third"], ["second"], ["first"], []]


async def test_a_version_that_answers_again_can_be_superseded(world: World) -> None:
    first = await world.add("first")
    await delete_head(world.agent, await world.add("second", supersedes=first), user_id="u")

    await world.add("other", supersedes=first)

    assert await world.heads() == ["other"]


async def test_a_superseded_version_is_not_deleted_but_its_head_is_named(world: World) -> None:
    old = await world.add("old")
    head = await world.add("new", supersedes=old)

    with pytest.raises(Conflict, match=head):
        await delete_head(world.agent, old, user_id="u")

    assert len(await world.rows(include_superseded=True)) == 2


async def test_deleting_twice_is_not_found(world: World) -> None:
    memory_id = await world.add("a")
    await delete_head(world.agent, memory_id, user_id="u")

    with pytest.raises(NotFound):
        await delete_head(world.agent, memory_id, user_id="u")
    with pytest.raises(NotFound):
        await read_memory(world.agent, memory_id, user_id="u")


async def test_a_deleted_memory_leaves_no_content(world: World) -> None:
    memory_id = await world.add("secret words", tags=("private",), metadata={"k": "v"})

    await delete_head(world.agent, memory_id, user_id="u")

    (point,) = await world.agent.store.retrieve(world.agent.alias, [memory_id])
    times = {"updatedAt", "deletedAt", "loggedAt"}
    assert set(point["payload"]) == {"id", "agentId", "userId", "type", "rev", "pending"} | times


async def test_a_head_is_deleted_or_superseded_but_never_both(world: World) -> None:
    for round_ in range(10):
        head = await world.add(f"head {round_}", user_id=f"u{round_}")

        superseded, deleted = await asyncio.gather(
            world.try_add("newer", supersedes=head, user_id=f"u{round_}"),
            delete_head(world.agent, head, user_id=f"u{round_}"),
            return_exceptions=True,
        )

        assert isinstance(superseded, Exception) != isinstance(deleted, Exception)
        assert await world.heads(f"u{round_}") == ([] if deleted is None else ["newer"])


async def test_the_count_leaves_out_what_was_deleted(world: World) -> None:
    old = await world.add("old")
    await world.add("new", supersedes=old)
    await delete_head(world.agent, await world.add("gone"), user_id="u")

    assert await count_stored(world.agent) == 2


async def test_a_superseded_version_was_true_until_its_successor_began(world: World) -> None:
    old = await world.add("old", created_at=100)
    await world.add("new", supersedes=old, created_at=200, valid_from=150)

    assert (await read_memory(world.agent, old, user_id="u")).valid_to == 150


@pytest.mark.parametrize(("stated", "ended"), [(120, 120), (900, 200)])
async def test_a_stated_end_is_shortened_by_a_successor_and_comes_back_with_its_memory(
    world: World, stated: int, ended: int
) -> None:
    old = await world.add("old", created_at=100, valid_to=stated)
    new = await world.add("new", supersedes=old, created_at=200)
    superseded = await read_memory(world.agent, old, user_id="u")

    await delete_head(world.agent, new, user_id="u")

    assert superseded.valid_to == ended
    assert (await read_memory(world.agent, old, user_id="u")).valid_to == stated


async def test_an_end_that_a_successor_brought_goes_with_it(world: World) -> None:
    old = await world.add("old")
    await delete_head(world.agent, await world.add("new", supersedes=old), user_id="u")

    assert (await read_memory(world.agent, old, user_id="u")).valid_to is None


@pytest.mark.parametrize(
    ("asked", "expected"),
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
async def test_a_namespace_is_asked_for_by_its_first_parts(
    world: World, asked: tuple[str, ...], expected: list[str]
) -> None:
    await world.add("a", namespace=("memories", "u", "work"))
    await world.add("b", namespace=("memories", "u"))
    await world.add("c")

    assert sorted(record.content for record in await world.rows(namespace=asked)) == expected


async def test_a_users_namespace_takes_no_other_users_memory(world: World) -> None:
    outcome = await world.try_add("a", user_id="u", namespace=("memories", "v"))

    assert isinstance(outcome, RequestInvalid)
    assert [error.field for error in outcome.errors] == ["namespace"]


async def test_what_ends_before_it_begins_is_refused(world: World) -> None:
    outcome = await world.try_add("a", valid_from=5, valid_to=5)

    assert isinstance(outcome, RequestInvalid)
    assert [error.field for error in outcome.errors] == ["valid_to"]
