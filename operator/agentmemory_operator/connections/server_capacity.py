"""Capacity of each connection's server: its reported usage, the collections being created, and whether one more fits.

The operator reads the server of each connection at most once a minute: in probes, and before it creates a collection.
It reads the server again right before it refuses a collection. It adds the collections whose creation is in progress,
or has ended since the last read began. They are counted by URL: each counts for every connection to the same server.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

from prometheus_client.registry import Collector

from agentmemory_operator.collections.rules.capacity import (
    DEFAULT_NEED,
    MAX_SHARE_EXISTING_AGENTS,
    MAX_SHARE_NEW_AGENTS,
    Load,
    MapDemand,
    Process,
    find_shortage,
    loads_of,
)
from agentmemory_operator.collections.rules.collection import Tenant
from agentmemory_operator.errors import NamespaceFull, ServerFull, ServerFullRetryable, StoreUnavailable
from agentmemory_operator.runtime.metrics import LiveGauge
from agentmemory_operator.runtime.object_table import QDRANT_CONNECTION, Key
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.naming import number_of

READ_TTL_S, MIN_READ_PERIOD_S = 60.0, 1.0
OWN_TENANT_TTL_S, OTHER_TENANT_TTL_S = 60.0, 600.0
"""Seconds for which the owner of a collection is cached: if it is the counted namespace, and if it is another."""


class CapacitySource(Protocol):
    """Calls to a whole server, without checks of ownership."""

    async def process(self) -> Process:
        """Return the resource usage of the server's process."""
        ...

    async def names(self) -> list[str]:
        """Return the names of all collections of the server."""
        ...

    async def read_owner(self, physical: str) -> Tenant | None:
        """Return the tenant in a collection's marker, or None if the marker is missing or names none."""
        ...


@dataclass(frozen=True, slots=True)
class _Reading:
    """Last report of a server.

    Attributes:
        at_s: Start of the last successful read.
        tried_s: Start of the last read, successful or not.
    """

    at_s: float
    tried_s: float
    process: Process


_NEVER = _Reading(-math.inf, -math.inf, Process())


@dataclass(slots=True)
class _Making:
    """A collection that is being created, or was recently.

    Attributes:
        demand: Memory maps that are reserved for it.
        done_s: Monotonic time at which the creation ended or failed. None while it runs.
    """

    demand: MapDemand
    done_s: float | None = None


@dataclass(frozen=True, slots=True)
class CollectionRequest:
    """Request of an agent for its first collection.

    Attributes:
        tenant: Namespace of the agent, and its cluster.
        demand: Memory maps that the collection needs.
    """

    tenant: Tenant
    alias: str
    demand: MapDemand


@dataclass(frozen=True, slots=True)
class _Granted:
    """A granted request whose collection is being created.

    Attributes:
        before: Names of the collections that were numbered for the agent's alias before. A new one is the request's.
    """

    request: CollectionRequest
    before: frozenset[str]


