"""Agents over a real engine, without the HTTP layer: their collection, their store, and the use cases."""

import contextlib
import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import aiohttp

from agentmemory_operator.adapters.embedders import CallerVectors
from agentmemory_operator.adapters.qdrant_points import QdrantPoints
from agentmemory_operator.domain.collection import KEYWORD_VECTOR, METADATA_KEY, EmbeddingSource, KeywordSource
from agentmemory_operator.domain.effective import AgentSettings, EmbeddingSettings, Ranking
from agentmemory_operator.domain.filters import Selection, visible
from agentmemory_operator.domain.presets import CORTEX, KEYWORD_INDEXES, RETRIEVAL_INDEXES
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.ports import Embedder, PointStore
from agentmemory_operator.services.access_counts import AccessCounts
from agentmemory_operator.services.chains import Chains
from agentmemory_operator.services.directory import Agent
from agentmemory_operator.services.drafts import Drafting, NewMemory
from agentmemory_operator.services.edits import Edits
from agentmemory_operator.services.erasing import Erasing
from agentmemory_operator.services.exports import Exports
from agentmemory_operator.services.forgetting import Forgetting
from agentmemory_operator.services.hierarchies import Hierarchies
from agentmemory_operator.services.histories import Histories
from agentmemory_operator.services.imports import Imports
from agentmemory_operator.services.items import Items
from agentmemory_operator.services.memories import ListRequest, Memories
from agentmemory_operator.services.recall import Recall, SearchRequest
from agentmemory_operator.services.remember import Remember
from agentmemory_operator.services.sessions import Sessions
from agentmemory_operator.services.statistics import Counting
from agentmemory_operator.services.stored import Stored
from agentmemory_operator.services.windows import Windows
from agentmemory_operator.services.working import WorkingMemory
from tests.support.clocks import FakeClock
from tests.support.fakes import FakeReranker

SIZE = 8
EVERYTHING = Ranking(
    weights=CORTEX.weights,
    utility_norm=CORTEX.utility_norm,
    limit=10,
    score_threshold=-10,
    min_similarity=-1,
    types=CORTEX.types,
)
"""The cortex ranking without thresholds."""


def vector_of(seed: object, size: int = SIZE) -> list[float]:
    """Return a vector that depends on the seed alone."""
    generator = random.Random(str(seed))
    return [generator.gauss(0, 1) for _ in range(size)]


_SELECTED = frozenset(part.name for part in fields(Selection))


def search_request(user_id: str = "u", **more: Any) -> SearchRequest:
    """Return a search; what of `more` belongs to the selection goes there."""
    return SearchRequest(**_selected(more | {"user_id": user_id}))


def list_request(user_id: str = "u", **more: Any) -> ListRequest:
    """Return a list; what of `more` belongs to the selection goes there."""
    return ListRequest(**_selected(more | {"user_id": user_id}))


def _selected(given: dict[str, Any]) -> dict[str, Any]:
    selection = Selection(**{name: value for name, value in given.items() if name in _SELECTED})
    return {"selection": selection} | {name: value for name, value in given.items() if name not in _SELECTED}


def settings_of(slug: str, *, ranking: Ranking = EVERYTHING, size: int = SIZE, generation: int = 1) -> AgentSettings:
    return AgentSettings(
        slug=slug,
        namespace="agents",
        name=slug,
        preset="cortex",
        generation=generation,
        connection="main",
        connection_namespace="agents",
        ranking=ranking,
        embedding=EmbeddingSettings(provider="none", model=None, dimensions=size),
    )


def agent_of(
    settings: AgentSettings, store: PointStore, *, distance: str = "Cosine", keyword: KeywordSource | None = None
) -> Agent:
    """Return an agent whose callers send vectors."""
    size = settings.embedding.dimensions
    return Agent(
        settings=settings,
        store=store,
        source=EmbeddingSource(provider="none", model=None, dimensions=size),
        embedder=CallerVectors(size),
        distance=distance,
        keyword=keyword,
    )


