"""Refusals: what is held, and how the way out is told."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.domain.collection import Collection
from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.domain.drift import DriftPolicy
from agentmemory_operator.domain.planning import Plan, Rebuild, UpdateHnsw
from agentmemory_operator.domain.safety import allowed, check_destroy, check_lost, check_ownership, refuse
from agentmemory_operator.errors import NotOwned, SpecInvalid
from tests.support.fakes import observed_of
from tests.support.plans import ALIAS, desired_of

REBUILD, UPDATE = Rebuild("index.distance", "Cosine", "Dot"), UpdateHnsw(m=32)
PLAN = Plan("p", (REBUILD, UPDATE))


def test_a_plan_without_a_rebuild_is_not_refused() -> None:
    assert refuse(Plan("p", (UPDATE,)), observed_of(desired_of())) is None


def test_a_plan_for_nothing_is_not_refused() -> None:
    assert refuse(PLAN, None) is None


def test_a_refusal_holds_the_rebuild_and_names_numbers_and_way_out() -> None:
    refusal = refuse(PLAN, observed_of(desired_of(), points=41))

    assert refusal is not None
    assert refusal.held == (REBUILD,)
    assert refusal.reason == Reason.AWAITING_APPROVAL
    for words in ("index.distance Cosine -> Dot", "41 points", "set the field back"):
        assert words in refusal.message


def test_what_is_not_held_is_allowed_in_order() -> None:
    refusal = refuse(PLAN, observed_of(desired_of()))

    assert allowed(PLAN, refusal) == (UPDATE,)
    assert allowed(PLAN, None) == (REBUILD, UPDATE)


PHYSICAL = f"{ALIAS}__1"


@pytest.mark.parametrize(("is_there", "last_points"), [(True, 5), (True, 0), (False, 0)])
def test_a_collection_that_is_there_or_was_empty_is_not_lost(is_there: bool, last_points: int) -> None:
    found = observed_of(desired_of()) if is_there else None

    check_lost(ALIAS, found, last_physical=PHYSICAL, last_points=last_points, policy=DriftPolicy.CORRECT)


@pytest.mark.parametrize("policy", DriftPolicy)
def test_a_collection_that_never_was_is_not_lost(policy: DriftPolicy) -> None:
    check_lost(ALIAS, None, last_physical=None, last_points=0, policy=policy)


@pytest.mark.parametrize("policy", [DriftPolicy.REPORT, DriftPolicy.IGNORE])
def test_an_empty_collection_that_is_gone_is_lost_where_drift_is_left(policy: DriftPolicy) -> None:
    with pytest.raises(SpecInvalid, match=f"driftPolicy {policy} leaves it so: set spec.driftPolicy to Correct"):
        check_lost(ALIAS, None, last_physical=PHYSICAL, last_points=0, policy=policy)


def test_a_collection_that_held_memories_and_is_gone_is_lost() -> None:
    with pytest.raises(SpecInvalid, match=r"held 5 points.*apply it again to start empty"):
        check_lost(ALIAS, None, last_physical=PHYSICAL, last_points=5, policy=DriftPolicy.CORRECT)


def test_a_collection_is_ours_when_nothing_is_there_or_nobody_marked_it() -> None:
    desired = desired_of()
    unmarked = replace(desired, marker=None)

    check_ownership(None, desired)
    check_ownership(observed_of(unmarked), desired)
    check_ownership(observed_of(desired), unmarked)
    check_ownership(observed_of(desired), desired)


def foreign(**marker: Any) -> Collection:
    """Return our collection as another object's."""
    desired = desired_of()
    assert desired.marker is not None
    return replace(desired, marker=replace(desired.marker, uid="their-uid", **marker))


FOREIGN = [{"cluster_id": "cluster-0"}, {"namespace": "other"}, {"name": "other"}]


@pytest.mark.parametrize("marker", FOREIGN)
@pytest.mark.parametrize("takeover", [None, "", "another-uid"])
def test_another_owner_s_collection_is_refused_with_the_annotation_to_set(
    marker: dict[str, str], takeover: str | None
) -> None:
    with pytest.raises(NotOwned) as refused:
        check_ownership(observed_of(foreign(**marker)), desired_of(), takeover=takeover)

    assert "agentmemory.dev/takeover=their-uid" in str(refused.value)
    assert "(uid their-uid)" in str(refused.value)
    assert refused.value.owner is not None
    assert refused.value.owner["uid"] == "their-uid"


@pytest.mark.parametrize("marker", FOREIGN)
def test_the_owner_that_a_takeover_names_loses_the_collection(marker: dict[str, str]) -> None:
    theirs = foreign(**marker)

    assert check_ownership(observed_of(theirs), desired_of(), takeover="their-uid") == theirs.marker


def test_a_marker_without_uid_cannot_be_named_for_a_takeover() -> None:
    theirs = foreign(name="other")
    assert theirs.marker is not None

    with pytest.raises(NotOwned):
        check_ownership(observed_of(replace(theirs, marker=replace(theirs.marker, uid=""))), desired_of(), takeover="")


def test_a_takeover_of_what_is_ours_takes_nothing() -> None:
    assert check_ownership(observed_of(desired_of()), desired_of(), takeover="uid-probe") is None


@pytest.mark.parametrize(("points", "confirmation"), [(0, None), (0, "other"), (3, ALIAS)])
def test_an_empty_or_confirmed_collection_may_go(points: int, confirmation: str | None) -> None:
    assert check_destroy(ALIAS, points=points, confirmation=confirmation) is None


@pytest.mark.parametrize("confirmation", [None, "", "agent_memory_other"])
def test_a_collection_with_memories_is_kept_unless_its_alias_confirms(confirmation: str | None) -> None:
    kept = check_destroy(ALIAS, points=3, confirmation=confirmation)

    assert kept is not None
    assert f"agentmemory.dev/confirm-delete={ALIAS}" in kept
    assert "holds 3 memories" in kept
