"""Preview passes over manifests (`agentmemory plan`), and find orphaned collections (`agentmemory orphans`).

Both only read.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from agentmemory_operator.collections.reconcile import PassDraft, plan_pass, survey_costs
from agentmemory_operator.collections.replication import check_peers
from agentmemory_operator.collections.rules.collection import Collection, Observation
from agentmemory_operator.collections.rules.desired import (
    build_pass_terms,
    connection_name,
    newest_collection,
    with_recorded_defaults,
)
from agentmemory_operator.collections.rules.plan import has_rebuild
from agentmemory_operator.collections.rules.rebuild_costs import server_resources
from agentmemory_operator.collections.rules.takeovers import build_terms
from agentmemory_operator.controllers.rules.orphans import Orphan, build_claims, count_foreign, find_orphans_in
from agentmemory_operator.errors import NotOwned, SpecInvalid
from agentmemory_operator.ports.collections import CollectionCatalogue, CollectionStore
from agentmemory_operator.ports.kubernetes import ObjectReader
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, MEMORY_RESTORE
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.readable_status import with_readable_status
from agentmemory_operator.spec.naming import alias_of, physical_names


class PreviewOutcome(StrEnum):
    """Result that a pass over one object would have, ordered from harmless to worst.

    HELD: Some changes would be withheld, for example until an approval. REFUSED: The object or its connection is
    invalid, or the object does not own its slug or collection.
    """

    UNCHANGED = "unchanged"
    SUSPENDED = "suspended"
    CHANGES = "changes"
    HELD = "held"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PassPreview:
    """Changes that a pass over one object would make.

    Attributes:
        memory: The object, with the recorded defaults of its collection if there is a draft.
        draft: Draft of the pass. None if the object is suspended or would be refused.
        refusal: Reason and message of the refusal, or None.
    """

    memory: AgentMemory
    draft: PassDraft | None = None
    refusal: tuple[str, str] | None = None

    @property
    def outcome(self) -> PreviewOutcome:
        """Result that the pass would have. A refusal because changes are already running does not count as HELD."""
        if self.refusal:
            return PreviewOutcome.REFUSED
        if self.draft is None:
            return PreviewOutcome.SUSPENDED
        if self.draft.refusal and not self.draft.refusal.is_running:
            return PreviewOutcome.HELD
        return PreviewOutcome.CHANGES if self.draft.plan.changes else PreviewOutcome.UNCHANGED


CollectionTarget = tuple[CollectionStore | None, QdrantConnection | None]
"""Client for the collections of an object's server (None for an empty server), and its connection (None if unknown)."""


async def preview_passes(
    memories: Sequence[AgentMemory],
    store: CollectionStore | None,
    connections: Sequence[QdrantConnection] = (),
    *,
    find_target: Callable[[AgentMemory], Awaitable[CollectionTarget]] | None = None,
) -> AsyncIterator[PassPreview]:
    """Yield a preview of a pass over each object.

    Args:
        memories: Objects in order of their creation. If several have the same slug, the first owns it.
        store: Server with the collections. None for an empty one.
        connections: Known connections of the objects. Their owners may allow takeovers.
        find_target: Returns the store and connection of an object, in place of `store` and `connections`. It raises
            SpecInvalid if the object would be refused.

    Raises:
        TransientError: If a server does not respond, or `find_target` cannot read an object now.
        StoreRejected: If a server refuses the requests.
    """
    owners: dict[str, AgentMemory] = {}
    by_name = {f"{connection.metadata.namespace}/{connection.metadata.name}": connection for connection in connections}
    for memory in memories:
        owner = owners.setdefault(memory.slug, memory)
        if memory.spec.suspend:
            yield PassPreview(memory)
            continue
        try:
            _check_slug(memory, owner)
            target = await find_target(memory) if find_target else (store, by_name.get(connection_name(memory)))
            yield await _preview(memory, *target)
        except (SpecInvalid, NotOwned) as exc:
            yield PassPreview(memory, refusal=(exc.reason, str(exc)))


