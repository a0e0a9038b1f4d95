"""The one function that every trigger calls: observe, plan, refuse, apply, read back.

`docs/architecture.md` tells one run end to end.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

from agentmemory_operator.domain.changes import Change, ChangeClass, SetAlias, WriteMarker, class_of
from agentmemory_operator.domain.collection import Collection, Marker, Observed
from agentmemory_operator.domain.desired import Terms
from agentmemory_operator.domain.drift import DriftPolicy, differences, is_drift, without_drift
from agentmemory_operator.domain.naming import next_physical, number_of, physical_names
from agentmemory_operator.domain.outcomes import Reconciled
from agentmemory_operator.domain.plain_moves import awaits_alias
from agentmemory_operator.domain.planning import Plan, has_rebuild, plan_changes, with_wake, without_wake
from agentmemory_operator.domain.rebuild_costs import Costs, Room, costs_of
from agentmemory_operator.domain.safety import (
    Refusal,
    allowed,
    check_lost,
    check_ownership,
    check_replicas,
    hold_queued,
    hold_upgrade,
    refuse,
)
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports import CollectionStore
from agentmemory_operator.services.replication import Turn, check_peers
from agentmemory_operator.services.surveys import surveyed


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """What a pass may do beyond what the object asks for.

    Attributes:
        room: what there is room for on the server.
        turn: asked before a Reindex of a collection that holds something; None asks nobody.
        check_creation: raises where no empty collection is to be made; None lets one be made.
    """

    terms: Terms = field(default_factory=Terms)
    room: Room = field(default_factory=Room)
    turn: Turn | None = None
    check_creation: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """What a pass over the observed collection would do; nothing has been changed.

    Attributes:
        plan: what the object asks for.
        wish: what `todo` brings about; while a newer revision of the preset is held, what the object asks for under the
            one in force, None where that is not known.
        todo: what would be done now, in order.
        taken_from: the owner that would lose the collection to this object.
        is_drift: what differs from `wish` was changed behind the operator's back.
        leaves_drift: and the object's policy is to leave it.
    """

    observed: Observed | None
    plan: Plan
    refusal: Refusal | None
    wish: Collection | None
    todo: tuple[Change, ...]
    taken_from: Marker | None = None
    is_drift: bool = False
    leaves_drift: bool = False


def draft(
    alias: str,
    desired: Collection,
    observed: Observed | None,
    *,
    last_physical: str | None,
    last_points: int,
    terms: Terms | None = None,
) -> Draft:
    """Return what brings the observed collection to the desired one, and what of it is held.

    Args:
        last_physical: the physical name that the last pass reported, None at the first.
        last_points: the number of points that the last pass reported.
        terms: on which it may be changed; None allows nothing.

    Raises:
        NotOwned: the collection is another object's.
        SpecInvalid: the collection was lost with its points, or lost and may not be made anew.
    """
    terms = terms or Terms()
    check_lost(alias, observed, last_physical=last_physical, last_points=last_points, policy=terms.drift_policy)
    _, fresh = physical_names(alias, last_physical)
    taken_from = check_ownership(observed, desired, takeover=terms.takeover)
    check_replicas(desired, observed)
    plan_for = partial(plan_changes, observed=observed, alias=alias, physical=fresh, wants_alias=terms.wants_alias)
    plan = plan_for(desired)
    before = terms.older.get(_revision_of(observed))
    if is_upgrade(desired, observed) and (before or not taken_from):
        base = plan_for(before) if before else None
        if held := _held_upgrade(plan, base, desired, observed, terms):
            found = Draft(observed, plan, held, before, (), taken_from)
            return _judged(found, base, last_physical=last_physical, terms=terms)
    found = Draft(observed, plan, None, desired, (), taken_from)
    return _judged(found, plan, last_physical=last_physical, terms=terms)


def _held_upgrade(
    plan: Plan, base: Plan | None, desired: Collection, observed: Observed | None, terms: Terms
) -> Refusal | None:
    """Return the refusal of the plan for a newer revision, None where it may be carried out."""
    held = hold_upgrade(plan, base, observed, terms=terms, costs=_costs(plan, desired, observed, terms))
    return replace(held, revision=desired.marker.preset_revision) if held and desired.marker else held


def _refused(plan: Plan, wish: Collection | None, observed: Observed | None, terms: Terms) -> Refusal | None:
    """Return what of a plan is held.

    Args:
        wish: what the plan brings about; None where that is not known.
    """
    return refuse(plan, observed, terms=terms, costs=_costs(plan, wish, observed, terms))


def _costs(plan: Plan, wish: Collection | None, observed: Observed | None, terms: Terms) -> Costs | None:
    """Return what the Rebuild of a plan costs, None where there is none."""
    if observed is None or wish is None or not has_rebuild(plan):
        return None
    return costs_of(plan, wish, observed, settings=terms.rebuild, batch=terms.batch, survey=terms.survey)


def _judged(found: Draft, base: Plan | None, *, last_physical: str | None, terms: Terms) -> Draft:
    """Return the draft with what of `base`, the way to its wish, would be done: nothing held, no drift that is left.

    Where nothing is held as an upgrade, `base` is the draft's plan.
    """
    observed, is_held = found.observed, found.refusal is not None
    has_drifted = found.wish is not None and is_drift(found.wish, observed, last_physical=last_physical)
    leaves_drift = has_drifted and terms.drift_policy is not DriftPolicy.CORRECT
    if base and observed and leaves_drift:
        base = with_wake(without_drift(base), observed)
    refusal = _refused(base, found.wish, observed, terms) if base else None
    todo = allowed(base, refusal) if base else ()
    judged = replace(found, todo=todo, is_drift=has_drifted, leaves_drift=leaves_drift)
    return judged if is_held or base is None else replace(judged, plan=base, refusal=refusal)


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
    permit: Permit | None = None,
) -> Reconciled:
    """Bring the collection behind `alias` to `desired`; a second call does nothing.

    Args:
        alias: the collection's stable name.
        desired: canonical, with the object's marker.
        store: where the collection lives.
        last_physical: the physical name that the last pass reported, None at the first.
        last_points: the number of points that it reported.
        permit: what may be done beyond that; None allows nothing, and asks nobody for a turn.

    Raises:
        NotOwned: the collection is another object's.
        SpecInvalid: the collection was lost with its points, or the server ignored a change.
    """
    permit = permit or Permit()
    likely, fresh = physical_names(alias, last_physical)
    observed = before = await observe_linked(alias, likely, store=store)
    drafted = partial(draft, alias, desired, observed, last_physical=last_physical, last_points=last_points)
    found = drafted(terms=permit.terms)
    terms = await surveyed(permit.terms, found.plan, observed, store=store, room=permit.room)
    found = found if terms is permit.terms else drafted(terms=terms)
    if observed is None:
        await check_peers(desired.replication_factor, store=store)
        fresh = await _free_name(alias, fresh, store, permit)
        plan = plan_changes(desired, None, alias=alias, physical=fresh)
        found = replace(found, plan=plan, todo=plan.changes)
    queued, waits_for = await _queued(found, permit.turn)
    todo = tuple(change for change in found.todo if change not in queued)
    for change in todo:
        await store.apply(found.plan.physical, change)
    if todo or observed is None:
        is_linked = any(isinstance(change, SetAlias) for change in todo)
        observed = await store.observe(alias, found.plan.physical, is_linked=is_linked)
    plan_for = partial(plan_changes, observed=observed, alias=alias, physical=fresh, wants_alias=terms.wants_alias)
    whole = without_wake(plan_for(found.wish)) if found.wish else None
    left = without_drift(whole) if whole and found.leaves_drift else whole
    if observed is None or (left and set(allowed(left, _refused(left, found.wish, observed, terms))) - set(queued)):
        names = ", ".join(type(change).__name__ for change in todo)
        raise SpecInvalid("ChangeIgnored", f"the server accepted {names} and changed nothing")
    if found.wish == desired and left:
        remaining, refusal = left, found.refusal
    else:
        remaining = without_wake(plan_for(desired))
        refusal = _held_upgrade(remaining, left, desired, observed, terms)
    if queued:
        refusal = hold_queued(queued, refusal, waits_for)
    applied = Plan(found.plan.physical, todo)
    done = Reconciled(observed, remaining, refusal, applied, found.taken_from, is_queued=bool(queued))
    if not (found.is_drift and found.wish and before and whole):
        return done
    is_shown = terms.drift_policy is not DriftPolicy.IGNORE
    stays = differences(found.wish, observed.collection, whole.changes) if is_shown else ()
    return replace(done, corrected=differences(found.wish, before.collection, todo), drift=stays)


async def observe_linked(alias: str, likely: str, *, store: CollectionStore) -> Observed | None:
    """Return what clients reach, having given it the alias that a killed operator owed it.

    Between the end of a plain collection and the alias in its place there is nothing of that name. Whoever comes by
    first ends that: what clients were about to reach is known by its record.
    """
    observed = await store.observe(alias, likely)
    if observed is not None:
        return observed
    names = [name for name in await store.names() if number_of(name, alias) is not None]
    for name in names:
        found = await store.observe(name, name, is_linked=True)
        if found is not None and awaits_alias(found.record, alias):
            await store.apply(name, SetAlias(alias, name))
            return await store.observe(alias, name, is_linked=True)
    return None


async def _free_name(alias: str, fresh: str, store: CollectionStore, permit: Permit) -> str:
    """Return the name that a new collection gets, if one may be made: a placeholder keeps the name of one that is gone.

    What an interrupted creation has left bears the name too, and is gone on with.
    """
    if permit.check_creation is not None:
        await permit.check_creation()
    names = await store.names()
    while fresh in names and await store.observe(fresh, fresh, is_linked=True) is None:
        fresh = next_physical(alias, (fresh,))
    return fresh


async def _queued(found: Draft, turn: Turn | None) -> tuple[tuple[Change, ...], str]:
    """Return what of a draft has to wait for its turn, and whose turn it is.

    The marker waits with it, unless the owner changes: it says what was brought about.
    """
    reindex = tuple(change for change in found.todo if class_of(change) is ChangeClass.REINDEX)
    if not reindex or turn is None or found.observed is None or found.observed.points == 0:
        return (), ""
    waits_for = await turn()
    if waits_for is None:
        return (), ""
    live = found.observed.collection.marker
    markers = (change for change in found.todo if isinstance(change, WriteMarker))
    kept = tuple(change for change in markers if live is not None and change.marker.is_same_object(live))
    return (*reindex, *kept), waits_for
