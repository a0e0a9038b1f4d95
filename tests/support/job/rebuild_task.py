"""A rebuild of an agent's collection between two existing ones, step by step, on a real engine."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots
from agentmemory_operator.collections.rules.collection import METADATA_KEY, KeywordSource, Observation
from agentmemory_operator.collections.rules.rebuild_record import (
    REBUILD_KEY,
    RebuildKind,
    RebuildRecord,
    RebuildStep,
    record_from_json,
    record_to_json,
)
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.collections import observe_physical
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.agents import SIZE, World, create_copy, delete_collection
from tests.support.engine.reused_agents import reuse_world
from tests.support.spec.documents import memory_document

TIMEOUT_S = 10


@dataclass(slots=True)
class RebuildTask:
    """The agent and its rebuild task.

    Attributes:
        checks: Called by each check of the task. An exception ends the step.
    """

    world: World
    server: Server
    url: str
    embedder: Embedder | None = None
    spec: Json = field(default_factory=dict)
    checks: Callable[[], None] = lambda: None
    task: RebuildRun = field(init=False)

    @property
    def source(self) -> str:
        return f"{self.world.agent.alias}__1"

    @property
    def target(self) -> str:
        return f"{self.world.agent.alias}__2"

    async def begin(
        self, *, kind: RebuildKind = RebuildKind.REBUILD, source: int = 1, target: int = 2, **record: Any
    ) -> RebuildRun:
        """Start a rebuild, or continue a recorded one like a new operator."""
        names = [f"{self.world.agent.alias}__{number}" for number in (source, target)]
        live, desired = await self.observe(names[0]), await self.observe(names[1])
        now_ms = self.world.clock.now_ms()
        told = record_from_json(await self.metadata(names[1]))
        if told is None or record:
            begun = {"digest": "d", "started_ms": now_ms, "since_ms": now_ms, "step": RebuildStep.CATCH_UP} | record
            told = RebuildRecord(source=names[0], target=names[1], kind=kind, **begun)
            await self.server.snapshots.write_metadata(names[1], {REBUILD_KEY: record_to_json(told)})
        self.task = RebuildRun(
            memory=parse_agent_memory(self.document),
            server=self.server,
            source=live,
            desired=desired.collection,
            record=told,
            clock=self.world.clock,
            embedder=self.embedder,
            check=self.check,
            report_progress=self.show,
        )
        return self.task

    @property
    def document(self) -> Json:
        slug = self.world.agent.settings.slug
        return memory_document(slug, **{"embedding": {"provider": "none", "dimensions": SIZE}} | self.spec)

    async def observe(self, physical: str) -> Observation:
        found = await observe_physical(self.server.collections, physical)
        assert found is not None
        return found

    async def check(self) -> None:
        self.checks()

    async def show(self, record: RebuildRecord, message: str) -> None:
        """Do nothing."""

    async def metadata(self, physical: str) -> Json:
        return await self.server.snapshots.metadata(physical) or {}

    async def points(self, physical: str) -> dict[str, Json]:
        """Return the payloads of a collection by id."""
        body = {"limit": 1000, "with_payload": True, "with_vector": False}
        points, _ = await self.server.points.scroll(physical, body)
        return {point["id"]: point["payload"] for point in points}

    async def points_with_vectors(self, physical: str) -> dict[str, Json]:
        """Return the points of a collection by id, with payloads and vectors."""
        body = {"limit": 1000, "with_payload": True, "with_vector": True}
        points, _ = await self.server.points.scroll(physical, body)
        return {point["id"]: point for point in points}

    async def vectors(self, physical: str) -> dict[str, Any]:
        body = {"limit": 1000, "with_payload": False, "with_vector": True}
        points, _ = await self.server.points.scroll(physical, body)
        return {point["id"]: point["vector"] for point in points}

    async def alias(self) -> str:
        """Return the target of the agent's alias."""
        alias = self.world.agent.alias
        found = await self.server.collections.observe(alias, self.source)
        assert found is not None
        return found.physical

    def writing_to(self, physical: str) -> World:
        """Return the agent with a collection addressed by its own name, like a late writer."""
        return World(replace(self.world.agent, physical=physical), clock=self.world.clock)


@asynccontextmanager
async def open_rebuild(
    url: str,
    *,
    keyword: KeywordSource | None = None,
    other_keyword: KeywordSource | None = None,
    embedder: Embedder | None = None,
    timeout_s: int = TIMEOUT_S,
    **vectors: Any,
) -> AsyncIterator[RebuildTask]:
    """Create an agent, and an empty collection as the target of its rebuild.

    Args:
        vectors: Parameters of the target's dense vectors, in the engine's terms.
    """
    async with reuse_world(url, keyword=keyword) as world, QdrantPoints(url, timeout_s=timeout_s) as points:
        endpoint = Endpoint(url, None, timeout_s)
        server = Server(endpoint, QdrantCollections(url), QdrantSnapshots(url), points)
        await create_copy(url, world.agent.settings, keyword=other_keyword or keyword, **vectors)
        rebuild = RebuildTask(world, server, url, embedder)
        if keyword:
            # The operator records the source of the vectors in the marker.
            marker = (await rebuild.metadata(rebuild.source))[METADATA_KEY] | {"keyword": asdict(keyword)}
            await server.snapshots.write_metadata(rebuild.source, {METADATA_KEY: marker})
        try:
            yield rebuild
        finally:
            await server.close()
            await delete_collection(url, world.agent.settings, number=2)
