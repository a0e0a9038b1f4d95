"""Refusals: withheld changes, and messages with the remedy."""

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


def test_plan_without_rebuild_is_allowed() -> None:
    assert find_refusal(Plan("p", (UPDATE,)), observed_of(desired_of())) is None


def test_creation_is_allowed() -> None:
    assert find_refusal(PLAN, None, terms=PassTerms(rebuild=NEVER)) is None


REFUSALS: list[tuple[str, PassTerms, str, list[str]]] = [
    ("not approved", PassTerms(), "AwaitingApproval", [f"agentmemory.dev/approve-plan={DIGEST}"]),
    ("another plan approved", PassTerms(approved="0" * 12), "AwaitingApproval", ["for another plan", f"={DIGEST}"]),
    ("an empty approval", PassTerms(approved=""), "AwaitingApproval", [f"={DIGEST}"]),
    ("approved", PassTerms(approved=DIGEST), "RebuildRunning", ["a new collection is being built"]),
    ("whole plan approved", PassTerms(approved=PLAN.digest), "RebuildRunning", []),
    ("approved with lower recall", PassTerms(approved=f"{DIGEST}-recall"), "RebuildRunning", []),
    ("Apply needs no approval", PassTerms(rebuild=APPLY), "RebuildRunning", []),
    ("Apply after an older approval", PassTerms(rebuild=APPLY, approved="0" * 12), "RebuildRunning", []),
    ("Never, approved or not", PassTerms(rebuild=NEVER, approved=DIGEST), "RebuildNotAllowed", ["spec.changePolicy"]),
    ("cancelled", PassTerms(approved=DIGEST, cancelled=DIGEST), "RebuildCancelled", ["agentmemory approve"]),
    ("Apply, cancelled", PassTerms(rebuild=APPLY, cancelled=DIGEST), "RebuildCancelled", []),
    ("another plan cancelled", PassTerms(approved=DIGEST, cancelled="0" * 12), "RebuildRunning", []),
    (
        "rolled back",
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
def test_own_empty_collection_needs_no_approval(collection: dict[str, Any], terms: PassTerms, reason: str) -> None:
    refusal = find_refusal(PLAN, observed_of(replace(desired_of(), **collection)), terms=terms)

    assert refusal is not None
    assert refusal.reason == reason


def test_plain_empty_collection_needs_approval() -> None:
    refusal = find_refusal(PLAN, observed_of(desired_of(), physical=ALIAS, is_aliased=False), terms=PassTerms())

    assert refusal is not None
    assert refusal.reason == "AwaitingApproval"


@pytest.mark.parametrize(("terms", "reason", "words"), [pytest.param(*row[1:], id=row[0]) for row in REFUSALS])
def test_decision_determines_reason(terms: PassTerms, reason: str, words: list[str]) -> None:
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
def test_obstacle_outranks_approval(terms: PassTerms, costs: Costs, reason: str) -> None:
    refusal = find_refusal(PLAN, observed_of(desired_of(), points=41), terms=terms, costs=costs)

    assert refusal is not None
    assert refusal.reason == reason
    assert (costs.obstacle or costs.shortage or "?") in refusal.message


def test_message_states_costs() -> None:
    refusal = find_refusal(PLAN, observed_of(desired_of(), points=41), costs=COSTS)

    assert refusal is not None
    assert (
        "41 points: about 9 MiB of disk and 3 MiB of RAM during the rebuild, at least a second; approve it"
        in refusal.message
    )


def test_only_rebuild_is_withheld_before_approval() -> None:
    refusal = find_refusal(PLAN, observed_of(desired_of(), points=1))

    assert refusal is not None
    assert refusal.withheld == (REBUILD,)


def test_replaced_collection_gets_search_changes_only() -> None:
    live = desired_of()
    assert live.marker is not None
    ours = WriteMarker(replace(live.marker, preset_revision=9))
    needed = (CreateIndexes((("tags", "keyword"),)), UpdateStrictMode((("enabled", True),)), SetAlias("a", "p"))
    optimizers = UpdateOptimizers(default_segment_number=4)
    plan = Plan("p", (REBUILD, UPDATE, optimizers, ours, *needed))

    refusal = find_refusal(plan, observed_of(live), terms=PassTerms(rebuild=APPLY))

    assert refusal is not None
    assert refusal.withheld == (REBUILD, UPDATE, optimizers, ours)


def test_replaced_collection_gets_new_owner() -> None:
    live = desired_of()
    assert live.marker is not None
    theirs = replace(live, marker=replace(live.marker, uid="uid-of-the-first"))
    marker = WriteMarker(live.marker)

    refusal = find_refusal(Plan("p", (REBUILD, marker)), observed_of(theirs), terms=PassTerms(rebuild=APPLY))

    assert refusal is not None
    assert refusal.withheld == (REBUILD,)


def test_unmarked_collection_is_not_served() -> None:
    refusal = find_refusal(PLAN, observed_of(replace(desired_of(), marker=None)))

    assert refusal is not None
    assert "is not served" in refusal.message


def test_digest_ignores_other_changes() -> None:
    other = find_refusal(Plan("q", (UpdateHnsw(m=8), REBUILD)), observed_of(desired_of()))

    assert other is not None
    assert other.digest == DIGEST


def test_allowed_changes_keep_order() -> None:
    refusal = find_refusal(PLAN, observed_of(desired_of(), points=1))

    assert allowed_changes(PLAN, refusal) == (UPDATE,)
    assert allowed_changes(PLAN, None) == (REBUILD, UPDATE)


PHYSICAL = f"{ALIAS}__1"


@pytest.mark.parametrize(("is_there", "last_points"), [(True, 5), (True, 0), (False, 0)])
def test_existing_or_empty_collection_is_not_lost(is_there: bool, last_points: int) -> None:
    found = observed_of(desired_of()) if is_there else None

    check_lost(ALIAS, found, last_physical=PHYSICAL, last_points=last_points, policy=DriftPolicy.CORRECT)


@pytest.mark.parametrize("policy", DriftPolicy)
def test_never_created_collection_is_not_lost(policy: DriftPolicy) -> None:
    check_lost(ALIAS, None, last_physical=None, last_points=0, policy=policy)


@pytest.mark.parametrize("policy", [DriftPolicy.REPORT, DriftPolicy.IGNORE])
def test_deleted_empty_collection_needs_correct_policy(policy: DriftPolicy) -> None:
    with pytest.raises(
        SpecInvalid, match=f"driftPolicy {policy} does not recreate it: set spec.driftPolicy to Correct"
    ):
        check_lost(ALIAS, None, last_physical=PHYSICAL, last_points=0, policy=policy)


def test_deleted_collection_with_memories_is_lost() -> None:
    with pytest.raises(SpecInvalid, match=r"held 5 points.*apply it again to start empty"):
        check_lost(ALIAS, None, last_physical=PHYSICAL, last_points=5, policy=DriftPolicy.CORRECT)


def test_unowned_collection_passes_ownership_check() -> None:
    desired = desired_of()
    unmarked = replace(desired, marker=None)

    check_ownership(None, desired)
    check_ownership(observed_of(unmarked), desired)
    check_ownership(observed_of(desired), unmarked)
    check_ownership(observed_of(desired), desired)


def foreign(**marker: Any) -> Collection:
    """Return a collection that another object owns."""
    desired = desired_of()
    assert desired.marker is not None
    return replace(desired, marker=replace(desired.marker, uid="their-uid", **marker))


@pytest.mark.parametrize("annotation", [None, "", "another-uid"])
def test_refusal_names_takeover_annotation(
    annotation: str | None,
) -> None:
    with pytest.raises(NotOwned) as refused:
        check_ownership(observed_of(foreign(name="other")), desired_of(), takeover=TakeoverTerms(annotation=annotation))

    assert "agentmemory.dev/takeover=their-uid" in str(refused.value)
    assert "(uid their-uid)" in str(refused.value)
    assert refused.value.owner is not None
    assert refused.value.owner["uid"] == "their-uid"


@pytest.mark.parametrize("marker", [{"cluster_id": "cluster-0"}, {"namespace": "secretive"}])
def test_owner_in_other_namespace_stays_hidden(marker: dict[str, str]) -> None:
    with pytest.raises(NotOwned) as refused:
        check_ownership(observed_of(foreign(**marker)), desired_of(), takeover=TakeoverTerms(annotation="their-uid"))

    assert not any(word in str(refused.value) for word in ("their-uid", "secretive", "cluster-0", TAKEOVER))


def test_takeover_returns_previous_owner() -> None:
    theirs = foreign(name="other")

    taken = check_ownership(observed_of(theirs), desired_of(), takeover=TakeoverTerms(annotation="their-uid"))

    assert taken == theirs.marker


def test_marker_without_uid_allows_no_takeover() -> None:
    theirs = foreign(name="other")
    assert theirs.marker is not None
    anonymous = replace(theirs, marker=replace(theirs.marker, uid=""))

    with pytest.raises(NotOwned):
        check_ownership(observed_of(anonymous), desired_of(), takeover=TakeoverTerms(annotation=""))


def test_takeover_of_own_collection_is_noop() -> None:
    assert (
        check_ownership(observed_of(desired_of()), desired_of(), takeover=TakeoverTerms(annotation="uid-probe")) is None
    )


@pytest.mark.parametrize(("points", "confirmation"), [(0, None), (0, "other"), (3, ALIAS)])
def test_empty_or_confirmed_collection_is_deletable(points: int, confirmation: str | None) -> None:
    assert find_deletion_obstacle(ALIAS, points=points, confirmation=confirmation) is None


@pytest.mark.parametrize("confirmation", [None, "", "agent_memory_other"])
def test_deleting_memories_needs_confirmation(confirmation: str | None) -> None:
    kept = find_deletion_obstacle(ALIAS, points=3, confirmation=confirmation)

    assert kept is not None
    assert f"agentmemory.dev/confirm-delete={ALIAS}" in kept
    assert "holds 3 memories" in kept


def test_plain_collection_message_names_consequences() -> None:
    plain = observed_of(desired_of(), physical=ALIAS, is_aliased=False)

    refusal = find_refusal(Plan(ALIAS, (BEHIND_ALIAS,)), plain)

    assert refusal is not None
    assert "stop direct writers to it" in refusal.message
    assert "or remove the annotation agentmemory.dev/move-to-alias" in refusal.message
