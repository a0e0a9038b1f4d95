"""`agentmemory plan`: what passes over manifests would do. Reads, and changes nothing."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from agentmemory_operator.domain.collection import Collection, Observed
from agentmemory_operator.domain.desired import newest_collection, terms_of
from agentmemory_operator.domain.naming import alias_of, physical_names
from agentmemory_operator.domain.planning import has_rebuild
from agentmemory_operator.domain.rebuild_costs import room_of
from agentmemory_operator.domain.resources import AgentMemory
from agentmemory_operator.errors import NotOwned, SpecInvalid
from agentmemory_operator.ports import CollectionStore
from agentmemory_operator.services.reconcile import Draft, draft
from agentmemory_operator.services.replication import check_peers
from agentmemory_operator.services.surveys import surveyed


class Outcome(StrEnum):
    """What a pass over one object would come to; ordered from nothing to worst."""

    UNCHANGED = "unchanged"
    SUSPENDED = "suspended"
    CHANGES = "changes"
    HELD = "held"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Preview:
    """What a pass over one object would do.

    Attributes:
        draft: None where the pass would be refused, or leaves the object alone.
        refused: reason and message of that.
    """

    memory: AgentMemory
    draft: Draft | None = None
    refused: tuple[str, str] | None = None

    @property
    def outcome(self) -> Outcome:
        """Return what the pass would come to."""
        if self.refused:
            return Outcome.REFUSED
        if self.draft is None:
            return Outcome.SUSPENDED
        if self.draft.refusal and not self.draft.refusal.is_carried_out:
            return Outcome.HELD
        return Outcome.CHANGES if self.draft.plan.changes else Outcome.UNCHANGED


async def previews_of(memories: Sequence[AgentMemory], store: CollectionStore | None) -> AsyncIterator[Preview]:
    """Yield what a pass over each object would do.

    Args:
        memories: in the order in which they would be created: of two with one slug, the first has it.
        store: the server that holds their collections; None is an empty one.

    Raises:
        TransientError: the server does not answer.
        StoreRejected: it refuses to.
    """
    owners: dict[str, AgentMemory] = {}
    for memory in memories:
        owner = owners.setdefault(memory.slug, memory)
        if memory.spec.suspend:
            yield Preview(memory)
            continue
        try:
            _check_slug(memory, owner)
            yield Preview(memory, await _draft(memory, store))
        except (SpecInvalid, NotOwned) as exc:
            yield Preview(memory, refused=(exc.reason, str(exc)))


def _check_slug(memory: AgentMemory, owner: AgentMemory) -> None:
    if owner is not memory:
        named = f"{owner.metadata.namespace}/{owner.metadata.name}"
        raise NotOwned("SlugTaken", f"agent {memory.slug!r} is that of {named} too: choose another spec.agent")


async def _draft(memory: AgentMemory, store: CollectionStore | None) -> Draft:
    alias = alias_of(memory.slug)
    likely, _ = physical_names(alias, None)
    observed = await store.observe(alias, likely) if store else None
    desired, terms = newest_collection(memory, cluster_id=""), terms_of(memory, cluster_id="")
    if store is not None and observed is None:
        await check_peers(desired.replication_factor, store=store)
    older = {revision: identified(wish, observed) for revision, wish in terms.older.items()}
    terms = replace(terms, older=older)
    drafted = partial(draft, alias, identified(desired, observed), observed, last_physical=None, last_points=0)
    found = drafted(terms=terms)
    if store is None or not has_rebuild(found.plan):
        return found
    # How the operator bounds it, only the operator knows.
    room = room_of(await store.server())
    return drafted(terms=await surveyed(terms, found.plan, observed, store=store, room=room))


def identified(desired: Collection, observed: Observed | None) -> Collection:
    """Return the desired collection of the object that a manifest will be: files know neither cluster nor uid.

    An object of the same namespace and name is taken for the same one.
    """
    live = observed.collection.marker if observed else None
    if desired.marker is None or live is None:
        return desired
    marker = replace(desired.marker, cluster_id=live.cluster_id)
    return replace(desired, marker=replace(marker, uid=live.uid) if marker.is_same_object(live) else marker)


def worst_of(previews: Sequence[Preview]) -> Outcome:
    """Return the worst outcome, unchanged where there is none."""
    order = list(Outcome)
    return max((preview.outcome for preview in previews), key=order.index, default=Outcome.UNCHANGED)
