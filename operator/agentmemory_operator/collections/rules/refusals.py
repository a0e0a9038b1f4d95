"""Decide which changes of a plan are withheld, and which collections and slugs an object may not have. Pure.

Each refusal has a reason, the numbers and a remedy.
"""

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
from agentmemory_operator.collections.rules.collection import Collection, Marker, Observation
from agentmemory_operator.collections.rules.desired import PassTerms
from agentmemory_operator.collections.rules.drift import DriftPolicy
from agentmemory_operator.collections.rules.plan import Plan, has_rebuild, rebuild_digest
from agentmemory_operator.collections.rules.rebuild_costs import Costs, describe_costs
from agentmemory_operator.collections.rules.replicas import too_few_peers
from agentmemory_operator.collections.rules.takeovers import TakeoverTerms, is_same_tenant, may_take_over
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

TAKEOVER_REQUESTS_FIELD = "takeoverRequests"
"""Field of a QdrantConnection's status: refused objects, whose takeovers the connection's owner may allow."""

RECALL_APPROVAL_SUFFIX = "-recall"
"""Suffix of the digest in an approval. With it, the approval also accepts the measured loss of recall of a Rebuild."""

_SERVING = (SetAlias, WakeOptimizers, CreateIndexes, UpdateStrictMode)
"""Changes that passes still make while a Rebuild replaces the collection: searches need them until the move."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Changes that are withheld, and the reason.

    Attributes:
        reason: One of the condition reasons.
        digest: Digest of the plan or its Rebuild, which an approval contains. None for queued changes only.
        costs: Costs of the Rebuild among them. None if unknown.
        revision: Newer revision of the preset that is withheld with them. None without one.
    """

    reason: str
    message: str
    withheld: tuple[Change, ...]
    digest: str | None = None
    costs: Costs | None = None
    revision: int | None = None

    @property
    def is_running(self) -> bool:
        """True if no decision is needed: the Rebuild is running, outside the passes."""
        return self.reason == Reason.REBUILD_RUNNING


def find_refusal(
    plan: Plan, observed: Observation | None, *, terms: PassTerms | None = None, costs: Costs | None = None
) -> Refusal | None:
    """Return the changes of a plan that are withheld, or None.

    A pass never carries out a Rebuild itself. While a Rebuild runs, most other changes are left to it. The first
    matching row decides:

    | Rebuild | reason | withheld |
    |---|---|---|
    | changePolicy Never | RebuildNotAllowed | the Rebuild |
    | points exist that cannot be embedded again | CannotRebuild | the Rebuild |
    | it was rolled back | RolledBack | the Rebuild |
    | it was cancelled | RebuildCancelled | the Rebuild |
    | the server lacks space | InsufficientSpace | the Rebuild |
    | neither approved, nor changePolicy Apply, nor empty (`is_empty`) | AwaitingApproval | the Rebuild |
    | any other | RebuildRunning: outside the passes | the Rebuild, and all changes that searches do not need |

    Args:
        terms: Terms of the object. None permits nothing.
        costs: Costs of the Rebuild. None if unknown.
    """
    rebuilds = tuple(change for change in plan.changes if isinstance(change, Rebuild))
    if not rebuilds or observed is None:
        return None
    terms, digest = terms or PassTerms(), rebuild_digest(plan)
    rebuild_text = ", ".join(f"{change.field} {change.observed} -> {change.desired}" for change in rebuilds)
    serving = _meanwhile(observed)
    if withholding := _refusal(plan, observed, terms, costs):
        reason, explanation = withholding
        message = f"{rebuild_text} needs a new collection for {_burden(observed, costs)}; {explanation}. {serving}"
        return Refusal(reason, message, rebuilds, digest, costs)
    message = f"{rebuild_text}: a new collection is being built for {_burden(observed, costs)}. {serving}"
    replaced = tuple(change for change in plan.changes if not _is_of_serving(change, observed))
    return Refusal(Reason.REBUILD_RUNNING, message, replaced, digest, costs)


