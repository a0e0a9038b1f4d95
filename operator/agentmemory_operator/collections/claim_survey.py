"""What the connections hold of slugs: whom their collections speak for, and of which slugs nothing is left."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from agentmemory_operator.collections.rules.claims import SlugClaim, Witness
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.controllers.rules.orphans import Holding, slug_behind
from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, SpecInvalid
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.runtime.cache import (
    AGENT_MEMORY,
    QDRANT_CONNECTION,
    Key,
    ObjectTable,
    connection_key,
    slug_of,
)
from agentmemory_operator.runtime.queue import of_each
from agentmemory_operator.spec.naming import alias_of, slug_in

log = logging.getLogger(__name__)

T = TypeVar("T")

AT_ONCE = 16
"""Connections of one namespace that are asked side by side."""


@dataclass(frozen=True, slots=True)
class ClaimSurvey:
    """Asks connections; one that is slow holds up no other.

    Attributes:
        cluster_id: asks which cluster it is.
        survey_s: seconds that one connection may take.
    """

    table: ObjectTable
    connections: Connections
    cluster_id: Callable[[], Awaitable[str]]
    survey_s: float

    async def of_all(self, *, within_s: float, look_s: float) -> tuple[list[Witness], frozenset[str]]:
        """What all connections show, and those that did not answer in time.

        Args:
            look_s: until those that were away are asked again.
        """
        loop, witnesses = asyncio.get_running_loop(), list[Witness]()
        deadline, seen = loop.time() + within_s, set[Key]()
        while True:
            left = [key for key in self.table.keys(QDRANT_CONNECTION) if key not in seen]
            answers = await self.of(left)
            seen |= {key for key, found in answers.items() if found is not None}
            witnesses += [one for found in answers.values() for one in found or ()]
            away = frozenset(name_of(key) for key in self.table.keys(QDRANT_CONNECTION) if key not in seen)
            if not away or loop.time() >= deadline:
                return witnesses, away
            await asyncio.sleep(look_s)

    async def of(self, keys: Iterable[Key]) -> dict[Key, list[Witness] | None]:
        """What each connection shows, None of one that does not answer."""
        return await self._of_each(keys, self._witnesses)

    async def _witnesses(self, key: Key) -> list[Witness] | None:
        """What the collections of a connection say of slugs, None while it does not answer."""

        async def survey(store: CollectionStore) -> list[Holding]:
            return await store.holdings()

        try:
            async with asyncio.timeout(self.survey_s):
                holdings = await self.connections.survey(key, survey)
            cluster_id = await self.cluster_id()
        except LeadershipLost:
            raise
        except (AgentMemoryError, TimeoutError) as exc:
            log.info("cannot list the collections of %s yet, retrying later: %s", key, exc)
            return None
        found = [self._witness(holding, key, cluster_id) for holding in holdings]
        return [one for one in found if one is not None and await self._is_allowed(key, one.marker.namespace)]

    def _witness(self, holding: Holding, key: Key, cluster_id: str) -> Witness | None:
        """The owner whose claim a collection proves; None where nothing but its own marker says so."""
        marker, slug = holding.marker, slug_behind(holding)
        if marker is None or not marker.namespace or marker.cluster_id != cluster_id:
            return None
        if marker.connection not in (None, name_of(key)):
            return None
        document = self.table.get(Key(AGENT_MEMORY, marker.namespace, marker.name))
        metadata = document["metadata"] if document and slug_of(document) == slug else {}
        created = metadata.get("creationTimestamp", "") if metadata.get("uid") == marker.uid else ""
        is_live = alias_of(slug) in (*holding.aliases, holding.physical)
        return Witness(slug=slug, marker=marker, connection=name_of(key), created=created, is_live=is_live)

    async def _is_allowed(self, key: Key, namespace: str) -> bool:
        try:
            await self.connections.check_sharing(key, namespace)
        except SpecInvalid:
            return False
        return True

    async def without_traces(self, claims: Mapping[str, SlugClaim]) -> tuple[set[str], set[str]]:
        """The slugs of which no connection has anything, and those whose connections did not all answer.

        A connection that is away, or gone, frees nothing.
        """
        by_connection: dict[str, set[str]] = defaultdict(set)
        for slug, claim in claims.items():
            for name in claim.connections:
                by_connection[name].add(slug)

        async def held_on(key: Key) -> set[str] | None:
            return await self._held_on(key, by_connection[name_of(key)])

        held = await self._of_each(map(connection_key, by_connection), held_on)
        unclear = {slug for key, slugs in held.items() if slugs is None for slug in by_connection[name_of(key)]}
        return claims.keys() - unclear.union(*(slugs or () for slugs in held.values())), unclear

    async def _of_each(self, keys: Iterable[Key], ask: Callable[[Key], Awaitable[T]]) -> dict[Key, T]:
        """What each connection answers; one that is slow holds up no other."""
        return await of_each(keys, ask, place_of=self.table.place_of, share=AT_ONCE)

    async def _held_on(self, key: Key, slugs: set[str]) -> set[str] | None:
        """Those of the slugs that a connection has something of, None while it does not answer."""

        async def held(store: CollectionStore) -> set[str]:
            named = slugs & {slug_in(name) for name in await store.names()}
            # An alias may lead to a collection of any name, which was adopted.
            aliases = {slug: alias_of(slug) for slug in slugs - named}
            return named | {slug for slug, alias in aliases.items() if await store.observe(alias, alias) is not None}

        try:
            async with asyncio.timeout(self.survey_s):
                return await self.connections.survey(key, held)
        except LeadershipLost:
            raise
        except (AgentMemoryError, TimeoutError) as exc:
            log.info("cannot tell which agents have data on %s, retrying later: %s", key, exc)
            return None


def name_of(key: Key) -> str:
    """A connection's name as claims have it."""
    return f"{key.namespace}/{key.name}"
