"""Collections and aliases of a Qdrant server."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from agentmemory_operator.collections.rules.capacity import Process
from agentmemory_operator.collections.rules.changes import Change
from agentmemory_operator.collections.rules.collection import Observed, Tenant
from agentmemory_operator.collections.rules.replicas import Move, Placement
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities
from agentmemory_operator.controllers.rules.orphans import Holding


class CollectionCatalogue(Protocol):
    """What lies on one Qdrant server; raises as PointStore does."""

    async def holdings(self) -> list[Holding]:
        """The collections whose name or alias is one that agents' collections have, sorted by name.

        Placeholders hold no memories and are left out.
        """
        ...


class CollectionStore(CollectionCatalogue, Protocol):
    """Collections and aliases of one Qdrant server; control calls of the operator.

    Raises as PointStore does.
    """

    async def close(self) -> None:
        """Close the connections."""
        ...

    async def server(self) -> ServerCapabilities:
        """What the server says of itself, having shown it the key.

        Raises:
            StoreRejected: the server refuses the key.
        """
        ...

    async def process(self) -> Process:
        """What the server says of its process, of a cluster the node that answers; nothing where it may not."""
        ...

    async def tenant_of(self, physical: str) -> Tenant | None:
        """Whose a collection or a placeholder says that it is; None where it is gone, or does not say so."""
        ...

    async def target(self, name: str) -> str:
        """The collection that an alias points to; any other name, of a collection or of nothing, is its own."""
        ...

    async def observe(self, alias: str, likely: str, *, is_linked: bool = False) -> Observed | None:
        """What lies behind the alias, else the collection `likely` that has no alias yet, else None.

        Never modifies anything. A placeholder, which only keeps snapshots in reach, is nothing.

        Args:
            is_linked: the alias was pointed at `likely` a moment ago: where it leads is not asked.
        """
        ...

    async def names(self) -> list[str]:
        """The names of all collections, placeholders included, sorted."""
        ...

    async def apply(self, physical: str, change: Change) -> None:
        """Carry out one change on the physical collection; one that was carried out before is no error."""
        ...

    async def drop_index(self, physical: str, field: str) -> None:
        """Drop the payload index of a field; one that is not there is no error.

        No change of a plan does: what nobody asked for stays, but for what the operator made for itself.
        """
        ...

    async def placement(self, physical: str) -> Placement | None:
        """Where a collection's replicas are; None of a server that is alone or does not tell.

        Raises:
            NotFound: there is no such collection.
        """
        ...

    async def peers(self) -> int:
        """How many servers there are; 1 of one that is alone or does not tell."""
        ...

    async def move_replica(self, physical: str, move: Move) -> bool:
        """Begin to copy a replica, or drop one; return False where the server has no calls for that."""
        ...

    async def count(self, physical: str) -> int:
        """The exact number of points that are not tombstones; 0 when the collection is gone."""
        ...

    async def count_memories(self, physical: str, *, exact: bool = True) -> int:
        """The number of memories, as the API counts them: without tombstones and writes that are not complete.

        Args:
            exact: False takes the server's estimate, which also a strict mode that forbids exact counts allows.
        """
        ...

    async def count_unlisted(self, physical: str, types: Sequence[str]) -> Mapping[str, int]:
        """The exact numbers of memories of each type that is none of `types`, of the most frequent of them."""
        ...

    async def count_sealed_before(self, physical: str, made_ms: int) -> int:
        """The exact number of memories that are sealed with a data key made before a time, Unix milliseconds."""
        ...

    async def content_lengths(self, physical: str, limit: int) -> Sequence[int]:
        """How many characters the contents of the first `limit` memories by id have, 0 of one without."""
        ...

    async def delete(self, physical: str) -> None:
        """Delete the collection and its aliases; one that is gone is no error."""
        ...
