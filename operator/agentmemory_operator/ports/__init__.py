"""What services need of the outside, as Protocols. Adapters implement them; fakes of unit tests do too.

Every method is async, raises only `agentmemory_operator.errors`, and may be called again after any failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentmemory_operator.domain.access import Reviewed
from agentmemory_operator.domain.capabilities import Server
from agentmemory_operator.domain.changes import Change
from agentmemory_operator.domain.collection import Observed
from agentmemory_operator.domain.handover import HandedOver
from agentmemory_operator.domain.lease import Lease
from agentmemory_operator.domain.orphans import Holding
from agentmemory_operator.domain.replicas import Move, Placement
from agentmemory_operator.domain.resources import Metadata

Json = dict[str, Any]
Vector = Sequence[float]


class PointStore(Protocol):
    """Points of one Qdrant server; the hot path of the retrieval API.

    `collection` is an alias or a physical name. Filters, queries and points are Qdrant's REST bodies. Reads raise
    StoreUnavailable when the server is away; writes raise it only when nothing was written, else OutcomeUnknown.
    StoreRejected carries the engine's 4xx. A missing collection is StoreUnavailable (it is not there yet, or no more).
    """

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""

    async def describe(self, collection: str) -> Json:
        """Return `result` of `GET /collections/{collection}`.

        Raises:
            NotFound: there is no such collection.
        """

    async def query(self, collection: str, body: Json) -> list[Json]:
        """Return the scored points of `POST /points/query`, best first."""

    async def query_batch(self, collection: str, bodies: Sequence[Json]) -> list[list[Json]]:
        """Return the scored points of each query of `POST /points/query/batch`, in order."""

    async def retrieve(self, collection: str, ids: Sequence[str], *, keys: Sequence[str] | None = None) -> list[Json]:
        """Return the existing points among `ids` with payload (of it only `keys`), without vector, in any order."""

    async def scroll(self, collection: str, body: Json) -> tuple[list[Json], Any]:
        """Return points of `POST /points/scroll` and the next page's offset, None at the end."""

    async def count(self, collection: str, filter_: Json | None, *, exact: bool = True) -> int:
        """Return how many points match."""

    async def facet(self, collection: str, key: str, filter_: Json, *, limit: int) -> dict[str, int]:
        """Return how many matching points have each value of an indexed keyword, of the `limit` most frequent ones."""

    async def upsert(
        self,
        collection: str,
        points: Sequence[Json],
        *,
        insert_only: bool = False,
        update_filter: Json | None = None,
        inserts: bool = False,
        strong: bool = False,
    ) -> None:
        """Write points durably (`wait=true`).

        Args:
            insert_only: existing ids are left as they are (silently: read back).
            update_filter: replace only existing points that match, insert nothing (`update_only`; read back).
            inserts: with `update_filter`: insert what is missing too.
            strong: `ordering=strong`, which a compare-and-set needs on several replicas.
        """

    async def set_payload(self, collection: str, payload: Json, filter_: Json, *, strong: bool = False) -> None:
        """Merge `payload` into every point that matches, durably; atomic per point."""

    async def batch(
        self, collection: str, operations: Sequence[Json], *, wait: bool = True, strong: bool = False
    ) -> None:
        """Run operations of `POST /points/batch` in order; not atomic."""

    async def delete(self, collection: str, filter_: Json) -> None:
        """Delete every point that matches, durably."""


class Embedder(Protocol):
    """Turns texts into vectors of one space."""

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector a text, in order.

        Raises:
            EmbedderUnavailable: the provider is away or throttles, after retries.
            SpecInvalid: the provider refuses for good (key, model) or answers another size than declared.
        """
        ...


class Reranker(Protocol):
    """Reads a question and a memory together, which finds out more than comparing their vectors."""

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """Return how well each text answers the query, in order; larger is better, on a scale of the model's own.

        Raises:
            SpecInvalid: there is no such model here.
            RerankerUnavailable: it fails or takes too long.
        """
        ...


class Clock(Protocol):
    """Wall clock."""

    def now_ms(self) -> int:
        """Return Unix milliseconds."""
        ...


class Secrets(Protocol):
    """Values of Kubernetes Secrets."""

    async def read(self, namespace: str, name: str, key: str) -> str:
        """Return the decoded value.

        Raises:
            SecretMissing: no such Secret or key.
        """
        ...


class TokenReviews(Protocol):
    """Whoever knows whose tokens are whose."""

    async def review(self, token: str) -> Reviewed:
        """Return whose token it is.

        Raises:
            TransientError: it cannot be found out for now.
        """
        ...


class HandoverStore(Protocol):
    """Where the operator puts what the retrieval API needs: the API's own namespace."""

    async def read(self, slug: str) -> HandedOver | None:
        """Return what an agent was given, None where that is nothing."""
        ...

    async def write(self, handed: HandedOver) -> None:
        """Write it in the place of the version that it was read as; raise TransientError if that is not there now."""
        ...

    async def delete(self, handed: HandedOver) -> None:
        """Take back the version that was read; one that is gone, or was written since, is no error."""
        ...

    async def list_all(self) -> list[HandedOver]:
        """Return what every agent was given."""
        ...


class PointsTokens(Protocol):
    """Tokens for the points of one collection, signed with a server's API key."""

    def mint(self, api_key: str, collection: str, *, expires_at_s: int) -> str | None:
        """Return a token for the points of one collection or alias; None where the key is a token itself."""
        ...

    def expiry_s(self, token: str, api_key: str, collection: str) -> int | None:
        """Return when a token ends, Unix seconds; None of what this key did not sign for this collection."""
        ...


