"""What services need of the outside, as Protocols. Adapters implement them; fakes of unit tests do too.

Every method is async, raises only `agentmemory_operator.errors`, and may be called again after any failure.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Json = dict[str, Any]
Vector = Sequence[float]


class PointStore(Protocol):
    """Points of one Qdrant server; the hot path of the retrieval API.

    `collection` is an alias or a physical name. Filters, queries and points are Qdrant's REST bodies. Reads raise
    StoreUnavailable when the server is away; writes raise it only when nothing was written, else OutcomeUnknown.
    StoreRejected carries the engine's 4xx. NotFound: there is no such collection.
    """

    async def describe(self, collection: str) -> Json:
        """Return `result` of `GET /collections/{collection}`."""
        ...

    async def query(self, collection: str, body: Json) -> list[Json]:
        """Return the scored points of `POST /points/query`, best first."""
        ...

    async def retrieve(self, collection: str, ids: Sequence[str]) -> list[Json]:
        """Return the existing points among `ids` with payload, without vector, in any order."""
        ...

    async def scroll(self, collection: str, body: Json) -> tuple[list[Json], Any]:
        """Return points of `POST /points/scroll` and the next page's offset, None at the end."""
        ...

    async def count(self, collection: str, filter_: Json | None, *, exact: bool = True) -> int:
        """Return how many points match."""
        ...

    async def upsert(
        self,
        collection: str,
        points: Sequence[Json],
        *,
        insert_only: bool = False,
        update_filter: Json | None = None,
        strong: bool = False,
    ) -> None:
        """Write points durably (`wait=true`).

        Args:
            insert_only: existing ids are left as they are (silently: read back).
            update_filter: replace only existing points that match, insert nothing (`update_only`; read back).
            strong: `ordering=strong`, which a compare-and-set needs on several replicas.
        """
        ...

    async def set_payload(self, collection: str, payload: Json, filter_: Json, *, strong: bool = False) -> None:
        """Merge `payload` into every point that matches, durably; atomic per point."""
        ...

    async def batch(self, collection: str, operations: Sequence[Json], *, wait: bool = True) -> None:
        """Run operations of `POST /points/batch` in order; not atomic."""
        ...

    async def delete(self, collection: str, filter_: Json) -> None:
        """Delete every point that matches, durably."""
        ...


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


class CollectionStore(Protocol):
    """Collections and aliases of one Qdrant server; control calls of the operator.

    Every method tolerates that it was done before. Raises as PointStore does.
    """

    async def version(self) -> str:
        """Return the server's version."""
        ...

    async def observe(self, alias: str) -> Mapping[str, Any]:
        """Return what lies behind an alias; refined by the implementation."""
        ...
