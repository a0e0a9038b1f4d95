"""The live table of agents, fed by a source (a watch on objects or a folder of manifests).

Ranking acts from the object at once. The embedding acts from the collection's metadata, so that an object whose Rebuild
is held never mixes two vector spaces.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from agentmemory_operator.agents.collection_facts import Facts, check_epoch, not_ready, read_facts
from agentmemory_operator.agents.fence import TIMES, Fence, Times
from agentmemory_operator.agents.fenced_store import FencedStore
from agentmemory_operator.agents.next_embedder import EmbedderFactory, Upcoming
from agentmemory_operator.agents.sizes import Sizes
from agentmemory_operator.collections.rules.claims import NO_CLAIMS, AgentClaim
from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.collections.rules.epochs import Epoch
from agentmemory_operator.connections.link import DEFAULT_TIMEOUT_S
from agentmemory_operator.entities.rules.lists import EntityLists, lists_of
from agentmemory_operator.errors import NotFound
from agentmemory_operator.memories.rules.filters import equals_any
from agentmemory_operator.memories.rules.scrubbing import SecretRule
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.runtime.cluster_identity import ClusterId
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.spec.zones import Zone
from agentmemory_operator.zones.rules.sealing import ZONE_KEY
from agentmemory_operator.zones.sealed_store import SealedStore, ZoneKeys

# Seconds until a collection that lacks what its object asks for is read again.
LOOK_AGAIN_S = 1.0

NO_EPOCH = Epoch()

StoreFactory = Callable[[AgentSettings], Awaitable[PointStore]]
"""Gives the store of an agent's connection, the same object until the connection changes; its maker closes it."""

HasSealed = Callable[[], Awaitable[bool]]
ZoneKeysOf = Callable[[AgentSettings, str, HasSealed], ZoneKeys | None]
"""Gives the keys of an agent's zones, by its settings, what its ids are made with, and whether anything is sealed."""


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
        clock: the time of what is written.
        vectors: the names of all vectors of the collection, wanted or not; the nameless one's is empty.
        allows_exact: the collection's strict mode lets searches and counts be exact.
        epoch: of what the alias leads to.
        write_s: how long after its beginning a write may still take effect and be acknowledged.
        entity_lists: what memories are searched for names by; None where its object has no entities.
        zone_keys: of what is sealed; None where its object allows no zones, or nobody here may read keys.
    """

    settings: AgentSettings
    store: PointStore
    source: EmbeddingSource
    embedder: Embedder
    distance: str
    clock: Clock
    vectors: tuple[str, ...]
    keyword: KeywordSource | None = None
    sizes: Sizes = field(default_factory=Sizes)
    capabilities: frozenset[str] = frozenset()
    secret_rules: Sequence[SecretRule] = ()
    origin: str | None = None
    physical: str | None = None
    allows_exact: bool = True
    epoch: Epoch = NO_EPOCH
    write_s: float = 0.0
    entity_lists: EntityLists | None = None
    zone_keys: ZoneKeys | None = None

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
        """Whether callers send vectors, because nothing embeds for them."""
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


@dataclass(slots=True)
class _Entry:
    """What is known of one slug: its claims by uid, the agent as last opened, what is prepared for a move.

    Attributes:
        namespace: the one that the slug belongs to; None lets the oldest object have it.
        winner: the claim of the object that has it; None where no object may.
    """

    slug: str
    upcoming: Upcoming
    namespace: str | None = None
    claims: dict[str, AgentClaim] = field(default_factory=dict)
    winner: AgentClaim | None = None
    opened: _Opened | None = None
    is_stale: bool = True
    read_s: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def opened_at(self, store: PointStore) -> _Opened | None:
        """The agent as last opened, None where its collection has to be read again.

        The object may be known here before the operator has brought its collection in line, which is no event here;
        nor is the move of an alias.
        """
        opened = self.opened
        if opened is None or self.is_stale or opened.agent.store is not store or opened.fence.facts != opened.facts:
            return None
        is_waiting = opened.agent.settings.has_keyword and opened.agent.keyword is None
        return None if is_waiting and time.monotonic() - self.read_s >= LOOK_AGAIN_S else opened

    @property
    def own(self) -> _Opened | None:
        """The agent as last opened, None where that was another object's: whose keys and memories those are."""
        opened = self.opened
        return opened if opened and opened.agent.settings.owner == self.settings.owner else None

    def belongs_to(self, namespace: str | None) -> bool:
        """Note which namespace has the slug; tell whether an object of it is there."""
        if namespace != self.namespace:
            self.namespace = namespace
            self.decide()
        return self.winner is not None

    def decide(self) -> None:
        """Give the slug to the oldest object that may have it; its collection is read again at the next use."""
        claims = [claim for claim in self.claims.values() if self.namespace in (None, claim.settings.namespace)]
        self.winner = min(claims, key=lambda claim: claim.seniority, default=None)
        self.is_stale = True

    @property
    def settings(self) -> AgentSettings:
        """Of the object that has the slug.

        Raises:
            NotFound: there is none any more; the last may go while a request waits.
        """
        if self.winner is None:
            raise unknown_agent(self.slug)
        return self.winner.settings


