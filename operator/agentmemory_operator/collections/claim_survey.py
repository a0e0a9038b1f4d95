"""Survey of Qdrant servers: evidence of the namespaces that own slugs, and slugs without remaining data."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from agentmemory_operator.collections.rules.claims import ClaimEvidence, SlugClaim
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.controllers.rules.orphans import CollectionSummary, slug_of_collection
from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, SpecInvalid
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.runtime.object_table import (
    AGENT_MEMORY,
    QDRANT_CONNECTION,
    Key,
    ObjectTable,
    connection_key,
    slug_of,
)
from agentmemory_operator.runtime.work_queue import gather_by_key
from agentmemory_operator.spec.naming import alias_of, find_slug

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_CONCURRENT_SURVEYS = 16
"""Maximum number of connections of one namespace that are surveyed concurrently. The limit for all namespaces is twice
this number."""


@dataclass(frozen=True, slots=True)
class ClaimSurvey:
    """Surveys connections concurrently, so that a slow one does not delay the others.

    Attributes:
        cluster_id: Returns the ID of the cluster.
        timeout_s: Seconds after which a connection's server counts as not responding.
    """

    table: ObjectTable
    connections: Connections
    cluster_id: Callable[[], Awaitable[str]]
    timeout_s: float

    async def survey_all(self, *, timeout_s: float, poll_s: float) -> tuple[list[ClaimEvidence], frozenset[str]]:
        """Return the evidence of all connections, and the names of those that did not respond in time.

        Args:
            timeout_s: Seconds after which no unavailable connection is surveyed again.
            poll_s: Seconds before unavailable connections are surveyed again.
        """
        loop, witnesses = asyncio.get_running_loop(), list[ClaimEvidence]()
        deadline, responded = loop.time() + timeout_s, set[Key]()
        while True:
            remaining = [key for key in self.table.keys(QDRANT_CONNECTION) if key not in responded]
            responses = await self.survey(remaining)
            responded |= {key for key, evidence in responses.items() if evidence is not None}
            witnesses += [witness for evidence in responses.values() for witness in evidence or ()]
            unavailable = frozenset(
                claim_name(key) for key in self.table.keys(QDRANT_CONNECTION) if key not in responded
            )
            if not unavailable or loop.time() >= deadline:
                return witnesses, unavailable
            await asyncio.sleep(poll_s)

    async def survey(self, keys: Iterable[Key]) -> dict[Key, list[ClaimEvidence] | None]:
        """Return the evidence of each connection, or None for one that cannot be surveyed now."""
        return await self._of_each(keys, self._witnesses)

    async def _witnesses(self, key: Key) -> list[ClaimEvidence] | None:
        """Return the evidence of a connection's collections.

        None while the connection does not respond, or the labels of a namespace with evidence cannot be read and never
        were.
        """

        async def survey(store: CollectionStore) -> list[CollectionSummary]:
            return await store.list_agent_collections()

        try:
            async with asyncio.timeout(self.timeout_s):
                summaries = await self.connections.survey(key, survey)
            cluster_id = await self.cluster_id()
            evidence = [self._witness(summary, key, cluster_id) for summary in summaries]
            return [
                witness
                for witness in evidence
                if witness is not None and await self._is_allowed(key, witness.marker.namespace)
            ]
        except LeadershipLost:
            raise
        except (AgentMemoryError, TimeoutError) as exc:
            log.info("cannot survey %s yet, retrying later: %s", key, exc)
            return None

    def _witness(self, summary: CollectionSummary, key: Key, cluster_id: str) -> ClaimEvidence | None:
        """Return the evidence of a collection.

        None if its marker is missing, lacks the namespace, or names another cluster or connection.
        """
        marker, slug = summary.marker, slug_of_collection(summary)
        if marker is None or not marker.namespace or marker.cluster_id != cluster_id:
            return None
        if marker.connection not in (None, claim_name(key)):
            return None
        document = self.table.get(Key(AGENT_MEMORY, marker.namespace, marker.name))
        metadata = document["metadata"] if document and slug_of(document) == slug else {}
        created = metadata.get("creationTimestamp", "") if metadata.get("uid") == marker.uid else ""
        is_live = alias_of(slug) in (*summary.aliases, summary.physical)
        return ClaimEvidence(slug=slug, marker=marker, connection=claim_name(key), created=created, is_live=is_live)

    async def _is_allowed(self, key: Key, namespace: str) -> bool:
        try:
            await self.connections.check_sharing(key, namespace)
        except SpecInvalid:
            return False
        return True

    async def find_without_data(self, claims: Mapping[str, SlugClaim]) -> tuple[set[str], set[str]]:
        """Return the slugs without data on any of their connections, and those whose connections did not all respond.

        A slug on an unavailable or deleted connection is among the latter.
        """
        by_name: dict[str, set[str]] = defaultdict(set)
        for slug, claim in claims.items():
            for name in claim.connections:
                by_name[name].add(slug)

        async def read_slugs(key: Key) -> set[str] | None:
            return await self._read_slugs(key, by_name[claim_name(key)])

        slugs_with_data = await self._of_each(map(connection_key, by_name), read_slugs)
        unclear = {slug for key, slugs in slugs_with_data.items() if slugs is None for slug in by_name[claim_name(key)]}
        return claims.keys() - unclear.union(*(slugs or () for slugs in slugs_with_data.values())), unclear

    async def _of_each(self, keys: Iterable[Key], operation: Callable[[Key], Awaitable[T]]) -> dict[Key, T]:
        """Call `operation` for each connection, concurrently and with a fair share for each tenant."""
        return await gather_by_key(
            keys, operation, tenant_lane_of=self.table.tenant_lane_of, share=MAX_CONCURRENT_SURVEYS
        )

    async def _read_slugs(self, key: Key, slugs: set[str]) -> set[str] | None:
        """Return the slugs with data on a connection, or None while it does not respond."""

        async def held(store: CollectionStore) -> set[str]:
            found = slugs & {find_slug(name) for name in await store.names()}
            # Look for aliases too, because that of an adopted collection points to a collection of any name.
            aliases = {slug: alias_of(slug) for slug in slugs - found}
            return found | {slug for slug, alias in aliases.items() if await store.observe(alias, alias) is not None}

        try:
            async with asyncio.timeout(self.timeout_s):
                return await self.connections.survey(key, held)
        except LeadershipLost:
            raise
        except (AgentMemoryError, TimeoutError) as exc:
            log.info("cannot tell which agents have data on %s, retrying later: %s", key, exc)
            return None


def claim_name(key: Key) -> str:
    """Return NAMESPACE/NAME of a connection, as claims contain it."""
    return f"{key.namespace}/{key.name}"
