"""Cleanup over a real engine: it removes the planned memories, keeps chains intact and survives a crash at any call."""

import random
import uuid
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.errors import NotFound, TransientError
from agentmemory_operator.lifecycle.cleanup import Cleanup, CleanupApproval
from agentmemory_operator.lifecycle.removals import RemovalTally, find_removals
from agentmemory_operator.lifecycle.rules.cleanup_rules import (
    ROW_KEYS,
    CleanupRules,
    RemovalReason,
    build_rules,
)
from agentmemory_operator.memories import chains
from agentmemory_operator.memories.chains import SWEEP_AFTER_MS
from agentmemory_operator.memories.rules.filters import STORED_FILTER
from agentmemory_operator.memories.stored_memories import delete_head, read_memory
from agentmemory_operator.spec.expression.variables import DAY_MS
from agentmemory_operator.spec.memory_types import MemoryType, Ttl
from agentmemory_operator.spec.presets import Lifecycle, PruneCriteria
from tests.support.engine.agents import EVERYTHING, World, vector_of
from tests.support.engine.cleanup_model import plan_removals
from tests.support.engine.interleaved_store import CrashingStore
from tests.support.engine.reused_agents import reuse_world

pytestmark = pytest.mark.usefixtures("keeps_vectors")

TYPES = (
    MemoryType("fact", 30),
    MemoryType("task", None, ttl=Ttl("Hard", 50)),
    MemoryType("event", None, ttl=Ttl("SoftUnlessUsed", 50, 0.75)),
)
ALL = Lifecycle(
    decay_floor=0.01,
    max_chain_length=3,
    max_memories_per_user=20,
    max_removal_percent=100,
    prune=PruneCriteria(older_than_days=365, priority_below=0.2, confidence_below=0.3),
)
OLD_DAYS = 400
Payload = dict[str, Any]


@pytest.fixture(autouse=True)
def types(world: World) -> None:
    world.set_ranking(replace(EVERYTHING, types=TYPES))


def cleanup_of(world: World) -> Cleanup:
    return Cleanup(world.clock, min_pause_s=0)


def rules(world: World, lifecycle: Lifecycle = ALL) -> CleanupRules:
    return build_rules(lifecycle, world.agent.settings.ranking, world.clock.now_ms())


async def clean(world: World, lifecycle: Lifecycle = ALL) -> dict[RemovalReason, int]:
    return dict((await cleanup_of(world).run(world.agent, rules(world, lifecycle))).counts)


async def add_old(world: World, name: str, *, days: float = OLD_DAYS, **more: Any) -> str:
    return await world.add(
        name, type=more.pop("type", "fact"), created_at=world.clock.now_ms() - int(days * DAY_MS), **more
    )


async def add_chain(world: World, length: int, name: str = "v", **more: Any) -> list[str]:
    ids: list[str] = []
    for number in range(length):
        ids.append(await world.add(f"{name}{number}", type="fact", supersedes=ids[-1] if ids else None, **more))
        world.clock.move(ms=1)
    return ids


async def stored(world: World) -> dict[str, Payload]:
    """Return the rows of all users by id, without tombstones."""
    points, _ = await world.agent.store.scroll(
        world.agent.alias, {"filter": STORED_FILTER, "limit": 5_000, "with_payload": True}
    )
    return {point["id"]: point["payload"] for point in points}


async def read_window_ids(world: World, memory_id: str) -> list[str]:
    """Return the ids of the other memories whose texts are in a memory's keyword text."""
    (point,) = await world.agent.store.retrieve(world.agent.alias, [memory_id])
    return list(point["payload"].get("windowIds") or [])


def check_chains(rows: dict[str, Payload]) -> None:
    """Check that each link of a chain points to a memory that links back."""
    for row in rows.values():
        if older := row.get("supersedesId"):
            assert rows[older]["supersededById"] == row["id"]
        if newer := row.get("supersededById"):
            assert rows[newer]["supersedesId"] == row["id"]


async def store_drawn(world: World, seed: int, *, chains: int) -> None:
    """Store random chains of all ages, some of them pinned, used, uncertain or expired."""
    rng = random.Random(seed)
    points = []
    for _ in range(chains):
        user, older = rng.choice(("ada", "bob")), None
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            row = drawn_row(rng, world, user)
            if older:
                row["supersedesId"], older["supersededById"] = older["id"], row["id"]
            points.append({"id": row["id"], "vector": vector_of(row["id"]), "payload": row})
            older = row
    await world.agent.store.upsert(world.agent.alias, points)


