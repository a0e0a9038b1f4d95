"""Trees of memories on a real engine."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.errors import NotFound, RequestInvalid
from agentmemory_operator.memories.hierarchy import MemoryTree, Node, TreeRequest, list_children, read_tree
from agentmemory_operator.memories.stored_memories import delete_head, read_memory
from agentmemory_operator.spec.memory_types import MemoryType
from tests.support.engine.agents import EVERYTHING, World

UNKNOWN = "018f0000-0000-7000-8000-000000000000"


async def add(world: World, content: str, parent: str | None = None, **more: Any) -> str:
    """Advance the clock by 1 ms and store a memory."""
    world.clock.move(ms=1)
    return await world.add(content, parent_id=parent, **more)


async def children(world: World, memory_id: str, *, limit: int = 10, user_id: str = "u") -> list[str]:
    """Return the contents of all pages of children."""
    found, cursor = [], None
    while True:
        page = await list_children(world.agent, memory_id, user_id=user_id, limit=limit, cursor=cursor)
        found += [record.content for record in page.records]
        cursor = page.next_cursor
        if cursor is None:
            return found


async def tree(world: World, memory_id: str, *, depth: int = 8, limit: int = 100, user_id: str = "u") -> MemoryTree:
    return await read_tree(world.agent, memory_id, TreeRequest(user_id=user_id, depth=depth, limit=limit))


def render(node: Node) -> Any:
    """Return a tree as nested contents; a leaf is a string."""
    below = [render(child) for child in node.children]
    return {node.record.content: below} if below else node.record.content


async def test_descendants_form_a_tree(world: World) -> None:
    root = await add(world, "trip")
    day = await add(world, "day 1", root)
    await add(world, "breakfast", day)
    await add(world, "museum", day)
    await add(world, "day 2", root)
    await add(world, "unrelated")

    found = await tree(world, root)

    assert render(found.root) == {"trip": [{"day 1": ["breakfast", "museum"]}, "day 2"]}
    assert not found.is_truncated
    assert await children(world, root) == await children(world, root, limit=1) == ["day 2", "day 1"]
    assert await children(world, day) == ["museum", "breakfast"]


async def test_leaf_is_a_tree(world: World) -> None:
    leaf = await add(world, "leaf")

    assert (render((await tree(world, leaf)).root), await children(world, leaf)) == ("leaf", [])


async def test_other_users_tree_is_not_found(world: World) -> None:
    root = await add(world, "root")
    await add(world, "child", root)

    for memory_id, user_id in ((root, "v"), (UNKNOWN, "u")):
        with pytest.raises(NotFound):
            await tree(world, memory_id, user_id=user_id)
        with pytest.raises(NotFound):
            await children(world, memory_id, user_id=user_id)


@pytest.mark.parametrize(
    ("depth", "limit", "expected", "is_truncated"),
    [
        (1, 100, {"a": ["b", "c"]}, True),
        (2, 100, {"a": [{"b": ["d"]}, "c"]}, True),
        (3, 100, {"a": [{"b": [{"d": ["e"]}]}, "c"]}, False),
        (9, 100, {"a": [{"b": [{"d": ["e"]}]}, "c"]}, False),
        (9, 4, {"a": [{"b": [{"d": ["e"]}]}, "c"]}, False),
        (9, 3, {"a": [{"b": ["d"]}, "c"]}, True),
        (9, 2, {"a": ["b", "c"]}, True),
        (9, 1, {"a": ["b"]}, True),
    ],
)
async def test_tree_is_truncated_at_its_bounds(
    world: World, depth: int, limit: int, expected: Any, is_truncated: bool
) -> None:
    a = await add(world, "a")
    b = await add(world, "b", a)
    await add(world, "c", a)
    await add(world, "e", await add(world, "d", b))

    found = await tree(world, a, depth=depth, limit=limit)

    assert (render(found.root), found.is_truncated) == (expected, is_truncated)


async def test_children_survive_supersession_of_parent(world: World) -> None:
    old = await add(world, "old")
    await add(world, "child of old", old)
    new = await add(world, "new", supersedes=old)
    await add(world, "child of new", new)

    assert render((await tree(world, new)).root) == {"new": ["child of old", "child of new"]}
    assert render((await tree(world, old)).root) == {"old": ["child of old", "child of new"]}
    assert await children(world, new) == await children(world, old) == ["child of new", "child of old"]


async def test_newest_version_decides_the_parent(world: World) -> None:
    """A version without a parent leaves the tree."""
    root = await add(world, "root")
    kept, left = await add(world, "kept", root), await add(world, "left", root)
    await add(world, "grandchild", kept)
    await add(world, "kept, newer", root, supersedes=kept)
    await add(world, "left, newer", supersedes=left)

    assert render((await tree(world, root)).root) == {"root": [{"kept, newer": ["grandchild"]}]}


async def test_children_survive_deletion_of_parent(world: World) -> None:
    root = await add(world, "root")
    middle = await add(world, "middle", root)
    leaf = await add(world, "leaf", middle)
    await delete_head(world.agent, middle, user_id="u")

    assert render((await tree(world, root)).root) == "root"
    assert (await read_memory(world.agent, leaf, user_id="u")).parent_id == middle
    with pytest.raises(NotFound):
        await children(world, middle)


async def test_expired_child_is_left_out(world: World) -> None:
    root = await add(world, "root")
    await add(world, "short", root, expires_at=world.clock.now_ms() + 10)
    world.clock.move(ms=10)

    assert (render((await tree(world, root)).root), await children(world, root)) == ("root", [])


async def test_parent_must_belong_to_the_user(world: World) -> None:
    others = await add(world, "another's", user_id="v")

    for parent in (others, UNKNOWN):
        assert isinstance(await world.try_add("child", parent_id=parent), NotFound)


@pytest.mark.parametrize(("below", "reason"), [(0, "a memory cannot be its own parent"), (1, "cycle"), (3, "cycle")])
async def test_cycle_is_refused(world: World, below: int, reason: str) -> None:
    ids = [await add(world, "top")]
    for level in range(3):
        ids.append(await add(world, f"level {level}", ids[-1]))

    outcome = await world.try_add("new top", supersedes=ids[0], parent_id=ids[below])

    assert isinstance(outcome, RequestInvalid)
    assert [error.field for error in outcome.errors] == ["parent_id"]
    assert reason in str(outcome)
    assert len(await world.heads()) == 4


async def test_cycle_through_old_versions_is_refused(world: World) -> None:
    top = await add(world, "top")
    middle = await add(world, "middle", top)
    newer_top = await add(world, "newer top", supersedes=top)
    newer_middle = await add(world, "newer middle", top, supersedes=middle)

    for parent in (middle, newer_middle, top):
        outcome = await world.try_add("newest top", supersedes=newer_top, parent_id=parent)
        assert isinstance(outcome, RequestInvalid)


async def test_memory_can_move_below_its_sibling(world: World) -> None:
    root = await add(world, "root")
    left, right = await add(world, "left", root), await add(world, "right", root)

    await add(world, "left, moved", right, supersedes=left)

    assert render((await tree(world, root)).root) == {"root": [{"right": ["left, moved"]}]}


async def test_existing_cycle_is_read_once(world: World) -> None:
    """Concurrent writers can create a cycle."""
    first = await add(world, "first")
    second = await add(world, "second", first)
    circle = {"key": "id", "match": {"value": first}}
    await world.agent.store.set_payload(world.agent.alias, {"parentId": second}, {"must": [circle]})

    assert render((await tree(world, first)).root) == {"first": ["second"]}
    assert render((await tree(world, second)).root) == {"second": ["first"]}
    assert not (await tree(world, first, depth=1)).is_truncated


async def test_limit_does_not_count_the_memories_of_a_cycle(world: World) -> None:
    """The root is a child of its own child, so Qdrant may return it among the memories of the tree."""
    root = await add(world, "root")
    below = [await add(world, "child", root), *[await add(world, "other", root) for _ in range(2)]]
    grandchild = await add(world, "grandchild", below[0])
    circle = {"key": "id", "match": {"value": root}}
    await world.agent.store.set_payload(world.agent.alias, {"parentId": below[0]}, {"must": [circle]})

    found = [await tree(world, root, limit=limit) for limit in (3, 4)]

    assert [(len(one.root.children), one.is_truncated) for one in found] == [(3, True), (3, False)]
    assert found[1].root.children[0].children[0].record.id == grandchild


async def test_cycle_by_key_is_refused(world: World) -> None:
    keyed = MemoryType("plan", half_life_days=9, supersede_by="key")
    world.set_ranking(replace(EVERYTHING, types=(*EVERYTHING.types, keyed)))
    top = await add(world, "top", type="plan", key="k")
    below = await add(world, "below", top)

    outcome = await world.try_add("new top", type="plan", key="k", parent_id=below)

    assert isinstance(outcome, RequestInvalid)
    assert sorted(await world.heads()) == ["below", "top"]
