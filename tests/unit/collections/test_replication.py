"""Passes bring the replicas of a cluster to the number that is asked for, one move each."""

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


def asking(factor: int | None, **sharding: Any) -> Collection:
    given = {"replicationFactor": factor} | sharding
    return desired_of({"index": {"sharding": {name: value for name, value in given.items() if value is not None}}})


async def nobody() -> None:
    return None


async def somebody() -> str:
    return "agents/other"


async def run(
    store: FakeCollectionStore,
    factor: int | None,
    *,
    turn: Any = nobody,
    policy: DriftPolicy = DriftPolicy.CORRECT,
) -> PassOutcome:
    permit, desired = PassPermit(terms=PassTerms(drift_policy=policy), acquire_slot=turn), asking(factor)
    done = await reconcile(ALIAS, desired, store=store, last_physical=None, last_points=0, permit=permit)
    return await replicate(done, factor, store=store, acquire_slot=turn)


async def a_cluster(placement: Placement, factor: int) -> FakeCollectionStore:
    """Return a store with a collection of so many replicas that is as an object asks."""
    store = FakeCollectionStore()
    await run(store, factor)
    store.placements[FIRST], store.points[FIRST] = placement, POINTS
    store.calls.clear()
    return store


async def passes(store: FakeCollectionStore, factor: int) -> list[PassOutcome]:
    """Return what passes come to until one has nothing to say of replicas."""
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
async def test_each_pass_makes_one_move_until_the_number_is_reached(
    placement: Placement, before: int, factor: int, after: tuple[str, ...]
) -> None:
    store = await a_cluster(placement, before)

    done = await passes(store, factor)

    assert format_placement(store.placements[FIRST]) == after
    assert len(done) == len(store.moves) + 1
    assert all(each.observed.is_busy for each in done[:-1])
    assert done[-1].observed.collection.replication_factor == factor
    assert not done[-1].plan.changes


async def test_replicas_that_went_with_their_peer_are_made_on_others() -> None:
    store = await a_cluster(build_placement(3, "12", "2"), 2)

    done = await passes(store, 2)

    assert store.moves == [CopyReplica(1, 2, 3)]
    assert done[0].replication is not None
    assert done[0].replication.reason is Reason.REPLICATING


class Lossy(FakeCollectionStore):
    """Carries moves out and loses every answer, as one that is killed does."""

    async def move_replica(self, physical: str, move: Move) -> bool:
        await super().move_replica(physical, move)
        raise StoreUnavailable("no answer in time")


@pytest.mark.parametrize(
    ("placement", "before", "factor"), [(build_placement(3, "1", "2"), 1, 3), (build_placement(3, "123"), 3, 1)]
)
async def test_no_move_is_made_twice_where_every_answer_is_lost(placement: Placement, before: int, factor: int) -> None:
    store, expected = await a_cluster(placement, before), plan_moves(placement, factor)
    lossy = Lossy(**{each.name: getattr(store, each.name) for each in fields(store)})

    for _ in expected:
        with pytest.raises(StoreUnavailable):
            await run(lossy, factor)
    done = await run(lossy, factor)

    assert tuple(lossy.moves) == expected
    assert done.replication is None


async def test_a_dead_replica_is_waited_for() -> None:
    store = await a_cluster(build_placement(3, "1-2"), 2)

    done = await run(store, 2)

    assert store.moves == []
    assert done.replication is not None
    assert done.replication.reason is Reason.REPLICAS_INACTIVE
    assert not done.observed.is_busy


async def test_what_is_on_its_way_is_waited_for() -> None:
    store = await a_cluster(replace(build_placement(3, "1", "2"), copying=(CopyReplica(0, 1, 2),)), 2)

    done = await run(store, 2)

    assert store.moves == []
    assert done.observed.is_busy


async def test_copies_wait_for_their_turn_and_drops_do_not() -> None:
    copying, dropping = await a_cluster(build_placement(3, "1"), 2), await a_cluster(build_placement(3, "12"), 1)

    waits, done = await run(copying, 2, turn=somebody), await run(dropping, 1, turn=somebody)

    assert copying.moves == []
    assert waits.is_queued
    assert waits.replication is not None
    assert waits.replication.reason is Reason.REINDEX_QUEUED
    assert dropping.moves == [DropReplica(0, 2)]
    assert not done.is_queued


async def test_a_number_that_somebody_set_and_that_stays_moves_nothing() -> None:
    store = await a_cluster(build_placement(3, "12"), 2)
    store.collections[FIRST] = replace(store.collections[FIRST], replication_factor=3)

    done = await run(store, 2, policy=DriftPolicy.REPORT)

    assert store.moves == []
    assert [drift.path for drift in done.drift] == ["index.sharding.replicationFactor"]


async def test_an_object_that_asks_for_no_number_has_nothing_moved() -> None:
    store = await a_cluster(build_placement(3, "1"), 2)

    await run(store, None)

    assert store.moves == []


async def test_nothing_is_moved_of_a_collection_that_is_being_replaced() -> None:
    store = await a_cluster(build_placement(3, "1"), 2)
    done = await reconcile(ALIAS, asking(2), store=store, last_physical=FIRST, last_points=0)

    replaced = replace(done, refusal=Refusal(Reason.REBUILD_RUNNING, "", ()))
    await replicate(replaced, 2, store=store, acquire_slot=None)

    assert store.moves == []


async def test_a_cluster_without_calls_for_replicas_has_a_rebuild_planned() -> None:
    store = await a_cluster(build_placement(3, "1", "2"), 1)
    store.has_replica_calls = False

    first, second = await run(store, 2), await run(store, 2)

    assert first.replication is not None
    assert first.observed.is_busy
    assert Rebuild("index.sharding.replicationFactor", "1", "2") in second.plan.changes
    assert second.refusal is not None
    assert store.moves == []


async def test_more_replicas_than_peers_are_refused_of_a_new_collection_and_of_a_changed_one() -> None:
    new, old = FakeCollectionStore(), await a_cluster(build_placement(3, "1"), 1)
    new.placements["other"] = build_placement(3, "1")

    for store in (new, old):
        with pytest.raises(SpecInvalid, match=r"replicationFactor 5 is more than .* cluster \(3\)") as caught:
            await run(store, 5)
        assert caught.value.reason == Reason.INVALID_SPEC
        assert not store.changes


async def test_peers_that_left_since_are_told_and_the_collection_goes_on() -> None:
    store = await a_cluster(build_placement(2, "12"), 3)

    done = await run(store, 3)

    assert done.replication is not None
    assert done.replication.reason is Reason.TOO_FEW_PEERS


async def test_a_server_that_is_alone_takes_any_number() -> None:
    store = FakeCollectionStore()

    done = await run(store, 5)

    assert done.observed.collection.replication_factor == 5
    assert done.replication is None
