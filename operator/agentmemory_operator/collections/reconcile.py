"""The one function that every trigger calls: observe, plan, refuse, apply, read back.

`docs/architecture.md` tells one run end to end.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

from agentmemory_operator.collections.replication import Turn, check_peers
from agentmemory_operator.collections.rules.changes import Change, ChangeClass, SetAlias, WriteMarker, class_of
from agentmemory_operator.collections.rules.collection import Collection, Marker, Observed
from agentmemory_operator.collections.rules.desired import PassTerms
from agentmemory_operator.collections.rules.drift import DriftPolicy, differences, is_drift, without_drift
from agentmemory_operator.collections.rules.outcome import Reconciled
from agentmemory_operator.collections.rules.plan import Plan, has_rebuild, plan_changes, with_wake, without_wake
from agentmemory_operator.collections.rules.rebuild_costs import SAMPLED, Costs, Room, Survey, costs_of
from agentmemory_operator.collections.rules.refusals import (
    Refusal,
    allowed,
    check_lost,
    check_ownership,
    check_replicas,
    hold_queued,
    hold_upgrade,
    refuse,
    upgraded_from,
)
from agentmemory_operator.errors import NotFound, SpecInvalid, StoreRejected
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.rebuilds.rules.plain import awaits_alias
from agentmemory_operator.spec.naming import next_physical, number_of, physical_names


async def surveyed(
    terms: PassTerms, plan: Plan, observed: Observed | None, *, store: CollectionStore, room: Room
) -> PassTerms:
    """The terms with what the costs of a plan's Rebuild depend on; as they are where it has none.

    Raises:
        StoreUnavailable: the server is away.
    """
    if observed is None or not has_rebuild(plan):
        return terms
    try:
        lengths = await store.content_lengths(observed.physical, SAMPLED)
    except (NotFound, StoreRejected):
        # The costs are an estimate: what the server does not tell of them holds nothing up.
        lengths = ()
    return replace(terms, survey=Survey(tuple(lengths), room))


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """What a pass may do beyond what the object asks for.

    Attributes:
        decide: gives what the object asks for and the terms, by the collection's marker; None: both are known.
        room: what there is room for on the server.
        turn: asked before a Reindex of a collection that holds something; None asks nobody.
        check_creation: raises where no empty collection is to be made; None lets one be made.
    """

    terms: PassTerms = field(default_factory=PassTerms)
    decide: Callable[[Marker | None], tuple[Collection, PassTerms]] | None = None
    room: Room = field(default_factory=Room)
    turn: Turn | None = None
    check_creation: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class PassDraft:
    """What a pass over the observed collection would do; nothing has been changed.

    Attributes:
        plan: what the object asks for.
        wish: what `todo` brings about; while a newer revision of the preset is held, what the object asks for under the
            one in force, None where that is not known.
        todo: what would be done now, in order.
        taken_from: the owner that would lose the collection to this object.
        is_drift: what differs from `wish` was changed behind the operator's back.
        leaves_drift: and the object's policy is to leave it.
        way: the whole plan to `wish`, what is held and drift that is left included; None where there is no wish.
        terms: on which all this was decided.
        queued: what would be done but waits for its turn; not in `todo`.
        waits_for: whose turn it is.
    """

    observed: Observed | None
    plan: Plan
    refusal: Refusal | None
    wish: Collection | None
    todo: tuple[Change, ...]
    taken_from: Marker | None = None
    is_drift: bool = False
    leaves_drift: bool = False
    way: Plan | None = None
    terms: PassTerms = field(default_factory=PassTerms)
    queued: tuple[Change, ...] = ()
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class _Plans:
    """The plans of a pass, made once: what of them is held is decided anew where more becomes known of their costs.

    Attributes:
        plan: to the desired collection.
        older: what the object asks for under the revision of the preset in force; None where that is the newest, or
            not known.
        base: the plan to `older`.
        may_hold: the plan is held where it may not be carried out as an upgrade.
    """

    desired: Collection
    observed: Observed | None
    last_physical: str | None
    plan: Plan
    older: Collection | None
    base: Plan | None
    may_hold: bool
    taken_from: Marker | None

    def draft(self, terms: PassTerms) -> PassDraft:
        """What of the plans would be done on these terms."""
        held = None
        if self.may_hold:
            held = _held_upgrade(self.plan, self.base, self.desired, self.observed, terms)
        wish, way = (self.older, self.base) if held else (self.desired, self.plan)
        found = PassDraft(self.observed, self.plan, held, wish, (), self.taken_from, way=way, terms=terms)
        return _judged(found, last_physical=self.last_physical)


def draft(
    alias: str,
    desired: Collection,
    observed: Observed | None,
    *,
    last_physical: str | None,
    last_points: int,
    terms: PassTerms | None = None,
) -> PassDraft:
    """What brings the observed collection to the desired one, and what of it is held.

    Args:
        last_physical: the physical name that the last pass reported, None at the first.
        last_points: the number of points that the last pass reported.
        terms: on which it may be changed; None allows nothing.

    Raises:
        NotOwned: the collection is another object's.
        SpecInvalid: the collection was lost with its points, or lost and may not be made anew.
    """
    terms = terms or PassTerms()
    plans = _planned(alias, desired, observed, last_physical=last_physical, last_points=last_points, terms=terms)
    return plans.draft(terms)


def _planned(
    alias: str,
    desired: Collection,
    observed: Observed | None,
    *,
    last_physical: str | None,
    last_points: int,
    terms: PassTerms,
) -> _Plans:
    """The plans for a collection that this object may have; as `draft`."""
    check_lost(alias, observed, last_physical=last_physical, last_points=last_points, policy=terms.drift_policy)
    taken_from = check_ownership(observed, desired, takeover=terms.takeover)
    check_replicas(desired, observed)
    _, fresh = physical_names(alias, last_physical)
    plan_for = partial(plan_changes, observed=observed, alias=alias, physical=fresh, wants_alias=terms.wants_alias)
    revision = upgraded_from(desired, observed)
    older = None if revision is None else terms.older.get(revision)
    base = plan_for(older) if older else None
    may_hold = revision is not None and (older is not None or taken_from is None)
    return _Plans(desired, observed, last_physical, plan_for(desired), older, base, may_hold, taken_from)


def _held_upgrade(
    plan: Plan, base: Plan | None, desired: Collection, observed: Observed | None, terms: PassTerms
) -> Refusal | None:
    """The refusal of the plan for a newer revision, None where it may be carried out."""
    held = hold_upgrade(plan, base, observed, terms=terms, costs=_costs(plan, desired, observed, terms))
    return replace(held, revision=desired.marker.preset_revision) if held and desired.marker else held


def _refused(plan: Plan, wish: Collection | None, observed: Observed | None, terms: PassTerms) -> Refusal | None:
    """What of a plan is held.

    Args:
        wish: what the plan brings about; None where that is not known.
    """
    return refuse(plan, observed, terms=terms, costs=_costs(plan, wish, observed, terms))


def _costs(plan: Plan, wish: Collection | None, observed: Observed | None, terms: PassTerms) -> Costs | None:
    """What the Rebuild of a plan costs, None where there is none."""
    if observed is None or wish is None or not has_rebuild(plan):
        return None
    return costs_of(plan, wish, observed, settings=terms.rebuild, batch=terms.batch, survey=terms.survey)


def _judged(found: PassDraft, *, last_physical: str | None) -> PassDraft:
    """The draft reduced to what would be done: without what is held, or left as drift.

    Where nothing is held as an upgrade, that is the draft's plan.
    """
    base, observed, terms, is_held = found.way, found.observed, found.terms, found.refusal is not None
    has_drifted = found.wish is not None and is_drift(found.wish, observed, last_physical=last_physical)
    leaves_drift = has_drifted and terms.drift_policy is not DriftPolicy.CORRECT
    if base and observed and leaves_drift:
        base = with_wake(without_drift(base), observed)
    refusal = _refused(base, found.wish, observed, terms) if base else None
    todo = allowed(base, refusal) if base else ()
    judged = replace(found, todo=todo, is_drift=has_drifted, leaves_drift=leaves_drift)
    return judged if is_held or base is None else replace(judged, plan=base, refusal=refusal)


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
    before, names = await observe_linked(alias, last_physical, store=store)
    if permit.decide:
        desired, terms = permit.decide(before.collection.marker if before else None)
        permit = replace(permit, terms=terms)
    plans = _planned(alias, desired, before, last_physical=last_physical, last_points=last_points, terms=permit.terms)
    found = await _drafted(plans, store=store, permit=permit)
    if before is None:
        found = await _creation(found, alias, desired, names, store=store, permit=permit)
    found = await _in_turn(found, permit.turn)
    observed = await _applied(found, alias, store=store)
    return _outcome(found, alias, desired, observed)


async def _drafted(plans: _Plans, *, store: CollectionStore, permit: Permit) -> PassDraft:
    """What would be done, the server asked for what a Rebuild costs where there is one."""
    found = plans.draft(permit.terms)
    terms = await surveyed(permit.terms, found.plan, plans.observed, store=store, room=permit.room)
    return found if terms is permit.terms else plans.draft(terms)


async def _creation(
    found: PassDraft, alias: str, desired: Collection, names: frozenset[str], *, store: CollectionStore, permit: Permit
) -> PassDraft:
    """The draft of a new collection under a name that is free, if one may be made."""
    await check_peers(desired.replication_factor, store=store)
    physical = await _free_name(alias, found.plan.physical, names, store=store, permit=permit)
    plan = found.plan
    if physical != plan.physical:
        plan = plan_changes(desired, None, alias=alias, physical=physical)
    return replace(found, plan=plan, way=plan, todo=plan.changes)


async def _applied(found: PassDraft, alias: str, *, store: CollectionStore) -> Observed:
    """Carry the draft out and return the collection as it is then; where nothing was done, nobody asks again."""
    observed, physical = found.observed, found.plan.physical
    for change in found.todo:
        await store.apply(physical, change)
    if found.todo or observed is None:
        is_linked = any(isinstance(change, SetAlias) for change in found.todo)
        observed = await store.observe(alias, physical, is_linked=is_linked)
    if observed is None:
        raise _ignored(found)
    return observed


def _ignored(found: PassDraft) -> SpecInvalid:
    names = ", ".join(type(change).__name__ for change in found.todo)
    return SpecInvalid("ChangeIgnored", f"the server accepted {names} but did not apply it")


def _outcome(found: PassDraft, alias: str, desired: Collection, observed: Observed) -> Reconciled:
    """What a draft that was carried out came to, if the server ignored no change."""
    whole, asked = _still_to_do(found, alias, desired, observed)
    left = without_drift(whole) if whole and found.leaves_drift else whole
    if left and set(allowed(left, _refused(left, found.wish, observed, found.terms))) - set(found.queued):
        raise _ignored(found)
    if found.wish == desired and left:
        remaining, refusal = left, found.refusal
    else:
        remaining, refusal = asked, _held_upgrade(asked, left, desired, observed, found.terms)
    if found.queued:
        refusal = hold_queued(found.queued, refusal, found.waits_for)
    applied = Plan(found.plan.physical, found.todo)
    done = Reconciled(observed, remaining, refusal, applied, found.taken_from, is_queued=bool(found.queued))
    return _with_drift(done, found, whole)


def _still_to_do(found: PassDraft, alias: str, desired: Collection, observed: Observed) -> tuple[Plan | None, Plan]:
    """What is still to be done for the draft's goal and for the desired collection, waking aside.

    A pass that did nothing has planned the way already.
    """
    plan_for = partial(
        plan_changes, observed=observed, alias=alias, physical=observed.physical, wants_alias=found.terms.wants_alias
    )
    whole = found.way
    if found.todo and found.wish:
        whole = plan_for(found.wish)
    # Not the draft's own plan: it lacks the drift that is left.
    asked = whole if whole and found.wish == desired else plan_for(desired)
    return (without_wake(whole) if whole else None), without_wake(asked)


def _with_drift(done: Reconciled, found: PassDraft, whole: Plan | None) -> Reconciled:
    """The outcome with the drift that was set right, and what of it stays on the whole way to the wish."""
    before, wish = found.observed, found.wish
    if not (found.is_drift and wish and before and whole):
        return done
    is_shown = found.terms.drift_policy is not DriftPolicy.IGNORE
    stays = differences(wish, done.observed.collection, whole.changes) if is_shown else ()
    return replace(done, corrected=differences(wish, before.collection, found.todo), drift=stays)


async def observe_linked(
    alias: str, last_physical: str | None, *, store: CollectionStore
) -> tuple[Observed | None, frozenset[str]]:
    """What clients reach, having given it the alias that a killed operator owed it, and the names seen.

    Between the end of a plain collection and the alias in its place there is nothing of that name. Whoever comes by
    first ends that: what clients were about to reach is known by its record.

    The names are those that the server has of the alias's numbers. They are listed once: first for an object that was
    never seen to have a collection, so that none is asked for which is not there; else where nothing is found.
    """
    likely, _ = physical_names(alias, last_physical)
    names = await _numbered(alias, store) if last_physical is None else frozenset()
    observed = await store.observe(alias, likely if last_physical or likely in names else alias)
    if observed is not None:
        return observed, names
    names = names if last_physical is None else await _numbered(alias, store)
    for name in sorted(names):
        found = await store.observe(name, name, is_linked=True)
        if found is not None and awaits_alias(found.record, alias):
            await store.apply(name, SetAlias(alias, name))
            return await store.observe(alias, name, is_linked=True), names
    return None, names


async def _numbered(alias: str, store: CollectionStore) -> frozenset[str]:
    """The names of the server's collections that are numbered for an alias."""
    return frozenset(name for name in await store.names() if number_of(name, alias) is not None)


