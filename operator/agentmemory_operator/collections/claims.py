"""Keeps the claims: which namespace a slug belongs to, whatever objects come and go.

A claim is written before its object's collection is made, and outlives the object: as long as a collection, a
placeholder or a snapshot of the slug is left, another namespace cannot have it, not even on a Qdrant of its own, where
it would receive what clients still write to the name.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from agentmemory_operator.collections.claim_survey import ClaimSurvey, name_of
from agentmemory_operator.collections.rules.claims import ClaimSet, SlugClaim, Witness, claims_from
from agentmemory_operator.collections.rules.desired import connection_named
from agentmemory_operator.collections.rules.takeovers import releases
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.errors import (
    Conflict,
    LeadershipLost,
    SpecInvalid,
    StoreUnavailable,
    TransientError,
)
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import ClaimStore
from agentmemory_operator.runtime.cache import (
    AGENT_MEMORY,
    MEMORY_SNAPSHOT,
    Key,
    ObjectTable,
    connection_key,
    owned_memory,
    slug_of,
)
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory

log = logging.getLogger(__name__)

T = TypeVar("T")

AHEAD = 64
"""Objects of its namespace that a pass takes along when it claims a slug: reading them holds up all others."""

MOST_MISSES = 6
"""Looks after which news is left to the look at all claims: its server may never answer."""

Changes = Mapping[str, SlugClaim | None]
"""Claims by slug; None is one that ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPeriods:
    """Seconds.

    Attributes:
        first_set_s: how long the first set waits for connections that are away. A connection that nobody can reach must
            not keep the claims from taking effect: what such a one holds is added when it comes back.
        survey_s: that one connection may take.
        look_s: until connections that were away are asked again.
        release_s: between two looks at claims whose object is gone.
        settle_s: from news of an object that is gone until that look.
    """

    first_set_s: float = 60.0
    survey_s: float = 120.0
    look_s: float = 5.0
    release_s: float = 300.0
    settle_s: float = 0.5