class AgentDirectory:
    """Agents by slug. Not thread-safe: fed and asked on one event loop.

    Args:
        cluster_id: tells which cluster the agents are of; no collection of another's is read or written.
        timeout_of: seconds until a call to an agent's server is given up.
        zone_keys_of: the keys of an agent's zones; none where nobody here may read any.
        entity_lists: those of the product; None are empty ones.

    Attributes:
        claims: which namespace a slug belongs to, and from which epoch on it is served; replaced as a whole.
    """

    def __init__(  # noqa: PLR0913 # what an agent is made of
        self,
        make_store: StoreFactory,
        make_embedder: EmbedderFactory,
        capabilities_of: Callable[[AgentSettings], frozenset[str]] = lambda _: frozenset(),
        secret_rules: Sequence[SecretRule] = (),
        times: Times = TIMES,
        timeout_of: Callable[[AgentSettings], float] = lambda _: DEFAULT_TIMEOUT_S,
        zone_keys_of: ZoneKeysOf = lambda *_: None,
        *,
        entity_lists: EntityLists | None = None,
        cluster_id: ClusterId,
        clock: Clock,
    ) -> None:
        self._times = times
        self._clock = clock
        self._cluster_id = cluster_id
        self._make_store = make_store
        self._make_embedder = make_embedder
        self._capabilities_of = capabilities_of
        self._secret_rules = secret_rules
        self._timeout_of = timeout_of
        self._zone_keys_of = zone_keys_of
        self._entity_lists = entity_lists or EntityLists()
        self._entries: dict[str, _Entry] = {}
        self.claims = NO_CLAIMS

    def put(self, claim: AgentClaim) -> None:
        """Take in an object as it now is; the collection's metadata is read again at the next use."""
        slug = claim.settings.slug
        entry = self._entries.setdefault(slug, _Entry(slug, Upcoming(self._make_embedder)))
        entry.claims[claim.uid] = claim
        entry.decide()

    def remove(self, slug: str, uid: str) -> None:
        """Forget an object; the slug goes to the next oldest that claims it."""
        entry = self._entries.get(slug)
        if entry is None or entry.claims.pop(uid, None) is None:
            return
        entry.decide()
        if not entry.claims:
            del self._entries[slug]

    def settings(self, slug: str) -> AgentSettings:
        """The settings of the oldest object that claims the slug.

        Raises:
            NotFound: no object does.
        """
        return self._entry(slug).settings

    def list(self) -> list[AgentSettings]:
        """Every agent's settings, by slug."""
        entries = sorted(self._entries.items())
        return [entry.settings for slug, entry in entries if entry.belongs_to(self.claims.namespace_of(slug))]

    async def open(self, slug: str, *, reads_ahead: bool = True) -> Agent:
        """The agent, ready to be read and written, for one use: what is opened again knows of a move between.

        Args:
            reads_ahead: what is known of its collection is renewed beside the use.

        Raises:
            NotFound: no object claims the slug.
            StoreUnavailable: its collection is not there yet, a snapshot is being restored into it, or Qdrant is away.
            EmbedderUnavailable: its embedder cannot be made for now.
            SpecInvalid: its embedder cannot be made for good.
        """
        entry = self._entry(slug)
        if self.claims.is_complete and entry.namespace is None:
            # Whose it is, the operator decides before it makes the collection.
            raise not_ready(entry.settings)
        store = await self._make_store(entry.settings)
        async with entry.lock:
            opened = entry.opened_at(store)
            if opened is None or opened.facts.number < self.claims.least_epoch(slug):
                opened = await self._reopen(entry, store)
            capabilities = self._capabilities_of(entry.settings)
            if opened.agent.capabilities != capabilities:
                # A server that was upgraded is another one, the collection is the same.
                opened = entry.opened = replace(opened, agent=replace(opened.agent, capabilities=capabilities))
            if opened.fence.facts is not None and (source := opened.fence.facts.upcoming):
                entry.upcoming.prepare(source, entry.settings)
            if reads_ahead:
                opened.fence.read_ahead()
            agent = opened.agent
            fenced = FencedStore(*(agent.store, opened.fence, opened.facts), clock=self._clock, write_s=agent.write_s)
            zone_keys = agent.zone_keys if agent.settings.zones else None
            return replace(agent, store=SealedStore(fenced, zone_keys) if zone_keys else fenced)

    async def _reopen(self, entry: _Entry, store: PointStore) -> _Opened:
        settings, own = entry.settings, entry.own
        before = own.agent if own else None
        entry.is_stale, entry.read_s = False, time.monotonic()
        known = own.fence if own and own.agent.store is store else None
        fence = known or Fence(settings.slug, partial(self._read, store, settings), self._times)
        try:
            facts = await fence.read()
            asked = facts.source, settings.embedding
            embedder = before.embedder if before and (before.source, before.settings.embedding) == asked else None
            embedder = embedder or await entry.upcoming.take(facts.source, settings)
            embedder = embedder or await self._make_embedder(facts.source, settings)
            agent = _agent_of(settings, store, facts, embedder, self._clock)
            agent = replace(
                agent,
                sizes=before.sizes if before else Sizes(),
                secret_rules=self._secret_rules if settings.scrubs_secrets else (),
                write_s=self._timeout_of(settings) + self._times.most_wait_s,
                entity_lists=lists_of(settings.entities, self._entity_lists) if settings.entities else None,
                zone_keys=self._zone_keys_of(settings, agent.id_scope, partial(_has_sealed, agent)),
            )
        except BaseException:
            entry.is_stale = True
            raise
        entry.opened = _Opened(agent, facts, fence)
        return entry.opened

    async def _read(self, store: PointStore, settings: AgentSettings) -> Facts:
        """What a collection says, unless the claim of its slug says that it is of the past."""
        facts = await read_facts(store, settings, self._cluster_id)
        # The claims as they are now: news of them may have come since the call.
        check_epoch(facts, settings.slug, self.claims.least_epoch(settings.slug))
        return facts

    def _entry(self, slug: str) -> _Entry:
        entry = self._entries.get(slug)
        if entry is None or not entry.belongs_to(self.claims.namespace_of(slug)):
            raise unknown_agent(slug)
        return entry


