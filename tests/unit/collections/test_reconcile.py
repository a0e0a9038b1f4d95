"""Reconcile passes over an in-memory engine."""

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


async def create_store(spec: dict[str, Any] | None = None, **more: Any) -> FakeCollectionStore:
    """Return a store with the collection of a spec, its call log cleared."""
    store = FakeCollectionStore(**more)
    await run(store, desired_of(spec))
    store.calls.clear()
    return store


async def test_first_pass_creates_collection_and_alias() -> None:
    store = FakeCollectionStore()

    done = await run(store)

    assert store.changes == CREATION
    assert (store.collections, store.aliases) == ({FIRST: desired_of()}, {ALIAS: FIRST})
    assert (done.observed.physical, done.plan.changes, done.refusal) == (FIRST, (), None)
    assert [type(change).__name__ for change in done.applied.changes] == CREATION


async def test_first_pass_lists_names_once() -> None:
    store = FakeCollectionStore()

    await run(store)

    assert [call for call in store.calls if call[0] != "apply"] == [
        ("names", ""),
        ("observe", ALIAS),
        ("observe", ALIAS),
    ]


async def test_first_pass_adopts_collection_without_alias() -> None:
    store = FakeCollectionStore(collections={FIRST: desired_of()}, points={FIRST: 5})

    done = await run(store)

    assert store.changes == ["SetAlias"]
    assert (done.observed.physical, done.observed.points) == (FIRST, 5)


async def test_second_pass_only_reads() -> None:
    store = await create_store()

    done = await run(store, last=FIRST)

    assert store.calls == [("observe", ALIAS)]
    assert (done.plan.changes, done.applied.changes) == ((), ())


@pytest.mark.parametrize("steps", range(len(CREATION)))
async def test_interrupted_creation_is_completed(steps: int) -> None:
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
async def test_changed_setting_is_applied_and_read_back(index: dict[str, Any], change: str) -> None:
    store, desired = await create_store(), desired_of({"index": index}, generation=2)

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
async def test_ignored_change_is_reported(ignored: type, index: dict[str, Any]) -> None:
    store = await create_store(ignored=(ignored,))

    with pytest.raises(SpecInvalid, match=ignored.__name__) as caught:
        await run(store, desired_of({"index": index}), last=FIRST)

    assert caught.value.reason == "ChangeIgnored"


@pytest.mark.parametrize("ignored", [CreateIndexes, SetAlias, (CreateCollection, CreateIndexes, SetAlias)])
async def test_ignored_creation_is_reported(ignored: type | tuple[type, ...]) -> None:
    store = FakeCollectionStore(ignored=ignored if isinstance(ignored, tuple) else (ignored,))

    with pytest.raises(SpecInvalid) as caught:
        await run(store)

    assert caught.value.reason == "ChangeIgnored"


async def test_new_embedding_is_withheld_and_not_recorded() -> None:
    store = await create_store(A)
    store.points[FIRST] = 5

    done = await run(store, desired_of(B, generation=2), last=FIRST, points=5)

    assert store.changes == []
    assert done.refusal is not None
    assert done.plan.changes == done.refusal.withheld != ()
    assert store.collections[FIRST] == desired_of(A)


async def test_other_changes_apply_despite_withheld_one() -> None:
    store = await create_store(A, points={FIRST: 1})

    done = await run(store, desired_of(B | {"index": {"hnsw": {"m": 32}}}), last=FIRST)

    assert store.changes == ["UpdateHnsw"]
    assert [type(change).__name__ for change in done.plan.changes] == ["Rebuild"]


async def test_reverted_withheld_change_leaves_no_trace() -> None:
    store = await create_store(A)
    await run(store, desired_of(B, generation=2), last=FIRST)

    done = await run(store, desired_of(A, generation=3), last=FIRST)

    assert (store.changes, done.plan.changes, done.refusal) == ([], (), None)