@dataclass(slots=True)
class World:
    """One agent and what can be done with it, at a time that tests decide."""

    agent: Agent
    clock: FakeClock = field(default_factory=FakeClock)
    reranker: FakeReranker = field(default_factory=FakeReranker)

    def __post_init__(self) -> None:
        self.chains, self.windows = Chains(self.clock), Windows(self.clock)
        self.remember = Remember(self.clock, self.chains, self.windows)
        self.memories = Memories(self.clock, self.chains, self.windows)
        self.edits = Edits(self.clock, self.memories)
        self.histories = Histories(self.clock, self.memories, self.chains)
        self.hierarchies = Hierarchies(self.clock, self.memories, self.histories)
        self.counts = self.new_counts("w0")
        drafting = Drafting(self.clock, self.windows)
        self.working = WorkingMemory(self.clock, drafting, self.chains, self.counts)
        self.sessions = Sessions(self.memories, self.working)
        self.counting = Counting(self.clock)
        self.recall = Recall(self.clock, self.counts, self.reranker)
        self.items = Items(self.clock, self.windows)
        self.erasing = Erasing(self.clock, self.chains, self.windows, self.counts.forget)
        self.forgetting = Forgetting(self.clock, self.erasing)
        self.exports = Exports(self.clock, self.chains)
        self.imports = Imports(self.clock, self.chains, self.windows)

    chains: Chains = field(init=False)
    windows: Windows = field(init=False)
    remember: Remember = field(init=False)
    memories: Memories = field(init=False)
    edits: Edits = field(init=False)
    histories: Histories = field(init=False)
    hierarchies: Hierarchies = field(init=False)
    counts: AccessCounts = field(init=False)
    working: WorkingMemory = field(init=False)
    sessions: Sessions = field(init=False)
    counting: Counting = field(init=False)
    recall: Recall = field(init=False)
    items: Items = field(init=False)
    erasing: Erasing = field(init=False)
    forgetting: Forgetting = field(init=False)
    exports: Exports = field(init=False)
    imports: Imports = field(init=False)

    def new_counts(self, writer: str) -> AccessCounts:
        """Return the access counts of another process."""

        async def open_agent(slug: str) -> Agent:
            return self.agent

        return AccessCounts(open_agent, self.clock, writer=writer)

    def rank_by(self, ranking: Ranking) -> None:
        """Change the object's ranking."""
        self.agent = replace(self.agent, settings=replace(self.agent.settings, ranking=ranking))

    def embed_by(self, embedder: Embedder) -> None:
        """Let the agent embed content itself."""
        source = EmbeddingSource(provider="fake", model=None, dimensions=embedder.dimensions)
        self.agent = replace(self.agent, embedder=embedder, source=source)

    async def add(self, content: str, *, user_id: str = "u", **more: Any) -> str:
        """Store one memory, its vector drawn from its content; return its id."""
        outcome = await self.try_add(content, user_id=user_id, **more)
        if isinstance(outcome, AgentMemoryError):
            raise outcome
        return outcome.id

    async def try_add(self, content: str, *, user_id: str = "u", **more: Any) -> Stored | AgentMemoryError:
        vector = more.pop("vector", vector_of(content))
        memory = NewMemory(user_id=user_id, content=content, vector=vector, **more)
        return (await self.remember.store(self.agent, [memory]))[0]

    async def heads(self, user_id: str = "u") -> list[str]:
        """Return the contents that answer, newest first."""
        return [record.content for record in await self.rows(user_id)]

    async def heads_at(self, time_ms: int, user_id: str = "u") -> list[str]:
        """Return the contents that were true at a time."""
        filter_ = visible(Selection(user_id=user_id, at_time=time_ms), self.clock.now_ms())
        points, _ = await self.agent.store.scroll(self.agent.alias, {"filter": filter_, "with_payload": True})
        return [point["payload"]["content"] for point in points]

    async def rows(self, user_id: str = "u", **more: Any) -> list[Any]:
        page = await self.memories.list(self.agent, list_request(user_id=user_id, limit=1000, **more))
        return list(page.records)


