"""Plans: the golden table, and properties of every plan."""

from dataclasses import replace

import pytest

from agentmemory_operator.collections.reconcile import PassDraft, plan_pass
from agentmemory_operator.collections.rules.changes import (
    BEHIND_ALIAS,
    ChangeClass,
    CreateCollection,
    Rebuild,
    UpdateHnsw,
    WriteMarker,
    class_of,
)
from agentmemory_operator.collections.rules.collection import Observation
from agentmemory_operator.collections.rules.desired import PassTerms
from agentmemory_operator.collections.rules.drift import DriftPolicy
from agentmemory_operator.collections.rules.plan import Plan, plan_changes
from agentmemory_operator.collections.rules.refusals import allowed_changes
from agentmemory_operator.errors import NotOwned, SpecInvalid
from tests.support.spec.plans import (
    ALIAS,
    PlanCase,
    apply_changes,
    desired_of,
    load_plan_cases,
    observed_of,
    plan_entries,
    with_changes,
)

CASES = load_plan_cases()


def draft_of(case: PlanCase, observed: Observation | None) -> PassDraft:
    terms = PassTerms(drift_policy=DriftPolicy(case.drift_policy))
    return plan_pass(
        ALIAS, case.desired, observed, last_physical=case.last_physical, last_points=case.last_points, terms=terms
    )


@pytest.mark.parametrize("case", [case for case in CASES if not case.error], ids=lambda case: case.name)
def test_golden_plan(case: PlanCase) -> None:
    found = draft_of(case, case.observed)
    plan, refusal = found.plan, found.refusal

    assert plan_entries(plan, case.plan) == list(case.plan)
    assert bool(refusal) == bool(case.held)
    assert [words for words in case.held if refusal is None or words not in refusal.message] == []

    after = apply_changes(case.observed, allowed_changes(plan, refusal))
    rest = draft_of(case, after).plan
    assert rest.changes == (refusal.withheld if refusal else ()), "only withheld changes remain"


@pytest.mark.parametrize("case", [case for case in CASES if case.error], ids=lambda case: case.name)
def test_golden_error(case: PlanCase) -> None:
    try:
        draft_of(case, case.observed)
    except (SpecInvalid, NotOwned) as error:
        caught = error
    else:
        pytest.fail("nothing stopped it")

    assert caught.reason == case.error["reason"]
    assert [words for words in case.error["words"] if words not in str(caught)] == []


def test_golden_names_are_unique() -> None:
    names = [case.name for case in CASES]

    assert sorted(set(names)) == sorted(names)


def test_creation_has_marker_but_no_indexes() -> None:
    desired = desired_of()

    create = plan_changes(desired, None, alias=ALIAS, physical=f"{ALIAS}__1").changes[0]

    assert create == CreateCollection(f"{ALIAS}__1", replace(desired, indexes=()))


def test_unset_values_are_not_compared() -> None:
    live = desired_of()
    desired = with_changes(live, m=None, ef_construct=None, default_segment_number=None, indexes=(), marker=None)

    assert plan_changes(desired, observed_of(live), alias=ALIAS, physical="x").changes == ()


def test_missing_model_differs_from_model() -> None:
    live = desired_of({"embedding": {"provider": "none", "dimensions": 256}})

    changes = plan_changes(desired_of(), observed_of(live), alias=ALIAS, physical="x").changes

    assert Rebuild("embedding.model", "None", "l2_supercat") in changes


def test_marker_keeps_embedding_until_rebuild() -> None:
    old = desired_of({"embedding": {"provider": "openai", "model": "a", "dimensions": 8}})
    new = desired_of({"embedding": {"provider": "openai", "model": "b", "dimensions": 8}}, generation=9)
    assert old.marker is not None
    assert new.marker is not None
    live = replace(old, marker=replace(old.marker, uid="another"))

    changes = plan_changes(new, observed_of(live), alias=ALIAS, physical="x").changes

    assert changes[-1] == WriteMarker(replace(old.marker, uid=new.marker.uid))


def test_digest_depends_on_changes_only() -> None:
    one, other = Plan("p", (UpdateHnsw(m=32),)), Plan("p", (UpdateHnsw(m=33),))

    assert one.digest == Plan("q", (UpdateHnsw(m=32),)).digest
    assert one.digest != other.digest
    assert one.digest == "288202811c2d"


EVERY_FIGURE = {
    "hnsw": {"m": 24, "efConstruct": 200, "fullScanThresholdKB": 77},
    "optimizers": {"defaultSegmentNumber": 0, "indexingThresholdKB": 1},
    "quantization": {"type": "None"},
    "vectors": {"memory": "Cold"},
}


@pytest.mark.parametrize(
    ("spec", "created", "updated"),
    [
        ({"preset": "standard"}, "a90612a760c6", None),
        ({"preset": "cortex"}, "c8f64b803275", None),
        ({"preset": "cognitive"}, "bb993d16eec3", None),
        ({"preset": "none"}, "8e2579ae040b", None),
        ({"index": {"profile": "HighRecall", "expectedMemories": 5_000_000}}, "a8489bb4c3a7", "d0176511a53b"),
        ({"index": EVERY_FIGURE}, "3ff879fa2ff6", "9ad93b550470"),
    ],
)
def test_digests_are_stable(spec, created, updated) -> None:
    """Stored approvals contain digests. That of a creation includes the configuration hash, which defines drift."""
    desired = desired_of(spec)

    assert plan_changes(desired, None, alias=ALIAS, physical="p").digest == created
    if updated:
        assert plan_changes(desired, observed_of(desired_of()), alias=ALIAS, physical="p").digest == updated


def test_rebuild_has_its_own_class() -> None:
    assert class_of(Rebuild("f", "a", "b")) is ChangeClass.REBUILD


def test_plain_collection_moves_only_on_request() -> None:
    plain = observed_of(desired_of(), physical=ALIAS, is_aliased=False)

    by_default = plan_changes(desired_of(), plain, alias=ALIAS, physical="x")
    on_request = plan_changes(desired_of(), plain, alias=ALIAS, physical="x", needs_alias=True)

    assert (by_default.changes, on_request.changes) == ((), (BEHIND_ALIAS,))


def test_aliased_collection_needs_no_move() -> None:
    assert (
        plan_changes(desired_of(), observed_of(desired_of()), alias=ALIAS, physical="x", needs_alias=True).changes == ()
    )


def test_rebuild_of_plain_collection_includes_alias() -> None:
    live = desired_of({"embedding": {"provider": "none", "dimensions": 4}})
    plain = observed_of(live, physical=ALIAS, is_aliased=False)

    on_request = plan_changes(desired_of(), plain, alias=ALIAS, physical="x", needs_alias=True)

    assert on_request == plan_changes(desired_of(), plain, alias=ALIAS, physical="x")


def test_adopted_collection_gets_marker_before_move() -> None:
    """Only a Rebuild that changes the meaning of the vectors delays the marker."""
    plain = observed_of(replace(desired_of(), marker=None), physical=ALIAS, is_aliased=False)

    changes = plan_changes(desired_of(), plain, alias=ALIAS, physical="x", needs_alias=True).changes

    assert [type(change) for change in changes] == [Rebuild, WriteMarker]