async def test_lost_alias_is_restored() -> None:
    store = await create_store()
    store.collections = {f"{ALIAS}__3": store.collections[FIRST]}
    store.aliases = {}

    done = await run(store, last=f"{ALIAS}__3", points=5)

    assert (store.changes, store.aliases) == (["SetAlias"], {ALIAS: f"{ALIAS}__3"})
    assert done.observed.physical == f"{ALIAS}__3"


async def test_lost_collection_is_not_replaced() -> None:
    store = FakeCollectionStore()

    with pytest.raises(SpecInvalid) as caught:
        await run(store, last=FIRST, points=1)

    assert (caught.value.reason, store.changes) == ("CollectionLost", [])


async def test_lost_empty_collection_gets_next_number() -> None:
    store = FakeCollectionStore()

    done = await run(store, last=FIRST)

    assert done.observed.physical == f"{ALIAS}__2"


async def test_foreign_collection_is_untouched() -> None:
    store = await create_store()
    before = dict(store.collections)
    foreign = desired_of({"index": {"hnsw": {"m": 32}}})
    assert foreign.marker is not None

    with pytest.raises(NotOwned):
        await run(store, replace(foreign, marker=replace(foreign.marker, name="another")))

    assert (store.changes, store.collections) == ([], before)


async def test_plain_collection_is_adopted_in_place() -> None:
    plain = desired_of()
    store = FakeCollectionStore(collections={ALIAS: plain}, points={ALIAS: 3})

    done = await run(store)

    assert (done.observed.physical, done.observed.is_aliased, store.aliases) == (ALIAS, False, {})


THIRD = f"{ALIAS}__3"


def interrupted_move(step: RebuildStep) -> FakeCollectionStore:
    """Return a store whose plain collection has been deleted before its alias was set."""
    record = RebuildRecord(source=ALIAS, target=THIRD, digest="d", started_ms=1, since_ms=1, step=step)
    return FakeCollectionStore(collections={THIRD: desired_of()}, points={THIRD: 3}, records={THIRD: record})


async def test_interrupted_move_sets_alias_first() -> None:
    store = interrupted_move(RebuildStep.MOVE)

    done = await run(store, last=ALIAS, points=3)

    assert (done.observed.physical, store.aliases, store.changes) == (THIRD, {ALIAS: THIRD}, ["SetAlias"])


async def test_incomplete_copy_gets_no_alias() -> None:
    store = interrupted_move(RebuildStep.COPY)

    with pytest.raises(SpecInvalid) as caught:
        await run(store, last=ALIAS, points=3)

    assert (caught.value.reason, store.changes) == ("CollectionLost", [])


@pytest.mark.parametrize("policy", list(DriftPolicy))
async def test_requested_alias_is_withheld_as_rebuild(policy: DriftPolicy) -> None:
    store = FakeCollectionStore(collections={ALIAS: desired_of()}, points={ALIAS: 3})
    terms = PassTerms(drift_policy=policy, needs_alias=True)

    done = await reconcile(
        ALIAS, desired_of(), store=store, last_physical=ALIAS, last_points=3, permit=PassPermit(terms=terms)
    )

    assert done.refusal is not None
    assert (done.refusal.withheld, done.drift, store.changes) == ((BEHIND_ALIAS,), (), [])


async def test_grey_collection_is_woken() -> None:
    store = await create_store()
    store.states[FIRST] = "grey"

    done = await run(store, last=FIRST)

    assert store.changes == ["WakeOptimizers"]
    assert (done.observed.state, done.is_woken, done.plan.changes) == ("yellow", True, ())


async def test_still_grey_collection_is_no_error() -> None:
    store = await create_store(ignored=(WakeOptimizers,))
    store.states[FIRST] = "grey"

    done = await run(store, last=FIRST)

    assert (done.observed.state, done.is_woken, done.plan.changes) == ("grey", True, ())


LEAVING = [DriftPolicy.REPORT, DriftPolicy.IGNORE]
DRIFT = Difference("index.hnsw.m", "16", "24")


async def create_drifted_store(**more: Any) -> FakeCollectionStore:
    """Return a store with the default collection, except for m."""
    store = await create_store()
    store.collections[FIRST] = with_changes(store.collections[FIRST], m=24, **more)
    return store


