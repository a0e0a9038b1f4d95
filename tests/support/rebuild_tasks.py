"""Rebuilds under way over a real engine, as each step sees one."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentmemory_operator.adapters.qdrant_collections import QdrantCollections
from agentmemory_operator.adapters.qdrant_snapshots import QdrantSnapshots
from agentmemory_operator.domain.collection import Collection, EmbeddingSource, KeywordSource, Marker
from agentmemory_operator.domain.manifests import parse_agent_memory
from agentmemory_operator.domain.rebuilding import REBUILD_KEY, Record, Step, record_from_json, record_to_json
from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.ports import Embedder, Json, PointStore, Vector
from agentmemory_operator.services.links import Endpoint
from agentmemory_operator.services.rebuild_tasks import Task
from agentmemory_operator.services.servers import Server
from tests.support.agents import SIZE, World, create_copy, delete_collection, vector_of
from tests.support.fakes import memory_document, observed_of


class Embedding:
    """Draws a vector from a text, as the tests draw those of callers.

    Attributes:
        refused: what it refuses for good.
        texts: what it was asked for, call by call.
    """

    def __init__(self, *, size: int = SIZE, refused: str | None = None) -> None:
        self.dimensions = size
        self.refused = refused
        self.texts: list[str] = []
        self.calls = 0

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        self.calls += 1
        if self.refused in texts:
            raise RequestInvalid([FieldError("text", f"refused: {self.refused}")])
        self.texts += texts
        return [vector_of(text, self.dimensions) for text in texts]


def collection_of(*, size: int = SIZE, keyword: KeywordSource | None = None, provider: str = "none") -> Collection:
    """Return a collection of an agent, with its marker."""
    marker = Marker(
        cluster_id="c",
        namespace="agents",
        name="probe",
        uid="uid-probe",
        generation=1,
        config_hash="",
        preset_revision=1,
        embedding=EmbeddingSource(provider=provider, model=None, dimensions=size),
        keyword=keyword,
    )
    return Collection(size=size, distance="Cosine", has_keyword=keyword is not None, marker=marker)


@dataclass(slots=True)
class Rebuild:
    """A rebuild of a world's collection, from `__1` into `__2`.

    Attributes:
        told: what people were told, in order.
    """

    world: World
    url: str
    server: Server
    told: list[tuple[Record, str]] = field(default_factory=list)

    @property
    def source(self) -> str:
        return f"{self.world.agent.alias}__1"

    @property
    def target(self) -> str:
        return f"{self.world.agent.alias}__2"

    async def create(self, *, keyword: KeywordSource | None = None, **vectors: Any) -> None:
        """Make the target, with its record."""
        await create_copy(self.url, self.world.agent.settings, keyword=keyword, **vectors)
        now_ms = self.world.clock.now_ms()
        record = Record(source=self.source, target=self.target, digest="d", begun_ms=now_ms, since_ms=now_ms)
        await self.write(replace(record, step=Step.COPY))

    async def write(self, record: Record) -> None:
        await self.server.snapshots.write_metadata(self.target, {REBUILD_KEY: record_to_json(record)})

    async def record(self) -> Record:
        record = record_from_json(await self.server.snapshots.metadata(self.target))
        assert record
        return record

    async def task(
        self,
        *,
        embedder: Embedder | None = None,
        keyword: KeywordSource | None = None,
        points: PointStore | None = None,
        check: Callable[[], Awaitable[None]] | None = None,
        provider: str = "none",
        **spec: Any,
    ) -> Task:
        """Return what a run of the machine would give its steps.

        Args:
            points: in the place of the server's.
            provider: of the target's embedding.
            spec: of the object.
        """
        size = embedder.dimensions if embedder else SIZE
        return Task(
            memory=parse_agent_memory(memory_document(self.world.agent.settings.slug, **spec)),
            server=replace(self.server, points=points) if points else self.server,
            source=observed_of(collection_of(keyword=keyword), physical=self.source),
            desired=collection_of(size=size, keyword=keyword, provider=provider),
            record=await self.record(),
            clock=self.world.clock,
            embedder=embedder,
            check=check or _go_on,
            show=self._show,
        )

    async def points(self, physical: str) -> dict[str, Json]:
        """Return every point of a collection, whole."""
        body = {"limit": 10_000, "with_payload": True, "with_vector": True}
        points, _ = await self.server.points.scroll(physical, body)
        return {point["id"]: point for point in points}

    async def close(self) -> None:
        await delete_collection(self.url, self.world.agent.settings, number=2)
        await self.server.collections.close()
        await self.server.snapshots.close()

    async def _show(self, record: Record, message: str) -> None:
        self.told.append((record, message))


def open_rebuild(world: World, url: str) -> Rebuild:
    """Return a rebuild of a world's collection; nothing is made yet."""
    endpoint = Endpoint(url, None, 10)
    server = Server(endpoint, QdrantCollections(url), QdrantSnapshots(url), world.agent.store)
    return Rebuild(world, url, server)


async def _go_on() -> None:
    pass
