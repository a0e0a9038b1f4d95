"""`agentmemory plan` and `orphans`: what passes over manifests would do, and what nothing owns. They change nothing."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from agentmemory_operator.collections.reconcile import PassDraft, draft, surveyed
from agentmemory_operator.collections.replication import check_peers
from agentmemory_operator.collections.rules.collection import Collection, Observed
from agentmemory_operator.collections.rules.desired import connection_named, newest_collection, on_record, terms_of
from agentmemory_operator.collections.rules.plan import has_rebuild
from agentmemory_operator.collections.rules.rebuild_costs import room_of
from agentmemory_operator.collections.rules.takeovers import takeover_terms
from agentmemory_operator.controllers.rules.orphans import Orphan, foreign_count, orphans_of, owners_of
from agentmemory_operator.errors import NotOwned, SpecInvalid
from agentmemory_operator.ports.collections import CollectionCatalogue, CollectionStore
from agentmemory_operator.ports.kubernetes import ObjectReader
from agentmemory_operator.runtime.cache import AGENT_MEMORY, MEMORY_RESTORE
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.readable_status import with_readable_status
from agentmemory_operator.spec.naming import alias_of, physical_names


class PreviewOutcome(StrEnum):
    """What a pass over one object would come to; ordered from nothing to worst."""

    UNCHANGED = "unchanged"
    SUSPENDED = "suspended"
    CHANGES = "changes"
    HELD = "held"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PassPreview:
    """What a pass over one object would do.

    Attributes:
        draft: None where the pass would be refused, or leaves the object alone.
        refused: reason and message of that.
    """

    memory: AgentMemory
    draft: PassDraft | None = None
    refused: tuple[str, str] | None = None

    @property
    def outcome(self) -> PreviewOutcome:
        """What the pass would come to."""
        if self.refused:
            return PreviewOutcome.REFUSED
        if self.draft is None:
            return PreviewOutcome.SUSPENDED
        if self.draft.refusal and not self.draft.refusal.is_carried_out:
            return PreviewOutcome.HELD
        return PreviewOutcome.CHANGES if self.draft.plan.changes else PreviewOutcome.UNCHANGED


Reached = tuple[CollectionStore | None, QdrantConnection | None]
"""The server of an object's collection, None is an empty one; its connection, as far as it is known."""


async def previews_of(
    memories: Sequence[AgentMemory],
    store: CollectionStore | None,
    connections: Sequence[QdrantConnection] = (),
    *,
    reach: Callable[[AgentMemory], Awaitable[Reached]] | None = None,
) -> AsyncIterator[PassPreview]:
    """Yield what a pass over each object would do.

    Args:
        memories: in the order in which they would be created: of two with one slug, the first has it.
        store: the server that holds their collections; None is an empty one.
        connections: those that the objects refer to, as far as they are known: their owners allow takeovers.
        reach: gives both of an object in their place; raises SpecInvalid where the object would be refused.

    Raises:
        TransientError: the server does not answer.
        StoreRejected: it refuses to.
    """
    owners: dict[str, AgentMemory] = {}
    named = {f"{one.metadata.namespace}/{one.metadata.name}": one for one in connections}
    for memory in memories:
        owner = owners.setdefault(memory.slug, memory)
        if memory.spec.suspend:
            yield PassPreview(memory)
            continue
        try:
            _check_slug(memory, owner)
            where = await reach(memory) if reach else (store, named.get(connection_named(memory)))
            yield PassPreview(memory, await _draft(memory, *where))
        except (SpecInvalid, NotOwned) as exc:
            yield PassPreview(memory, refused=(exc.reason, str(exc)))


def _check_slug(memory: AgentMemory, owner: AgentMemory) -> None:
    if owner is not memory:
        named = f"{owner.metadata.namespace}/{owner.metadata.name}"
        raise NotOwned("SlugTaken", f"agent {memory.slug!r} is that of {named} too: choose another spec.agent")


async def _draft(memory: AgentMemory, store: CollectionStore | None, connection: QdrantConnection | None) -> PassDraft:
    alias = alias_of(memory.slug)
    likely, _ = physical_names(alias, None)
    observed = await store.observe(alias, likely) if store else None
    memory = on_record(memory, observed.collection.marker if observed else None)
    desired, terms = newest_collection(memory, cluster_id=""), terms_of(memory, cluster_id="")
    if store is not None and observed is None:
        await check_peers(desired.replication_factor, store=store)
    older = {revision: identified(wish, observed) for revision, wish in terms.older.items()}
    takeover = takeover_terms(memory.slug, memory.metadata.annotations, connection)
    terms = replace(terms, older=older, takeover=takeover)
    drafted = partial(draft, alias, identified(desired, observed), observed, last_physical=None, last_points=0)
    found = drafted(terms=terms)
    if store is None or not has_rebuild(found.plan):
        return found
    # How the operator bounds it, only the operator knows.
    room = room_of(await store.server())
    return drafted(terms=await surveyed(terms, found.plan, observed, store=store, room=room))


def identified(desired: Collection, observed: Observed | None) -> Collection:
    """The desired collection of the object that a manifest will be: files know neither cluster nor uid.

    An object of the same namespace and name is taken for the same one.
    """
    live = observed.collection.marker if observed else None
    if desired.marker is None or live is None:
        return desired
    marker = replace(desired.marker, cluster_id=live.cluster_id)
    return replace(desired, marker=replace(marker, uid=live.uid) if marker.is_same_object(live) else marker)


def worst_of(previews: Sequence[PassPreview]) -> PreviewOutcome:
    """The worst outcome, unchanged where there is none."""
    order = list(PreviewOutcome)
    return max((preview.outcome for preview in previews), key=order.index, default=PreviewOutcome.UNCHANGED)


KEPT = "CollectionKept"


@dataclass(frozen=True, slots=True)
class Findings:
    """What one server holds that nothing owns.

    Attributes:
        foreign: collections of other clusters.
        since: when an object's collection was kept, by (namespace, name): as long as Kubernetes keeps its events.
    """

    orphans: tuple[Orphan, ...]
    foreign: int
    since: Mapping[tuple[str, str], str]


async def find_orphans(reader: ObjectReader, catalogue: CollectionCatalogue) -> Findings:
    """What nothing in the reader's cluster owns on the catalogue's server."""
    holdings = await catalogue.holdings()
    # Objects after collections: one created meanwhile must not look like an orphan.
    documents, _ = await reader.list_objects(AGENT_MEMORY)
    restores, _ = await reader.list_objects(MEMORY_RESTORE)
    objects, made = (list(map(with_readable_status, found)) for found in (documents, restores))
    owners = owners_of(objects, cluster_id=await reader.cluster_id(), restores=made)
    orphans = tuple(orphans_of(holdings, owners))
    since = await reader.event_times(KEPT) if orphans else {}
    return Findings(orphans, foreign_count(holdings, owners), since)
