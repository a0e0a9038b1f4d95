"""The one function that every trigger calls: observe, plan, refuse, apply, read back.

`docs/architecture.md` tells one run end to end.
"""

from dataclasses import dataclass

from agentmemory_operator.domain.collection import Collection, Marker, Observed
from agentmemory_operator.domain.naming import physical_names
from agentmemory_operator.domain.outcomes import Reconciled
from agentmemory_operator.domain.planning import Plan, plan_changes, without_wake
from agentmemory_operator.domain.safety import Refusal, allowed, check_lost, check_ownership, refuse
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports import CollectionStore


@dataclass(frozen=True, slots=True)
class Draft:
    """What a pass over the observed collection would do; nothing has been changed.

    Attributes:
        taken_from: the owner that would lose the collection to this object.
    """

    observed: Observed | None
    plan: Plan
    refusal: Refusal | None
    taken_from: Marker | None = None


def draft(
    alias: str,
    desired: Collection,
    observed: Observed | None,
    *,
    fresh: str,
    last_points: int,
    takeover: str | None = None,
) -> Draft:
    """Return what brings the observed collection to the desired one, and what of it is held.

    Args:
        fresh: the name a new collection gets.
        last_points: the number of points that the last pass reported.
        takeover: uid of the owner whose collection this object may take over.

    Raises:
        NotOwned: the collection is another object's.
        SpecInvalid: the collection was lost with its points.
    """
    check_lost(alias, observed, last_points=last_points)
    taken_from = check_ownership(observed, desired, takeover=takeover)
    plan = plan_changes(desired, observed, alias=alias, physical=fresh)
    return Draft(observed, plan, refuse(plan, observed), taken_from)


async def reconcile(
    alias: str,
    desired: Collection,
    *,
    store: CollectionStore,
    last_physical: str | None,
    last_points: int,
    takeover: str | None = None,
) -> Reconciled:
    """Bring the collection behind `alias` to `desired`; a second call does nothing.

    Args:
        alias: the collection's stable name.
        desired: canonical, with the object's marker.
        store: where the collection lives.
        last_physical: the physical name that the last pass reported, None at the first.
        last_points: the number of points that it reported.
        takeover: uid of the owner whose collection this object may take over.

    Raises:
        NotOwned: the collection is another object's.
        SpecInvalid: the collection was lost with its points, or the server ignored a change.
    """
    likely, fresh = physical_names(alias, last_physical)
    observed = await store.observe(alias, likely)
    found = draft(alias, desired, observed, fresh=fresh, last_points=last_points, takeover=takeover)
    plan, refusal = found.plan, found.refusal
    todo = allowed(plan, refusal)
    for change in todo:
        await store.apply(plan.physical, change)
    if todo or observed is None:
        observed = await store.observe(alias, plan.physical)
    remaining = without_wake(plan_changes(desired, observed, alias=alias, physical=fresh))
    if observed is None or allowed(remaining, refusal):
        raise SpecInvalid(
            "ChangeIgnored", f"the server accepted {', '.join(type(c).__name__ for c in todo)} and changed nothing"
        )
    return Reconciled(observed, remaining, refusal, Plan(plan.physical, todo), found.taken_from)
