"""Ownership of slugs by namespaces, recorded in claims, even after the object with the slug is deleted.

A claim is written before the collection of its object is created, and outlives the object. While a collection,
placeholder or snapshot of the slug remains, another namespace can claim the slug only by a permitted transfer. That
holds even for a Qdrant server of its own: clients that still use the slug would send their writes to that namespace.

The first set of claims is built from the markers of all collections, then from the objects. After that, a pass claims
the slug of its object (`claim`), and a background loop releases claims without remaining data.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from agentmemory_operator.collections.claim_survey import ClaimSurvey, claim_name
from agentmemory_operator.collections.rules.claims import ClaimEvidence, ClaimSet, SlugClaim, derive_claims
from agentmemory_operator.collections.rules.desired import connection_name
from agentmemory_operator.collections.rules.takeovers import grants
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.errors import Conflict, LeadershipLost, SpecInvalid, StoreUnavailable, TransientError
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.kubernetes import ClaimStore
from agentmemory_operator.runtime.object_table import (
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

MAX_CLAIMS_AHEAD = 64
"""Maximum number of unclaimed objects of the same namespace whose slugs are claimed together with a new claim: parsing
more of them would block the event loop too long."""

MAX_MISSES = 6
"""Consecutive failed checks after which the claims of deleted objects are left to the periodic check of all claims,
because a server may never respond."""

ClaimChanges = Mapping[str, SlugClaim | None]
"""New claims by slug; None removes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPeriods:
    """Durations of the background loop, in seconds.

    Attributes:
        first_set_timeout_s: Time after which no connection is surveyed again for the first set. So a connection that
            does not respond does not keep claims from taking effect. Its claims are added when it responds.
        survey_timeout_s: Timeout of reading one connection's server.
        retry_period_s: Pause before unavailable connections are surveyed again.
        check_period_s: Period of the checks of all claims without an object.
        deletion_delay_s: Delay between the deletion of an object and the check of its slug.
    """

    first_set_timeout_s: float = 60.0
    survey_timeout_s: float = 120.0
    retry_period_s: float = 5.0
    check_period_s: float = 300.0
    deletion_delay_s: float = 0.5


