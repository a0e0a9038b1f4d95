"""Properties of plans, desired collections and conditions."""

import struct
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.collections.reconcile import plan_pass
from agentmemory_operator.collections.rules.changes import ChangeClass, Rebuild, class_of
from agentmemory_operator.collections.rules.collection import (
    Collection,
    Marker,
    Observation,
    marker_from_json,
    marker_to_json,
)
from agentmemory_operator.collections.rules.desired import PassTerms
from agentmemory_operator.collections.rules.drift import DriftPolicy
from agentmemory_operator.collections.rules.plan import Plan, has_rebuild, plan_changes, rebuild_digest
from agentmemory_operator.collections.rules.refusals import allowed_changes, find_refusal
from agentmemory_operator.spec.effective.policies import ChangePolicy, RebuildSettings
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason, merge_conditions
from agentmemory_operator.spec.presets.table import ScalarQuantization
from agentmemory_operator.spec.printable import printable_lines
from tests.property.strategies import collections, markers, observations, specs, states
from tests.support.spec.plans import ALIAS, apply_changes, desired_of, observed_of

FRESH = f"{ALIAS}__4"
LAST = f"{ALIAS}__3"
desired_collections = collections(has_marker=True)


def plan(desired: Collection, observed: Observation | None) -> Plan:
    return plan_changes(desired, observed, alias=ALIAS, physical=FRESH)


@given(desired_collections, observations)
def test_applied_plan_leaves_only_withheld_changes(desired: Collection, observed: Observation | None) -> None:
    first = plan(desired, observed)
    refusal = find_refusal(first, observed)

    second = plan(desired, apply_changes(observed, allowed_changes(first, refusal)))

    assert second.changes == (refusal.withheld if refusal else ())


@given(desired_collections, observations, st.data())
def test_next_plan_completes_an_interrupted_one(
    desired: Collection, observed: Observation | None, data: st.DataObject
) -> None:
    first = plan(desired, observed)
    todo = allowed_changes(first, find_refusal(first, observed))
    partial = apply_changes(observed, todo[: data.draw(st.integers(0, len(todo)))])

    second = plan(desired, partial)
    after = apply_changes(partial, allowed_changes(second, find_refusal(second, partial)))

    assert after == apply_changes(observed, todo)


@given(desired_collections, observations, st.randoms())
def test_order_of_reported_indexes_does_not_matter(
    desired: Collection, observed: Observation | None, random: Any
) -> None:
    if observed is None:
        return
    shuffled = list(observed.collection.indexes)
    random.shuffle(shuffled)
    other = replace(observed, collection=replace(observed.collection, indexes=tuple(shuffled)))

    assert plan(desired, other) == plan(desired, observed)


@given(desired_collections, observations)
def test_rebuilds_are_never_allowed(desired: Collection, observed: Observation | None) -> None:
    full_plan = plan(desired, observed)
    refusal = find_refusal(full_plan, observed)

    todo = allowed_changes(full_plan, refusal)

    assert [change for change in todo if class_of(change) is ChangeClass.REBUILD] == []
    assert len(todo) + len(refusal.withheld if refusal else ()) == len(full_plan.changes)


@given(desired_collections, observations)
def test_refusal_keeps_the_embedding(desired: Collection, observed: Observation | None) -> None:
    full_plan = plan(desired, observed)
    refusal = find_refusal(full_plan, observed)

    after = apply_changes(observed, allowed_changes(full_plan, refusal))

    if refusal and observed and after:
        before, then = observed.collection.marker, after.collection.marker
        assert (then and then.embedding) == (before and before.embedding)


@given(desired_collections, observations)
def test_the_digest_follows_the_changes_alone(desired: Collection, observed: Observation | None) -> None:
    one, again = plan(desired, observed), plan(desired, observed)

    assert one.digest == again.digest == Plan("elsewhere", one.changes).digest
    assert one.digest != Plan(one.physical, (*one.changes, Rebuild("f", "a", "b"))).digest


@given(specs)
def test_desired_collection_is_canonical(spec: dict[str, Any]) -> None:
    desired = desired_of(spec)

    assert desired == desired_of(spec)
    assert desired.indexes == tuple(sorted(desired.indexes))
    assert plan(desired, observed_of(_as_stored(desired))).changes == ()


@given(specs, st.randoms())
def test_order_of_spec_does_not_matter(spec: dict[str, Any], random: Any) -> None:
    def shuffled(value: Any) -> Any:
        """Return the value with fields and list entries in another order; these lists are keyed."""
        entries = list(value.items()) if isinstance(value, dict) else value
        if not isinstance(entries, list):
            return value
        random.shuffle(entries)
        if isinstance(value, dict):
            return {name: shuffled(child) for name, child in entries}
        return [shuffled(entry) for entry in entries]

    assert desired_of(shuffled(spec)) == desired_of(spec)


