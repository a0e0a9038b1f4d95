"""Removals of a cleanup: independent of the order of rows, idempotent, and without broken chains."""

import random
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.lifecycle.rules.cleanup_rules import CleanupRules, RemovalReason
from agentmemory_operator.spec.expression.variables import DAY_MS
from agentmemory_operator.spec.memory_types import MemoryType, Ttl
from agentmemory_operator.spec.presets import Lifecycle, PruneCriteria
from tests.support.engine.cleanup_model import plan_removals

NOW_MS = 1_700_000_000_000
TYPES = (
    MemoryType("fact", 30),
    MemoryType("task", None, ttl=Ttl("Hard", 50)),
    MemoryType("event", None, ttl=Ttl("SoftUnlessUsed", 50, 0.75)),
)
Row = dict[str, Any]
Chain = list[Row]


@st.composite
def chains(draw: st.DrawFn) -> list[Chain]:
    """Build chains of some users, each from oldest to newest."""
    drawn = []
    for number, length in enumerate(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))):
        user = draw(st.sampled_from(("ada", "bob")))
        drawn.append([draw(rows(f"{number}-{place}", user)) for place in range(length)])
        for older, newer in pairwise(drawn[-1]):
            older["supersededById"], newer["supersedesId"] = newer["id"], older["id"]
    return drawn


@st.composite
def rows(draw: st.DrawFn, row_id: str, user: str) -> Row:
    row = {
        "id": row_id,
        "userId": user,
        "type": draw(st.sampled_from(("fact", "task", "event", "unlisted"))),
        "createdAt": NOW_MS - draw(st.integers(-10, 600)) * DAY_MS,
        "importance": draw(st.sampled_from((0.0, 0.1, 0.5, 0.9))),
        "accessCount": draw(st.sampled_from((0, 0, 3))),
        "rev": 1,
    }
    row |= {"pinned": True} if draw(st.integers(0, 9)) == 0 else {}
    row |= {"confidence": draw(st.sampled_from((0.1, 0.9)))} if draw(st.booleans()) else {}
    return row | ({"expiresAt": NOW_MS - 1} if draw(st.integers(0, 9)) == 0 else {})


lifecycles = st.builds(
    Lifecycle,
    decay_floor=st.sampled_from((None, 0.0, 0.01, 0.5)),
    max_chain_length=st.sampled_from((None, 2, 3, 5)),
    max_memories_per_user=st.sampled_from((None, 1, 5, 12)),
    prune=st.sampled_from((None, PruneCriteria(older_than_days=365, priority_below=0.2, confidence_below=0.3))),
)


def rules_of(lifecycle: Lifecycle) -> CleanupRules:
    return CleanupRules(lifecycle, TYPES, NOW_MS)


def after(chains: list[Chain], removed: dict[str, RemovalReason]) -> list[Chain]:
    """Return the chains without the removed rows, their neighbours linked."""
    remaining = [[dict(row) for row in chain if row["id"] not in removed] for chain in chains]
    for chain in remaining:
        for row in chain:
            row.pop("supersedesId", None)
            row.pop("supersededById", None)
        for older, newer in pairwise(chain):
            older["supersededById"], newer["supersedesId"] = newer["id"], older["id"]
    return remaining


def flat(chains: list[Chain]) -> list[Row]:
    return [row for chain in chains for row in chain]


@given(chains(), lifecycles)
def test_second_run_removes_nothing(drawn: list[Chain], lifecycle: Lifecycle) -> None:
    rules = rules_of(lifecycle)

    assert plan_removals(flat(after(drawn, plan_removals(flat(drawn), rules))), rules) == {}


@given(chains(), lifecycles, st.integers())
def test_order_of_rows_does_not_matter(drawn: list[Chain], lifecycle: Lifecycle, seed: int) -> None:
    shuffled = random.Random(seed).sample(flat(drawn), len(flat(drawn)))

    assert plan_removals(shuffled, rules_of(lifecycle)) == plan_removals(flat(drawn), rules_of(lifecycle))


@given(chains(), lifecycles)
def test_earlier_versions_are_removed_with_their_head(drawn: list[Chain], lifecycle: Lifecycle) -> None:
    removed = plan_removals(flat(drawn), rules_of(lifecycle))

    for chain in drawn:
        if chain[-1]["id"] in removed:
            assert {row["id"] for row in chain} <= removed.keys()


@given(chains(), lifecycles)
def test_collapse_keeps_last_two_and_maximum_length(drawn: list[Chain], lifecycle: Lifecycle) -> None:
    """Versions kept by a collapse: the head, its predecessor, and as many as allowed."""
    removed = plan_removals(flat(drawn), rules_of(lifecycle))

    for chain in drawn:
        collapsed = [row["id"] for row in chain if removed.get(row["id"]) is RemovalReason.CHAIN]
        if not collapsed:
            continue
        others = [
            row["id"] for row in chain if removed.get(row["id"]) in (None, RemovalReason.OVER_CAP, RemovalReason.CHAIN)
        ]
        assert not set(others[-2:]) & set(collapsed)
        assert len(others) - len(collapsed) >= (lifecycle.max_chain_length or 0)


@given(chains(), lifecycles)
def test_pinned_memory_and_its_head_are_kept(drawn: list[Chain], lifecycle: Lifecycle) -> None:
    removed = plan_removals(flat(drawn), rules_of(lifecycle))

    for chain in drawn:
        pinned = {row["id"] for row in chain if row.get("pinned")}
        assert not pinned & removed.keys()
        assert not pinned or chain[-1]["id"] not in removed


@given(chains(), lifecycles)
def test_cap_per_user_excludes_pinned_memories(drawn: list[Chain], lifecycle: Lifecycle) -> None:
    remaining = after(drawn, plan_removals(flat(drawn), rules_of(lifecycle)))

    for user in ("ada", "bob"):
        own = [chain for chain in remaining if chain and chain[0]["userId"] == user]
        kept = sum(
            1 + sum(bool(row.get("pinned")) for row in chain) for chain in own if any("pinned" in r for r in chain)
        )
        cap = lifecycle.max_memories_per_user
        assert cap is None or len(flat(own)) <= max(cap, kept)
