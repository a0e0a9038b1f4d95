"""The live table of agents, fed by a source (a watch on objects or a folder of manifests).

The ranking comes from the object and takes effect immediately. The embedding comes from the collection's metadata. So
query vectors match the stored ones, even before a rebuild for another embedding in the object's spec is completed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from agentmemory_operator.agents.collection_facts import CollectionFacts, check_epoch, not_ready, read_facts
from agentmemory_operator.agents.count_cache import CountCache
from agentmemory_operator.agents.embedder_preloader import EmbedderFactory, EmbedderPreloader
from agentmemory_operator.agents.fence import DEFAULT_TIMING, Fence, FenceTiming
from agentmemory_operator.agents.fenced_store import FencedStore
from agentmemory_operator.collections.rules.claims import NO_CLAIMS, AgentClaim
from agentmemory_operator.collections.rules.collection import KeywordSource
from agentmemory_operator.collections.rules.epochs import Epoch
from agentmemory_operator.connections.link import DEFAULT_TIMEOUT_S
from agentmemory_operator.entities.rules.lists import EntityLists, build_lists
from agentmemory_operator.errors import NotFound
from agentmemory_operator.memories.rules.filters import equals_any
from agentmemory_operator.memories.rules.scrubbing import SecretRule
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.runtime.cluster_identity import ClusterId
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.effective.model_weights import weighted_for_model
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.spec.zones import Zone
from agentmemory_operator.zones.rules.sealing import ZONE_KEY
from agentmemory_operator.zones.sealed_store import EncryptingPointStore, ZoneKeys

# Seconds after which a collection without the keyword vectors that its object configures is read again.
REREAD_PERIOD_S = 1.0

NO_EPOCH = Epoch()

StoreFactory = Callable[[AgentSettings], Awaitable[PointStore]]
"""Returns the store of an agent's connection: the same object until the connection changes. The factory closes it."""