@dataclass(slots=True)
class Capacity:
    """Capacity of each connection's server.

    Attributes:
        read_ttl_s: Seconds for which a read is valid.
        min_read_period_s: Seconds for which a read is valid right before a refusal; not 0, because many requests may be
            refused at the same time. A refusal that counts just created collections always needs a new read.
    """

    read_ttl_s: float = READ_TTL_S
    min_read_period_s: float = MIN_READ_PERIOD_S
    _readings: dict[Key, _Reading] = field(default_factory=dict)
    _read_locks: defaultdict[Key, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    _count_locks: defaultdict[Key, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    _bounds: dict[Key, int | None] = field(default_factory=dict)
    _pending: dict[str, list[_Making]] = field(default_factory=dict)
    _tenants: dict[Key, dict[str, tuple[float, Tenant | None]]] = field(default_factory=dict)
    _granted: dict[Key, list[_Granted]] = field(default_factory=dict)

    async def loads(
        self, connection: QdrantConnection, store: CapacitySource, *, max_age_s: float | None = None
    ) -> tuple[Load, ...]:
        """Return the loads of a connection's server; empty if they are unknown.

        Args:
            max_age_s: Age in seconds of the last read, successful or not, above which the server is read again;
                `read_ttl_s` if None. If the new read fails with StoreUnavailable, the last one stays valid.

        Raises:
            AgentMemoryError: Errors of `store`, except StoreUnavailable.
        """
        key = key_of(connection)
        self._bounds[key] = bound = connection.spec.capacity.max_memory_maps if connection.spec.capacity else None
        async with self._read_locks[key]:
            reading = self._readings.get(key, _NEVER)
            started_s = _now_s()
            if started_s - reading.tried_s > (self.read_ttl_s if max_age_s is None else max_age_s):
                try:
                    reading = _Reading(started_s, started_s, await _process(store, counts=bound is not None))
                except StoreUnavailable:
                    reading = replace(reading, tried_s=started_s)
                self._readings[key] = reading
        return loads_of(reading.process, bound)

    @asynccontextmanager
    async def for_new_agent(
        self, connection: QdrantConnection, store: CapacitySource, request: CollectionRequest, *, creates: bool = True
    ) -> AsyncIterator[None]:
        """Reserve capacity for the first collection of an agent.

        Args:
            store: The whole server, without checks of ownership.
            creates: False if the context creates nothing, so that nothing is counted afterwards.

        Raises:
            ServerFull: If the server has no capacity.
            NamespaceFull: If the namespace has reached its limit of collections.
            AgentMemoryError: Errors of `store`.
        """
        async with self._within_namespace(connection, store, request):
            if shortage := await self._shortage(connection, store, request.demand, MAX_SHARE_NEW_AGENTS):
                raise ServerFull(shortage)
            with self._reserve(connection, request.demand) if creates else nullcontext():
                yield

    @asynccontextmanager
    async def for_existing(
        self, connection: QdrantConnection, store: CapacitySource, demand: MapDemand = DEFAULT_NEED
    ) -> AsyncIterator[None]:
        """Reserve capacity for another collection of an existing agent: for a restore, rebuild or verification.

        Raises:
            ServerFullRetryable: If the server has no capacity; retry later.
            AgentMemoryError: Errors of `store`, except StoreUnavailable.
        """
        if shortage := await self._shortage(connection, store, demand, MAX_SHARE_EXISTING_AGENTS):
            raise ServerFullRetryable(shortage)
        with self._reserve(connection, demand):
            yield

    async def _shortage(
        self, connection: QdrantConnection, store: CapacitySource, need: MapDemand, share: float
    ) -> str | None:
        """Return why the server has no capacity, or None. Reads the server again before refusing."""
        shortage = None
        for is_last in (False, True):
            # Read again before a refusal if collections were created since the last read: they may be counted twice.
            max_age_s = (
                0.0
                if any(pending.done_s is not None for pending in self._others(connection))
                else self.min_read_period_s
            )
            loads = await self.loads(connection, store, max_age_s=max_age_s if is_last else self.read_ttl_s)
            # Do not await before the reservation, so that of two concurrent requests the second counts the first.
            shortage = find_shortage(loads, need, [pending.demand for pending in self._others(connection)], share=share)
            if shortage is None:
                return None
        return shortage

    def _others(self, connection: QdrantConnection) -> list[_Making]:
        """Return the collections that the last read may not include: being created, or completed since its start."""
        since_s = self._readings.get(key_of(connection), _NEVER).at_s
        on_server = self._pending.get(connection.spec.url, [])
        return [pending for pending in on_server if pending.done_s is None or pending.done_s >= since_s]

    @contextmanager
    def _reserve(self, connection: QdrantConnection, need: MapDemand) -> Iterator[None]:
        """Count a collection as being created within the context, and as completed after it."""
        url = connection.spec.url
        reservation = _Making(need)
        self._pending.setdefault(url, []).append(reservation)
        try:
            yield
        finally:
            reservation.done_s = _now_s()
            self._drop_old(url)

    def _drop_old(self, url: str) -> None:
        """Drop collections completed two validity periods ago. While the server responds, every read includes them."""
        since_s = _now_s() - 2 * self.read_ttl_s
        for server_url in {url, *self._pending}:
            remaining = [
                pending
                for pending in self._pending.get(server_url, [])
                if pending.done_s is None or pending.done_s > since_s
            ]
            if remaining:
                self._pending[server_url] = remaining
            else:
                self._pending.pop(server_url, None)

    @asynccontextmanager
    async def _within_namespace(
        self, connection: QdrantConnection, store: CapacitySource, demand: CollectionRequest
    ) -> AsyncIterator[None]:
        """Reserve one of the collections that a namespace may have. Does nothing if the connection sets no limit.

        Raises:
            NamespaceFull: If existing and reserved collections have reached the limit.
            AgentMemoryError: Errors of `store`.
        """
        limit = connection.spec.capacity.max_collections_per_namespace if connection.spec.capacity else None
        if limit is None:
            yield
            return
        key = key_of(connection)
        granted = self._granted.setdefault(key, [])
        async with self._count_locks[key]:
            # Copy before reading the names, because a request that ends in between would be in neither list.
            earlier_grants = list(granted)
            names = await store.names()
            own_names = await self._of(key, demand.tenant, names, store)
            pending = sum(
                grant.request.tenant == demand.tenant and not _is_made(grant, names) for grant in earlier_grants
            )
            if len(own_names) + pending >= limit:
                raise NamespaceFull(
                    f"namespace {demand.tenant.namespace} reached the limit of {limit} collections on QdrantConnection "
                    f"{key.namespace}/{key.name} (spec.capacity.maxCollectionsPerNamespace). Collections of deleted "
                    f"agents, replaced ones and placeholders count too: agentmemory orphans lists what nothing owns. "
                    f"Remove some, or ask for a higher limit"
                )
            own_grant = _Granted(demand, frozenset(name for name in names if number_of(name, demand.alias) is not None))
            granted.append(own_grant)
        try:
            yield
        finally:
            granted.remove(own_grant)

    async def _of(self, key: Key, tenant: Tenant, names: list[str], store: CapacitySource) -> list[str]:
        """Return the names of a tenant's collections, by their markers. Owners are cached; see OWN_TENANT_TTL_S."""
        cached = self._tenants.setdefault(key, {})
        for deleted in cached.keys() - set(names):
            del cached[deleted]
        # Check the marker of each collection: an adopted one may have any name. Those of other products have no marker.
        for name in names:
            read_s, owner = cached.get(name, (-OTHER_TENANT_TTL_S, None))
            if _now_s() - read_s >= (OWN_TENANT_TTL_S if owner == tenant else OTHER_TENANT_TTL_S):
                cached[name] = _now_s(), await store.read_owner(name)
        return [name for name in names if cached.get(name, (0.0, None))[1] == tenant]

    def forget(self, key: Key) -> None:
        """Drop the state of a deleted connection, except collections being created, which are counted by URL."""
        for state in (self._readings, self._read_locks, self._count_locks, self._bounds, self._tenants, self._granted):
            state.pop(key, None)

    @property
    def metrics(self) -> list[Collector]:
        """Gauge of the used share of each limit, from the server with the highest share."""
        description = "Used share of a limit of the Qdrant process, of the server with the highest one."
        return [LiveGauge("agentmemory_server_used_ratio", description, ("resource",), self._fullest)]

    def _fullest(self) -> Mapping[tuple[str, ...], float]:
        fullest: dict[tuple[str, ...], float] = {}
        for key, reading in self._readings.items():
            for load in loads_of(reading.process, self._bounds.get(key)):
                label = (load.resource.replace(" ", "_"),)
                fullest[label] = max(load.share, fullest.get(label, 0.0))
        return fullest


def key_of(connection: QdrantConnection) -> Key:
    """Return the key of a connection in the table of objects."""
    return Key(QDRANT_CONNECTION, connection.metadata.namespace, connection.metadata.name)


async def _process(store: CapacitySource, *, counts: bool) -> Process:
    """Read the usage of a server's process.

    Args:
        counts: True to count the collections if the server reports no memory maps. The connection's spec has a limit
            then.
    """
    process = await store.process()
    if counts and process.open_maps is None and process.collections is None:
        return Process(collections=len(await store.names()))
    return process


def _is_made(grant: _Granted, names: list[str]) -> bool:
    return any(number_of(name, grant.request.alias) is not None and name not in grant.before for name in names)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