@dataclass(slots=True)
class Claims:
    """Keeps the claims of one installation; only the operator that leads runs it.

    Attributes:
        cluster_id: asks which cluster it is.
        request: asks for a pass over an object.
        publish: told of the claims after each change; the retrieval API of the same process.
    """

    store: ClaimStore
    table: ObjectTable
    connections: Connections
    cluster_id: Callable[[], Awaitable[str]]
    request: Callable[[Key], None]
    periods: ClaimPeriods = field(default_factory=ClaimPeriods)
    publish: Callable[[ClaimSet], None] = lambda claims: None
    _staged: dict[str, tuple[SlugClaim | None, SlugClaim | None]] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _gone: set[str] = field(default_factory=set)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _misses: int = 0
    _survey: ClaimSurvey = field(init=False)

    def __post_init__(self) -> None:
        self._survey = ClaimSurvey(self.table, self.connections, self.cluster_id, self.periods.survey_s)

    async def load(self) -> None:
        """Read what is stored, before the first pass; waits for as long as it cannot be read."""
        self._hold(await self._patiently(self.store.load, "cannot read claims"))

    async def run(self) -> None:
        """Make the first set, then end claims of which nothing is left, until cancelled."""
        while True:
            if not self.table.claims.is_complete:
                await self._patiently(self._complete, "cannot store claims")
            gone, self._gone = self._gone, set()
            try:
                await self._add_unread()
                unclear = gone & await self._release(gone)
            except LeadershipLost:
                raise
            except (TransientError, Conflict) as exc:
                log.info("cannot tell which claims have ended, retrying later: %s", exc)
                unclear = gone
            self._misses = (self._misses + 1) % MOST_MISSES if unclear else 0
            if self._misses:
                self._gone |= unclear
            await self._rest()

    def heard(self, gone: Json) -> None:
        """Hear of an object that is gone: what it claimed may be free."""
        if gone["kind"] == AGENT_MEMORY:
            self._gone.add(slug_of(gone))
        elif gone["kind"] == MEMORY_SNAPSHOT:
            self._gone.add(_held_by(gone)[1])
        if self._gone:
            self._news.set()

    async def take(self, memory: AgentMemory) -> None:
        """Record that a slug is its object's namespace's; the object has it, and nothing is made for it before.

        Raises:
            TransientError: it cannot be recorded now.
        """
        if not self.table.claims.is_complete:
            return
        known = self._claim_of(memory.slug)
        used = known.used_by(memory.metadata.uid, connection_named(memory)) if known else _claimed_by(memory)
        if known is None:
            self._stage_next(memory.metadata.namespace)
        if used != known:
            await self._save(memory.slug, known, used)

    def _stage_next(self, namespace: str) -> None:
        """Have the objects whose passes come next claimed in the same write: many that come together are few writes.

        Only what their own passes would claim, and only of the namespace whose pass this is: nobody waits for others'.
        """
        for key in islice(self.table.unclaimed_in(namespace), AHEAD):
            memory = owned_memory(self.table, key)
            if memory is not None and not memory.spec.suspend:
                self._staged.setdefault(memory.slug, (None, _claimed_by(memory)))

    async def serve_from(self, slug: str, epoch: int) -> None:
        """Record from which epoch on an agent is read and written; 0 is any.

        Raises:
            TransientError: it cannot be recorded now.
        """
        known = self._claim_of(slug)
        if known is None and not epoch:
            return
        if known is None or not self.table.claims.is_complete:
            raise StoreUnavailable(f"the namespace of agent {slug!r} is not recorded yet; retrying")
        if known.least_epoch != epoch:
            await self._save(slug, known, replace(known, least_epoch=epoch))

    def blocking(self, memory: AgentMemory) -> SlugClaim | None:
        """The claim that keeps a slug from an object's namespace, None where none does."""
        claim = self._claim_of(memory.slug) if self.table.claims.is_complete else None
        return claim if claim and claim.namespace != memory.metadata.namespace else None

    async def take_over(self, memory: AgentMemory) -> bool:
        """Give an object's namespace a slug that the owner of the last connection gives it; tell whether it was given.

        Nothing is taken from an object that exists.
        """
        claim = self.blocking(memory)
        if claim is None or not claim.connections or self.table.owner_of(memory.slug) is not None:
            return False
        connection = self.connections.find(connection_key(claim.connections[0]))
        namespace, granted = memory.metadata.namespace, connection.spec.takeovers if connection else None
        if not any(releases(grant, agent=memory.slug, uid=claim.uid, namespace=namespace) for grant in granted or ()):
            return False
        await self._save(memory.slug, claim, _claimed_by(memory, claim.connections))
        log.info("agent %s now belongs to namespace %s, as allowed by its connection", memory.slug, namespace)
        return True

    async def _save(self, slug: str, before: SlugClaim | None, after: SlugClaim | None) -> None:
        """Store a change, together with those of whoever waits for the same.

        Args:
            before: what the change was decided on; where it is another by now, nothing is stored.

        Raises:
            TransientError: it was not stored; it has to be decided once more.
        """
        self._staged[slug] = before, after
        async with self._lock:
            if self._claim_of(slug) != after:
                # What somebody else's attempt took along and could not write is here once more.
                staged, self._staged = {**self._staged, slug: (before, after)}, {}
                await self._write({name: new for name, (old, new) in staged.items() if self._claim_of(name) == old})
        if self._claim_of(slug) != after:
            raise TransientError(f"agent {slug!r} was claimed concurrently; retrying")

    def _claim_of(self, slug: str) -> SlugClaim | None:
        return self.table.claims.claims.get(slug)

    async def _write(self, changes: Changes, *, unread: frozenset[str] | None = None) -> None:
        before = self.table.claims
        claims = {slug: claim for slug, claim in {**before.claims, **changes}.items() if claim is not None}
        after = ClaimSet(claims=claims, is_complete=True, unread=before.unread if unread is None else unread)
        try:
            await self.store.save(after)
        except Conflict as exc:
            # Somebody else wrote there: that is what holds.
            self._hold(await self.store.load())
            raise TransientError(f"the claims were changed concurrently; retrying: {exc}") from exc
        self._hold(after)

    def _hold(self, claims: ClaimSet) -> None:
        self.table.claims = claims
        self.publish(claims)

    async def _complete(self) -> None:
        """Make the first set: of what collections say, then of the objects, the oldest first."""
        witnesses, unread = await self._survey.of_all(within_s=self.periods.first_set_s, look_s=self.periods.look_s)
        claims = claims_from(witnesses) | dict(self.table.claims.claims)
        for slug, memory in self._owners():
            if slug not in claims:
                claims[slug] = _claimed_by(memory)
        async with self._lock:
            await self._write(claims, unread=unread)
        log.info("%d agents have a claim; %d connections were unavailable", len(claims), len(unread))
        for key in self.table.keys(AGENT_MEMORY):
            self.request(key)

    def _owners(self) -> Iterator[tuple[str, AgentMemory]]:
        """Yield each slug with the oldest object that has it."""
        for key in self.table.keys(AGENT_MEMORY):
            document = self.table.get(key)
            if document is None or self.table.owner_of(slug_of(document)) != key:
                continue
            try:
                yield slug_of(document), self.table.parse(document)
            except SpecInvalid:
                # It has nothing; once it is valid, its pass takes the slug.
                continue

    async def _add_unread(self) -> None:
        """Add what connections hold that were away when the first set was made; what is claimed since stays."""
        unread = [connection_key(name) for name in sorted(self.table.claims.unread)]
        answers: dict[Key, list[Witness] | None] = {key: [] for key in unread if self.table.get(key) is None}
        answers |= await self._survey.of([key for key in unread if key not in answers])
        for key, found in answers.items():
            if found is None:
                continue
            name = name_of(key)
            claims = self.table.claims
            added = {slug: claim for slug, claim in claims_from(found).items() if slug not in claims.claims}
            async with self._lock:
                await self._write(added, unread=self.table.claims.unread - {name})

    async def _release(self, gone: set[str]) -> set[str]:
        """End the claims of which nothing is left: of those that there is news of, else of all.

        Returns:
            Slugs whose connections did not all answer.
        """
        asked = {slug: claim for slug, claim in self._without_object().items() if not gone or slug in gone}
        free, unclear = await self._survey.without_traces(asked)
        # An object may have come meanwhile.
        for slug in free & self._without_object().keys():
            await self._save(slug, self._claim_of(slug), None)
            log.info("agent name %s is free again: no data of it is left", slug)
            for key in self.table.claimants_of(slug):
                self.request(key)
        return unclear

    def _without_object(self) -> dict[str, SlugClaim]:
        """The claims that no object and no snapshot of their namespace holds.

        One that names no connection has been reserved by hand, and does not end.
        """
        snapshots = {_held_by(document) for document in self.table.documents(MEMORY_SNAPSHOT)}
        return {
            slug: claim
            for slug, claim in self.table.claims.claims.items()
            if claim.connections and (claim.namespace, slug) not in snapshots and self.table.owner_of(slug) is None
        }

    async def _rest(self) -> None:
        """Wait for the next look: news of an object that is gone bring it forward.

        After news of something that no server could be asked about, the next look is soon, then later and later.
        """
        period_s = self.periods.look_s if self.table.claims.unread else self.periods.release_s
        if self._misses:
            period_s = min(period_s, self.periods.look_s * 2**self._misses)
        try:
            async with asyncio.timeout(period_s):
                await self._news.wait()
            await asyncio.sleep(self.periods.settle_s)
        except TimeoutError:
            pass
        self._news.clear()

    async def _patiently(self, work: Callable[[], Awaitable[T]], trouble: str) -> T:
        while True:
            try:
                return await work()
            except LeadershipLost:
                raise
            except (TransientError, Conflict) as exc:
                log.warning("%s: %s; again in %.0f s", trouble, exc, self.periods.look_s)
                await asyncio.sleep(self.periods.look_s)


def _claimed_by(memory: AgentMemory, connections: tuple[str, ...] = ()) -> SlugClaim:
    """The claim of an object's namespace; `connections` are those that the slug used before."""
    metadata = memory.metadata
    claim = SlugClaim(namespace=metadata.namespace, uid=metadata.uid, connections=connections)
    return claim.used_by(metadata.uid, connection_named(memory))


def _held_by(snapshot: Json) -> tuple[str, str]:
    """Namespace and slug that a MemorySnapshot holds a claim for."""
    status = snapshot.get("status")
    agent = status.get("agent") if isinstance(status, dict) else None
    return str(snapshot["metadata"].get("namespace")), str(agent)
