"""Refusals: what is held, and how the way out is told."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.changes import (
    BEHIND_ALIAS,
    CreateIndexes,
    Rebuild,
    SetAlias,
    UpdateHnsw,
    UpdateOptimizers,
    UpdateStrictMode,
    WriteMarker,
)
from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.collections.rules.desired import PassTerms
from agentmemory_operator.collections.rules.drift import DriftPolicy
from agentmemory_operator.collections.rules.plan import Plan, rebuild_digest
from agentmemory_operator.collections.rules.rebuild_costs import Costs
from agentmemory_operator.collections.rules.refusals import (
    allowed_changes,
    check_lost,
    check_ownership,
    find_deletion_obstacle,
    find_refusal,
)
from agentmemory_operator.collections.rules.takeovers import TakeoverTerms
from agentmemory_operator.errors import NotOwned, SpecInvalid
from agentmemory_operator.spec.effective.policies import ChangePolicy, RebuildSettings
from agentmemory_operator.spec.kinds.agent_memory import TAKEOVER
from tests.support.spec.plans import ALIAS, desired_of, observed_of

REBUILD, UPDATE = Rebuild("index.distance", "Cosine", "Dot"), UpdateHnsw(m=32)
PLAN = Plan("p", (REBUILD, UPDATE))


DIGEST = rebuild_digest(PLAN)
APPLY = RebuildSettings(change_policy=ChangePolicy.APPLY)
NEVER = RebuildSettings(change_policy=ChangePolicy.NEVER)
COSTS = Costs(points=41, calls=0, seconds=1, disk_bytes=9 << 20, ram_bytes=3 << 20, nodes=1)


def test_a_plan_without_a_rebuild_is_not_refused() -> None:
    assert find_refusal(Plan("p", (UPDATE,)), observed_of(desired_of())) is None


def test_a_plan_for_nothing_is_not_refused() -> None:
    assert find_refusal(PLAN, None, terms=PassTerms(rebuild=NEVER)) is None


REFUSALS: list[tuple[str, PassTerms, str, list[str]]] = [
    ("nobody approved it", PassTerms(), "AwaitingApproval", [f"agentmemory.dev/approve-plan={DIGEST}"]),
    ("another was approved", PassTerms(approved="0" * 12), "AwaitingApproval", ["for another plan", f"={DIGEST}"]),
    ("an empty approval", PassTerms(approved=""), "AwaitingApproval", [f"={DIGEST}"]),
    ("it was approved", PassTerms(approved=DIGEST), "RebuildRunning", ["a new collection is being built"]),
    ("all of it was approved", PassTerms(approved=PLAN.digest), "RebuildRunning", []),
    ("its drop of the recall was approved", PassTerms(approved=f"{DIGEST}-recall"), "RebuildRunning", []),
    ("Apply needs no approval", PassTerms(rebuild=APPLY), "RebuildRunning", []),
    ("Apply after an older approval", PassTerms(rebuild=APPLY, approved="0" * 12), "RebuildRunning", []),
    ("Never, approved or not", PassTerms(rebuild=NEVER, approved=DIGEST), "RebuildNotAllowed", ["spec.changePolicy"]),
    ("it was stopped", PassTerms(approved=DIGEST, cancelled=DIGEST), "RebuildCancelled", ["agentmemory approve"]),
    ("Apply, and it was stopped", PassTerms(rebuild=APPLY, cancelled=DIGEST), "RebuildCancelled", []),
    ("another was stopped", PassTerms(approved=DIGEST, cancelled="0" * 12), "RebuildRunning", []),
    (
        "it was taken back",
        PassTerms(approved=DIGEST, rolled_back="x__2"),
        "RolledBack",
        ["x__2", "agentmemory approve"],
    ),
]


@pytest.mark.parametrize(
    ("collection", "terms", "reason"),
    [
        ({}, PassTerms(), "RebuildRunning"),
        ({}, PassTerms(rebuild=NEVER), "RebuildNotAllowed"),
        ({}, PassTerms(cancelled=DIGEST), "RebuildCancelled"),
        ({"marker": None}, PassTerms(), "AwaitingApproval"),
    ],
)
def test_what_is_empty_and_ours_alone_needs_no_approval(
    collection: dict[str, Any], terms: PassTerms, reason: str
) -> None:
    refusal = find_refusal(PLAN, observed_of(replace(desired_of(), **collection)), terms=terms)

    assert refusal is not None
    assert refusal.reason == reason


def test_an_empty_collection_of_the_alias_s_own_name_is_held() -> None:
    refusal = find_refusal(PLAN, observed_of(desired_of(), physical=ALIAS, is_aliased=False), terms=PassTerms())

    assert refusal is not None
    assert refusal.reason == "AwaitingApproval"


@pytest.mark.parametrize(("terms", "reason", "words"), [pytest.param(*row[1:], id=row[0]) for row in REFUSALS])
def test_a_rebuild_is_refused_by_what_somebody_decided(terms: PassTerms, reason: str, words: list[str]) -> None:
    refusal = find_refusal(PLAN, observed_of(desired_of(), points=41), terms=terms)

    assert refusal is not None
    assert (refusal.reason, refusal.digest) == (reason, DIGEST)
    assert REBUILD in refusal.withheld
    for expected in ("index.distance Cosine -> Dot", "41 points", "keeps serving", *words):
        assert expected in refusal.message


@pytest.mark.parametrize("terms", [PassTerms(), PassTerms(rebuild=APPLY), PassTerms(approved=DIGEST)])
@pytest.mark.parametrize(
    ("costs", "reason"),
    [
        (replace(COSTS, obstacle="nothing embeds"), "CannotRebuild"),
        (replace(COSTS, shortage="too small"), "InsufficientSpace"),
    ],
)
def test_what_cannot_be_done_is_refused_whoever_approved_it(terms: PassTerms, costs: Costs, reason: str) -> None:
    refusal = find_refusal(PLAN, observed_of(desired_of(), points=41), terms=terms, costs=costs)

    assert refusal is not None
    assert refusal.reason == reason
    assert (costs.obstacle or costs.shortage or "?") in refusal.message


def test_a_refusal_says_what_the_rebuild_costs() -> None:
    refusal = find_refusal(PLAN, observed_of(desired_of(), points=41), costs=COSTS)

    assert refusal is not None
    assert (
        "41 points: about 9 MiB of disk and 3 MiB of RAM during the rebuild, at least a second; approve it"
        in refusal.message
    )


def test_what_is_not_a_rebuild_is_done_until_there_is_one() -> None:
    refusal = find_refusal(PLAN, observed_of(desired_of(), points=1))

    assert refusal is not None
    assert refusal.withheld == (REBUILD,)


def test_a_collection_that_is_about_to_be_replaced_gets_no_more_than_searches_need() -> None:
    live = desired_of()
    assert live.marker is not None
    ours = WriteMarker(replace(live.marker, preset_revision=9))
    needed = (CreateIndexes((("tags", "keyword"),)), UpdateStrictMode((("enabled", True),)), SetAlias("a", "p"))
    optimizers = UpdateOptimizers(default_segment_number=4)
    plan = Plan("p", (REBUILD, UPDATE, optimizers, ours, *needed))

    refusal = find_refusal(plan, observed_of(live), terms=PassTerms(rebuild=APPLY))

    assert refusal is not None
    assert refusal.withheld == (REBUILD, UPDATE, optimizers, ours)


def test_a_new_owner_is_written_though_the_collection_is_about_to_be_replaced() -> None:
    live = desired_of()
    assert live.marker is not None
    theirs = replace(live, marker=replace(live.marker, uid="uid-of-the-first"))
    marker = WriteMarker(live.marker)

    refusal = find_refusal(Plan("p", (REBUILD, marker)), observed_of(theirs), terms=PassTerms(rebuild=APPLY))

    assert refusal is not None
    assert refusal.withheld == (REBUILD,)


def test_an_unmarked_collection_is_not_said_to_serve() -> None:
    refusal = find_refusal(PLAN, observed_of(replace(desired_of(), marker=None)))

    assert refusal is not None
    assert "is not served" in refusal.message


def test_the_digest_of_a_rebuild_outlives_what_else_changes() -> None:
    other = find_refusal(Plan("q", (UpdateHnsw(m=8), REBUILD)), observed_of(desired_of()))

    assert other is not None
    assert other.digest == DIGEST


def test_what_is_not_held_is_allowed_in_order() -> None:
    refusal = find_refusal(PLAN, observed_of(desired_of(), points=1))

    assert allowed_changes(PLAN, refusal) == (UPDATE,)
    assert allowed_changes(PLAN, None) == (REBUILD, UPDATE)


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
    with pytest.raises(
        SpecInvalid, match=f"driftPolicy {policy} does not recreate it: set spec.driftPolicy to Correct"
    ):
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


@pytest.mark.parametrize("annotation", [None, "", "another-uid"])
def test_another_object_s_collection_of_the_namespace_is_refused_with_the_annotation_to_set(
    annotation: str | None,
) -> None:
    with pytest.raises(NotOwned) as refused:
        check_ownership(observed_of(foreign(name="other")), desired_of(), takeover=TakeoverTerms(annotation=annotation))

    assert "agentmemory.dev/takeover=their-uid" in str(refused.value)
    assert "(uid their-uid)" in str(refused.value)
    assert refused.value.owner is not None
    assert refused.value.owner["uid"] == "their-uid"


@pytest.mark.parametrize("marker", [{"cluster_id": "cluster-0"}, {"namespace": "secretive"}])
def test_whose_a_collection_of_another_namespace_is_the_refused_does_not_learn(marker: dict[str, str]) -> None:
    with pytest.raises(NotOwned) as refused:
        check_ownership(observed_of(foreign(**marker)), desired_of(), takeover=TakeoverTerms(annotation="their-uid"))

    assert not any(word in str(refused.value) for word in ("their-uid", "secretive", "cluster-0", TAKEOVER))


def test_the_owner_that_a_takeover_names_loses_the_collection() -> None:
    theirs = foreign(name="other")

    taken = check_ownership(observed_of(theirs), desired_of(), takeover=TakeoverTerms(annotation="their-uid"))

    assert taken == theirs.marker


def test_a_marker_without_uid_cannot_be_named_for_a_takeover() -> None:
    theirs = foreign(name="other")
    assert theirs.marker is not None
    anonymous = replace(theirs, marker=replace(theirs.marker, uid=""))

    with pytest.raises(NotOwned):
        check_ownership(observed_of(anonymous), desired_of(), takeover=TakeoverTerms(annotation=""))


def test_a_takeover_of_what_is_ours_takes_nothing() -> None:
    assert (
        check_ownership(observed_of(desired_of()), desired_of(), takeover=TakeoverTerms(annotation="uid-probe")) is None
    )


@pytest.mark.parametrize(("points", "confirmation"), [(0, None), (0, "other"), (3, ALIAS)])
def test_an_empty_or_confirmed_collection_may_go(points: int, confirmation: str | None) -> None:
    assert find_deletion_obstacle(ALIAS, points=points, confirmation=confirmation) is None


@pytest.mark.parametrize("confirmation", [None, "", "agent_memory_other"])
def test_a_collection_with_memories_is_kept_unless_its_alias_confirms(confirmation: str | None) -> None:
    kept = find_deletion_obstacle(ALIAS, points=3, confirmation=confirmation)

    assert kept is not None
    assert f"agentmemory.dev/confirm-delete={ALIAS}" in kept
    assert "holds 3 memories" in kept


def test_of_a_plain_collection_it_is_said_what_else_becomes_of_it() -> None:
    plain = observed_of(desired_of(), physical=ALIAS, is_aliased=False)

    told = find_refusal(Plan(ALIAS, (BEHIND_ALIAS,)), plain)

    assert told is not None
    assert "stop direct writers to it" in told.message
    assert "or remove the annotation agentmemory.dev/move-to-alias" in told.message