class Namespaces(Protocol):
    """The namespaces of the cluster, or of the files that stand in for it."""

    async def labels(self, namespace: str) -> Mapping[str, str]:
        """Return a namespace's labels, none of one that does not exist."""
        ...


class ClusterReader(Secrets, Namespaces, Protocol):
    """What the retrieval API reads of the cluster beside the objects."""


class CollectionStore(Protocol):
    """Collections and aliases of one Qdrant server; control calls of the operator.

    Raises as PointStore does.
    """

    async def close(self) -> None:
        """Close the connections."""
        ...

    async def server(self) -> Server:
        """Return what the server says of itself, having shown it the key.

        Raises:
            StoreRejected: the server refuses the key.
        """
        ...

    async def observe(self, alias: str, likely: str, *, is_linked: bool = False) -> Observed | None:
        """Return what lies behind the alias, else the collection `likely` that has no alias yet, else None.

        Never modifies anything. A placeholder, which only keeps snapshots in reach, is nothing.

        Args:
            is_linked: the alias was pointed at `likely` a moment ago: where it leads is not asked.
        """
        ...

    async def names(self) -> list[str]:
        """Return the names of all collections, placeholders included, sorted."""
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
        """Return where a collection's replicas are; None of a server that is alone or does not tell.

        Raises:
            NotFound: there is no such collection.
        """
        ...

    async def peers(self) -> int:
        """Return how many servers there are; 1 of one that is alone or does not tell."""
        ...

    async def move_replica(self, physical: str, move: Move) -> bool:
        """Begin to copy a replica, or drop one; return False where the server has no calls for that."""
        ...

    async def count(self, physical: str) -> int:
        """Return the exact number of points that are not tombstones; 0 when the collection is gone."""
        ...

    async def count_unlisted(self, physical: str, types: Sequence[str]) -> Mapping[str, int]:
        """Return the exact numbers of memories of each type that is none of `types`, of the most frequent of them."""
        ...

    async def content_lengths(self, physical: str, limit: int) -> Sequence[int]:
        """Return how many characters the contents of the first `limit` memories by id have, 0 of one without."""
        ...

    async def delete(self, physical: str) -> None:
        """Delete the collection and its aliases; one that is gone is no error."""
        ...


class CollectionCatalogue(Protocol):
    """What lies on one Qdrant server; raises as PointStore does."""

    async def holdings(self) -> list[Holding]:
        """Return the collections whose name or alias is one that agents' collections have, sorted by name.

        Placeholders hold no memories and are left out.
        """
        ...


class ObjectReader(Secrets, Protocol):
    """What the verbs that only look read of Kubernetes."""

    async def cluster_id(self) -> str:
        """Return the uid of kube-system."""
        ...

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        """Return one object.

        Raises:
            NotFound: there is no such object, or no such kind.
        """
        ...

    async def list_objects(self, kind: str) -> tuple[list[Json], str]:
        """Return every object of a kind, and the version of the list."""
        ...

    async def event_times(self, reason: str) -> dict[tuple[str, str], str]:
        """Return when an event last befell AgentMemories, by (namespace, name); empty where that may not be read."""
        ...


class Cluster(Namespaces, Protocol):
    """What the operator writes to Kubernetes, or to the files that stand in for it in development."""

    async def cluster_id(self) -> str:
        """Return a value that no other cluster has: the uid of kube-system."""
        ...

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        """Return an object as it stands now, whatever the watch has brought.

        Raises:
            NotFound: there is none.
        """
        ...

    async def write_status(self, kind: str, metadata: Metadata, status: Json) -> None:
        """Replace the object's status; an object that is gone is no error."""
        ...

    async def write_finalizers(self, kind: str, metadata: Metadata, finalizers: Sequence[str]) -> None:
        """Replace the object's finalizers, if it has not changed since; else raise TransientError."""
        ...

    async def create_object(self, document: Json) -> bool:
        """Create an object; tell whether it was not there before. What Kubernetes refuses is a TransientError.

        Raises:
            NamespaceEnding: nothing can be created in its namespace any more.
        """
        ...

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        """Delete the object of that uid; one that is gone is no error."""
        ...

    async def post_event(self, kind: str, metadata: Metadata, event: Event) -> None:
        """Tell people; an event that cannot be posted is dropped."""
        ...


class LeaseStore(Protocol):
    """The one lease of an installation."""

    async def read(self) -> Lease | None:
        """Return the lease, None before the first one."""
        ...

    async def write(self, lease: Lease) -> Lease:
        """Write the lease in the place of the version that it was read as; return it with its new version.

        Raises:
            Conflict: somebody else wrote meanwhile.
        """
        ...


class AgentMemories(Protocol):
    """The objects as people's commands read and annotate them."""

    async def list_objects(self, kind: str) -> tuple[list[Json], str]:
        """Return every object of a kind, and the version to watch from."""
        ...

    async def annotate(self, kind: str, metadata: Metadata, annotations: Mapping[str, str | None]) -> None:
        """Set annotations, or take off where None; raise TransientError if the object was made anew since."""
        ...


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event.

    Attributes:
        type: Normal or Warning.
        reason: one CamelCase word.
    """

    type: str
    reason: str
    message: str
