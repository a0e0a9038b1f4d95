"""Reconcile one collection: observe, plan, refuse, apply, read back. Every trigger calls `reconcile`.

A crash after any change is safe: the next pass observes again and plans the rest. See `docs/architecture.md`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

from agentmemory_operator.collections.replication import AcquireSlot, check_peers
from agentmemory_operator.collections.rules.changes import Change, ChangeClass, SetAlias, WriteMarker, class_of
from agentmemory_operator.collections.rules.collection import Collection, Marker, Observation
from agentmemory_operator.collections.rules.desired import PassTerms
from agentmemory_operator.collections.rules.drift import DriftPolicy, differences, is_drift, without_drift
from agentmemory_operator.collections.rules.outcome import PassOutcome
from agentmemory_operator.collections.rules.plan import Plan, add_wake, drop_wake, has_rebuild, plan_changes
from agentmemory_operator.collections.rules.rebuild_costs import (
    SAMPLE_SIZE,
    CollectionSample,
    Costs,
    ServerResources,
    estimate_costs,
)
from agentmemory_operator.collections.rules.refusals import (
    Refusal,
    allowed_changes,
    check_lost,
    check_ownership,
    check_replicas,
    find_older_revision,
    find_refusal,
    refuse_queued,
    refuse_upgrade,
)
from agentmemory_operator.errors import NotFound, SpecInvalid, StoreRejected
from agentmemory_operator.ports.collections import CollectionStore, observe_physical
from agentmemory_operator.rebuilds.rules.plain_swap_steps import awaits_alias
from agentmemory_operator.spec.naming import next_physical, number_of, physical_names


async def survey_costs(
    terms: PassTerms, plan: Plan, observed: Observation | None, *, store: CollectionStore, resources: ServerResources
) -> PassTerms:
    """Add data for estimating the costs of a Rebuild to the terms; without a Rebuild in the plan, return `terms`.

    Raises:
        StoreUnavailable: If the server is unavailable.
    """
    if observed is None or not has_rebuild(plan):
        return terms
    try:
        lengths = await store.content_lengths(observed.physical, SAMPLE_SIZE)
    except (NotFound, StoreRejected):
        # Continue without a sample: the costs are an estimate, and a server that rejects it must not block the pass.
        lengths = ()
    return replace(terms, survey=CollectionSample(tuple(lengths), resources))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPermit:
    """Permissions and inputs of a pass that do not come from the object's spec.

    Attributes:
        terms: Terms of the pass. If `decide` is set, its terms replace these.
        decide: Returns desired collection and terms for the collection's marker (None without a collection).
        acquire_slot: Acquires the slot for a Reindex of a collection with points. None reindexes immediately.
        check_creation: Raises if no empty collection may be created now. None permits it.
    """

    terms: PassTerms = field(default_factory=PassTerms)
    decide: Callable[[Marker | None], tuple[Collection, PassTerms]] | None = None
    resources: ServerResources = field(default_factory=ServerResources)
    acquire_slot: AcquireSlot | None = None
    check_creation: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class PassDraft:
    """Decisions of a pass about the observed collection, before any change.

    Attributes:
        observed: Collection before the pass. None if there is none behind the alias.
        plan: Changes that lead to the desired collection. Drift that stays is left out, unless an upgrade is withheld.
        refusal: Changes that are withheld, with the reason. None if none are.
        goal: Goal of `allowed`: the desired collection. While a newer revision of the preset is withheld, the
            collection under the revision in force, or None if that is unknown.
        allowed: Changes that the pass makes, in order.
        previous_owner: Marker of the owner from which this object takes the collection over. None without a takeover.
        is_drift: True if the differences to `goal` were not made by the operator.
        leaves_drift: True if such differences stay, because of the object's drift policy.
        plan_to_goal: All changes to `goal`, including withheld ones and drift that stays. None without `goal`.
        queued: Changes that wait for the Reindex slot; not in `allowed`.
        slot_holder: Name of the object that has the slot. "" if nothing is queued.
    """

    observed: Observation | None
    plan: Plan
    refusal: Refusal | None
    goal: Collection | None
    allowed: tuple[Change, ...]
    previous_owner: Marker | None = None
    is_drift: bool = False
    leaves_drift: bool = False
    plan_to_goal: Plan | None = None
    terms: PassTerms = field(default_factory=PassTerms)
    queued: tuple[Change, ...] = ()
    slot_holder: str = ""


@dataclass(frozen=True, slots=True)
class _Plans:
    """Plans of a pass. Each is made once. Only the draft is derived again, when the costs of a Rebuild are known.

    Attributes:
        plan: Changes from the observed to the desired collection.
        older: Desired collection under the preset revision in force. None if that revision is the newest, or unknown.
        base: Changes from the observed collection to `older`. None without `older`.
        may_hold: True if the plan is an upgrade of the preset, which may have to be approved.
    """

    desired: Collection
    observed: Observation | None
    last_physical: str | None
    plan: Plan
    older: Collection | None
    base: Plan | None
    may_hold: bool
    previous_owner: Marker | None

    def draft(self, terms: PassTerms) -> PassDraft:
        """Decide which changes the pass makes under these terms, and which are withheld."""
        refusal = None
        if self.may_hold:
            refusal = _held_upgrade(self.plan, self.base, self.desired, self.observed, terms)
        goal, plan = (self.older, self.base) if refusal else (self.desired, self.plan)
        draft = PassDraft(
            self.observed, self.plan, refusal, goal, (), self.previous_owner, plan_to_goal=plan, terms=terms
        )
        return _judged(draft, last_physical=self.last_physical)


def plan_pass(
    alias: str,
    desired: Collection,
    observed: Observation | None,
    *,
    last_physical: str | None,
    last_points: int,
    terms: PassTerms | None = None,
) -> PassDraft:
    """Plan the changes from the observed to the desired collection, and decide which are withheld. Changes nothing.

    Arguments, NotOwned and SpecInvalid are as those of `reconcile`. Without `terms` nothing is approved.
    """
    terms = terms or PassTerms()
    plans = _planned(alias, desired, observed, last_physical=last_physical, last_points=last_points, terms=terms)
    return plans.draft(terms)


def _planned(
    alias: str,
    desired: Collection,
    observed: Observation | None,
    *,
    last_physical: str | None,
    last_points: int,
    terms: PassTerms,
) -> _Plans:
    """Check that the object may have the collection, and make its plans."""
    check_lost(alias, observed, last_physical=last_physical, last_points=last_points, policy=terms.drift_policy)
    previous_owner = check_ownership(observed, desired, takeover=terms.takeover)
    check_replicas(desired, observed)
    _, fresh = physical_names(alias, last_physical)
    plan_for = partial(plan_changes, observed=observed, alias=alias, physical=fresh, needs_alias=terms.needs_alias)
    revision = find_older_revision(desired, observed)
    older = None if revision is None else terms.older.get(revision)
    base = plan_for(older) if older else None
    is_upgrade = revision is not None and (older is not None or previous_owner is None)
    return _Plans(desired, observed, last_physical, plan_for(desired), older, base, is_upgrade, previous_owner)


def _held_upgrade(
    plan: Plan, base: Plan | None, desired: Collection, observed: Observation | None, terms: PassTerms
) -> Refusal | None:
    """Return the refusal of an upgrade to a newer preset revision, or None if it may be carried out."""
    refusal = refuse_upgrade(plan, base, observed, terms=terms, costs=_costs(plan, desired, observed, terms))
    return replace(refusal, revision=desired.marker.preset_revision) if refusal and desired.marker else refusal


def _refused(plan: Plan, goal: Collection | None, observed: Observation | None, terms: PassTerms) -> Refusal | None:
    """Return the refusal of a plan that leads to `goal`, or None."""
    return find_refusal(plan, observed, terms=terms, costs=_costs(plan, goal, observed, terms))


def _costs(plan: Plan, goal: Collection | None, observed: Observation | None, terms: PassTerms) -> Costs | None:
    if observed is None or goal is None or not has_rebuild(plan):
        return None
    return estimate_costs(plan, goal, observed, settings=terms.rebuild, batch=terms.batch_size, survey=terms.survey)


def _judged(draft: PassDraft, *, last_physical: str | None) -> PassDraft:
    """Complete a draft: set `allowed` to the changes of `plan_to_goal` without withheld ones and drift that stays.

    If no upgrade is withheld, `plan` and `refusal` are updated too.
    """
    base, observed, terms, has_refusal = draft.plan_to_goal, draft.observed, draft.terms, draft.refusal is not None
    has_drifted = draft.goal is not None and is_drift(draft.goal, observed, last_physical=last_physical)
    leaves_drift = has_drifted and terms.drift_policy is not DriftPolicy.CORRECT
    if base and observed and leaves_drift:
        base = add_wake(without_drift(base), observed)
    refusal = _refused(base, draft.goal, observed, terms) if base else None
    allowed = allowed_changes(base, refusal) if base else ()
    judged_draft = replace(draft, allowed=allowed, is_drift=has_drifted, leaves_drift=leaves_drift)
    return judged_draft if has_refusal or base is None else replace(judged_draft, plan=base, refusal=refusal)


async def reconcile(
    alias: str,
    desired: Collection,
    *,
    store: CollectionStore,
    last_physical: str | None,
    last_points: int,
    permit: PassPermit | None = None,
) -> PassOutcome:
    """Bring the collection behind `alias` to the desired state. Idempotent: a second call changes nothing.

    Args:
        alias: Stable name of the collection.
        desired: Canonical desired collection, with the object's marker.
        store: Qdrant server of the collection.
        last_physical: Physical name that the last pass reported. None in the first pass.
        last_points: Number of points that the last pass reported.
        permit: Permissions beyond the object's spec. None approves nothing, and reindexes without a slot.

    Raises:
        NotOwned: If the collection belongs to another object, and may not be taken over.
        SpecInvalid: If the collection was lost and may not be recreated, the cluster has fewer peers than replicas, or
            the server accepted a change without applying it.
        AgentMemoryError: Errors of `store` and `permit.check_creation`. A later pass makes the remaining changes.
    """
    permit = permit or PassPermit()
    before, names = await observe_or_link(alias, last_physical, store=store)
    if permit.decide:
        desired, terms = permit.decide(before.collection.marker if before else None)
        permit = replace(permit, terms=terms)
    plans = _planned(alias, desired, before, last_physical=last_physical, last_points=last_points, terms=permit.terms)
    draft = await _drafted(plans, store=store, permit=permit)
    if before is None:
        draft = await _creation(draft, alias, desired, names, store=store, permit=permit)
    draft = await _queue_reindex(draft, permit.acquire_slot)
    observed = await _applied(draft, alias, store=store)
    return _outcome(draft, alias, desired, observed)


async def _drafted(plans: _Plans, *, store: CollectionStore, permit: PassPermit) -> PassDraft:
    draft = plans.draft(permit.terms)
    terms = await survey_costs(permit.terms, draft.plan, plans.observed, store=store, resources=permit.resources)
    return draft if terms is permit.terms else plans.draft(terms)


async def _creation(
    draft: PassDraft,
    alias: str,
    desired: Collection,
    names: frozenset[str],
    *,
    store: CollectionStore,
    permit: PassPermit,
) -> PassDraft:
    await check_peers(desired.replication_factor, store=store)
    physical = await _free_name(alias, draft.plan.physical, names, store=store, permit=permit)
    plan = draft.plan
    if physical != plan.physical:
        plan = plan_changes(desired, None, alias=alias, physical=physical)
    return replace(draft, plan=plan, plan_to_goal=plan, allowed=plan.changes)


async def _applied(draft: PassDraft, alias: str, *, store: CollectionStore) -> Observation:
    """Apply the draft and observe the collection again. Without changes, the last observation is returned."""
    observed, physical = draft.observed, draft.plan.physical
    for change in draft.allowed:
        await store.apply(physical, change)
    if draft.allowed or observed is None:
        is_linked = any(isinstance(change, SetAlias) for change in draft.allowed)
        observed = await store.observe(alias, physical, is_linked=is_linked)
    if observed is None:
        raise _ignored(draft)
    return observed


def _ignored(draft: PassDraft) -> SpecInvalid:
    names = ", ".join(type(change).__name__ for change in draft.allowed)
    return SpecInvalid("ChangeIgnored", f"the server accepted {names} but did not apply it")


def _outcome(draft: PassDraft, alias: str, desired: Collection, observed: Observation) -> PassOutcome:
    """Build the outcome of an applied draft; raise SpecInvalid if the server accepted a change without applying it."""
    full_plan, remaining_plan = _still_to_do(draft, alias, desired, observed)
    pending = without_drift(full_plan) if full_plan and draft.leaves_drift else full_plan
    allowed = allowed_changes(pending, _refused(pending, draft.goal, observed, draft.terms)) if pending else ()
    if set(allowed) - set(draft.queued):
        raise _ignored(draft)
    remaining, refusal = pending, draft.refusal
    if draft.goal != desired or not remaining:
        remaining = remaining_plan
        refusal = _held_upgrade(remaining, pending, desired, observed, draft.terms)
    if draft.queued:
        refusal = refuse_queued(draft.queued, refusal, draft.slot_holder)
    applied = Plan(draft.plan.physical, draft.allowed)
    outcome = PassOutcome(observed, remaining, refusal, applied, draft.previous_owner, is_queued=bool(draft.queued))
    return _with_drift(outcome, draft, full_plan)


def _still_to_do(draft: PassDraft, alias: str, desired: Collection, observed: Observation) -> tuple[Plan | None, Plan]:
    """Plan the remaining changes to the draft's goal and to the desired collection, without WakeOptimizers."""
    plan_for = partial(
        plan_changes, observed=observed, alias=alias, physical=observed.physical, needs_alias=draft.terms.needs_alias
    )
    full_plan = draft.plan_to_goal
    if draft.allowed and draft.goal:
        full_plan = plan_for(draft.goal)
    # Use the full plan, because `draft.plan` lacks the drift that stays.
    to_desired = full_plan if full_plan and draft.goal == desired else plan_for(desired)
    return (drop_wake(full_plan) if full_plan else None), drop_wake(to_desired)


