"""What a plan may not do: pure refusals, each with its reason, the numbers and the way out."""

from dataclasses import dataclass, replace

from agentmemory_operator.collections.rules.changes import (
    BEHIND_ALIAS,
    Change,
    ChangeClass,
    CreateIndexes,
    Rebuild,
    SetAlias,
    UpdateStrictMode,
    WakeOptimizers,
    WriteMarker,
    class_of,
)
from agentmemory_operator.collections.rules.claims import SlugClaim
from agentmemory_operator.collections.rules.collection import Collection, Marker, Observed
from agentmemory_operator.collections.rules.desired import PassTerms
from agentmemory_operator.collections.rules.drift import DriftPolicy
from agentmemory_operator.collections.rules.plan import Plan, has_rebuild, rebuild_digest
from agentmemory_operator.collections.rules.rebuild_costs import Costs, describe_costs
from agentmemory_operator.collections.rules.replicas import too_few
from agentmemory_operator.collections.rules.takeovers import TakeoverTerms, is_same_tenant, may_take
from agentmemory_operator.errors import NotOwned, SpecInvalid
from agentmemory_operator.spec.effective.policies import ChangePolicy
from agentmemory_operator.spec.kinds.agent_memory import (
    APPROVE_PLAN,
    CANCEL_REBUILD,
    CONFIRM_DELETE,
    MOVE_TO_ALIAS,
    ROLLBACK_REBUILD,
    TAKEOVER,
)
from agentmemory_operator.spec.kinds.conditions import Reason

REQUESTS = "takeoverRequests"
"""Field of a QdrantConnection's status: the objects whose takeover its owner may allow."""

RECALL_SUFFIX = "-recall"
"""What an approval has after the digest where it takes the drop of the recall that a Rebuild showed."""

_SERVING = (SetAlias, WakeOptimizers, CreateIndexes, UpdateStrictMode)
"""What a collection that is about to be replaced still gets: searches need it until then."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Changes that are held back, and why.

    Attributes:
        reason: of the closed set of condition reasons.
        digest: what an approval of it names; None where nobody has to approve anything.
        costs: of the Rebuild among them, where it was looked into.
        revision: the newer one of the preset that is held with them; None where none is.
    """

    reason: str
    message: str
    held: tuple[Change, ...]
    digest: str | None = None
    costs: Costs | None = None
    revision: int | None = None

    @property
    def is_carried_out(self) -> bool:
        """Whether nobody has to decide anything: the Rebuild is made, beside the passes."""
        return self.reason == Reason.REBUILD_RUNNING


def refuse(
    plan: Plan, observed: Observed | None, *, terms: PassTerms | None = None, costs: Costs | None = None
) -> Refusal | None:
    """What of the plan is held, and why: a pass carries out no Rebuild, and one that runs replaces the rest.

    | Rebuild | reason | held |
    |---|---|---|
    | changePolicy Never | RebuildNotAllowed | it |
    | nothing could embed, or nothing to embed is there | CannotRebuild | it |
    | it was taken back | RolledBack | it |
    | it was stopped | RebuildCancelled | it |
    | there is no room for it | InsufficientSpace | it |
    | neither approved nor Apply, and it holds something | AwaitingApproval | it |
    | else | RebuildRunning: others carry it out | it, and all but what searches need |

    Args:
        terms: the object's; None allows nothing.
        costs: of the Rebuild; None where nobody looked into them.
    """
    rebuilds = tuple(change for change in plan.changes if isinstance(change, Rebuild))
    if not rebuilds or observed is None:
        return None
    terms, digest = terms or PassTerms(), rebuild_digest(plan)
    named = ", ".join(f"{change.field} {change.observed} -> {change.desired}" for change in rebuilds)
    meanwhile = _meanwhile(observed)
    if held := _why_held(plan, observed, terms, costs):
        reason, why = held
        message = f"{named} needs a new collection for {_burden(observed, costs)}; {why}. {meanwhile}"
        return Refusal(reason, message, rebuilds, digest, costs)
    message = f"{named}: a new collection is being built for {_burden(observed, costs)}. {meanwhile}"
    replaced = tuple(change for change in plan.changes if not _is_of_serving(change, observed))
    return Refusal(Reason.REBUILD_RUNNING, message, replaced, digest, costs)


