"""Passes that bring the replicas of a collection to the requested number, one move each."""

from dataclasses import fields, replace
from typing import Any

import pytest

from agentmemory_operator.collections.reconcile import PassPermit, reconcile
from agentmemory_operator.collections.replication import replicate
from agentmemory_operator.collections.rules.changes import Rebuild
from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.collections.rules.desired import PassTerms
from agentmemory_operator.collections.rules.drift import DriftPolicy
from agentmemory_operator.collections.rules.outcome import PassOutcome
from agentmemory_operator.collections.rules.refusals import Refusal
from agentmemory_operator.collections.rules.replicas import CopyReplica, DropReplica, Move, Placement, plan_moves
from agentmemory_operator.errors import SpecInvalid, StoreUnavailable
from agentmemory_operator.spec.kinds.conditions import Reason
from tests.support.engine.collection_store import FakeCollectionStore, build_placement, format_placement
from tests.support.spec.plans import ALIAS, desired_of

FIRST = f"{ALIAS}__1"
POINTS = 7


def desired_with(factor: int | None, **sharding: Any) -> Collection:
    given = {"replicationFactor": factor} | sharding
    return desired_of({"index": {"sharding": {name: value for name, value in given.items() if value is not None}}})


async def free_slot() -> None:
    return None


async def occupied_slot() -> str:
    return "agents/other"


async def run(
    store: FakeCollectionStore,
    factor: int | None,
    *,
    turn: Any = free_slot,
    policy: DriftPolicy = DriftPolicy.CORRECT,
) -> PassOutcome:
    permit, desired = PassPermit(terms=PassTerms(drift_policy=policy), acquire_slot=turn), desired_with(factor)
    done = await reconcile(ALIAS, desired, store=store, last_physical=None, last_points=0, permit=permit)
    return await replicate(done, factor, store=store, acquire_slot=turn)


async def create_cluster(placement: Placement, factor: int) -> FakeCollectionStore:
    """Return a store with a converged collection of `factor` replicas."""
    store = FakeCollectionStore()
    await run(store, factor)
    store.placements[FIRST], store.points[FIRST] = placement, POINTS
    store.calls.clear()
    return store


async def run_until_settled(store: FakeCollectionStore, factor: int) -> list[PassOutcome]:
    """Run passes until one reports nothing about replicas; return all outcomes."""
    done = [await run(store, factor)]
    while done[-1].replication is not None:
        assert len(done) < 20
        done.append(await run(store, factor))
    return done


@pytest.mark.parametrize(
    ("placement", "before", "factor", "after"),
    [
        (build_placement(3, "1", "2", "3"), 1, 2, ("12", "23", "13")),
        (build_placement(3, "12", "23", "13"), 2, 3, ("123", "123", "123")),
        (build_placement(3, "123", "123"), 3, 1, ("1", "2")),
        (build_placement(4, "12", "23"), 2, 2, ("12", "23")),
    ],
)
async def test_each_pass_makes_one_move(placement: Placement, before: int, factor: int, after: tuple[str, ...]) -> None:
    store = await create_cluster(placement, before)

    done = await run_until_settled(store, factor)

    assert format_placement(store.placements[FIRST]) == after
    assert len(done) == len(store.moves) + 1
    assert all(each.observed.is_busy for each in done[:-1])
    assert done[-1].observed.collection.replication_factor == factor
    assert not done[-1].plan.changes


async def test_lost_replica_is_copied_to_another_peer() -> None:
    store = await create_cluster(build_placement(3, "12", "2"), 2)

    done = await run_until_settled(store, 2)

    assert store.moves == [CopyReplica(1, 2, 3)]
    assert done[0].replication is not None
    assert done[0].replication.reason is Reason.REPLICATING


class LossyStore(FakeCollectionStore):
    """Executes moves and loses every response, like a server killed after the move."""

    async def move_replica(self, physical: str, move: Move) -> bool:
        await super().move_replica(physical, move)
        raise StoreUnavailable("no answer in time")