async def _free_name(alias: str, fresh: str, names: frozenset[str], *, store: CollectionStore, permit: Permit) -> str:
    """The name that a new collection gets, if one may be made: a placeholder keeps the name of one that is gone.

    What an interrupted creation has left bears the name too, and is gone on with.
    """
    if permit.check_creation is not None:
        await permit.check_creation()
    while fresh in names and await store.observe(fresh, fresh, is_linked=True) is None:
        fresh = next_physical(alias, (fresh,))
    return fresh


async def _in_turn(found: PassDraft, turn: Turn | None) -> PassDraft:
    """The draft without what has to wait for its turn.

    The marker waits with it, unless the owner changes: it says what was brought about.
    """
    reindex = tuple(change for change in found.todo if class_of(change) is ChangeClass.REINDEX)
    if not reindex or turn is None or found.observed is None or found.observed.points == 0:
        return found
    waits_for = await turn()
    if waits_for is None:
        return found
    live = found.observed.collection.marker
    markers = (change for change in found.todo if isinstance(change, WriteMarker))
    kept = tuple(change for change in markers if live is not None and change.marker.is_same_object(live))
    queued = (*reindex, *kept)
    todo = tuple(change for change in found.todo if change not in queued)
    return replace(found, todo=todo, queued=queued, waits_for=waits_for)