def _why_held(plan: Plan, observed: Observed, terms: PassTerms, costs: Costs | None) -> tuple[Reason, str] | None:
    """Why a Rebuild is held and the way out, None where it may be carried out."""
    digest = rebuild_digest(plan)
    undo = f"remove the annotation {MOVE_TO_ALIAS}" if BEHIND_ALIAS in plan.changes else "revert the field"
    if terms.rebuild.change_policy is ChangePolicy.NEVER:
        return Reason.REBUILD_NOT_ALLOWED, f"blocked by spec.changePolicy Never: {undo}, or change the policy"
    if costs and costs.obstacle:
        return Reason.CANNOT_REBUILD, costs.obstacle
    if terms.taken_back:
        return Reason.ROLLED_BACK, (
            f"{terms.taken_back} was rolled back: {undo}, or run it again (agentmemory approve, "
            f"which removes the annotation {ROLLBACK_REBUILD})"
        )
    if terms.cancelled in (digest, plan.digest):
        return Reason.REBUILD_CANCELLED, (
            f"it was cancelled: {undo}, or run it anyway (agentmemory approve, which removes the "
            f"annotation {CANCEL_REBUILD})"
        )
    if costs and costs.shortage:
        return Reason.INSUFFICIENT_SPACE, costs.shortage
    is_permitted = terms.rebuild.change_policy is ChangePolicy.APPLY or is_approved(plan, terms.approved)
    if is_permitted or holds_nothing(observed):
        return None
    stale = f"the approval of {terms.approved} is for another plan: " if terms.approved else ""
    return Reason.AWAITING_APPROVAL, (
        f"{stale}approve it with the annotation {APPROVE_PLAN}={digest} (agentmemory approve), or {undo}"
    )


def holds_nothing(observed: Observed) -> bool:
    """Whether a Rebuild has nothing that somebody would have to approve, by the number that the collection tells.

    That number is an estimate, and writers come: whoever carries the Rebuild out looks for itself, again and again
    until writers wait (`rebuilds/begin.py`). Others than the API write to what is not marked, or bears the
    alias's name, and wait for nobody.
    """
    return observed.points == 0 and observed.collection.marker is not None and not observed.is_plain


def is_approved(plan: Plan, approved: str | None) -> bool:
    """Whether an approval is for this plan: for its Rebuild, or for all of it."""
    if not approved:
        return False
    digests = {plan.digest}
    if has_rebuild(plan):
        digests |= {rebuild_digest(plan), lasting_digest(plan)}
    return approved.removesuffix(RECALL_SUFFIX) in digests


def _burden(observed: Observed, costs: Costs | None) -> str:
    told = f": {describe_costs(costs)}" if costs else ""
    return f"{observed.points} points{told}"


def _meanwhile(observed: Observed) -> str:
    if observed.collection.marker is None:
        return "Until then the collection is not served, because it has no ownership marker"
    if observed.is_plain:
        return (
            "The collection keeps serving. Its own name is the alias, so in the end it is deleted and a copy is "
            "kept: stop direct writers to it, and copy its snapshots off the server (docs/adopt.md)"
        )
    return "The current collection keeps serving"


def _is_of_serving(change: Change, observed: Observed) -> bool:
    """Whether a change is made though the collection is about to be replaced."""
    if isinstance(change, WriteMarker):
        live = observed.collection.marker
        return live is None or not change.marker.is_same_object(live) or change.marker.uid != live.uid
    return isinstance(change, _SERVING)


