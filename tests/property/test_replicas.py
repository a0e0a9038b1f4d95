"""Whatever the placement: moves lose nothing, come to an end, are as few as can be, and go where there is most room."""

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
def test_no_move_leaves_a_shard_with_fewer_active_replicas_than_are_asked_for_or_were_there(
    placement: Placement, factor: int
) -> None:
    for move in plan_moves(placement, factor):
        before = actives(placement)
        placement = apply_move(placement, move)
        after = actives(placement)

        assert all(after[shard] >= min(before[shard], factor) for shard in after)
        assert all(after[shard] >= 1 for shard in after if before[shard])


@given(placements(), factors)
def test_one_move_after_another_is_the_whole_plan_and_ends(placement: Placement, factor: int) -> None:
    whole, made = plan_moves(placement, factor), 0
    while move := next_move(placement, factor):
        placement, made = apply_move(placement, move), made + 1
        assert made <= len(whole)

    assert made == len(whole)


@given(placements(), factors)
def test_a_shard_with_an_active_replica_ends_with_as_many_as_asked_or_as_can_be(
    placement: Placement, factor: int
) -> None:
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
def test_no_more_is_moved_than_there_is_too_few_or_too_many(placement: Placement, factor: int) -> None:
    moves = Counter(move.shard for move in plan_moves(placement, factor))

    assert all(moves[shard] <= abs(len(states) - factor) for shard, states in placement.shards.items())


@given(placements(), factors)
def test_a_copy_goes_from_an_active_replica_to_a_peer_that_has_none_and_no_healthy_one_has_more_room(
    placement: Placement, factor: int
) -> None:
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
def test_a_dead_replica_goes_before_an_active_one(placement: Placement, factor: int) -> None:
    for move in plan_moves(placement, factor):
        if isinstance(move, DropReplica):
            states = placement.shards[move.shard]
            assert states[move.peer] != ACTIVE or set(states.values()) == {ACTIVE}
        placement = apply_move(placement, move)