def _with_drift(outcome: PassOutcome, draft: PassDraft, full_plan: Plan | None) -> PassOutcome:
    """Add the drift that was corrected, and the drift that stays, to the outcome."""
    observed, goal = draft.observed, draft.goal
    if not (draft.is_drift and goal and observed and full_plan):
        return outcome
    is_reported = draft.terms.drift_policy is not DriftPolicy.IGNORE
    remaining_drift = differences(goal, outcome.observed.collection, full_plan.changes) if is_reported else ()
    return replace(outcome, corrected=differences(goal, observed.collection, draft.allowed), drift=remaining_drift)


async def observe_or_link(
    alias: str, last_physical: str | None, *, store: CollectionStore
) -> tuple[Observation | None, frozenset[str]]:
    """Observe the collection behind an alias; create the alias if a killed operator has deleted its plain predecessor.

    While a plain collection is replaced by an alias of the same name, neither exists for a moment. If neither exists,
    look for a numbered collection whose rebuild record waits for the alias, and create the alias.

    Returns:
        The observed collection or None, and the physical names numbered for the alias; empty if they were not listed.
    """
    likely, _ = physical_names(alias, last_physical)
    names = await _numbered(alias, store) if last_physical is None else frozenset()
    observed = await store.observe(alias, likely if last_physical or likely in names else alias)
    if observed is not None:
        return observed, names
    names = names if last_physical is None else await _numbered(alias, store)
    for name in sorted(names):
        found = await observe_physical(store, name)
        if found is not None and awaits_alias(found.record, alias):
            await store.apply(name, SetAlias(alias, name))
            return await store.observe(alias, name, is_linked=True), names
    return None, names