def hold_upgrade(
    plan: Plan, base: Plan | None, observed: Observed | None, *, terms: PassTerms, costs: Costs | None = None
) -> Refusal | None:
    """The refusal of a plan that brings a newer revision of the preset, None where it may be carried out.

    What the newer figures alone ask for is held while it costs a Reindex or more, or ends memories that the figures in
    force keep: an upgrade of the operator must not reindex every collection by itself, nor remove anything, whatever
    the object's changePolicy. The revision is held as a whole, so that its figures come into force together. A Rebuild
    that the object itself asks for and may have brings them along where they end nothing.

    Args:
        plan: under the newer revision.
        base: under the revision in force; None where its figures are not known.
        costs: of the plan's Rebuild.
    """
    asked = base.changes if base else ()
    costly = [c for c in plan.changes if class_of(c) is not ChangeClass.IN_PLACE and c not in asked]
    live = observed.collection.marker if observed else None
    ends = terms.ends.get(live.preset_revision, "") if live else ""
    if observed is None or not (costly or ends):
        return None
    named = " and ".join(sorted({class_of(change) for change in costly}))
    rebuild = refuse(plan, observed, terms=terms, costs=costs)
    if rebuild and rebuild.reason not in (Reason.REBUILD_RUNNING, Reason.AWAITING_APPROVAL):
        return replace(rebuild, held=plan.changes)
    has_own = any(isinstance(change, Rebuild) for change in asked)
    is_brought_along = rebuild is not None and rebuild.reason == Reason.REBUILD_RUNNING and has_own
    if _ends_as_approved(plan, terms.approved) if ends else is_approved(plan, terms.approved) or is_brought_along:
        return None
    digest = plan.digest if not rebuild else lasting_digest(plan) if ends else rebuild_digest(plan)
    stale = f"the approval of {terms.approved} is for another plan; " if terms.approved else ""
    asked_for = f"that requires a {named} of {_burden(observed, costs if rebuild else None)}" if costly else ""
    why = ", and ".join(filter(None, (asked_for, f"under which {ends}" if ends else "")))
    message = (
        f"the preset has a newer revision {why}; {stale}the current revision stays in effect until the plan is "
        f"approved with the annotation {APPROVE_PLAN}={digest} (agentmemory approve)"
    )
    return Refusal(Reason.AWAITING_APPROVAL, message, plan.changes, digest, costs if rebuild else None)


def upgraded_from(desired: Collection, observed: Observed | None) -> int | None:
    """The revision of the preset in force, None where it is the object's newest, of another preset, or nobody knows."""
    live, ours = observed.collection.marker if observed else None, desired.marker
    if live is None or ours is None or live.preset_revision == ours.preset_revision:
        return None
    if live.preset not in (None, ours.preset):
        return None
    return live.preset_revision


def _ends_as_approved(plan: Plan, approved: str | None) -> bool:
    """Whether an approval is for a plan that ends memories: that of its Rebuild alone may be older than this."""
    return approved in (plan.digest, lasting_digest(plan), rebuild_digest(plan) + RECALL_SUFFIX)


def lasting_digest(plan: Plan) -> str:
    """The digest of a plan without what is done before its Rebuild: that is done once it is approved, and then gone."""
    return Plan(plan.physical, tuple(change for change in plan.changes if not isinstance(change, _SERVING))).digest


def hold_queued(queued: tuple[Change, ...], refusal: Refusal | None, waits_for: str) -> Refusal:
    """The refusal with what waits for its turn held too.

    Args:
        queued: what waits.
        refusal: what is held beside it; somebody's decision is the more urgent reason.
        waits_for: whose turn it is.
    """
    message = f"the Reindex is queued: one collection per connection at a time, {waits_for} is first"
    if refusal is None:
        return Refusal(Reason.REINDEX_QUEUED, message, queued)
    return replace(refusal, message=f"{refusal.message}. Also, {message}", held=(*refusal.held, *queued))


def allowed(plan: Plan, refusal: Refusal | None) -> tuple[Change, ...]:
    """The changes that are not held, in order."""
    held = refusal.held if refusal else ()
    return tuple(change for change in plan.changes if change not in held)


def check_lost(
    alias: str, observed: Observed | None, *, last_physical: str | None, last_points: int, policy: DriftPolicy
) -> None:
    """Pass unless a collection is gone that held memories, or that the object's policy leaves gone.

    An empty collection in the place of one that held memories would hide the loss.

    Raises:
        SpecInvalid: it is gone; nothing is created.
    """
    if observed is not None or last_physical is None:
        return
    if last_points > 0:
        raise SpecInvalid(
            "CollectionLost",
            f"{alias} held {last_points} points and no longer exists in Qdrant: restore a snapshot of "
            f"it (agentmemory snapshot list), or delete this AgentMemory and apply it again to start empty",
        )
    if policy is not DriftPolicy.CORRECT:
        raise SpecInvalid(
            "CollectionLost",
            f"{alias}, empty when last seen, no longer exists in Qdrant, and driftPolicy {policy} "
            f"does not recreate it: set spec.driftPolicy to Correct to recreate it",
        )