async def test_drift_is_corrected_and_reported() -> None:
    store = await create_drifted_store()

    done = await run(store, last=FIRST)

    assert (store.changes, store.collections[FIRST]) == (["UpdateHnsw"], desired_of())
    assert (done.corrected, done.drift) == ((DRIFT,), ())


@pytest.mark.parametrize(("policy", "reported"), [(DriftPolicy.REPORT, (DRIFT,)), (DriftPolicy.IGNORE, ())])
async def test_drift_is_kept_by_policy(policy: DriftPolicy, reported: tuple[Difference, ...]) -> None:
    store = await create_drifted_store()

    done = await run(store, last=FIRST, policy=policy)

    assert store.changes == []
    assert (done.corrected, done.drift, done.plan.changes, done.refusal) == ((), reported, (), None)


@pytest.mark.parametrize("policy", DriftPolicy)
async def test_spec_change_is_never_drift(policy: DriftPolicy) -> None:
    store, desired = await create_store(), desired_of({"index": {"hnsw": {"m": 32}}}, generation=2)

    done = await run(store, desired, last=FIRST, policy=policy)

    assert (done.observed.collection, done.corrected, done.drift) == (desired, (), ())


@pytest.mark.parametrize("policy", LEAVING)
@pytest.mark.parametrize("steps", range(len(CREATION)))
async def test_interrupted_creation_ignores_drift_policy(policy: DriftPolicy, steps: int) -> None:
    store = FakeCollectionStore(fails_after=steps, error_on_change=StoreUnavailable("away"))
    if steps < len(CREATION):
        with pytest.raises(StoreUnavailable):
            await run(store, policy=policy)
    store.fails_after = None

    await run(store, policy=policy)

    assert (store.collections, store.aliases) == ({FIRST: desired_of()}, {ALIAS: FIRST})


@pytest.mark.parametrize("policy", LEAVING)
async def test_ignored_spec_change_is_reported_by_any_policy(policy: DriftPolicy) -> None:
    store = await create_store(ignored=(UpdateHnsw,))

    with pytest.raises(SpecInvalid, match="UpdateHnsw"):
        await run(store, desired_of({"index": {"hnsw": {"m": 32}}}), last=FIRST, policy=policy)


@pytest.mark.parametrize("policy", LEAVING)
async def test_alias_is_restored_under_any_policy(policy: DriftPolicy) -> None:
    store = await create_drifted_store()
    store.aliases = {}

    await run(store, last=FIRST, policy=policy)

    assert (store.changes, store.collections[FIRST].hnsw.m) == (["SetAlias"], 24)


@pytest.mark.parametrize("policy", LEAVING)
async def test_drifted_grey_collection_is_woken(policy: DriftPolicy) -> None:
    store = await create_drifted_store()
    store.states[FIRST] = "grey"

    await run(store, last=FIRST, policy=policy)

    assert store.changes == ["WakeOptimizers"]


async def test_drift_needing_rebuild_is_withheld() -> None:
    store = await create_drifted_store(distance="Dot")
    store.points[FIRST] = 1

    done = await run(store, last=FIRST)

    assert store.changes == ["UpdateHnsw"]
    assert done.refusal is not None
    assert (done.corrected, done.drift) == ((DRIFT,), (Difference("index.distance", "Cosine", "Dot"),))


@pytest.mark.parametrize("policy", LEAVING)
async def test_deleted_empty_collection_needs_correct_policy(policy: DriftPolicy) -> None:
    store = FakeCollectionStore()

    with pytest.raises(SpecInvalid, match=f"driftPolicy {policy}") as caught:
        await run(store, last=FIRST, policy=policy)

    assert (caught.value.reason, store.changes) == ("CollectionLost", [])


async def test_server_failure_is_passed_through() -> None:
    with pytest.raises(StoreUnavailable, match="away"):
        await run(FakeCollectionStore(error=StoreUnavailable("away")))