async def _numbered(alias: str, store: CollectionStore) -> frozenset[str]:
    return frozenset(name for name in await store.names() if number_of(name, alias) is not None)


async def _free_name(
    alias: str, fresh: str, names: frozenset[str], *, store: CollectionStore, permit: PassPermit
) -> str:
    """Return a free name for a new collection, or raise if none may be created.

    The placeholder of a deleted collection occupies its name. An incomplete collection does not, because the
    interrupted creation continues with it.
    """
    if permit.check_creation is not None:
        await permit.check_creation()
    while fresh in names and await observe_physical(store, fresh) is None:
        fresh = next_physical(alias, (fresh,))
    return fresh


async def _queue_reindex(draft: PassDraft, acquire_slot: AcquireSlot | None) -> PassDraft:
    """Move a Reindex of the draft to `queued` unless the slot can be acquired.

    The new marker waits too, because it describes the completed change. A collection's first marker, or the marker of a
    new owner, does not wait.
    """
    reindex = tuple(change for change in draft.allowed if class_of(change) is ChangeClass.REINDEX)
    if not reindex or acquire_slot is None or draft.observed is None or draft.observed.points == 0:
        return draft
    slot_holder = await acquire_slot()
    if slot_holder is None:
        return draft
    live = draft.observed.collection.marker
    markers = (change for change in draft.allowed if isinstance(change, WriteMarker))
    own_markers = tuple(change for change in markers if live is not None and change.marker.is_same_object(live))
    queued = (*reindex, *own_markers)
    allowed = tuple(change for change in draft.allowed if change not in queued)
    return replace(draft, allowed=allowed, queued=queued, slot_holder=slot_holder)
