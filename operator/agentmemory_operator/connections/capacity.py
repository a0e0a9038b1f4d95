"""Room on servers: what each says of its process, what is being made there, and whether one more collection fits.

A server is asked once a minute, by the probes of its connection, and again right before anybody is refused. In between
what is being made counts besides: by the URL, so that two connections to one server see each other's.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from prometheus_client.registry import Collector

from agentmemory_operator.collections.rules.capacity import (
    EXISTING_AGENTS,
    NEW_AGENTS,
    USUAL,
    Load,
    Need,
    Process,
    loads_of,
    shortage_of,
)
from agentmemory_operator.collections.rules.collection import Tenant
from agentmemory_operator.errors import NamespaceFull, ServerFull, ServerFullForNow, StoreUnavailable
from agentmemory_operator.runtime.cache import QDRANT_CONNECTION, Key
from agentmemory_operator.runtime.metrics import LiveGauge
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.naming import number_of

FRESH_S, ANEW_S = 60.0, 1.0
OURS_S, OTHERS_S = 60.0, 600.0
"""So long it is taken for granted that a collection is of the namespace that is counted, or of another."""


class Asked(Protocol):
    """What is asked of a server, whosever its collections are."""

    async def process(self) -> Process:
        """What it says of its process."""
        ...

    async def names(self) -> list[str]:
        """The names of its collections."""
        ...

    async def tenant_of(self, physical: str) -> Tenant | None:
        """Whose one is."""
        ...


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a server said.

    Attributes:
        at_s: when it was asked.
        tried_s: when it was last asked, answered or not.
    """

    at_s: float
    tried_s: float
    process: Process


_NEVER = _Reading(-math.inf, -math.inf, Process())


@dataclass(slots=True)
class _Making:
    """A collection that is being made, or was a moment ago."""

    need: Need
    done_s: float | None = None


@dataclass(frozen=True, slots=True)
class CollectionWish:
    """The collection that an agent without one asks for."""

    tenant: Tenant
    alias: str
    need: Need


@dataclass(frozen=True, slots=True)
class _Granted:
    """A wish that is being fulfilled.

    Attributes:
        before: names that its agent's collections had.
    """

    wish: CollectionWish
    before: frozenset[str]