def _refusal(plan: Plan, observed: Observation, terms: PassTerms, costs: Costs | None) -> tuple[Reason, str] | None:
    """Return reason and message for withholding a Rebuild, or None if it may run."""
    digest = rebuild_digest(plan)
    undo = f"remove the annotation {MOVE_TO_ALIAS}" if BEHIND_ALIAS in plan.changes else "revert the field"
    if terms.rebuild.change_policy is ChangePolicy.NEVER:
        return Reason.REBUILD_NOT_ALLOWED, f"blocked by spec.changePolicy Never: {undo}, or change the policy"
    if costs and costs.obstacle:
        return Reason.CANNOT_REBUILD, costs.obstacle
    if terms.rolled_back:
        return Reason.ROLLED_BACK, (
            f"{terms.rolled_back} was rolled back: {undo}, or run it again (agentmemory approve, "
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
    if is_permitted or is_empty(observed):
        return None
    stale = f"the approval of {terms.approved} is for another plan: " if terms.approved else ""
    return Reason.AWAITING_APPROVAL, (
        f"{stale}approve it with the annotation {APPROVE_PLAN}={digest} (agentmemory approve), or {undo}"
    )


def is_empty(observed: Observation) -> bool:
    """Return whether a collection is empty, so that its Rebuild needs no approval.

    The number of points is an estimate, and writers may add points. So the rebuild checks whether a point can be read
    (`rebuilds/rebuild_start.py: correct_point_count`), for the last time while writers are paused. Collections that are
    unmarked or have the alias's own name never qualify: clients other than the API may write to them, and cannot be
    paused.
    """
    return observed.points == 0 and observed.collection.marker is not None and not observed.is_plain


def is_approved(plan: Plan, approved: str | None) -> bool:
    """Return whether an approval is for this plan: for its Rebuild, or for the whole plan.

    Args:
        approved: Digest in the object's annotation, maybe with RECALL_APPROVAL_SUFFIX. None or "" approves nothing.
    """
    if not approved:
        return False
    digests = {plan.digest}
    if has_rebuild(plan):
        digests |= {rebuild_digest(plan), lasting_digest(plan)}
    return approved.removesuffix(RECALL_APPROVAL_SUFFIX) in digests


def _burden(observed: Observation, costs: Costs | None) -> str:
    described = f": {describe_costs(costs)}" if costs else ""
    return f"{observed.points} points{described}"


def _meanwhile(observed: Observation) -> str:
    if observed.collection.marker is None:
        return "Until then the collection is not served, because it has no ownership marker"
    if observed.is_plain:
        return (
            "The collection keeps serving. Its own name is the alias, so in the end it is deleted and a copy is "
            "kept: stop direct writers to it, and copy its snapshots off the server (docs/adopt.md)"
        )
    return "The current collection keeps serving"


def _is_of_serving(change: Change, observed: Observation) -> bool:
    """Return whether a change is made even though the collection is being replaced."""
    if isinstance(change, WriteMarker):
        live = observed.collection.marker
        return live is None or not change.marker.is_same_object(live) or change.marker.uid != live.uid
    return isinstance(change, _SERVING)


def refuse_upgrade(
    plan: Plan, base: Plan | None, observed: Observation | None, *, terms: PassTerms, costs: Costs | None = None
) -> Refusal | None:
    """Return the refusal of a plan for a newer preset revision, or None if it may be carried out.

    An upgrade of the operator must not reindex collections or remove memories, whatever the changePolicy. So the newer
    revision needs an approval, as a whole, if it requires a Reindex or Rebuild, or lets memories end earlier. A Rebuild
    that the object configures, and that may run, includes the newer revision unless memories would end earlier.

    Args:
        plan, costs: Plan under the newer revision, and the costs of its Rebuild.
        base: Plan under the revision in force. None if its values are unknown.
    """
    older = base.changes if base else ()
    costly = [change for change in plan.changes if class_of(change) is not ChangeClass.IN_PLACE and change not in older]
    live = observed.collection.marker if observed else None
    ends = terms.earlier_endings.get(live.preset_revision, "") if live else ""
    if observed is None or not (costly or ends):
        return None
    class_names = " and ".join(sorted({class_of(change) for change in costly}))
    rebuild = find_refusal(plan, observed, terms=terms, costs=costs)
    if rebuild and rebuild.reason not in (Reason.REBUILD_RUNNING, Reason.AWAITING_APPROVAL):
        return replace(rebuild, withheld=plan.changes)
    has_base_rebuild = any(isinstance(change, Rebuild) for change in older)
    is_brought_along = rebuild is not None and rebuild.reason == Reason.REBUILD_RUNNING and has_base_rebuild
    if _ends_as_approved(plan, terms.approved) if ends else is_approved(plan, terms.approved) or is_brought_along:
        return None
    digest = plan.digest if not rebuild else lasting_digest(plan) if ends else rebuild_digest(plan)
    stale = f"the approval of {terms.approved} is for another plan; " if terms.approved else ""
    requirement = f"that requires a {class_names} of {_burden(observed, costs if rebuild else None)}" if costly else ""
    explanation = ", and ".join(filter(None, (requirement, f"under which {ends}" if ends else "")))
    message = (
        f"the preset has a newer revision {explanation}; {stale}the current revision stays in effect until the plan is "
        f"approved with the annotation {APPROVE_PLAN}={digest} (agentmemory approve)"
    )
    return Refusal(Reason.AWAITING_APPROVAL, message, plan.changes, digest, costs if rebuild else None)


def find_older_revision(desired: Collection, observed: Observation | None) -> int | None:
    """Return the preset revision in force, or None if it is the newest, of another preset, or unknown."""
    live, marker = observed.collection.marker if observed else None, desired.marker
    if live is None or marker is None or live.preset_revision == marker.preset_revision:
        return None
    if live.preset not in (None, marker.preset):
        return None
    return live.preset_revision


def _ends_as_approved(plan: Plan, approved: str | None) -> bool:
    """Return whether an approval covers that memories end earlier. One of the Rebuild alone may predate that change."""
    return approved in (plan.digest, lasting_digest(plan), rebuild_digest(plan) + RECALL_APPROVAL_SUFFIX)


def lasting_digest(plan: Plan) -> str:
    """Return the digest of a plan without `_SERVING`: passes make those before the Rebuild, later plans lack them."""
    return Plan(plan.physical, tuple(change for change in plan.changes if not isinstance(change, _SERVING))).digest


def refuse_queued(queued: tuple[Change, ...], refusal: Refusal | None, holder: str) -> Refusal:
    """Add changes that wait for the Reindex slot to a refusal.

    Args:
        queued: Changes that wait.
        refusal: Refusal of other changes. Its reason stays, because it may need a user's decision.
        holder: Name of the object that has the slot.
    """
    message = f"the Reindex is queued: one collection per connection at a time, {holder} is first"
    if refusal is None:
        return Refusal(Reason.REINDEX_QUEUED, message, queued)
    return replace(refusal, message=f"{refusal.message}. Also, {message}", withheld=(*refusal.withheld, *queued))


def allowed_changes(plan: Plan, refusal: Refusal | None) -> tuple[Change, ...]:
    """Return the changes that are not withheld, in order."""
    withheld = refusal.withheld if refusal else ()
    return tuple(change for change in plan.changes if change not in withheld)


def check_lost(
    alias: str, observed: Observation | None, *, last_physical: str | None, last_points: int, policy: DriftPolicy
) -> None:
    """Raise if an earlier collection no longer exists, and it had points or the drift policy does not recreate it.

    An empty collection in place of one with memories would hide the loss.

    Raises:
        SpecInvalid: `CollectionLost`, in both cases. Nothing is created.
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


def check_replicas(desired: Collection, observed: Observation | None) -> None:
    """Raise if the number of replicas is to change to more than the cluster has peers.

    Raises:
        SpecInvalid: If the cluster has fewer peers. Qdrant would accept the number without an error.
    """
    placement, factor = observed.placement if observed else None, desired.replication_factor
    if placement is None or observed is None or factor is None or factor == observed.collection.replication_factor:
        return
    if factor > len(placement.peers):
        raise SpecInvalid(Reason.INVALID_SPEC, too_few_peers(len(placement.peers), factor))


def check_ownership(
    observed: Observation | None, desired: Collection, *, takeover: TakeoverTerms | None = None
) -> Marker | None:
    """Return the owner from which the collection is taken over, or None.

    None if there is no collection, it or `desired` has no marker, or it belongs to this object.

    Args:
        takeover: Permissions of this object to take over collections. None permits nothing.

    Raises:
        NotOwned: If it belongs to another object and no takeover is permitted. Names the owner only within the same
            tenant.
    """
    live, marker = observed.collection.marker if observed else None, desired.marker
    if live is None or marker is None or live.is_same_object(marker):
        return None
    if may_take_over(live, marker, takeover):
        return live
    raise build_not_owned(
        Reason.COLLECTION_NOT_OWNED,
        "the collection",
        live,
        marker,
        remedy_start="choose another spec.agent, or take it over if nothing else uses it,",
    )


def build_not_owned(reason: Reason, resource: str, live: Marker, own: Marker, *, remedy_start: str) -> NotOwned:
    """Build the refusal of a collection or other resource that carries another object's marker.

    Args:
        resource: Name of the resource, for the message.
        remedy_start: Start of the remedy; instructions for permitting a takeover are appended.
    """
    owner = owner_to_json(live)
    if is_same_tenant(live, own):
        owner_text = describe_owner(live, cluster_id=own.cluster_id)
        remedy = f"with the annotation {TAKEOVER}={live.uid} on this object"
        return NotOwned(
            reason, f"{resource} belongs to {owner_text}: {remedy_start} {remedy}", owner=owner, is_same_tenant=True
        )
    # Name only the place of the remedy: the refused tenant must learn neither the owner nor the values for a takeover.
    remedy = (
        f"with spec.takeovers of its QdrantConnection, whose owner sees this object in status.{TAKEOVER_REQUESTS_FIELD}"
    )
    return NotOwned(reason, f"{resource} belongs to another namespace or cluster: {remedy_start} {remedy}", owner=owner)


def build_slug_taken(slug: str, claim: SlugClaim | None = None) -> NotOwned:
    """Build the refusal of a slug that belongs to another namespace. The message does not name that namespace.

    Args:
        claim: Claim of a deleted object, which can be taken over. None if no takeover is possible.
    """
    if claim is None:
        return NotOwned(Reason.SLUG_TAKEN, f"agent {slug!r} is taken: choose another spec.agent")
    owner = {"namespace": claim.namespace, "uid": claim.uid}
    return NotOwned(
        Reason.SLUG_TAKEN,
        f"agent {slug!r} is taken: it still has memories. Choose another spec.agent, or transfer them to this "
        f"namespace with spec.takeovers of their QdrantConnection, whose owner sees this object in"
        f" status.{TAKEOVER_REQUESTS_FIELD}",
        owner=owner | ({"connection": claim.connections[0]} if claim.connections else {}),
    )


def owner_to_json(marker: Marker) -> dict[str, str]:
    """Render the owner in a marker; `connection` is left out if the marker has none."""
    owner = {"clusterId": marker.cluster_id, "namespace": marker.namespace, "name": marker.name, "uid": marker.uid}
    return owner | ({"connection": marker.connection} if marker.connection else {})


def describe_owner(marker: Marker, *, cluster_id: str) -> str:
    """Describe an owner for a message; its cluster is included if it differs from `cluster_id`."""
    if not all(marker.owner):
        return "an unknown owner (its marker has no clusterId, namespace and name)"
    where = "" if marker.cluster_id == cluster_id else f" of cluster {marker.cluster_id}"
    return f"AgentMemory {marker.namespace}/{marker.name}{where} (uid {marker.uid})"


def find_deletion_obstacle(alias: str, *, points: int, confirmation: str | None) -> str | None:
    """Return why a collection is kept although its deletion was requested, or None if it may be deleted.

    Args:
        points: Number of memories; 0 needs no confirmation.
        confirmation: Value of the object's annotation, which must equal `alias`. None without one.
    """
    if points == 0 or confirmation == alias:
        return None
    return (
        f"{alias} holds {points} memories and is kept: to delete it too, annotate the object with "
        f"{CONFIRM_DELETE}={alias} before deleting it"
    )