@pytest.mark.parametrize(
    ("placement", "before", "factor"), [(build_placement(3, "1", "2"), 1, 3), (build_placement(3, "123"), 3, 1)]
)
async def test_lost_responses_repeat_no_move(placement: Placement, before: int, factor: int) -> None:
    store, expected = await create_cluster(placement, before), plan_moves(placement, factor)
    lossy = LossyStore(**{each.name: getattr(store, each.name) for each in fields(store)})

    for _ in expected:
        with pytest.raises(StoreUnavailable):
            await run(lossy, factor)
    done = await run(lossy, factor)

    assert tuple(lossy.moves) == expected
    assert done.replication is None


async def test_dead_replica_delays_moves() -> None:
    store = await create_cluster(build_placement(3, "1-2"), 2)

    done = await run(store, 2)

    assert store.moves == []
    assert done.replication is not None
    assert done.replication.reason is Reason.REPLICAS_INACTIVE
    assert not done.observed.is_busy


async def test_running_copy_delays_moves() -> None:
    store = await create_cluster(replace(build_placement(3, "1", "2"), copying=(CopyReplica(0, 1, 2),)), 2)

    done = await run(store, 2)

    assert store.moves == []
    assert done.observed.is_busy


async def test_copies_need_a_slot_and_drops_do_not() -> None:
    copying, dropping = (
        await create_cluster(build_placement(3, "1"), 2),
        await create_cluster(build_placement(3, "12"), 1),
    )

    queued, done = await run(copying, 2, turn=occupied_slot), await run(dropping, 1, turn=occupied_slot)

    assert copying.moves == []
    assert queued.is_queued
    assert queued.replication is not None
    assert queued.replication.reason is Reason.REINDEX_QUEUED
    assert dropping.moves == [DropReplica(0, 2)]
    assert not done.is_queued


async def test_reported_drift_moves_nothing() -> None:
    store = await create_cluster(build_placement(3, "12"), 2)
    store.collections[FIRST] = replace(store.collections[FIRST], replication_factor=3)

    done = await run(store, 2, policy=DriftPolicy.REPORT)

    assert store.moves == []
    assert [drift.path for drift in done.drift] == ["index.sharding.replicationFactor"]


async def test_unset_factor_moves_nothing() -> None:
    store = await create_cluster(build_placement(3, "1"), 2)

    await run(store, None)

    assert store.moves == []


async def test_running_rebuild_moves_nothing() -> None:
    store = await create_cluster(build_placement(3, "1"), 2)
    done = await reconcile(ALIAS, desired_with(2), store=store, last_physical=FIRST, last_points=0)

    replaced = replace(done, refusal=Refusal(Reason.REBUILD_RUNNING, "", ()))
    await replicate(replaced, 2, store=store, acquire_slot=None)

    assert store.moves == []


async def test_cluster_without_replica_calls_plans_rebuild() -> None:
    store = await create_cluster(build_placement(3, "1", "2"), 1)
    store.has_replica_calls = False

    first, second = await run(store, 2), await run(store, 2)

    assert first.replication is not None
    assert first.observed.is_busy
    assert Rebuild("index.sharding.replicationFactor", "1", "2") in second.plan.changes
    assert second.refusal is not None
    assert store.moves == []


async def test_more_replicas_than_peers_are_refused() -> None:
    new, old = FakeCollectionStore(), await create_cluster(build_placement(3, "1"), 1)
    new.placements["other"] = build_placement(3, "1")

    for store in (new, old):
        with pytest.raises(SpecInvalid, match=r"replicationFactor 5 is more than .* cluster \(3\)") as caught:
            await run(store, 5)
        assert caught.value.reason == Reason.INVALID_SPEC
        assert not store.changes


async def test_missing_peers_are_reported() -> None:
    store = await create_cluster(build_placement(2, "12"), 3)

    done = await run(store, 3)

    assert done.replication is not None
    assert done.replication.reason is Reason.TOO_FEW_PEERS


async def test_single_server_accepts_any_factor() -> None:
    store = FakeCollectionStore()

    done = await run(store, 5)

    assert done.observed.collection.replication_factor == 5
    assert done.replication is None
