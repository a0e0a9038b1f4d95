"""The live table of agents, fed by a source (a watch on objects or a folder of manifests).

Ranking acts from the object at once. The embedding acts from the collection's metadata, so that an object whose Rebuild
is held never mixes two vector spaces.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from agentmemory_operator.domain.collection import (
    METADATA_KEY,
    EmbeddingSource,
    KeywordSource,
    embedding_from_json,
    keyword_from_json,
)
from agentmemory_operator.domain.effective import AgentSettings
from agentmemory_operator.domain.scrubbing import Rule
from agentmemory_operator.errors import NotFound
from agentmemory_operator.ports import Embedder, PointStore, Vector
from agentmemory_operator.services.collection_facts import Facts, closed, read_facts
from agentmemory_operator.services.fence import TIMES, Fence, FencedStore, Times
from agentmemory_operator.services.sizes import Sizes
from agentmemory_operator.services.upcoming import EmbedderFactory, Upcoming

# Seconds until a collection that lacks what its object asks for is read again.
LOOK_AGAIN_S = 1.0

StoreFactory = Callable[[AgentSettings], Awaitable[PointStore]]
"""Gives the store of an agent's connection, the same object until the connection changes; its maker closes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One object that claims a slug.

    Attributes:
        created: the object's creationTimestamp, RFC 3339 UTC.
        has_collection: decides between two objects of one second, as it does for the operator.
        is_closed: a snapshot is being restored into its collection.
    """

    uid: str
    created: str
    settings: AgentSettings
    has_collection: bool = False
    is_closed: bool = False

    @property
    def seniority(self) -> tuple[str, bool, str]:
        """The smallest wins the slug."""
        return self.created, not self.has_collection, self.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """An agent as one request sees it.

    Attributes:
        source: the embedding in force for the collection's vectors.
        distance: the collection's: Cosine, Dot or Euclid.
        keyword: what the collection's keyword vectors are made of; None where there are none, or none are wanted.
        sizes: how many memories its users have; writers make it forget.
        capabilities: what its server can do, by name.
        secret_rules: what is taken out of what is stored; none where its object wants nothing scrubbed.
        origin: the agent that the memories were first stored for, where they are a copy of another's.
        physical: a collection that is no alias's, by its own name.
    """

    settings: AgentSettings
    store: PointStore
    source: EmbeddingSource
    embedder: Embedder
    distance: str
    keyword: KeywordSource | None = None
    sizes: Sizes = field(default_factory=Sizes)
    capabilities: frozenset[str] = frozenset()
    secret_rules: Sequence[Rule] = ()
    origin: str | None = None
    physical: str | None = None

    @property
    def id_scope(self) -> str:
        """What ids are made of beside user and key: a copy's keys must lead to the memories that came with it."""
        return self.origin or self.settings.slug

    @property
    def alias(self) -> str:
        """What the collection is called by: its stable name, but for a copy."""
        return self.physical or self.settings.alias

    @property
    def takes_vectors(self) -> bool:
        """Tell whether callers send vectors, because nothing embeds for them."""
        return self.source.provider == "none"


@dataclass(frozen=True, slots=True)
class _Opened:
    """An agent as last opened.

    Attributes:
        facts: what its collection said then.
        fence: what its collection said last.
    """

    agent: Agent
    facts: Facts
    fence: Fence

    def for_one_use(self, *, reads_ahead: bool) -> Agent:
        if reads_ahead:
            self.fence.read_ahead()
        return replace(self.agent, store=FencedStore(self.agent.store, self.fence, self.facts.space))


@dataclass(slots=True)
class _Entry:
    """What is known of one slug: its claims by uid, the agent as last opened, what is prepared for a move."""

    upcoming: Upcoming
    claims: dict[str, Claim] = field(default_factory=dict)
    opened: _Opened | None = None
    is_stale: bool = True
    read_s: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def opened_at(self, store: PointStore) -> _Opened | None:
        """Return the agent as last opened, None where its collection has to be read again.

        The object may be known here before the operator has brought its collection in line, which is no event here;
        nor is the move of an alias.
        """
        opened = self.opened
        if opened is None or self.is_stale or opened.agent.store is not store or opened.fence.facts != opened.facts:
            return None
        is_waiting = opened.agent.settings.has_keyword and opened.agent.keyword is None
        return None if is_waiting and time.monotonic() - self.read_s >= LOOK_AGAIN_S else opened

    def fence_at(self, store: PointStore) -> Fence | None:
        """Return what is known of the collection on a server, if it is still the same object's."""
        if self.opened is None or self.opened.agent.store is not store:
            return None
        before, now = self.opened.agent.settings, self.settings
        return self.opened.fence if (before.namespace, before.name) == (now.namespace, now.name) else None

    @property
    def claim(self) -> Claim:
        return min(self.claims.values(), key=lambda claim: claim.seniority)

    @property
    def settings(self) -> AgentSettings:
        return self.claim.settings


