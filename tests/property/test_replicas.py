"""Replica moves for any placement: no data is lost, they end, are minimal, and go to the least loaded peer."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.collections.rules.replicas import (
    ACTIVE,
    CopyReplica,
    DropReplica,
    Placement,
    next_move,
    plan_moves,
)
from tests.support.engine.collection_store import apply_move

STATES = (ACTIVE, ACTIVE, ACTIVE, "Dead", "Partial", "Initializing")


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    peers = tuple(range(1, draw(st.integers(2, 6)) + 1))
    replicas = st.dictionaries(st.sampled_from(peers), st.sampled_from(STATES), min_size=1, max_size=len(peers))
    shards = draw(st.lists(replicas, min_size=1, max_size=8))
    return Placement(peers=peers, shards=dict(enumerate(shards)))


factors = st.integers(1, 7)


def actives(placement: Placement) -> dict[int, int]:
    return {shard: list(states.values()).count(ACTIVE) for shard, states in placement.shards.items()}


@given(placements(), factors)
def test_active_replicas_never_fall_below_target(placement: Placement, factor: int) -> None:
    for move in plan_moves(placement, factor):
        before = actives(placement)
        placement = apply_move(placement, move)
        after = actives(placement)

        assert all(after[shard] >= min(before[shard], factor) for shard in after)
        assert all(after[shard] >= 1 for shard in after if before[shard])


@given(placements(), factors)
def test_single_moves_equal_the_plan(placement: Placement, factor: int) -> None:
    plan, done = plan_moves(placement, factor), 0
    while move := next_move(placement, factor):
        placement, done = apply_move(placement, move), done + 1
        assert done <= len(plan)

    assert done == len(plan)


@given(placements(), factors)
def test_shard_reaches_replication_factor(placement: Placement, factor: int) -> None:
    last, before = placement, actives(placement)
    for move in plan_moves(placement, factor):
        last = apply_move(last, move)

    for shard, states in last.shards.items():
        had = len(placement.shards[shard])
        if before[shard] and had <= factor:
            assert len(states) == min(factor, len(placement.peers))
        if before[shard] >= factor:
            assert len(states) == factor


@given(placements(), factors)
def test_moves_per_shard_are_minimal(placement: Placement, factor: int) -> None:
    moves = Counter(move.shard for move in plan_moves(placement, factor))

    assert all(moves[shard] <= abs(len(states) - factor) for shard, states in placement.shards.items())


@given(placements(), factors)
def test_copy_target_is_least_loaded_free_peer(placement: Placement, factor: int) -> None:
    """The source of a copy is an active replica."""
    sick = {peer for states in placement.shards.values() for peer, state in states.items() if state == "Dead"}
    for move in plan_moves(placement, factor):
        if isinstance(move, CopyReplica):
            states = placement.shards[move.shard]
            loads = Counter(peer for each in placement.shards.values() for peer in each)
            free = [peer for peer in placement.peers if peer not in states and peer not in sick]
            assert states[move.source] == ACTIVE
            assert move.target not in states
            assert move.target in placement.peers
            assert not free or loads[move.target] == min(loads[peer] for peer in free)
        placement = apply_move(placement, move)


@given(placements(), factors)
def test_dead_replica_is_dropped_first(placement: Placement, factor: int) -> None:
    for move in plan_moves(placement, factor):
        if isinstance(move, DropReplica):
            states = placement.shards[move.shard]
            assert states[move.peer] != ACTIVE or set(states.values()) == {ACTIVE}
        placement = apply_move(placement, move)