def drawn_row(rng: random.Random, world: World, user: str) -> Payload:
    row = {
        "id": str(uuid.UUID(int=rng.getrandbits(128), version=4)),
        "agentId": world.agent.settings.slug,
        "userId": user,
        "type": rng.choice(("fact", "task", "event", "unlisted")),
        "content": "text",
        "createdAt": world.clock.now_ms() - rng.choice((1, 40, 60, 190, 210, 500)) * DAY_MS,
        "updatedAt": world.clock.now_ms(),
        "importance": rng.choice((0.05, 0.5, 0.9)),
        "accessCount": rng.choice((0, 3)),
        "pending": False,
        "rev": 1,
    }
    row |= {"pinned": True} if rng.random() < 0.1 else {}
    row |= {"confidence": rng.choice((0.1, 0.9))} if rng.random() < 0.5 else {}
    return row | ({"expiresAt": world.clock.now_ms() - 1} if rng.random() < 0.1 else {})


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cap", [None, 20])
async def test_run_removes_planned_rows(world: World, seed: int, cap: int | None) -> None:
    lifecycle = replace(ALL, max_memories_per_user=cap)
    await store_drawn(world, seed, chains=60)
    before = await stored(world)
    planned = plan_removals(
        [{key: row[key] for key in ROW_KEYS if key in row} for row in before.values()], rules(world, lifecycle)
    )

    previewed = {
        row["id"]: reason async for row, reason in cleanup_of(world).preview(world.agent, rules(world, lifecycle))
    }
    counts = await clean(world, lifecycle)

    after = await stored(world)
    assert previewed == planned
    assert before.keys() - after.keys() == planned.keys()
    assert sum(counts.values()) == len(planned)
    check_chains(after)
    heads = {row["id"] for row in after.values() if not row.get("supersededById")}
    assert heads <= {row["id"] for row in before.values() if not row.get("supersededById")}
    assert await clean(world, lifecycle) == {}


# Every fifth call by default, and every call with the fault tests.
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.faults)])
async def test_killed_run_can_be_repeated(world: World, step: int) -> None:
    at = 0
    while await crashes_and_recovers(world, at):
        at += step

    assert at > 20


async def crashes_and_recovers(world: World, at: int) -> bool:
    """Run a cleanup that crashes before call `at`, then a second one.

    Return False if there were fewer calls. A crash before a call and one after the previous call leave the same points.
    """
    await world.agent.store.delete(world.agent.alias, {"must": []})
    await store_drawn(world, 16, chains=4)
    before = await stored(world)
    planned = plan_removals(before.values(), rules(world))
    assert set(planned.values()) >= {
        RemovalReason.EXPIRED,
        RemovalReason.TTL,
        RemovalReason.DECAYED,
        RemovalReason.CHAIN,
    }
    doomed = replace(world.agent, store=CrashingStore(world.agent.store, at))

    try:
        await cleanup_of(world).run(doomed, rules(world))
        was_killed = False
    except TransientError:
        was_killed = True
    between = await stored(world)
    assert all(between[each].get("supersededById") for each in between if before[each].get("supersededById"))
    await clean(world)
    world.clock.move(ms=SWEEP_AFTER_MS + 1)
    await chains.sweep(world.agent)

    after = await stored(world)
    assert before.keys() - after.keys() == planned.keys(), f"killed before call {at}"
    check_chains(after)
    return was_killed


async def test_collapse_keeps_first_and_newest_versions(world: World) -> None:
    ids = await add_chain(world, 8)

    assert await clean(world, replace(ALL, max_chain_length=5)) == {RemovalReason.CHAIN: 3}

    rows = await stored(world)
    assert [each for each in ids if each in rows] == [ids[0], *ids[4:]]
    assert rows[ids[0]]["supersededById"] == ids[4]
    check_chains(rows)


async def test_deleted_head_restores_previous_version(world: World) -> None:
    ids = await add_chain(world, 8)
    await clean(world)

    for head, answering in ((ids[7], "v6"), (ids[6], "v0")):
        await delete_head(world.agent, head, user_id="u")
        assert await world.heads() == [answering]