@contextlib.asynccontextmanager
async def open_world(
    url: str,
    *,
    ranking: Ranking = EVERYTHING,
    size: int = SIZE,
    distance: str = "Cosine",
    keyword: KeywordSource | None = None,
) -> AsyncIterator[World]:
    """Make a collection of a name of its own behind an alias, and remove it in the end."""
    settings = settings_of(f"t-{uuid.uuid4().hex[:12]}", ranking=ranking, size=size)
    async with QdrantPoints(url) as store:
        await create_collection(url, settings, distance=distance)
        if keyword:
            await add_keyword(url, settings)
        try:
            yield World(agent_of(settings, store, distance=distance, keyword=keyword))
        finally:
            await delete_collection(url, settings)


async def create_collection(url: str, settings: AgentSettings, *, distance: str = "Cosine") -> None:
    """Make the collection that the operator would make, as far as retrieval needs it."""
    physical, size = f"{settings.alias}__1", settings.embedding.dimensions
    marker = {"embedding": {"provider": "none", "model": None, "dimensions": size}}
    body = {"vectors": {"size": size, "distance": distance}, "metadata": {METADATA_KEY: marker}}
    await _call(url, "PUT", f"/collections/{physical}", body)
    for name, schema in RETRIEVAL_INDEXES:
        await _index(url, physical, name, schema)
    alias = {"create_alias": {"collection_name": physical, "alias_name": settings.alias}}
    await _call(url, "POST", "/collections/aliases", {"actions": [alias]})


async def create_copy(
    url: str, settings: AgentSettings, *, keyword: KeywordSource | None, number: int = 2, **vectors: Any
) -> str:
    """Make another collection of the agent, as a restore or a rebuild would; return its name.

    Args:
        vectors: of its dense ones, in the words of the engine; the others are as the agent has them.
    """
    physical, size = f"{settings.alias}__{number}", settings.embedding.dimensions
    shape = {"size": size, "distance": "Cosine"} | vectors
    marker = {"embedding": {"provider": "none", "model": None, "dimensions": shape["size"]}}
    body: dict[str, Any] = {"vectors": shape}
    if keyword:
        marker["keyword"] = asdict(keyword)
        body["sparse_vectors"] = {KEYWORD_VECTOR: {"modifier": "idf"}}
    await _call(url, "PUT", f"/collections/{physical}", body | {"metadata": {METADATA_KEY: marker}})
    for name, schema in (*RETRIEVAL_INDEXES, *(KEYWORD_INDEXES if keyword else ())):
        await _index(url, physical, name, schema)
    return physical


async def move_alias(url: str, settings: AgentSettings, physical: str) -> None:
    """Let the agent be served by another of its collections."""
    action = {"create_alias": {"collection_name": physical, "alias_name": settings.alias}}
    await _call(url, "POST", "/collections/aliases", {"actions": [action]})


async def add_keyword(url: str, settings: AgentSettings) -> None:
    """Give the collection what the operator gives it for keywords."""
    physical = f"{settings.alias}__1"
    await _call(url, "PUT", f"/collections/{physical}/vectors/{KEYWORD_VECTOR}", {"sparse": {"modifier": "idf"}})
    for name, schema in KEYWORD_INDEXES:
        await _index(url, physical, name, schema)


async def _index(url: str, physical: str, name: str, schema: str) -> None:
    await _call(url, "PUT", f"/collections/{physical}/index?wait=true", {"field_name": name, "field_schema": schema})


async def delete_collection(url: str, settings: AgentSettings, *, number: int = 1) -> None:
    await _call(url, "DELETE", f"/collections/{settings.alias}__{number}")


async def _call(url: str, method: str, path: str, body: Any = None) -> None:
    async with aiohttp.request(method, url + path, json=body) as answer:
        assert answer.status == 200, await answer.text()