@dataclass(slots=True)
class ClaimRegistry:
    """Claims of one installation. Only the leading operator changes them.

    Attributes:
        cluster_id: Returns the ID of the cluster.
        request: Requests a pass over an object.
        publish: Called with all claims after each change, for the retrieval API in the same process.
    """

    store: ClaimStore
    table: ObjectTable
    connections: Connections
    cluster_id: Callable[[], Awaitable[str]]
    request: Callable[[Key], None]
    periods: ClaimPeriods = field(default_factory=ClaimPeriods)
    publish: Callable[[ClaimSet], None] = lambda claims: None
    _staged_changes: dict[str, tuple[SlugClaim | None, SlugClaim | None]] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _deleted_slugs: set[str] = field(default_factory=set)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _misses: int = 0
    _survey: ClaimSurvey = field(init=False)

    def __post_init__(self) -> None:
        self._survey = ClaimSurvey(self.table, self.connections, self.cluster_id, self.periods.survey_timeout_s)

    async def load(self) -> None:
        """Read the stored claims, before the first pass. Retry until they can be read."""
        self._publish(await self._retry(self.store.load, "cannot read claims"))

    async def run(self) -> None:
        """Build the first set if needed, then release claims without remaining data, until cancelled.

        Raises:
            LeadershipLost: If this process may no longer write.
        """
        while True:
            if not self.table.claims.is_complete:
                await self._retry(self._complete, "cannot store claims")
            deleted, self._deleted_slugs = self._deleted_slugs, set()
            try:
                await self._add_unread()
                unclear = deleted & await self._release(deleted)
            except LeadershipLost:
                raise
            except (TransientError, Conflict) as exc:
                log.info("cannot tell which claims have ended, retrying later: %s", exc)
                unclear = deleted
            self._misses = (self._misses + 1) % MAX_MISSES if unclear else 0
            if self._misses:
                self._deleted_slugs |= unclear
            await self._rest()

    def note_deletion(self, deleted: Json) -> None:
        """Schedule a check of the slug that a deleted AgentMemory or MemorySnapshot used. Ignore other kinds."""
        if deleted["kind"] == AGENT_MEMORY:
            self._deleted_slugs.add(slug_of(deleted))
        elif deleted["kind"] == MEMORY_SNAPSHOT:
            self._deleted_slugs.add(_held_by(deleted)[1])
        if self._deleted_slugs:
            self._news.set()

    async def claim(self, memory: AgentMemory) -> None:
        """Claim the slug of an object for its namespace, and return after the claim is stored.

        The caller must have checked that no other namespace has claimed the slug. It creates the collection afterwards.
        Does nothing until the first set is built, which claims the slugs of all objects.

        Raises:
            TransientError: If the claim cannot be stored now.
        """
        if not self.table.claims.is_complete:
            return
        existing = self._claim_of(memory.slug)
        updated = existing.used_by(memory.metadata.uid, connection_name(memory)) if existing else _claimed_by(memory)
        if existing is None:
            self._stage_next(memory.metadata.namespace)
        if updated != existing:
            await self._save(memory.slug, existing, updated)

    def _stage_next(self, namespace: str) -> None:
        """Claim the slugs of the namespace's next objects in the same write, so that many new objects cause few writes.

        These are the claims that their own passes would make. Other namespaces' objects are left out: no pass waits for
        them.
        """
        for key in islice(self.table.iter_unclaimed_owners(namespace), MAX_CLAIMS_AHEAD):
            memory = owned_memory(self.table, key)
            if memory is not None and not memory.spec.suspend:
                self._staged_changes.setdefault(memory.slug, (None, _claimed_by(memory)))

    async def set_min_epoch(self, slug: str, epoch: int) -> None:
        """Store the lowest epoch number with which an agent is read and written; 0 accepts any.

        For a slug without a claim, 0 does nothing.

        Raises:
            TransientError: If the number cannot be stored now, the slug has no claim yet, or the first set of claims is
                not built yet.
        """
        existing = self._claim_of(slug)
        if existing is None and not epoch:
            return
        if existing is None or not self.table.claims.is_complete:
            raise StoreUnavailable(f"the namespace of agent {slug!r} is not recorded yet; retrying")
        if existing.min_epoch != epoch:
            await self._save(slug, existing, replace(existing, min_epoch=epoch))

    def find_blocking(self, memory: AgentMemory) -> SlugClaim | None:
        """Return the claim of another namespace on the object's slug. None without one, and before the first set."""
        claim = self._claim_of(memory.slug) if self.table.claims.is_complete else None
        return claim if claim and claim.namespace != memory.metadata.namespace else None

    async def transfer(self, memory: AgentMemory) -> bool:
        """Transfer a slug to the object's namespace if the claim's connection permits it; return whether it did.

        The owner of the connection that the slug used last permits it in `spec.takeovers`. A slug is never transferred
        while any object has it.

        Raises:
            TransientError: If the new claim cannot be stored now.
        """
        claim = self.find_blocking(memory)
        if claim is None or not claim.connections or self.table.find_owner(memory.slug) is not None:
            return False
        connection = self.connections.find(connection_key(claim.connections[0]))
        namespace, granted = memory.metadata.namespace, connection.spec.takeovers if connection else None
        if not any(grants(grant, agent=memory.slug, uid=claim.uid, namespace=namespace) for grant in granted or ()):
            return False
        await self._save(memory.slug, claim, _claimed_by(memory, claim.connections))
        log.info("agent %s now belongs to namespace %s, as allowed by its connection", memory.slug, namespace)
        return True

    async def _save(self, slug: str, before: SlugClaim | None, after: SlugClaim | None) -> None:
        """Store a change, together with all other staged changes.

        Args:
            before: Claim on which the change was decided. If the current claim differs, this change is not stored.

        Raises:
            TransientError: If it was not stored. Decide again.
        """
        self._staged_changes[slug] = before, after
        async with self._lock:
            if self._claim_of(slug) != after:
                # Stage the change again: another task's write may have included it and failed.
                staged, self._staged_changes = {**self._staged_changes, slug: (before, after)}, {}
                await self._write({name: new for name, (old, new) in staged.items() if self._claim_of(name) == old})
        if self._claim_of(slug) != after:
            raise TransientError(f"agent {slug!r} was claimed concurrently; retrying")

    def _claim_of(self, slug: str) -> SlugClaim | None:
        return self.table.claims.claims.get(slug)

    async def _write(self, changes: ClaimChanges, *, unread: frozenset[str] | None = None) -> None:
        before = self.table.claims
        claims = {slug: claim for slug, claim in {**before.claims, **changes}.items() if claim is not None}
        after = ClaimSet(claims=claims, is_complete=True, unread=before.unread if unread is None else unread)
        try:
            await self.store.save(after)
        except Conflict as exc:
            # Take over the claims of the process that has changed them.
            self._publish(await self.store.load())
            raise TransientError(f"the claims were changed concurrently; retrying: {exc}") from exc
        self._publish(after)

    def _publish(self, claims: ClaimSet) -> None:
        self.table.claims = claims
        self.publish(claims)

    async def _complete(self) -> None:
        """Build and store the first set, then request passes over all AgentMemories.

        For each slug, a stored claim comes first, then that of collections, then that of the oldest object.
        """
        witnesses, unread = await self._survey.survey_all(
            timeout_s=self.periods.first_set_timeout_s, poll_s=self.periods.retry_period_s
        )
        claims = derive_claims(witnesses) | dict(self.table.claims.claims)
        for slug, memory in self._owners():
            if slug not in claims:
                claims[slug] = _claimed_by(memory)
        async with self._lock:
            await self._write(claims, unread=unread)
        log.info("%d agents have a claim; %d connections were unavailable", len(claims), len(unread))
        for key in self.table.keys(AGENT_MEMORY):
            self.request(key)

    def _owners(self) -> Iterator[tuple[str, AgentMemory]]:
        """Yield each slug with the AgentMemory that owns it. Slugs whose owner is invalid are left out."""
        for key in self.table.keys(AGENT_MEMORY):
            document = self.table.get(key)
            if document is None or self.table.find_owner(slug_of(document)) != key:
                continue
            try:
                yield slug_of(document), self.table.parse(document)
            except SpecInvalid:
                # Skip an invalid object. Its collection's marker claims the slug, or else its next valid pass.
                continue

    async def _add_unread(self) -> None:
        """Add claims from connections that were unavailable for the first set. Existing claims stay.

        A connection that was deleted adds none, and no longer counts as unread.
        """
        unread = [connection_key(name) for name in sorted(self.table.claims.unread)]
        responses: dict[Key, list[ClaimEvidence] | None] = {key: [] for key in unread if self.table.get(key) is None}
        responses |= await self._survey.survey([key for key in unread if key not in responses])
        for key, evidence in responses.items():
            if evidence is None:
                continue
            name = claim_name(key)
            claims = self.table.claims
            added = {slug: claim for slug, claim in derive_claims(evidence).items() if slug not in claims.claims}
            async with self._lock:
                await self._write(added, unread=self.table.claims.unread - {name})

    async def _release(self, deleted: set[str]) -> set[str]:
        """Release claims without remaining data: those of the slugs in `deleted`, or all if it is empty.

        Returns:
            Slugs whose connections did not all respond.
        """
        candidates = {slug: claim for slug, claim in self._without_object().items() if not deleted or slug in deleted}
        free, unclear = await self._survey.find_without_data(candidates)
        # Look up the objects again, because one may have been created during the survey.
        for slug in free & self._without_object().keys():
            await self._save(slug, self._claim_of(slug), None)
            log.info("agent name %s is free again: no data of it is left", slug)
            for key in self.table.list_claimants(slug):
                self.request(key)
        return unclear

    def _without_object(self) -> dict[str, SlugClaim]:
        """Return the claims of slugs that no AgentMemory uses, and no MemorySnapshot in the claim's namespace.

        A claim without connections was reserved manually and is never released.
        """
        snapshots = {_held_by(document) for document in self.table.documents(MEMORY_SNAPSHOT)}
        return {
            slug: claim
            for slug, claim in self.table.claims.claims.items()
            if claim.connections and (claim.namespace, slug) not in snapshots and self.table.find_owner(slug) is None
        }

    async def _rest(self) -> None:
        """Wait for the next check; the deletion of an object shortens the wait.

        After a check that got no response from a server, the wait starts short and doubles each time.
        """
        period_s = self.periods.retry_period_s if self.table.claims.unread else self.periods.check_period_s
        if self._misses:
            period_s = min(period_s, self.periods.retry_period_s * 2**self._misses)
        try:
            async with asyncio.timeout(period_s):
                await self._news.wait()
            await asyncio.sleep(self.periods.deletion_delay_s)
        except TimeoutError:
            pass
        self._news.clear()

    async def _retry(self, operation: Callable[[], Awaitable[T]], trouble: str) -> T:
        while True:
            try:
                return await operation()
            except LeadershipLost:
                raise
            except (TransientError, Conflict) as exc:
                log.warning("%s: %s; again in %.0f s", trouble, exc, self.periods.retry_period_s)
                await asyncio.sleep(self.periods.retry_period_s)


def _claimed_by(memory: AgentMemory, connections: tuple[str, ...] = ()) -> SlugClaim:
    """Build the claim of an object's namespace. `connections` lists the connections that the slug has used before."""
    metadata = memory.metadata
    claim = SlugClaim(namespace=metadata.namespace, uid=metadata.uid, connections=connections)
    return claim.used_by(metadata.uid, connection_name(memory))


def _held_by(snapshot: Json) -> tuple[str, str]:
    """Return the namespace and slug that a MemorySnapshot uses. The slug is "None" until its status names an agent."""
    status = snapshot.get("status")
    agent = status.get("agent") if isinstance(status, dict) else None
    return str(snapshot["metadata"].get("namespace")), str(agent)