@dataclass(slots=True)
class Capacity:
    """What is known of the room on each connection's server.

    Attributes:
        fresh_s: so long a reading counts.
        anew_s: and so long before somebody is refused: many may be at once.
    """

    fresh_s: float = FRESH_S
    anew_s: float = ANEW_S
    _readings: dict[Key, _Reading] = field(default_factory=dict)
    _asking: defaultdict[Key, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    _counting: defaultdict[Key, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    _bounds: dict[Key, int | None] = field(default_factory=dict)
    _making: dict[str, list[_Making]] = field(default_factory=dict)
    _tenants: dict[Key, dict[str, tuple[float, Tenant | None]]] = field(default_factory=dict)
    _granted: dict[Key, list[_Granted]] = field(default_factory=dict)

    async def loads(
        self, connection: QdrantConnection, store: Asked, *, older_s: float | None = None
    ) -> tuple[Load, ...]:
        """The loads of a connection's server, none where they are not known.

        Args:
            older_s: what was read longer ago is read again, by default `fresh_s`; where that fails, it counts on.
        """
        key = key_of(connection)
        self._bounds[key] = bound = connection.spec.capacity.max_memory_maps if connection.spec.capacity else None
        async with self._asking[key]:
            known = self._readings.get(key, _NEVER)
            began_s = _now_s()
            if began_s - known.tried_s > (self.fresh_s if older_s is None else older_s):
                try:
                    known = _Reading(began_s, began_s, await _process(store, counts=bound is not None))
                except StoreUnavailable:
                    known = replace(known, tried_s=began_s)
                self._readings[key] = known
        return loads_of(known.process, bound)

    @asynccontextmanager
    async def for_new_agent(
        self, connection: QdrantConnection, store: Asked, wish: CollectionWish
    ) -> AsyncIterator[None]:
        """Hold the room for the collection of an agent that has none.

        Args:
            store: of the whole server.

        Raises:
            ServerFull: there is none.
            NamespaceFull: the namespace has as many collections as it may.
        """
        async with self._within_namespace(connection, store, wish):
            if short := await self._shortage(connection, store, wish.need, NEW_AGENTS):
                raise ServerFull(short)
            with self._held(connection, wish.need):
                yield

    @asynccontextmanager
    async def for_existing(self, connection: QdrantConnection, store: Asked, need: Need = USUAL) -> AsyncIterator[None]:
        """Hold the room for another collection of an agent that has one: restored, rebuilt, or looked at.

        Raises:
            ServerFullForNow: there is none.
        """
        if short := await self._shortage(connection, store, need, EXISTING_AGENTS):
            raise ServerFullForNow(short)
        with self._held(connection, need):
            yield

    async def _shortage(self, connection: QdrantConnection, store: Asked, need: Need, share: float) -> str | None:
        """Why there is no room, by what the server says now; what it is not known of has room."""
        short = None
        for is_last in (False, True):
            # What was made since the reading may count twice: who is refused for that is asked for anew at once.
            anew_s = 0.0 if any(one.done_s is not None for one in self._others(connection)) else self.anew_s
            loads = await self.loads(connection, store, older_s=anew_s if is_last else self.fresh_s)
            # Nothing is awaited from here on until the room is held: of two, one sees the other.
            short = shortage_of(loads, need, [one.need for one in self._others(connection)], share=share)
            if short is None:
                return None
        return short

    def _others(self, connection: QdrantConnection) -> list[_Making]:
        """What is being made on the server, and what was since the reading: that has it not yet, or not all."""
        since_s = self._readings.get(key_of(connection), _NEVER).at_s
        making = self._making.get(connection.spec.url, [])
        return [one for one in making if one.done_s is None or one.done_s >= since_s]

    @contextmanager
    def _held(self, connection: QdrantConnection, need: Need) -> Iterator[None]:
        """Count a collection as being made."""
        url = connection.spec.url
        making = _Making(need)
        self._making.setdefault(url, []).append(making)
        try:
            yield
        finally:
            making.done_s = _now_s()
            self._forget_made(url)

    def _forget_made(self, url: str) -> None:
        """Drop what every reading has by now that anybody goes by."""
        since_s = _now_s() - 2 * self.fresh_s
        for place in {url, *self._making}:
            kept = [one for one in self._making.get(place, []) if one.done_s is None or one.done_s > since_s]
            if kept:
                self._making[place] = kept
            else:
                self._making.pop(place, None)

    @asynccontextmanager
    async def _within_namespace(
        self, connection: QdrantConnection, store: Asked, wish: CollectionWish
    ) -> AsyncIterator[None]:
        """Hold a place among the collections that a namespace may have."""
        most = connection.spec.capacity.max_collections_per_namespace if connection.spec.capacity else None
        if most is None:
            yield
            return
        key = key_of(connection)
        granted = self._granted.setdefault(key, [])
        async with self._counting[key]:
            # Before the names: what is granted now and made meanwhile is in neither list otherwise.
            before = list(granted)
            names = await store.names()
            ours = await self._of(key, wish.tenant, names, store)
            coming = sum(one.wish.tenant == wish.tenant and not _is_made(one, names) for one in before)
            if len(ours) + coming >= most:
                raise NamespaceFull(
                    f"namespace {wish.tenant.namespace} reached the limit of {most} collections on QdrantConnection "
                    f"{key.namespace}/{key.name} (spec.capacity.maxCollectionsPerNamespace). Collections of deleted "
                    f"agents, replaced ones and placeholders count too: agentmemory orphans lists what nothing owns. "
                    f"Remove some, or ask for a higher limit"
                )
            place = _Granted(wish, frozenset(name for name in names if number_of(name, wish.alias) is not None))
            granted.append(place)
        try:
            yield
        finally:
            granted.remove(place)

    async def _of(self, key: Key, tenant: Tenant, names: list[str], store: Asked) -> list[str]:
        """Which of the collections are a namespace's, by the mark that each bears."""
        known = self._tenants.setdefault(key, {})
        for gone in known.keys() - set(names):
            del known[gone]
        # Adopted ones may have any name; those of other products bear no mark.
        for name in names:
            asked_s, owner = known.get(name, (-OTHERS_S, None))
            if _now_s() - asked_s >= (OURS_S if owner == tenant else OTHERS_S):
                known[name] = _now_s(), await store.tenant_of(name)
        return [name for name in names if known.get(name, (0.0, None))[1] == tenant]

    def forget(self, key: Key) -> None:
        """Drop what is known of a connection that is gone."""
        for known in (self._readings, self._asking, self._counting, self._bounds, self._tenants, self._granted):
            known.pop(key, None)

    @property
    def metrics(self) -> list[Collector]:
        """How full the fullest server is."""
        told = "Used share of a limit of the Qdrant process, of the server with the highest one."
        return [LiveGauge("agentmemory_server_used_ratio", told, ("resource",), self._fullest)]

    def _fullest(self) -> Mapping[tuple[str, ...], float]:
        fullest: dict[tuple[str, ...], float] = {}
        for key, reading in self._readings.items():
            for load in loads_of(reading.process, self._bounds.get(key)):
                label = (load.resource.replace(" ", "_"),)
                fullest[label] = max(load.share, fullest.get(label, 0.0))
        return fullest


def key_of(connection: QdrantConnection) -> Key:
    """The connection's key."""
    return Key(QDRANT_CONNECTION, connection.metadata.namespace, connection.metadata.name)


async def _process(store: Asked, *, counts: bool) -> Process:
    """What a server says of its process, with the number of its collections where that has to do.

    Args:
        counts: there is a bound by which the number could do.
    """
    process = await store.process()
    if counts and process.open_maps is None and process.collections is None:
        return Process(collections=len(await store.names()))
    return process


def _is_made(one: _Granted, names: list[str]) -> bool:
    return any(number_of(name, one.wish.alias) is not None and name not in one.before for name in names)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