class AgentDirectory:
    """Agents by slug. Not thread-safe: fed and asked on one event loop."""

    def __init__(
        self,
        make_store: StoreFactory,
        make_embedder: EmbedderFactory,
        capabilities_of: Callable[[AgentSettings], frozenset[str]] = lambda _: frozenset(),
        secret_rules: Sequence[Rule] = (),
        times: Times = TIMES,
    ) -> None:
        self._times = times
        self._make_store = make_store
        self._make_embedder = make_embedder
        self._capabilities_of = capabilities_of
        self._secret_rules = secret_rules
        self._entries: dict[str, _Entry] = {}

    def put(self, claim: Claim) -> None:
        """Take in an object as it now is; the collection's metadata is read again at the next use."""
        entry = self._entries.setdefault(claim.settings.slug, _Entry(Upcoming(self._make_embedder)))
        entry.claims[claim.uid] = claim
        entry.is_stale = True

    def remove(self, slug: str, uid: str) -> None:
        """Forget an object; the slug goes to the next oldest that claims it."""
        entry = self._entries.get(slug)
        if entry is None or entry.claims.pop(uid, None) is None:
            return
        entry.is_stale = True
        if not entry.claims:
            del self._entries[slug]

    def settings(self, slug: str) -> AgentSettings:
        """Return the settings of the oldest object that claims the slug.

        Raises:
            NotFound: no object does.
        """
        return self._entry(slug).settings

    def list(self) -> list[AgentSettings]:
        """Return every agent's settings, by slug."""
        return [self._entries[slug].settings for slug in sorted(self._entries)]

    async def open(self, slug: str, *, reads_ahead: bool = True) -> Agent:
        """Return the agent, ready to be read and written, for one use: what is opened again knows of a move between.

        Args:
            reads_ahead: what is known of its collection is renewed beside the use.

        Raises:
            NotFound: no object claims the slug.
            StoreUnavailable: its collection is not there yet, a snapshot is being restored into it, or Qdrant is away.
            EmbedderUnavailable: its embedder cannot be made for now.
            SpecInvalid: its embedder cannot be made for good.
        """
        entry = self._entry(slug)
        if entry.claim.is_closed:
            raise closed(slug)
        store = await self._make_store(entry.settings)
        async with entry.lock:
            opened = entry.opened_at(store) or await self._reopen(entry, store)
            capabilities = self._capabilities_of(entry.settings)
            if opened.agent.capabilities != capabilities:
                # A server that was upgraded is another one, the collection is the same.
                opened = entry.opened = replace(opened, agent=replace(opened.agent, capabilities=capabilities))
            if opened.fence.facts is not None and (source := opened.fence.facts.upcoming):
                entry.upcoming.prepare(source, entry.settings)
            return opened.for_one_use(reads_ahead=reads_ahead)

    async def _reopen(self, entry: _Entry, store: PointStore) -> _Opened:
        settings, before = entry.settings, entry.opened.agent if entry.opened else None
        entry.is_stale, entry.read_s = False, time.monotonic()
        fence = entry.fence_at(store) or Fence(settings.slug, partial(read_facts, store, settings), self._times)
        try:
            facts = await fence.read()
            agent = replace(
                _agent_of(settings, store, facts, await self._embedder(facts.source, entry, before)),
                sizes=before.sizes if before else Sizes(),
                secret_rules=self._secret_rules if settings.scrubs_secrets else (),
            )
        except BaseException:
            entry.is_stale = True
            raise
        entry.opened = _Opened(agent, facts, fence)
        return entry.opened

    async def _embedder(self, source: EmbeddingSource, entry: _Entry, before: Agent | None) -> Embedder:
        settings = entry.settings
        if before and (before.source, before.settings.embedding) == (source, settings.embedding):
            return before.embedder
        return await entry.upcoming.take(source, settings) or await self._make_embedder(source, settings)

    def _entry(self, slug: str) -> _Entry:
        entry = self._entries.get(slug)
        if entry is None:
            raise unknown_agent(slug)
        return entry


async def open_collection(store: PointStore, settings: AgentSettings, embedder: Embedder) -> Agent:
    """Return an agent of which only the collection is used, whatever embeds for it elsewhere.

    Raises:
        StoreUnavailable: its collection is not there yet, or Qdrant is away.
    """
    return _agent_of(settings, store, await read_facts(store, settings), embedder)


async def open_copy(store: PointStore, settings: AgentSettings, physical: str) -> Agent:
    """Return an agent over one collection by its own name, whoever's it is; nothing can be embedded.

    Raises:
        NotFound: there is no such collection.
    """
    config = (await store.describe(physical))["config"]
    marker = (config.get("metadata") or {}).get(METADATA_KEY) or {}
    source = embedding_from_json(marker.get("embedding") or {})
    strict = config.get("strict_mode_config") or {}
    most = strict.get("max_query_limit") if strict.get("enabled") else None
    ranking = replace(settings.ranking, max_query_limit=most)
    return Agent(
        settings=replace(settings, ranking=ranking),
        physical=physical,
        store=store,
        source=source,
        embedder=_NoEmbedder(source.dimensions),
        distance=config["params"]["vectors"]["distance"],
        keyword=keyword_from_json(marker.get("keyword")),
    )


def _agent_of(settings: AgentSettings, store: PointStore, facts: Facts, embedder: Embedder) -> Agent:
    return Agent(
        settings=settings,
        store=store,
        source=facts.source,
        embedder=embedder,
        distance=facts.distance,
        keyword=facts.keyword if settings.has_keyword else None,
        origin=facts.origin,
    )


@dataclass(frozen=True, slots=True)
class _NoEmbedder:
    dimensions: int

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        raise AssertionError("a copy is not written to by people")


def unknown_agent(slug: str) -> NotFound:
    """Return the error for an agent that is not there, and for one that the caller may not see."""
    return NotFound(
        f"there is no agent {slug!r}, or you may not see it: apply an AgentMemory with this slug, or name the caller in"
        " its spec.access.subjects"
    )