HasSealed = Callable[[], Awaitable[bool]]
ZoneKeysFactory = Callable[[AgentSettings, str, HasSealed], ZoneKeys | None]
"""Returns the keys of an agent's privacy zones, or None if this process may not read keys.

Arguments: its settings, its `Agent.id_slug`, and a function that reads whether it has sealed memories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """An agent as one request sees it.

    Attributes:
        source: Embedding of the stored vectors.
        distance: Distance of the collection: Cosine, Dot or Euclid.
        keyword: Source of the collection's keyword vectors. None if it has none, or if the object configures none.
        sizes: Cached numbers of memories by user and filter; writes invalidate or update them.
        capabilities: Names of the Qdrant server's capabilities.
        secret_rules: Rules that remove secrets before anything is stored. Empty if the object disables scrubbing.
        origin: Slug of the agent that the memories were first stored for. None if they were not cloned from another.
        physical: Name of the collection if the agent reads one directly; None if it reads through the alias.
        clock: Source of the times of writes.
        vectors: Names of all vectors of the collection, configured or not; the default vector is "".
        allows_exact: True if the collection's strict mode permits exact searches and counts.
        epoch: Number and contents of the last change of the alias's target; see `Epoch`.
        write_s: Maximum seconds from the start of an acknowledged write until its effect.
        entity_lists: Word lists for finding names in memories. None if the object has no entities.
        zone_keys: Keys of sealed memories, even if the object allows zones no longer. None if this process may not read
            keys.
    """

    settings: AgentSettings
    store: PointStore
    source: EmbeddingSource
    embedder: Embedder
    distance: str
    clock: Clock
    vectors: tuple[str, ...]
    keyword: KeywordSource | None = None
    sizes: CountCache = field(default_factory=CountCache)
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
    def id_slug(self) -> str:
        """Slug from which ids are derived, together with user and key.

        An agent with cloned memories uses the slug of their origin, from which their ids were derived.
        """
        return self.origin or self.settings.slug

    @property
    def alias(self) -> str:
        """Name by which the collection is addressed: the alias, or `physical` if set."""
        return self.physical or self.settings.alias

    @property
    def takes_vectors(self) -> bool:
        """True if callers send the vectors, because the agent has no embedder."""
        return self.source.provider == "none"


@dataclass(frozen=True, slots=True)
class _Opened:
    """An opened agent, the facts that it was opened with, and the fence with the facts of the latest read."""

    agent: Agent
    facts: CollectionFacts
    fence: Fence


@dataclass(slots=True)
class _Entry:
    """State of one slug.

    Attributes:
        upcoming: Embedder that is loaded ahead of a move.
        namespace: Namespace that owns the slug. None gives it to the oldest object of any namespace.
        claims: Objects with the slug, by uid; an object that became invalid has its last valid settings.
        winner: The object that has the slug. None if no object may have it.
        opened: The agent as last opened. None before the first use.
        is_stale: True if the collection must be read again before the next use.
        read_s: Monotonic time of the last read for opening.
    """

    slug: str
    upcoming: EmbedderPreloader
    namespace: str | None = None
    claims: dict[str, AgentClaim] = field(default_factory=dict)
    winner: AgentClaim | None = None
    opened: _Opened | None = None
    is_stale: bool = True
    read_s: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def opened_at(self, store: PointStore) -> _Opened | None:
        """Return the agent as last opened, or None if its collection must be read again.

        No event reports a changed collection or alias. So the agent is reused only while the facts of its fence are
        those that it was opened with. If configured keyword vectors are missing, it is reused for `REREAD_PERIOD_S`.
        """
        opened = self.opened
        if opened is None or self.is_stale or opened.agent.store is not store or opened.fence.facts != opened.facts:
            return None
        is_waiting = opened.agent.settings.has_keyword and opened.agent.keyword is None
        return None if is_waiting and time.monotonic() - self.read_s >= REREAD_PERIOD_S else opened

    @property
    def own(self) -> _Opened | None:
        """The agent as last opened. None if it was never opened, or for another object: its keys must not be reused."""
        opened = self.opened
        return opened if opened and opened.agent.settings.owner == self.settings.owner else None

    def belongs_to(self, namespace: str | None) -> bool:
        """Record the namespace that owns the slug, or None for any; return whether it has an object with the slug."""
        if namespace != self.namespace:
            self.namespace = namespace
            self.decide()
        return self.winner is not None

    def decide(self) -> None:
        """Give the slug to the oldest eligible object; its collection is read again at the next use."""
        claims = [claim for claim in self.claims.values() if self.namespace in (None, claim.settings.namespace)]
        self.winner = min(claims, key=lambda claim: claim.seniority, default=None)
        self.is_stale = True

    @property
    def settings(self) -> AgentSettings:
        """Settings of the object that has the slug.

        Raises:
            NotFound: If no object has it any more. The last may be deleted while a request waits.
        """
        if self.winner is None:
            raise agent_not_found(self.slug)
        return self.winner.settings


class AgentDirectory:
    """Agents by slug. Not thread-safe: all calls come from one event loop.

    Args:
        make_store: Returns the point store of an agent's connection.
        capabilities_of: Returns the capabilities of an agent's Qdrant server.
        secret_rules: Rules for agents that scrub secrets.
        times: Timing of the fences.
        timeout_of: Returns the timeout in seconds of a call to an agent's server.
        zone_keys_of: Returns the keys of an agent's zones, or None if this process may not read any.
        entity_lists: Default word lists for entities. None means empty lists.
        cluster_id: Returns the ID of the agents' cluster. Memories in collections of another cluster are not served.
        clock: Source of the times of writes.

    Attributes:
        claims: The namespace that owns each slug, and the minimum epoch from which it is served. Replaced as a whole.
    """

    def __init__(  # noqa: PLR0913 # the dependencies of an agent
        self,
        make_store: StoreFactory,
        make_embedder: EmbedderFactory,
        capabilities_of: Callable[[AgentSettings], frozenset[str]] = lambda _: frozenset(),
        secret_rules: Sequence[SecretRule] = (),
        times: FenceTiming = DEFAULT_TIMING,
        timeout_of: Callable[[AgentSettings], float] = lambda _: DEFAULT_TIMEOUT_S,
        zone_keys_of: ZoneKeysFactory = lambda *_: None,
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
        """Add or update an object; the collection's metadata is read again at the next use."""
        slug = claim.settings.slug
        entry = self._entries.setdefault(slug, _Entry(slug, EmbedderPreloader(self._make_embedder)))
        entry.claims[claim.uid] = claim
        entry.decide()

    def remove(self, slug: str, uid: str) -> None:
        """Remove an object; the oldest remaining eligible object has the slug then. An unknown uid is no error."""
        entry = self._entries.get(slug)
        if entry is None or entry.claims.pop(uid, None) is None:
            return
        entry.decide()
        if not entry.claims:
            del self._entries[slug]

    def find_settings(self, slug: str) -> AgentSettings:
        """Return the settings of the object that has the slug.

        Raises:
            NotFound: If no object has it.
        """
        return self._entry(slug).settings

    def list_settings(self) -> list[AgentSettings]:
        """Return the settings of every agent, sorted by slug. Slugs without an eligible object are left out."""
        entries = sorted(self._entries.items())
        return [entry.settings for slug, entry in entries if entry.belongs_to(self.claims.namespace_of(slug))]

    async def open(self, slug: str, *, renews_lease: bool = True) -> Agent:
        """Open an agent for one use, such as a request. A later use opens it again, and so detects a move in between.

        Args:
            renews_lease: True to renew the lease on the collection in the background if it is due.

        Raises:
            NotFound: If no object has the slug.
            TransientError: If the collection does not exist yet, has another owner, or is being restored. Also if the
                connection or the cluster ID is unavailable.
            StoreRejected: If Qdrant rejected the read of the collection.
            EmbedderUnavailable: If the embedder cannot be created now; retry.
            SpecInvalid: If the embedder cannot be created until the object or its Secret is changed.
        """
        entry = self._entry(slug)
        if self.claims.is_complete and entry.namespace is None:
            # Without a claim of the slug there is no collection to read yet: the operator records the claim first.
            raise not_ready(entry.settings)
        store = await self._make_store(entry.settings)
        async with entry.lock:
            opened = entry.opened_at(store)
            if opened is None or opened.facts.epoch_number < self.claims.min_epoch_of(slug):
                opened = await self._reopen(entry, store)
            capabilities = self._capabilities_of(entry.settings)
            if opened.agent.capabilities != capabilities:
                # Replace the capabilities, which an upgrade of the server changes without changing the collection.
                opened = entry.opened = replace(opened, agent=replace(opened.agent, capabilities=capabilities))
            if opened.fence.facts is not None and (source := opened.fence.facts.next_embedding):
                entry.upcoming.prepare(source, entry.settings)
            if renews_lease:
                opened.fence.renew_if_due()
            agent = opened.agent
            fenced = FencedStore(*(agent.store, opened.fence, opened.facts), clock=self._clock, write_s=agent.write_s)
            zone_keys = agent.zone_keys if agent.settings.zones else None
            return replace(agent, store=EncryptingPointStore(fenced, zone_keys) if zone_keys else fenced)

    async def _reopen(self, entry: _Entry, store: PointStore) -> _Opened:
        settings, previous = entry.settings, entry.own
        before = previous.agent if previous else None
        entry.is_stale, entry.read_s = False, time.monotonic()
        reusable = previous.fence if previous and previous.agent.store is store else None
        fence = reusable or Fence(settings.slug, partial(self._read, store, settings), self._times)
        try:
            facts = await fence.read()
            identity = facts.source, settings.embedding
            embedder = before.embedder if before and (before.source, before.settings.embedding) == identity else None
            embedder = embedder or await entry.upcoming.take(facts.source, settings)
            embedder = embedder or await self._make_embedder(facts.source, settings)
            agent = _agent_of(settings, store, facts, embedder, self._clock)
            agent = replace(
                agent,
                sizes=before.sizes if before else CountCache(),
                secret_rules=self._secret_rules if settings.scrubs_secrets else (),
                write_s=self._timeout_of(settings) + self._times.max_wait_s,
                entity_lists=build_lists(settings.entities, self._entity_lists) if settings.entities else None,
                zone_keys=self._zone_keys_of(settings, agent.id_slug, partial(_has_sealed, agent)),
            )
        except BaseException:
            entry.is_stale = True
            raise
        entry.opened = _Opened(agent, facts, fence)
        return entry.opened

    async def _read(self, store: PointStore, settings: AgentSettings) -> CollectionFacts:
        """Read the facts of a collection; raise AgentClosed if its epoch is lower than the claim's minimum."""
        facts = await read_facts(store, settings, self._cluster_id)
        # Use the claims after the read, because they may have changed during it.
        check_epoch(facts, settings.slug, self.claims.min_epoch_of(settings.slug))
        return facts

    def _entry(self, slug: str) -> _Entry:
        entry = self._entries.get(slug)
        if entry is None or not entry.belongs_to(self.claims.namespace_of(slug)):
            raise agent_not_found(slug)
        return entry


