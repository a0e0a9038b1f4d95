"""Agents on a real engine, without the HTTP layer: collection, store, embedder, use cases."""

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import aiohttp

from agentmemory_operator.adapters.embedding.embedder_factory import CallerVectors
from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.agents.authorisation import AgentRights
from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.collections.rules.collection import (
    KEYWORD_VECTOR,
    METADATA_KEY,
    Collection,
    KeywordSource,
)
from agentmemory_operator.errors import (
    AgentMemoryError,
    EmbedderUnavailable,
    FieldError,
    NotFound,
    RequestInvalid,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.lifecycle.erase import Eraser
from agentmemory_operator.lifecycle.forget import ForgetUseCase
from agentmemory_operator.memories.access_counts import AccessCounts
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.insert import StoredMemory
from agentmemory_operator.memories.item_store import Items
from agentmemory_operator.memories.remember import Remember
from agentmemory_operator.memories.rules.filters import Selection, visible_filter
from agentmemory_operator.memories.stored_memories import ListRequest, delete_head, list_page
from agentmemory_operator.memories.working_memory import WorkingMemory
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.search.requests import SearchRequest
from agentmemory_operator.search.search import SearchService
from agentmemory_operator.spec.caller_rights import UNBOUNDED_CALLER, Verb, scopes_of
from agentmemory_operator.spec.effective.embedding import EmbeddingSettings, EmbeddingSource
from agentmemory_operator.spec.effective.settings import AgentSettings, Ranking
from agentmemory_operator.spec.presets import CORTEX, KEYWORD_INDEXES, RETRIEVAL_INDEXES
from agentmemory_operator.spec.presets.table import TERSE_INDEXES, Indexes
from tests.support.engine.fakes import FakeClock, FakeReranker
from tests.support.engine.interleaved_store import CrashingStore, Moment
from tests.support.spec.documents import marker_for
from tests.support.spec.plans import marker_of

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
_SELECTED = frozenset(part.name for part in fields(Selection))


def vector_of(seed: object, size: int = SIZE) -> list[float]:
    """Return a vector that depends only on the seed."""
    generator = random.Random(str(seed))
    return [generator.gauss(0, 1) for _ in range(size)]


def search_request(user_id: str = "u", **more: Any) -> SearchRequest:
    """Build a search. Fields of `Selection` in `more` go into the selection."""
    return SearchRequest(**_selected(more | {"user_id": user_id}))


def list_request(user_id: str = "u", **more: Any) -> ListRequest:
    """Build a list request. Fields of `Selection` in `more` go into the selection."""
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


def every_right(settings: AgentSettings) -> AgentRights:
    """Return the rights of a caller if authentication is off."""
    return AgentRights(UNBOUNDED_CALLER, settings, scopes_of(UNBOUNDED_CALLER, ()), frozenset(Verb))


def agent_of(
    settings: AgentSettings, store: PointStore, *, distance: str = "Cosine", keyword: KeywordSource | None = None
) -> Agent:
    """Build an agent to which callers send vectors."""
    size = settings.embedding.dimensions
    return Agent(
        settings=settings,
        store=store,
        source=EmbeddingSource(provider="none", model=None, dimensions=size),
        embedder=CallerVectors(size),
        distance=distance,
        clock=FakeClock(),
        vectors=("", KEYWORD_VECTOR) if keyword else ("",),
        keyword=keyword,
    )


@dataclass(slots=True)
class World:
    """One agent with its use cases, and a clock that tests control."""

    agent: Agent
    clock: FakeClock = field(default_factory=FakeClock)
    reranker: FakeReranker = field(default_factory=FakeReranker)

    def __post_init__(self) -> None:
        self.agent = replace(self.agent, clock=self.clock)
        self.remember = Remember()
        self.counts = self.new_counts("w0")
        self.working = WorkingMemory(self.counts)
        self.recall = SearchService(self.clock, self.counts, lambda _: self.reranker)
        self.items = Items(self.clock)
        self.erasing = Eraser(self.clock, self.counts.forget)
        self.forgetting = ForgetUseCase(self.clock, self.erasing)

    remember: Remember = field(init=False)
    counts: AccessCounts = field(init=False)
    working: WorkingMemory = field(init=False)
    recall: SearchService = field(init=False)
    items: Items = field(init=False)
    erasing: Eraser = field(init=False)
    forgetting: ForgetUseCase = field(init=False)

    def crash_at(self, at: int, moment: Moment = "before") -> "World":
        """Return the agent in another process, which dies at call `at` of the store."""
        store: Any = CrashingStore(self.agent.store, at, moment)
        return World(replace(self.agent, store=store), clock=self.clock)

    def new_counts(self, writer: str) -> AccessCounts:
        """Return the access counts of another process."""

        async def open_agent(slug: str) -> Agent:
            return self.agent

        return AccessCounts(open_agent, self.clock, writer=writer)

    def set_ranking(self, ranking: Ranking) -> None:
        """Change the ranking in the agent's settings."""
        self.agent = replace(self.agent, settings=replace(self.agent.settings, ranking=ranking))

    def set_embedder(self, embedder: Embedder) -> None:
        """Let the agent embed texts itself."""
        source = EmbeddingSource(provider="fake", model=None, dimensions=embedder.dimensions)
        self.agent = replace(self.agent, embedder=embedder, source=source)

    async def add(self, content: str, *, user_id: str = "u", **more: Any) -> str:
        """Store one memory with a vector derived from its content; return its id."""
        outcome = await self.try_add(content, user_id=user_id, **more)
        if isinstance(outcome, AgentMemoryError):
            raise outcome
        return outcome.id

    async def try_add(self, content: str, *, user_id: str = "u", **more: Any) -> StoredMemory | AgentMemoryError:
        vector = more.pop("vector", vector_of(content))
        memory = IncomingMemory(user_id=user_id, content=content, vector=vector, **more)
        return (await self.remember.store(self.agent, [memory]))[0]

    async def heads(self, user_id: str = "u") -> list[str]:
        """Return the contents of visible memories, newest first."""
        return [record.content for record in await self.rows(user_id)]

    async def heads_at(self, time_ms: int, user_id: str = "u") -> list[str]:
        """Return the contents that were valid at a time."""
        filter_ = visible_filter(Selection(user_id=user_id, at_time=time_ms), self.clock.now_ms())
        points, _ = await self.agent.store.scroll(self.agent.alias, {"filter": filter_, "with_payload": True})
        return [point["payload"]["content"] for point in points]

    async def rows(self, user_id: str = "u", **more: Any) -> list[Any]:
        page = await list_page(self.agent, list_request(user_id=user_id, limit=1000, **more))
        return list(page.records)


@contextlib.asynccontextmanager
async def concurrent_writers(world: World, user_id: str, *, writers: int) -> AsyncIterator[None]:
    """While the block runs, let writers store memories of a user's session, and delete random ones of the user."""
    done = asyncio.Event()

    async def write(seed: int) -> None:
        chance = random.Random(seed)
        for number in range(1000):
            if done.is_set():
                return
            world.clock.move(ms=1)
            await world.add(f"{seed} {number}", user_id=user_id, session_id="s")
            victim = chance.choice(await world.rows(user_id))
            with contextlib.suppress(NotFound, TransientError):
                await delete_head(world.agent, victim.id, user_id=user_id)

    async with asyncio.TaskGroup() as tasks:
        for seed in range(writers):
            tasks.create_task(write(seed))
        try:
            yield
        finally:
            done.set()


@contextlib.asynccontextmanager
async def open_world(
    url: str,
    *,
    ranking: Ranking = EVERYTHING,
    size: int = SIZE,
    distance: str = "Cosine",
    keyword: KeywordSource | None = None,
) -> AsyncIterator[World]:
    """Create a collection with a unique name behind an alias; delete it at the end. Fail if tombstones have vectors."""
    settings = settings_of(f"t-{uuid.uuid4().hex[:12]}", ranking=ranking, size=size)
    async with QdrantPoints(url) as store:
        await create_collection(url, settings, distance=distance)
        if keyword:
            await add_keyword(url, settings, keyword)
        try:
            yield World(agent_of(settings, store, distance=distance, keyword=keyword))
            # The test may have deleted the collection.
            with contextlib.suppress(StoreUnavailable):
                assert await tombstones_with_vectors(store, settings.alias) == [], "tombstones have vectors"
        finally:
            await delete_collection(url, settings)


async def set_strict_mode(world: World, **settings: int) -> None:
    """Change the strict mode of the collection, which other tests may share."""
    body = {"strict_mode_config": settings}
    async with aiohttp.ClientSession() as session:
        url = f"{world.agent.store._url}/collections/{world.agent.alias}"  # type: ignore[attr-defined]
        async with session.patch(url, json=body) as answer:
            assert answer.status == 200


async def outcome_of_crash(
    world: World, at: int, moment: Moment, action: Callable[[World], Awaitable[object]], *, calls: int
) -> object:
    """Run `action` in a process that dies at a call; return its result, or the error that ended it.

    Args:
        calls: Number of calls of the longest protocol plus one. It is checked when `at` is the last one.
    """
    doomed = world.crash_at(at, moment)
    store: Any = doomed.agent.store
    try:
        return await action(doomed)
    except TransientError as error:
        return error
    finally:
        assert at < calls - 1 or store.calls < calls, "a protocol has more calls: raise CALLS"


async def create_collection(url: str, settings: AgentSettings, *, distance: str = "Cosine") -> None:
    """Create the collection that the operator would create, as far as retrieval needs it."""
    physical, size = f"{settings.alias}__1", settings.embedding.dimensions
    marker = marker_for(settings.name, embedding={"provider": "none", "model": None, "dimensions": size})
    body = {"vectors": {"size": size, "distance": distance}, "metadata": {METADATA_KEY: marker}}
    await _call(url, "PUT", f"/collections/{physical}", body)
    await _index(url, physical, RETRIEVAL_INDEXES)
    await move_alias(url, settings, physical)


async def create_copy(
    url: str, settings: AgentSettings, *, keyword: KeywordSource | None, number: int = 2, **vectors: Any
) -> str:
    """Create another collection of the agent, like a restore or a rebuild; return its name.

    Args:
        vectors: Parameters of the dense vectors, in the engine's terms. The rest is as for the agent.
    """
    physical, size = f"{settings.alias}__{number}", settings.embedding.dimensions
    shape = {"size": size, "distance": "Cosine"} | vectors
    marker = marker_for(settings.name, embedding={"provider": "none", "model": None, "dimensions": shape["size"]})
    body: dict[str, Any] = {"vectors": shape}
    if keyword:
        marker["keyword"] = asdict(keyword)
        body["sparse_vectors"] = {KEYWORD_VECTOR: {"modifier": "idf"}}
    await _call(url, "PUT", f"/collections/{physical}", body | {"metadata": {METADATA_KEY: marker}})
    await _index(url, physical, (*RETRIEVAL_INDEXES, *_keyword_indexes(keyword)))
    return physical


async def tombstones_with_vectors(store: PointStore, collection: str) -> list[str]:
    """Return the ids of tombstones that have vectors."""
    has_vector = [{"has_vector": name} for name in ("", KEYWORD_VECTOR)]
    filter_ = {"must": [{"key": "deletedAt", "range": {"gte": 0}}], "should": has_vector}
    # Within the lowest page limit that tests set.
    body, found = {"filter": filter_, "limit": 7, "with_payload": False}, list[str]()
    while True:
        points, following = await store.scroll(collection, body)
        found += [point["id"] for point in points]
        if following is None:
            return found
        body = body | {"offset": following}


async def move_alias(url: str, settings: AgentSettings, physical: str) -> None:
    """Point the agent's alias to another of its collections."""
    action = {"create_alias": {"collection_name": physical, "alias_name": settings.alias}}
    await _call(url, "POST", "/collections/aliases", {"actions": [action]})


async def add_keyword(url: str, settings: AgentSettings, keyword: KeywordSource) -> None:
    """Add the vector and the indexes for keyword search to the collection."""
    physical = f"{settings.alias}__1"
    await _call(url, "PUT", f"/collections/{physical}/vectors/{KEYWORD_VECTOR}", {"sparse": {"modifier": "idf"}})
    await _index(url, physical, _keyword_indexes(keyword))


def _keyword_indexes(keyword: KeywordSource | None) -> Indexes:
    return (*KEYWORD_INDEXES, *TERSE_INDEXES) if keyword else ()


async def _index(url: str, physical: str, indexes: Indexes) -> None:
    path = f"{url}/collections/{physical}/index?wait=true"
    async with aiohttp.ClientSession() as session:
        for name, schema in indexes:
            async with session.put(path, json={"field_name": name, "field_schema": schema}) as answer:
                assert answer.status == 200, await answer.text()


async def delete_collection(url: str, settings: AgentSettings, *, number: int = 1) -> None:
    await _call(url, "DELETE", f"/collections/{settings.alias}__{number}")


async def _call(url: str, method: str, path: str, body: Any = None) -> None:
    async with aiohttp.request(method, url + path, json=body) as answer:
        assert answer.status == 200, await answer.text()


class FakeEmbedder:
    """Embedder that derives a vector from each text, as `vector_of` does for callers.

    Attributes:
        refused: Text that it rejects permanently; None for none.
        is_away: True to fail as unavailable.
        texts: All embedded texts, in order.
    """

    def __init__(self, *, size: int = SIZE, refused: str | None = None) -> None:
        self.dimensions = size
        self.refused = refused
        self.is_away = False
        self.texts: list[str] = []
        self.calls = 0

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        self.calls += 1
        if self.is_away:
            raise EmbedderUnavailable("away")
        if self.refused in texts:
            raise RequestInvalid([FieldError("text", f"refused: {self.refused}")])
        self.texts += texts
        return [vector_of(text, self.dimensions) for text in texts]


def collection_of(*, size: int = SIZE, keyword: KeywordSource | None = None, provider: str = "none") -> Collection:
    """Build the collection of an agent, with its marker."""
    marker = marker_of(dimensions=size, provider=provider, config_hash="", keyword=keyword)
    return Collection(size=size, distance="Cosine", has_keyword=keyword is not None, marker=marker)
