"""The one function that every trigger calls: observe, plan, refuse, apply, read back.

`docs/architecture.md` tells one run end to end.
"""

from dataclasses import dataclass

from agentmemory_operator.domain.collection import Collection, Marker, Observed
from agentmemory_operator.domain.desired import Terms
from agentmemory_operator.domain.naming import physical_names
from agentmemory_operator.domain.outcomes import Reconciled
from agentmemory_operator.domain.planning import Change, Plan, plan_changes, without_wake
from agentmemory_operator.domain.safety import Refusal, allowed, check_lost, check_ownership, hold_upgrade, refuse
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports import CollectionStore


@dataclass(frozen=True, slots=True)
class Draft:
    """What a pass over the observed collection would do; nothing has been changed.

    Attributes:
        plan: what the object asks for.
        wish: what `todo` brings about; while a newer revision of the preset is held, what the object asks for under the
            one in force, None where that is not known.
        todo: what would be done now, in order.
        taken_from: the owner that would lose the collection to this object.
    """

    observed: Observed | None
    plan: Plan
    refusal: Refusal | None
    wish: Collection | None
    todo: tuple[Change, ...]
    taken_from: Marker | None = None


def draft(
    alias: str,
    desired: Collection,
    observed: Observed | None,
    *,
    fresh: str,
    last_points: int,
    terms: Terms | None = None,
) -> Draft:
    """Return what brings the observed collection to the desired one, and what of it is held.

    Args:
        fresh: the name a new collection gets.
        last_points: the number of points that the last pass reported.
        terms: on which it may be changed; None allows nothing.

    Raises:
        NotOwned: the collection is another object's.
        SpecInvalid: the collection was lost with its points.
    """
    check_lost(alias, observed, last_points=last_points)
    terms = terms or Terms()
    taken_from = check_ownership(observed, desired, takeover=terms.takeover)
    plan = plan_changes(desired, observed, alias=alias, physical=fresh)
    before = terms.older.get(_revision_of(observed))
    if is_upgrade(desired, observed) and (before or not taken_from):
        base = plan_changes(before, observed, alias=alias, physical=fresh) if before else None
        if held := hold_upgrade(plan, base, observed, approved=terms.approved):
            todo = allowed(base, refuse(base, observed)) if base else ()
            return Draft(observed, plan, held, before, todo, taken_from)
    refusal = refuse(plan, observed)
    return Draft(observed, plan, refusal, desired, allowed(plan, refusal), taken_from)


def is_upgrade(desired: Collection, observed: Observed | None) -> bool:
    """Tell whether another revision of the preset is in force than the object's newest."""
    live = observed.collection.marker if observed else None
    return bool(live and desired.marker and live.preset_revision != desired.marker.preset_revision)


def _revision_of(observed: Observed | None) -> int:
    marker = observed.collection.marker if observed else None
    return marker.preset_revision if marker else 0


async def reconcile(
    alias: str,
    desired: Collection,
    *,
    store: CollectionStore,
    last_physical: str | None,
    last_points: int,
    terms: Terms | None = None,
) -> Reconciled:
    """Bring the collection behind `alias` to `desired`; a second call does nothing.

    Args:
        alias: the collection's stable name.
        desired: canonical, with the object's marker.
        store: where the collection lives.
        last_physical: the physical name that the last pass reported, None at the first.
        last_points: the number of points that it reported.
        terms: on which it may be changed; None allows nothing.

    Raises:
        NotOwned: the collection is another object's.
        SpecInvalid: the collection was lost with its points, or the server ignored a change.
    """
    likely, fresh = physical_names(alias, last_physical)
    observed = await store.observe(alias, likely)
    found = draft(alias, desired, observed, fresh=fresh, last_points=last_points, terms=terms)
    for change in found.todo:
        await store.apply(found.plan.physical, change)
    if found.todo or observed is None:
        observed = await store.observe(alias, found.plan.physical)
    left = without_wake(plan_changes(found.wish, observed, alias=alias, physical=fresh)) if found.wish else None
    if observed is None or (left and allowed(left, refuse(left, observed))):
        names = ", ".join(type(change).__name__ for change in found.todo)
        raise SpecInvalid("ChangeIgnored", f"the server accepted {names} and changed nothing")
    if found.wish == desired and left:
        remaining, refusal = left, found.refusal
    else:
        remaining = without_wake(plan_changes(desired, observed, alias=alias, physical=fresh))
        refusal = hold_upgrade(remaining, left, observed, approved=None)
    return Reconciled(observed, remaining, refusal, Plan(found.plan.physical, found.todo), found.taken_from)
