"""`agentmemory orphans`: what nothing owns on one server. Reads, and changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentmemory_operator.controllers.rules.orphans import Orphan, foreign_count, orphans_of, owners_of
from agentmemory_operator.ports.collections import CollectionCatalogue
from agentmemory_operator.ports.kubernetes import ObjectReader
from agentmemory_operator.runtime.cache import AGENT_MEMORY, MEMORY_RESTORE
from agentmemory_operator.spec.kinds.readable_status import with_readable_status

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