@given(markers)
def test_marker_survives_json(marker: Marker) -> None:
    assert marker_from_json(marker_to_json(marker)) == marker


@given(states, states)
def test_transition_time_changes_with_status_only(first: ConditionState, second: ConditionState) -> None:
    old = merge_conditions([], [first], generation=1, now="2026-01-01T00:00:00Z")

    (new,) = merge_conditions(old, [second], generation=2, now="2026-01-02T00:00:00Z")

    assert (new["lastTransitionTime"] == old[0]["lastTransitionTime"]) is (first.status == second.status)
    assert (new["observedGeneration"], new["message"]) == (2, printable_lines(second.message))


@given(states)
def test_merging_same_state_changes_nothing(state: ConditionState) -> None:
    old = merge_conditions([], [state], generation=1, now="2026-01-01T00:00:00Z")

    assert merge_conditions(old, [state], generation=1, now="2026-01-02T00:00:00Z") == old


def _as_stored(collection: Collection) -> Collection:
    """Return the collection with its quantile as float32, in the shortest decimal form."""
    scalar = collection.quantization
    if not isinstance(scalar, ScalarQuantization) or scalar.quantile is None:
        return collection
    (kept,) = struct.unpack("f", struct.pack("f", scalar.quantile))
    shortest = next(
        text
        for digits in range(1, 10)
        if struct.pack("f", float(text := f"{kept:.{digits}g}")) == struct.pack("f", kept)
    )
    return replace(collection, quantization=replace(scalar, quantile=float(shortest)))


@given(desired_collections, desired_collections, observations)
def test_newer_preset_adds_no_costly_change(
    desired: Collection, older: Collection, observed: Observation | None
) -> None:
    live = observed.collection.marker if observed else None
    terms = PassTerms(older={live.preset_revision: older} if live else {})
    assert desired.marker is not None

    found = plan_pass(ALIAS, desired, observed, last_physical=LAST, last_points=0, terms=terms)

    if live and live.preset_revision != desired.marker.preset_revision:
        requested = plan(older, observed).changes
        assert [c for c in found.allowed if class_of(c) is not ChangeClass.IN_PLACE and c not in requested] == []


@given(desired_collections, observations)
def test_approval_allows_all_but_rebuilds(desired: Collection, observed: Observation | None) -> None:
    full_plan = plan(desired, observed)
    terms = PassTerms(approved=full_plan.digest)

    found = plan_pass(ALIAS, desired, observed, last_physical=LAST, last_points=0, terms=terms)

    assert found.allowed == allowed_changes(full_plan, found.refusal)
    assert bool(found.refusal) == bool(observed and has_rebuild(full_plan))
    if found.refusal and found.refusal.reason == Reason.REBUILD_RUNNING:
        assert [change for change in found.allowed if class_of(change) is not ChangeClass.IN_PLACE] == []


@given(desired_collections, observations, st.sampled_from(ChangePolicy), st.booleans())
def test_rebuild_digest_ignores_other_changes(
    desired: Collection, observed: Observation | None, policy: ChangePolicy, is_approved: bool
) -> None:
    full_plan = plan(desired, observed)
    approved = rebuild_digest(full_plan) if is_approved else None
    terms = PassTerms(approved=approved, rebuild=RebuildSettings(change_policy=policy))
    refusal = find_refusal(full_plan, observed, terms=terms)

    after = apply_changes(observed, allowed_changes(full_plan, refusal))
    again = find_refusal(plan(desired, after), after, terms=terms)

    if refusal:
        assert again is not None
        assert (again.reason, again.digest) == (refusal.reason, refusal.digest)


@given(desired_collections, observations, st.sampled_from([None, f"{ALIAS}__1"]), st.sampled_from(DriftPolicy))
def test_drift_is_kept_or_corrected_once(
    desired: Collection, observed: Observation | None, last: str | None, policy: DriftPolicy
) -> None:
    if observed is None:
        return
    terms = PassTerms(drift_policy=policy)
    found = plan_pass(ALIAS, desired, observed, last_physical=last, last_points=0, terms=terms)

    after = apply_changes(observed, allowed_changes(found.plan, found.refusal))
    again = plan_pass(ALIAS, desired, after, last_physical=last, last_points=0, terms=terms)

    if found.leaves_drift and after:
        shapes = [replace(state.collection, marker=None) for state in (observed, after)]
        assert shapes[0] == shapes[1]
        assert again.plan.changes == ()
