"""What a plan may not do: pure refusals, each with its reason, the numbers and the way out."""

from dataclasses import dataclass

from agentmemory_operator.domain.collection import Collection, Marker, Observed
from agentmemory_operator.domain.conditions import Reason
from agentmemory_operator.domain.drift import DriftPolicy
from agentmemory_operator.domain.planning import Change, ChangeClass, Plan, Rebuild, class_of
from agentmemory_operator.domain.resources import APPROVE_PLAN, CONFIRM_DELETE, TAKEOVER
from agentmemory_operator.errors import NotOwned, SpecInvalid


@dataclass(frozen=True, slots=True)
class Refusal:
    """Changes that are held back, and why.

    Attributes:
        reason: of the closed set of condition reasons.
    """

    reason: str
    message: str
    held: tuple[Change, ...]


def refuse(plan: Plan, observed: Observed | None) -> Refusal | None:
    """Return what of the plan is held: a Rebuild moves every vector and is never done unasked."""
    held = tuple(change for change in plan.changes if class_of(change) is ChangeClass.REBUILD)
    if not held or observed is None:
        return None
    named = ", ".join(f"{c.field} {c.observed} -> {c.desired}" for c in held if isinstance(c, Rebuild))
    message = (
        f"{named} needs a new collection for {observed.points} points; carrying that out is not built yet, approved or "
        f"not: set the field back, or create another AgentMemory. The collection goes on serving as it is"
    )
    return Refusal(Reason.AWAITING_APPROVAL, message, held)


def hold_upgrade(plan: Plan, base: Plan | None, observed: Observed | None, *, approved: str | None) -> Refusal | None:
    """Return the refusal of a plan that brings a newer revision of the preset, None where it may be carried out.

    What the newer figures alone ask for is held while it costs a Reindex or more: an upgrade of the operator must not
    reindex every collection by itself. The revision is held as a whole, so that its figures come into force together.

    Args:
        plan: under the newer revision.
        base: under the revision in force; None where its figures are not known.
        approved: digest of the plan that somebody has approved.
    """
    asked = base.changes if base else ()
    costly = [c for c in plan.changes if class_of(c) is not ChangeClass.IN_PLACE and c not in asked]
    if observed is None or not costly or approved == plan.digest:
        return None
    named = " and ".join(sorted({class_of(change) for change in costly}))
    message = (
        f"the preset has a newer revision whose figures ask for a {named} of {observed.points} points; the revision in "
        f"force stays until the plan is approved with the annotation {APPROVE_PLAN}={plan.digest}"
    )
    return Refusal(Reason.AWAITING_APPROVAL, message, plan.changes)


def hold_queued(queued: tuple[Change, ...], refusal: Refusal | None, waits_for: str) -> Refusal:
    """Return the refusal with what waits for its turn held too.

    Args:
        queued: what waits.
        refusal: what is held beside it; somebody's decision is the more urgent reason.
        waits_for: whose turn it is.
    """
    message = (
        f"the Reindex waits its turn: one collection of a connection at a time, and {waits_for} is before this one"
    )
    if refusal is None:
        return Refusal(Reason.REINDEX_QUEUED, message, queued)
    return Refusal(refusal.reason, f"{refusal.message}. Besides, {message}", (*refusal.held, *queued))


def allowed(plan: Plan, refusal: Refusal | None) -> tuple[Change, ...]:
    """Return the changes that are not held, in order."""
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
            f"it (agentmemory snapshot list shows them), or delete this AgentMemory and apply it again to start empty",
        )
    if policy is not DriftPolicy.CORRECT:
        raise SpecInvalid(
            "CollectionLost",
            f"{alias}, empty when last seen, no longer exists in Qdrant, and driftPolicy {policy} "
            f"leaves it so: set spec.driftPolicy to Correct to have it made anew",
        )


def check_ownership(observed: Observed | None, desired: Collection, *, takeover: str | None = None) -> Marker | None:
    """Return None for a collection that nobody marked or that is this object's, else the owner that is to lose it.

    Args:
        takeover: uid of the owner whose collection this object may take over.

    Raises:
        NotOwned: another object's, or another cluster's, and not named for a takeover; says whose.
    """
    live, ours = observed.collection.marker if observed else None, desired.marker
    if live is None or ours is None or live.is_same_object(ours):
        return None
    if live.uid and live.uid == takeover:
        return live
    raise NotOwned(
        "CollectionNotOwned",
        f"the collection belongs to {describe_owner(live, cluster_id=ours.cluster_id)}: choose another spec.agent, "
        f"or, if nothing else uses it, take it over with the annotation {TAKEOVER}={live.uid} on this object",
        owner={"clusterId": live.cluster_id, "namespace": live.namespace, "name": live.name, "uid": live.uid},
    )


def describe_owner(marker: Marker, *, cluster_id: str) -> str:
    """Return an owner in a person's words; its cluster is named where it is another than `cluster_id`."""
    where = "" if marker.cluster_id == cluster_id else f" of cluster {marker.cluster_id}"
    return f"AgentMemory {marker.namespace}/{marker.name}{where} (uid {marker.uid})"


def check_destroy(alias: str, *, points: int, confirmation: str | None) -> str | None:
    """Return why a collection is kept although its deletion was asked for, None when it may go."""
    if points == 0 or confirmation == alias:
        return None
    return (
        f"{alias} holds {points} memories and is kept: to delete them too, annotate the object with "
        f"{CONFIRM_DELETE}={alias} before deleting it"
    )