async def open_collection(
    store: PointStore,
    settings: AgentSettings,
    embedder: Embedder,
    clock: Clock,
    *,
    cluster_id: ClusterId,
    min_epoch: int = 0,
) -> Agent:
    """Open an agent without a directory and without a fence, as the operator does.

    Args:
        embedder: Embedder of queries and new memories, whatever embedding the collection's metadata names.
        min_epoch: Lowest epoch number of the collection that is accepted, from the slug's claim.

    Raises:
        TransientError: If the collection does not exist yet, has another owner or is closed, or Qdrant is unavailable.
        StoreRejected: If Qdrant rejected the read.
        SpecInvalid: If the egress policy forbids the host of Qdrant.
    """
    facts = await read_facts(store, settings, cluster_id)
    check_epoch(facts, settings.slug, min_epoch)
    return _agent_of(settings, store, facts, embedder, clock)


def _agent_of(
    settings: AgentSettings, store: PointStore, facts: CollectionFacts, embedder: Embedder, clock: Clock
) -> Agent:
    return Agent(
        settings=weighted_for_model(settings, facts.source.model),
        store=store,
        source=facts.source,
        embedder=embedder,
        clock=clock,
        distance=facts.distance,
        vectors=facts.vectors,
        keyword=facts.keyword if settings.has_keyword else None,
        origin=facts.origin,
        allows_exact=facts.allows_exact,
        epoch=Epoch(number=facts.epoch_number, contents=facts.contents_number),
    )


async def _has_sealed(agent: Agent) -> bool:
    """Return whether any memory is sealed with a key of the agent itself. Memories of a clone use its origin's keys."""
    if agent.origin is not None:
        return False
    query = {"filter": {"must": [equals_any(ZONE_KEY, list(Zone))]}, "limit": 1, "with_payload": False}
    points, _ = await agent.store.scroll(agent.alias, query)
    return bool(points)


def agent_not_found(slug: str) -> NotFound:
    """Return the error for an agent that does not exist or that the caller may not see: both get the same message."""
    if slug != slug.lower():
        return NotFound(f"there is no agent {slug!r}: their names have no capitals, as {slug.lower()!r}")
    return NotFound(
        f"there is no agent {slug!r}, or you may not see it: apply an AgentMemory with this slug, or name the caller in"
        " its spec.access.subjects; GET /v1/agents lists those that you may see"
    )