async def test_expired_head_restores_no_earlier_version(world: World) -> None:
    old = await add_old(world, "old", days=1)
    await add_old(world, "expired", days=0, supersedes=old, expires_at=world.clock.now_ms() + 1)
    world.clock.move(ms=2)

    assert await clean(world) == {RemovalReason.EXPIRED: 2}

    assert await stored(world) == {}


async def test_pinned_memory_and_its_head_are_kept(world: World) -> None:
    pinned = await add_old(world, "pinned")
    await add_old(world, "head", supersedes=pinned)
    await add_old(world, "alone")
    await world.agent.store.set_payload(world.agent.alias, {"pinned": True}, {"must": [{"has_id": [pinned]}]})

    assert await clean(world) == {RemovalReason.DECAYED: 1}

    assert sorted(await world.heads()) == ["head"]


async def test_changed_memory_waits_for_next_run(world: World) -> None:
    memory_id = await add_old(world, "old")
    (unit,) = [each async for each in find_removals(world.agent, rules(world), RemovalTally())]
    await world.agent.store.set_payload(world.agent.alias, {"rev": 9}, {"must": [{"has_id": [memory_id]}]})

    assert await cleanup_of(world).remove_units(world.agent, [unit]) == {}

    assert await world.heads() == ["old"]
    assert await clean(world) == {RemovalReason.DECAYED: 1}


async def test_removed_memory_is_not_found_and_has_no_text(world: World) -> None:
    memory_id = await add_old(world, "secret text")

    await clean(world)

    with pytest.raises(NotFound):
        await read_memory(world.agent, memory_id, user_id="u")
    (point,) = await world.agent.store.retrieve(world.agent.alias, [memory_id])
    assert "deletedAt" in point["payload"]
    assert "secret" not in str(point)


async def test_run_over_the_limit_waits_for_approval(world: World) -> None:
    for number in range(15):
        await add_old(world, f"old {number}")
    await world.add("new", type="fact")
    lifecycle = replace(ALL, max_removal_percent=20)

    outcome = await cleanup_of(world).run(world.agent, rules(world, lifecycle))

    assert outcome.approval_digest
    assert (dict(outcome.counts), outcome.total, outcome.removed) == ({RemovalReason.DECAYED: 15}, 16, 0)
    assert len(await stored(world)) == 16

    approval = CleanupApproval(as_of_ms=outcome.as_of_ms, max_removals=15)
    approved = await cleanup_of(world).run(world.agent, rules(world, lifecycle), approval)

    assert (approved.approval_digest, dict(approved.counts)) == (None, {RemovalReason.DECAYED: 15})
    assert await world.heads() == ["new"]


async def test_approval_covers_only_the_approved_count(world: World) -> None:
    for number in range(15):
        await add_old(world, f"old {number}")
    lifecycle = replace(ALL, max_removal_percent=20)

    outcome = await cleanup_of(world).run(
        world.agent, rules(world, lifecycle), CleanupApproval(as_of_ms=0, max_removals=14)
    )

    assert outcome.approval_digest


async def test_expired_memories_need_no_approval(world: World) -> None:
    for number in range(15):
        await add_old(world, f"old {number}", days=0, expires_at=world.clock.now_ms() + 1)
    world.clock.move(ms=2)

    assert await clean(world, replace(ALL, max_removal_percent=1)) == {RemovalReason.EXPIRED: 15}


async def test_cap_removes_least_valuable_of_the_user(world: World) -> None:
    for number in range(5):
        await world.add(f"worth {number}", type="fact", importance=number / 5, user_id="ada")
    await world.add("other", type="fact", importance=0, user_id="bob")

    assert await clean(world, Lifecycle(max_memories_per_user=3)) == {RemovalReason.OVER_CAP: 2}

    assert sorted(await world.heads("ada")) == ["worth 2", "worth 3", "worth 4"]
    assert await world.heads("bob") == ["other"]


async def test_keyword_texts_drop_the_removed_memory(qdrant_url: str) -> None:
    async with reuse_world(qdrant_url, keyword=KeywordSource(language="english", window=2)) as world:
        world.set_ranking(replace(EVERYTHING, types=TYPES))
        removed = await add_old(world, "zebra", session_id="s")
        later = await world.add("later", type="event", session_id="s")
        before = await read_window_ids(world, later)

        await clean(world)

        assert (before, await read_window_ids(world, later)) == ([removed], [])