async def open_collection(
    store: PointStore,
    settings: AgentSettings,
    embedder: Embedder,
    clock: Clock,
    *,
    cluster_id: ClusterId,
    least_epoch: int = 0,
) -> Agent:
    """An agent of which only the collection is used, whatever embeds for it elsewhere.

    Args:
        least_epoch: number of the epoch from which on it is read and written, as the claim of its slug says.

    Raises:
        StoreUnavailable: its collection is not there yet, is another owner's, closed, or Qdrant is away.
    """
    facts = await read_facts(store, settings, cluster_id)
    check_epoch(facts, settings.slug, least_epoch)
    return _agent_of(settings, store, facts, embedder, clock)


def _agent_of(settings: AgentSettings, store: PointStore, facts: Facts, embedder: Embedder, clock: Clock) -> Agent:
    return Agent(
        settings=settings,
        store=store,
        source=facts.source,
        embedder=embedder,
        clock=clock,
        distance=facts.distance,
        vectors=facts.vectors,
        keyword=facts.keyword if settings.has_keyword else None,
        origin=facts.origin,
        allows_exact=facts.allows_exact,
        epoch=Epoch(number=facts.number, contents=facts.contents),
    )


async def _has_sealed(agent: Agent) -> bool:
    """Whether any memory is sealed with a key of the agent's own, as those that came with a copy are not."""
    if agent.origin is not None:
        return False
    asked = {"filter": {"must": [equals_any(ZONE_KEY, list(Zone))]}, "limit": 1, "with_payload": False}
    points, _ = await agent.store.scroll(agent.alias, asked)
    return bool(points)


def unknown_agent(slug: str) -> NotFound:
    """The error for an agent that is not there, and for one that the caller may not see."""
    if slug != slug.lower():
        return NotFound(f"there is no agent {slug!r}: their names have no capitals, as {slug.lower()!r}")
    return NotFound(
        f"there is no agent {slug!r}, or you may not see it: apply an AgentMemory with this slug, or name the caller in"
        " its spec.access.subjects; GET /v1/agents lists those that you may see"
    )
