"""Replica moves, and messages about missing or inactive replicas."""

import re
from dataclasses import replace

import pytest

from agentmemory_operator.collections.rules.plan import Plan, plan_changes
from agentmemory_operator.collections.rules.replicas import (
    CopyReplica,
    DropReplica,
    Move,
    Placement,
    describe_unsettled,
    find_gap,
    next_move,
    plan_moves,
)
from agentmemory_operator.controllers.rules.plan_text import plan_status
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.status_plan import PlanStatus
from tests.support.engine.collection_store import build_placement
from tests.support.spec.plans import ALIAS, desired_of, observed_of


@pytest.mark.parametrize(
    ("placement", "factor", "moves"),
    [
        pytest.param(build_placement(3, "1", "2", "3"), 1, (), id="as asked"),
        pytest.param(
            build_placement(3, "1", "2", "3"),
            2,
            (CopyReplica(0, 1, 2), CopyReplica(1, 2, 3), CopyReplica(2, 3, 1)),
            id="each onto the peer that has fewest and none of the shard",
        ),
        pytest.param(build_placement(3, "1"), 3, (CopyReplica(0, 1, 2), CopyReplica(0, 1, 3)), id="onto every peer"),
        pytest.param(build_placement(2, "1"), 3, (CopyReplica(0, 1, 2),), id="as many as there are peers"),
        pytest.param(
            build_placement(3, "1", "-2"),
            2,
            (CopyReplica(0, 1, 3),),
            id="onto a peer without dead ones, from an active one",
        ),
        pytest.param(
            build_placement(2, "1", "-12"),
            2,
            (CopyReplica(0, 1, 2),),
            id="onto a peer with dead ones if there is no other",
        ),
        pytest.param(build_placement(3, "1-2"), 2, (), id="a dead replica counts: its peer may be back"),
        pytest.param(build_placement(3, "-1"), 2, (), id="nothing is copied from a dead replica"),
        pytest.param(
            build_placement(3, "123", "12"),
            2,
            (DropReplica(0, 2),),
            id="dropped from the peer that has most, of two the last",
        ),
        pytest.param(
            build_placement(3, "12-3", "3"), 2, (CopyReplica(1, 3, 1), DropReplica(0, 3)), id="a dead one goes first"
        ),
        pytest.param(build_placement(3, "1-2-3"), 1, (DropReplica(0, 3), DropReplica(0, 2)), id="both dead ones"),
        pytest.param(build_placement(3, "1-2-3"), 2, (), id="none goes while fewer are active than are asked for"),
        pytest.param(build_placement(3, "-1-2"), 1, (), id="the last one that may have everything stays"),
        pytest.param(build_placement(3, ""), 1, (), id="a shard without replicas is beyond help"),
    ],
)
def test_moves(placement: Placement, factor: int, moves: tuple[Move, ...]) -> None:
    assert plan_moves(placement, factor) == moves


def test_running_copy_blocks_next_move() -> None:
    placement = build_placement(3, "1", "2")

    assert next_move(placement, 2) == CopyReplica(0, 1, 3)
    assert next_move(replace(placement, copying=(CopyReplica(1, 2, 3),)), 2) is None


@pytest.mark.parametrize(
    ("placement", "factor", "begun", "reason", "words"),
    [
        (build_placement(3, "12"), 2, None, None, ""),
        (build_placement(3, "12"), None, None, None, ""),
        (
            build_placement(3, "1", "2"),
            2,
            CopyReplica(0, 1, 3),
            Reason.REPLICATING,
            "copying shard 0 from peer 1 to 3; 1 more",
        ),
        (build_placement(3, "12"), 1, DropReplica(0, 2), Reason.REPLICATING, "dropping shard 0 from peer 2"),
        (build_placement(3, "1-2"), 2, None, Reason.REPLICAS_INACTIVE, "shard 0 on peer 2 is Dead"),
        (build_placement(3, "1-2"), None, None, Reason.REPLICAS_INACTIVE, "DELETE /cluster/peer/N"),
        (build_placement(2, "12"), 3, None, Reason.TOO_FEW_PEERS, "replicationFactor 3 is more than"),
        (build_placement(3, ""), 1, None, Reason.REPLICAS_INACTIVE, "shard 0 has no replica"),
    ],
)
def test_gap_has_reason_and_message(
    placement: Placement, factor: int | None, begun: Move | None, reason: Reason | None, words: str
) -> None:
    gap = find_gap(placement, factor, started_move=begun)

    assert (gap.reason if gap else None) == reason
    assert words in (gap.message if gap else "")
    assert gap is None or gap.is_in_progress == (reason is Reason.REPLICATING)


def planned(placement: Placement, factor: int, *, points: int) -> tuple[PlanStatus, Plan]:
    desired = replace(desired_of(), replication_factor=factor)
    live = replace(desired, replication_factor=1, shard_number=len(placement.shards))
    observed = replace(observed_of(live, points=points), placement=placement)
    plan = plan_changes(desired, observed, alias=ALIAS, physical=f"{ALIAS}__2")
    status = plan_status(plan, None)
    assert status is not None
    return status, plan


def test_plan_names_copies_drops_and_cost() -> None:
    (change,) = planned(build_placement(3, "1", "123"), 2, points=100_000)[0].changes or ()

    assert change.change == "set replication_factor 2; copy shard 0 from peer 1 to 2; drop shard 1 from peer 2"
    assert change.class_ == "Reindex"
    assert change.cost is not None
    assert re.search(r"in the background.* about \d\d+ MiB to copy for each of 1 replicas", change.cost)


def test_drops_are_in_place() -> None:
    """The digest for approvals does not depend on the placement."""
    status, plan = planned(build_placement(3, "123"), 2, points=7)
    (change,) = status.changes or ()

    assert change.class_ == "InPlace"
    assert plan.digest == planned(build_placement(3, "1"), 2, points=9)[1].digest


def test_long_list_is_cut() -> None:
    text = describe_unsettled(build_placement(2, *["1-2"] * 12))

    assert "shard 7 on peer 2 is Dead, and 4 more" in text
