"""The one function that every trigger calls, over an engine in memory."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.reconcile import PassPermit, reconcile
from agentmemory_operator.collections.rules.changes import (
    BEHIND_ALIAS,
    CreateCollection,
    CreateIndexes,
    SetAlias,
    UpdateHnsw,
    UpdateOptimizers,
    UpdateQuantization,
    WakeOptimizers,
    WriteMarker,
)
from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.collections.rules.desired import PassTerms
from agentmemory_operator.collections.rules.drift import Difference, DriftPolicy
from agentmemory_operator.collections.rules.outcome import PassOutcome
from agentmemory_operator.collections.rules.rebuild_record import RebuildRecord, RebuildStep
from agentmemory_operator.errors import NotOwned, SpecInvalid, StoreUnavailable
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.spec.plans import (
    ALIAS,
    desired_of,
    with_changes,
)

FIRST = f"{ALIAS}__1"
CREATION = ["CreateCollection", "CreateIndexes", "SetAlias"]
A = {"embedding": {"provider": "openai", "model": "a", "dimensions": 8}}
B = {"embedding": {"provider": "openai", "model": "b", "dimensions": 8}}


async def run(
    store: FakeCollectionStore,
    desired: Collection | None = None,
    *,
    last: str | None = None,
    points: int = 0,
    policy: DriftPolicy = DriftPolicy.CORRECT,
) -> PassOutcome:
    terms = PassTerms(drift_policy=policy)
    return await reconcile(
        ALIAS,
        desired or desired_of(),
        store=store,
        last_physical=last,
        last_points=points,
        permit=PassPermit(terms=terms),
    )


async def made(spec: dict[str, Any] | None = None, **more: Any) -> FakeCollectionStore:
    """Return a store with the collection that a spec asks for, its calls forgotten."""
    store = FakeCollectionStore(**more)
    await run(store, desired_of(spec))
    store.calls.clear()
    return store


async def test_the_first_pass_creates_collection_indexes_and_alias() -> None:
    store = FakeCollectionStore()

    done = await run(store)

    assert store.changes == CREATION
    assert (store.collections, store.aliases) == ({FIRST: desired_of()}, {ALIAS: FIRST})
    assert (done.observed.physical, done.plan.changes, done.refusal) == (FIRST, (), None)
    assert [type(change).__name__ for change in done.applied.changes] == CREATION


async def test_the_first_pass_lists_the_names_once_and_looks_for_none_that_is_not_there() -> None:
    store = FakeCollectionStore()

    await run(store)

    assert [call for call in store.calls if call[0] != "apply"] == [
        ("names", ""),
        ("observe", ALIAS),
        ("observe", ALIAS),
    ]


async def test_a_first_pass_finds_what_lies_under_the_number_of_its_alias_without_it() -> None:
    store = FakeCollectionStore(collections={FIRST: desired_of()}, points={FIRST: 5})

    done = await run(store)

    assert store.changes == ["SetAlias"]
    assert (done.observed.physical, done.observed.points) == (FIRST, 5)


async def test_the_second_pass_only_looks() -> None:
    store = await made()

    done = await run(store, last=FIRST)

    assert store.calls == [("observe", ALIAS)]
    assert (done.plan.changes, done.applied.changes) == ((), ())


@pytest.mark.parametrize("steps", range(len(CREATION)))
async def test_a_creation_that_stopped_after_any_step_is_finished_with_one_collection(steps: int) -> None:
    store = FakeCollectionStore(fails_after=steps, error_on_change=StoreUnavailable("away"))
    if steps < len(CREATION):
        with pytest.raises(StoreUnavailable):
            await run(store)
    store.fails_after = None

    done = await run(store)

    assert (store.collections, store.aliases) == ({FIRST: desired_of()}, {ALIAS: FIRST})
    assert done.plan.changes == ()


@pytest.mark.parametrize(
    ("index", "change"),
    [
        ({"hnsw": {"m": 32}}, "UpdateHnsw"),
        ({"quantization": {"type": "None"}}, "UpdateQuantization"),
        ({"optimizers": {"defaultSegmentNumber": 4}}, "UpdateOptimizers"),
    ],
)
async def test_a_changed_figure_is_brought_about_and_read_back(index: dict[str, Any], change: str) -> None:
    store, desired = await made(), desired_of({"index": index}, generation=2)

    done = await run(store, desired, last=FIRST)

    assert store.changes == [change, "WriteMarker"]
    assert done.observed.collection == desired


@pytest.mark.parametrize(
    ("ignored", "index"),
    [
        (UpdateHnsw, {"hnsw": {"m": 32}}),
        (UpdateQuantization, {"quantization": {"type": "None"}}),
        (UpdateOptimizers, {"optimizers": {"defaultSegmentNumber": 4}}),
        (WriteMarker, {"hnsw": {"m": 32}}),
    ],
)
async def test_a_change_that_the_server_ignores_is_told(ignored: type, index: dict[str, Any]) -> None:
    store = await made(ignored=(ignored,))

    with pytest.raises(SpecInvalid, match=ignored.__name__) as caught:
        await run(store, desired_of({"index": index}), last=FIRST)

    assert caught.value.reason == "ChangeIgnored"


@pytest.mark.parametrize("ignored", [CreateIndexes, SetAlias, (CreateCollection, CreateIndexes, SetAlias)])
async def test_a_creation_that_the_server_ignores_is_told(ignored: type | tuple[type, ...]) -> None:
    store = FakeCollectionStore(ignored=ignored if isinstance(ignored, tuple) else (ignored,))

    with pytest.raises(SpecInvalid) as caught:
        await run(store)

    assert caught.value.reason == "ChangeIgnored"


async def test_another_embedding_is_held_and_the_metadata_goes_on_saying_the_old_one() -> None:
    store = await made(A)
    store.points[FIRST] = 5

    done = await run(store, desired_of(B, generation=2), last=FIRST, points=5)

    assert store.changes == []
    assert done.refusal is not None
    assert done.plan.changes == done.refusal.withheld != ()
    assert store.collections[FIRST] == desired_of(A)


async def test_beside_a_held_change_the_others_are_made() -> None:
    store = await made(A, points={FIRST: 1})

    done = await run(store, desired_of(B | {"index": {"hnsw": {"m": 32}}}), last=FIRST)

    assert store.changes == ["UpdateHnsw"]
    assert [type(change).__name__ for change in done.plan.changes] == ["Rebuild"]


async def test_a_held_change_that_is_taken_back_leaves_nothing() -> None:
    store = await made(A)
    await run(store, desired_of(B, generation=2), last=FIRST)

    done = await run(store, desired_of(A, generation=3), last=FIRST)

    assert (store.changes, done.plan.changes, done.refusal) == ([], (), None)


async def test_a_lost_alias_is_set_again_where_the_collection_was() -> None:
    store = await made()
    store.collections = {f"{ALIAS}__3": store.collections[FIRST]}
    store.aliases = {}

    done = await run(store, last=f"{ALIAS}__3", points=5)

    assert (store.changes, store.aliases) == (["SetAlias"], {ALIAS: f"{ALIAS}__3"})
    assert done.observed.physical == f"{ALIAS}__3"


async def test_a_collection_that_was_lost_with_memories_is_not_replaced_by_an_empty_one() -> None:
    store = FakeCollectionStore()

    with pytest.raises(SpecInvalid) as caught:
        await run(store, last=FIRST, points=1)

    assert (caught.value.reason, store.changes) == ("CollectionLost", [])


async def test_an_empty_collection_that_was_lost_is_made_again_under_the_next_number() -> None:
    store = FakeCollectionStore()

    done = await run(store, last=FIRST)

    assert done.observed.physical == f"{ALIAS}__2"


async def test_another_object_s_collection_is_left_alone() -> None:
    store = await made()
    before = dict(store.collections)
    foreign = desired_of({"index": {"hnsw": {"m": 32}}})
    assert foreign.marker is not None

    with pytest.raises(NotOwned):
        await run(store, replace(foreign, marker=replace(foreign.marker, name="another")))

    assert (store.changes, store.collections) == ([], before)


async def test_a_plain_collection_of_the_alias_s_name_is_adopted_in_place() -> None:
    plain = desired_of()
    store = FakeCollectionStore(collections={ALIAS: plain}, points={ALIAS: 3})

    done = await run(store)

    assert (done.observed.physical, done.observed.is_aliased, store.aliases) == (ALIAS, False, {})


THIRD = f"{ALIAS}__3"


def half_moved(step: RebuildStep) -> FakeCollectionStore:
    """Return a store whose plain collection is gone, and the alias in its place not there yet."""
    record = RebuildRecord(source=ALIAS, target=THIRD, digest="d", begun_ms=1, since_ms=1, step=step)
    return FakeCollectionStore(collections={THIRD: desired_of()}, points={THIRD: 3}, records={THIRD: record})


async def test_the_alias_that_a_killed_operator_owed_comes_before_anything_else() -> None:
    store = half_moved(RebuildStep.MOVE)

    done = await run(store, last=ALIAS, points=3)

    assert (done.observed.physical, store.aliases, store.changes) == (THIRD, {ALIAS: THIRD}, ["SetAlias"])


async def test_a_half_copy_is_no_collection_for_clients() -> None:
    store = half_moved(RebuildStep.COPY)

    with pytest.raises(SpecInvalid) as told:
        await run(store, last=ALIAS, points=3)

    assert (told.value.reason, store.changes) == ("CollectionLost", [])


@pytest.mark.parametrize("policy", list(DriftPolicy))
async def test_an_alias_that_is_asked_for_is_held_as_a_rebuild_under_every_policy(policy: DriftPolicy) -> None:
    store = FakeCollectionStore(collections={ALIAS: desired_of()}, points={ALIAS: 3})
    terms = PassTerms(drift_policy=policy, wants_alias=True)

    done = await reconcile(
        ALIAS, desired_of(), store=store, last_physical=ALIAS, last_points=3, permit=PassPermit(terms=terms)
    )

    assert done.refusal is not None
    assert (done.refusal.withheld, done.drift, store.changes) == ((BEHIND_ALIAS,), (), [])


async def test_a_grey_collection_is_woken_and_need_not_be_green_at_once() -> None:
    store = await made()
    store.states[FIRST] = "grey"

    done = await run(store, last=FIRST)

    assert store.changes == ["WakeOptimizers"]
    assert (done.observed.state, done.is_woken, done.plan.changes) == ("yellow", True, ())


async def test_a_collection_that_is_still_grey_after_it_was_woken_is_no_fault() -> None:
    store = await made(ignored=(WakeOptimizers,))
    store.states[FIRST] = "grey"

    done = await run(store, last=FIRST)

    assert (done.observed.state, done.is_woken, done.plan.changes) == ("grey", True, ())


LEAVING = [DriftPolicy.REPORT, DriftPolicy.IGNORE]
DRIFT = Difference("index.hnsw.m", "16", "24")


async def drifted(**more: Any) -> FakeCollectionStore:
    """Return a store with the collection as it was made, but for m."""
    store = await made()
    store.collections[FIRST] = with_changes(store.collections[FIRST], m=24, **more)
    return store


async def test_drift_is_corrected_and_told_as_drift() -> None:
    store = await drifted()

    done = await run(store, last=FIRST)

    assert (store.changes, store.collections[FIRST]) == (["UpdateHnsw"], desired_of())
    assert (done.corrected, done.drift) == ((DRIFT,), ())


@pytest.mark.parametrize(("policy", "told"), [(DriftPolicy.REPORT, (DRIFT,)), (DriftPolicy.IGNORE, ())])
async def test_drift_is_left_where_the_policy_says_so(policy: DriftPolicy, told: tuple[Difference, ...]) -> None:
    store = await drifted()

    done = await run(store, last=FIRST, policy=policy)

    assert store.changes == []
    assert (done.corrected, done.drift, done.plan.changes, done.refusal) == ((), told, (), None)


@pytest.mark.parametrize("policy", DriftPolicy)
async def test_what_a_new_spec_asks_for_is_no_drift_whatever_the_policy(policy: DriftPolicy) -> None:
    store, desired = await made(), desired_of({"index": {"hnsw": {"m": 32}}}, generation=2)

    done = await run(store, desired, last=FIRST, policy=policy)

    assert (done.observed.collection, done.corrected, done.drift) == (desired, (), ())


@pytest.mark.parametrize("policy", LEAVING)
@pytest.mark.parametrize("steps", range(len(CREATION)))
async def test_an_interrupted_creation_is_finished_whatever_the_policy(policy: DriftPolicy, steps: int) -> None:
    store = FakeCollectionStore(fails_after=steps, error_on_change=StoreUnavailable("away"))
    if steps < len(CREATION):
        with pytest.raises(StoreUnavailable):
            await run(store, policy=policy)
    store.fails_after = None

    await run(store, policy=policy)

    assert (store.collections, store.aliases) == ({FIRST: desired_of()}, {ALIAS: FIRST})


@pytest.mark.parametrize("policy", LEAVING)
async def test_a_server_that_ignores_a_new_spec_is_told_whatever_the_policy(policy: DriftPolicy) -> None:
    store = await made(ignored=(UpdateHnsw,))

    with pytest.raises(SpecInvalid, match="UpdateHnsw"):
        await run(store, desired_of({"index": {"hnsw": {"m": 32}}}), last=FIRST, policy=policy)


@pytest.mark.parametrize("policy", LEAVING)
async def test_the_alias_is_the_operator_s_own_and_put_back_whatever_the_policy(policy: DriftPolicy) -> None:
    store = await drifted()
    store.aliases = {}

    await run(store, last=FIRST, policy=policy)

    assert (store.changes, store.collections[FIRST].hnsw.m) == (["SetAlias"], 24)


@pytest.mark.parametrize("policy", LEAVING)
async def test_a_grey_collection_with_drift_that_is_left_is_woken_all_the_same(policy: DriftPolicy) -> None:
    store = await drifted()
    store.states[FIRST] = "grey"

    await run(store, last=FIRST, policy=policy)

    assert store.changes == ["WakeOptimizers"]


async def test_drift_that_only_a_new_collection_sets_right_stays_held_and_is_told() -> None:
    store = await drifted(distance="Dot")
    store.points[FIRST] = 1

    done = await run(store, last=FIRST)

    assert store.changes == ["UpdateHnsw"]
    assert done.refusal is not None
    assert (done.corrected, done.drift) == ((DRIFT,), (Difference("index.distance", "Cosine", "Dot"),))


@pytest.mark.parametrize("policy", LEAVING)
async def test_an_empty_collection_that_was_deleted_is_not_made_anew_where_drift_is_left(policy: DriftPolicy) -> None:
    store = FakeCollectionStore()

    with pytest.raises(SpecInvalid, match=f"driftPolicy {policy}") as caught:
        await run(store, last=FIRST, policy=policy)

    assert (caught.value.reason, store.changes) == ("CollectionLost", [])


async def test_a_server_that_is_away_is_told_as_it_is() -> None:
    with pytest.raises(StoreUnavailable, match="away"):
        await run(FakeCollectionStore(error=StoreUnavailable("away")))