def _check_slug(memory: AgentMemory, owner: AgentMemory) -> None:
    if owner is not memory:
        owner_name = f"{owner.metadata.namespace}/{owner.metadata.name}"
        raise NotOwned("SlugTaken", f"agent {memory.slug!r} is that of {owner_name} too: choose another spec.agent")


async def _preview(
    memory: AgentMemory, store: CollectionStore | None, connection: QdrantConnection | None
) -> PassPreview:
    alias = alias_of(memory.slug)
    likely_physical, _ = physical_names(alias, None)
    observed = await store.observe(alias, likely_physical) if store else None
    memory = with_recorded_defaults(memory, observed.collection.marker if observed else None)
    desired, terms = newest_collection(memory, cluster_id=""), build_pass_terms(memory, cluster_id="")
    if store is not None and observed is None:
        await check_peers(desired.replication_factor, store=store)
    older = {revision: with_identity(older_collection, observed) for revision, older_collection in terms.older.items()}
    takeover = build_terms(memory.slug, memory.metadata.annotations, connection)
    terms = replace(terms, older=older, takeover=takeover)
    make_draft = partial(
        plan_pass, alias, with_identity(desired, observed), observed, last_physical=None, last_points=0
    )
    plan_draft = make_draft(terms=terms)
    if store is None or not has_rebuild(plan_draft.plan):
        return PassPreview(memory, plan_draft)
    # Assume no disk limit for a rebuild: it is a setting of the operator, which is unknown here.
    resources = server_resources(await store.server())
    terms = await survey_costs(terms, plan_draft.plan, observed, store=store, resources=resources)
    return PassPreview(memory, make_draft(terms=terms))


def with_identity(desired: Collection, observed: Observation | None) -> Collection:
    """Fill in the cluster id and uid of a desired collection, which a manifest does not have.

    An object of the same namespace and name as the collection's owner counts as that owner. Without an ownership marker
    on both sides, `desired` is returned unchanged.

    Args:
        observed: The existing collection, or None.
    """
    live = observed.collection.marker if observed else None
    if desired.marker is None or live is None:
        return desired
    marker = replace(desired.marker, cluster_id=live.cluster_id)
    return replace(desired, marker=replace(marker, uid=live.uid) if marker.is_same_object(live) else marker)


def worst_outcome(previews: Sequence[PassPreview]) -> PreviewOutcome:
    """Return the worst outcome; UNCHANGED if there are no previews."""
    order = list(PreviewOutcome)
    return max((preview.outcome for preview in previews), key=order.index, default=PreviewOutcome.UNCHANGED)


COLLECTION_KEPT = "CollectionKept"


@dataclass(frozen=True, slots=True)
class OrphanReport:
    """Orphaned collections on one server.

    Attributes:
        orphans: Each with the reason why it has no owner (`OrphanKind`).
        foreign: Number of collections marked by another cluster. They are not in `orphans`.
        event_times: Time of the CollectionKept event by (namespace, name) of the AgentMemory. Empty without orphans.
            Kubernetes deletes events after a while, so entries may be missing.
    """

    orphans: tuple[Orphan, ...]
    foreign: int
    event_times: Mapping[tuple[str, str], str]


async def find_orphans(reader: ObjectReader, catalogue: CollectionCatalogue) -> OrphanReport:
    """Find the collections on the catalogue's server without an owner in the reader's cluster, as `OrphanKind` defines.

    Collections marked by another cluster are only counted.

    Raises:
        TransientError: If Qdrant or Kubernetes is unavailable.
        StoreRejected: If Qdrant refuses the requests.
    """
    holdings = await catalogue.list_agent_collections()
    # List objects after collections, so that the collection of an object created in between counts as no orphan.
    documents, _ = await reader.list_objects(AGENT_MEMORY)
    restores, _ = await reader.list_objects(MEMORY_RESTORE)
    objects, restore_objects = (list(map(with_readable_status, found)) for found in (documents, restores))
    owners = build_claims(objects, cluster_id=await reader.cluster_id(), restores=restore_objects)
    orphans = tuple(find_orphans_in(holdings, owners))
    since = await reader.event_times(COLLECTION_KEPT) if orphans else {}
    return OrphanReport(orphans, count_foreign(holdings, owners), since)
