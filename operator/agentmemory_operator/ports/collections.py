"""Collections and aliases of a Qdrant server."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from agentmemory_operator.collections.rules.capacity import Process
from agentmemory_operator.collections.rules.changes import Change
from agentmemory_operator.collections.rules.collection import Observation, Tenant
from agentmemory_operator.collections.rules.replicas import Move, Placement
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities
from agentmemory_operator.controllers.rules.orphans import CollectionSummary


class CollectionCatalogue(Protocol):
    """Lists the collections of agents on one Qdrant server. Errors are those of `CollectionStore`."""

    async def list_agent_collections(self) -> list[CollectionSummary]:
        """Return the collections whose name or alias starts with the prefix of agent collections, sorted by name.

        Placeholders, which only keep snapshot files reachable, are left out: they contain no memories.
        """
        ...


class CollectionStore(CollectionCatalogue, Protocol):
    """Collections and aliases of one Qdrant server, as the operator reads and changes them.

    Methods raise StoreUnavailable if the server is unavailable, StoreRejected if it rejects the call, and SpecInvalid
    if the egress policy forbids its host. After StoreUnavailable, a change may have been made: its response may be
    lost. A missing collection raises NotFound unless a method states another result. A tombstone is the content-free
    rest of a deleted memory.
    """

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        ...

    async def server(self) -> ServerCapabilities:
        """Check the API key by a call, then return version, cluster size and resources of the server.

        Raises:
            StoreRejected: If the server rejects the key.
        """
        ...

    async def process(self) -> Process:
        """Return the process metrics of the server. In a cluster, they are those of the node that responds.

        A field is None if its metric is missing; all are None if the key may not read metrics, or there are none.
        """
        ...

    async def read_owner(self, physical: str) -> Tenant | None:
        """Return the owner in the metadata of a collection or placeholder. None if it is deleted or names no owner."""
        ...

    async def target(self, name: str) -> str:
        """Return the collection that an alias points to. Any other name is returned unchanged."""
        ...

    async def observe(self, alias: str, likely_physical: str, *, is_linked: bool = False) -> Observation | None:
        """Observe the collection behind an alias, or else the collection `likely_physical`. None if neither exists.

        Changes nothing. A placeholder, which only keeps snapshot files reachable, counts as absent.

        Args:
            likely_physical: Name of the collection that the alias should point to; observed if there is no alias yet.
            is_linked: True if the caller has just pointed the alias to `likely_physical`: its target is not read.
        """
        ...

    async def names(self) -> list[str]:
        """Return the names of all collections, placeholders included, sorted."""
        ...

    async def apply(self, physical: str, change: Change) -> None:
        """Apply one change to a physical collection. A change that has been applied before is no error.

        Raises:
            StoreRejected: If the change is only possible by a rebuild, or the server rejects it.
            StoreUnavailable: If the collection does not exist.
        """
        ...

    async def drop_index(self, physical: str, field: str) -> None:
        """Drop the payload index of a field; a missing index is no error.

        Only for an index that the operator created for its own use. Plans drop no index: those that the spec does not
        list stay.

        Raises:
            StoreUnavailable: If the collection does not exist.
        """
        ...

    async def placement(self, physical: str) -> Placement | None:
        """Return the replicas of a collection. None if the server is no cluster, or does not report them.

        Raises:
            NotFound: If there is no such collection.
        """
        ...

    async def peers(self) -> int:
        """Return the number of servers in the cluster; 1 for a single server, or if it is not reported."""
        ...

    async def move_replica(self, physical: str, move: Move) -> bool:
        """Start to copy a replica, or drop one. Return False if the server lacks the API calls.

        Raises:
            NotFound: If there is no such collection.
        """
        ...

    async def count(self, physical: str) -> int:
        """Return the exact number of points that are not tombstones; 0 if the collection is deleted."""
        ...

    async def count_memories(self, physical: str, *, exact: bool = True) -> int:
        """Return the number of memories as the API counts them: without tombstones and pending writes.

        Args:
            exact: False uses the server's estimate. True is slow if strict mode forbids exact counts: all memories
                are listed instead.
        """
        ...

    async def count_unlisted(self, physical: str, types: Sequence[str]) -> Mapping[str, int]:
        """Return exact counts by type, for the most frequent types (at most 8) that are not in `types`.

        Tombstones are not counted; pending writes are.
        """
        ...

    async def count_sealed_before(self, physical: str, created_ms: int) -> int:
        """Return the exact number of memories that are encrypted with a data key created before a time.

        Tombstones are not counted; pending writes are.

        Args:
            created_ms: The time, in Unix milliseconds.
        """
        ...

    async def content_lengths(self, physical: str, limit: int) -> Sequence[int]:
        """Return the content length in characters of up to `limit` memories, those with the smallest point ids.

        The length is 0 for a memory whose content is missing or encrypted. Tombstones are left out; pending writes are
        not.
        """
        ...

    async def delete(self, physical: str) -> None:
        """Delete the collection and its aliases; an absent collection is no error."""
        ...


async def observe_physical(store: CollectionStore, physical: str) -> Observation | None:
    """Observe a collection by its own name, whichever alias points to it; None if it does not exist."""
    return await store.observe(physical, physical, is_linked=True)