def check_replicas(desired: Collection, observed: Observed | None) -> None:
    """Pass unless a number of replicas is asked for that the collection has not, and the cluster has not the peers for.

    Raises:
        SpecInvalid: names both numbers; Qdrant would say nothing.
    """
    placement, factor = observed.placement if observed else None, desired.replication_factor
    if placement is None or observed is None or factor is None or factor == observed.collection.replication_factor:
        return
    if factor > len(placement.peers):
        raise SpecInvalid(Reason.INVALID_SPEC, too_few(len(placement.peers), factor))


def check_ownership(
    observed: Observed | None, desired: Collection, *, takeover: TakeoverTerms | None = None
) -> Marker | None:
    """The owner that would lose the collection; None if nobody marked it or it is this object's.

    Args:
        takeover: what allows this object to take it over.

    Raises:
        NotOwned: another object's, and no takeover allows it; says whose only where that is no secret.
    """
    live, ours = observed.collection.marker if observed else None, desired.marker
    if live is None or ours is None or live.is_same_object(ours):
        return None
    if may_take(live, ours, takeover):
        return live
    raise not_owned(
        Reason.COLLECTION_NOT_OWNED,
        "the collection",
        live,
        ours,
        way_out="choose another spec.agent, or take it over if nothing else uses it,",
    )


def not_owned(reason: Reason, what: str, live: Marker, ours: Marker, *, way_out: str) -> NotOwned:
    """The refusal of what carries another object's marker.

    Args:
        what: is refused, for people.
        way_out: ends in the words that how a takeover is allowed follows.
    """
    owner = owner_to_json(live)
    if is_same_tenant(live, ours):
        whose = describe_owner(live, cluster_id=ours.cluster_id)
        how = f"with the annotation {TAKEOVER}={live.uid} on this object"
        return NotOwned(reason, f"{what} belongs to {whose}: {way_out} {how}", owner=owner, is_same_tenant=True)
    # Whoever is refused must not learn whose it is, nor what would open it.
    how = f"with spec.takeovers of its QdrantConnection, whose owner sees this object in status.{REQUESTS}"
    return NotOwned(reason, f"{what} belongs to another namespace or cluster: {way_out} {how}", owner=owner)


def slug_taken(slug: str, claim: SlugClaim | None = None) -> NotOwned:
    """The refusal of a slug that is another namespace's: whose, nobody learns from it.

    Args:
        claim: of an object that is gone, which may be taken over; None where there is nothing to take over.
    """
    if claim is None:
        return NotOwned(Reason.SLUG_TAKEN, f"agent {slug!r} is taken: choose another spec.agent")
    owner = {"namespace": claim.namespace, "uid": claim.uid}
    return NotOwned(
        Reason.SLUG_TAKEN,
        f"agent {slug!r} is taken: it still has memories. Choose another spec.agent, or transfer them to this "
        f"namespace with spec.takeovers of their QdrantConnection, whose owner sees this object in status.{REQUESTS}",
        owner=owner | ({"connection": claim.connections[0]} if claim.connections else {}),
    )


def owner_to_json(marker: Marker) -> dict[str, str]:
    """Whose a marker says it is; `connection` is left out where it names none."""
    owner = {"clusterId": marker.cluster_id, "namespace": marker.namespace, "name": marker.name, "uid": marker.uid}
    return owner | ({"connection": marker.connection} if marker.connection else {})


def describe_owner(marker: Marker, *, cluster_id: str) -> str:
    """An owner in a person's words; its cluster is named where it is another than `cluster_id`."""
    if not all(marker.owner):
        return "an unknown owner (its marker has no clusterId, namespace and name)"
    where = "" if marker.cluster_id == cluster_id else f" of cluster {marker.cluster_id}"
    return f"AgentMemory {marker.namespace}/{marker.name}{where} (uid {marker.uid})"


def check_destroy(alias: str, *, points: int, confirmation: str | None) -> str | None:
    """Why a collection is kept although its deletion was asked for, None when it may go."""
    if points == 0 or confirmation == alias:
        return None
    return (
        f"{alias} holds {points} memories and is kept: to delete it too, annotate the object with "
        f"{CONFIRM_DELETE}={alias} before deleting it"
    )
