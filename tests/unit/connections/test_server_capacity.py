"""Capacity of a server: reservations count, a refusal requires a fresh read, namespaces have limits."""

import asyncio
from typing import Any

import pytest

from agentmemory_operator.collections.rules.capacity import MapDemand, Process
from agentmemory_operator.collections.rules.collection import Collection, Tenant
from agentmemory_operator.connections import server_capacity as module
from agentmemory_operator.connections.server_capacity import Capacity, CollectionRequest, key_of
from agentmemory_operator.errors import NamespaceFull, ServerFull, ServerFullRetryable, StoreUnavailable
from agentmemory_operator.runtime.object_table import ObjectTable
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.parse import parse_connection
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.engine.fakes import FakeCluster
from tests.support.engine.passes import servers_over
from tests.support.metrics import collect_samples
from tests.support.spec.documents import connection_document

OURS, THEIRS = Tenant("cluster", "agents"), Tenant("cluster", "others")


def connection(name: str = "main", **spec: Any) -> QdrantConnection:
    return parse_connection(connection_document(name, **spec))


def wish(slug: str = "a", *, maps: int = 100, tenant: Tenant = OURS) -> CollectionRequest:
    return CollectionRequest(tenant, f"agent_memory_{slug}", MapDemand(maps))


def server(used: int | None, limit: int | None = 1000) -> FakeCollectionStore:
    return FakeCollectionStore(process_figures=Process(open_maps=used, max_maps=limit))


def reads(store: FakeCollectionStore) -> int:
    return sum(method == "process" for method, _ in store.calls)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time in seconds, adjustable."""
    now = [1000.0]
    monkeypatch.setattr(module, "_now_s", lambda: now[0])
    return now


async def admit(state: Capacity, store: FakeCollectionStore, *, connection_name: str = "main", **spec: Any) -> None:
    async with state.for_new_agent(connection(connection_name, **spec), store, wish()):
        pass


async def test_probes_read_once_a_minute(clock: list[float]) -> None:
    capacity, store = Capacity(), server(500)
    for seconds in (0, 5, 5, 49, 2):
        clock[0] += seconds
        await capacity.loads(connection(), store)

    assert reads(store) == 2


async def test_fitting_agent_needs_no_new_read(clock: list[float]) -> None:
    capacity, store = Capacity(), server(500)
    await capacity.loads(connection(), store)
    await admit(capacity, store)

    assert reads(store) == 1


async def test_refusal_requires_a_fresh_read(clock: list[float]) -> None:
    capacity, store = Capacity(), server(750)
    await capacity.loads(connection(), store)
    clock[0] += 10
    store.process_figures = Process(open_maps=300, max_maps=1000)

    await admit(capacity, store)

    assert reads(store) == 2


async def test_concurrent_refusals_share_a_read(clock: list[float]) -> None:
    capacity, store = Capacity(), server(750)
    outcomes = await asyncio.gather(*(admit(capacity, store) for _ in range(50)), return_exceptions=True)

    assert {type(outcome) for outcome in outcomes} == {ServerFull}
    assert reads(store) == 1


async def test_concurrent_agents_fill_the_capacity_exactly(clock: list[float]) -> None:
    capacity, store, done = Capacity(), server(500), asyncio.Event()

    async def make(number: int) -> None:
        async with capacity.for_new_agent(connection(), store, wish(str(number))):
            await done.wait()

    tasks = [asyncio.create_task(make(number)) for number in range(20)]
    await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert sum(not task.done() for task in tasks) == 3
    done.set()

    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert sum(isinstance(outcome, ServerFull) for outcome in outcomes) == 17


async def test_created_collections_count_until_the_next_read(clock: list[float]) -> None:
    capacity, store = Capacity(), server(500)
    for _ in range(3):
        await admit(capacity, store)
    assert reads(store) == 1
    clock[0] += 0.1

    # A refusal requires a fresh read. It includes the created collections, so their reservations end.
    store.process_figures = Process(open_maps=650, max_maps=1000)
    await admit(capacity, store)

    assert reads(store) == 2


async def test_check_reserves_nothing(clock: list[float]) -> None:
    table, store = ObjectTable(), server(500)
    table.put(connection_document())
    servers = servers_over(table, FakeCluster(), store)

    for _ in range(5):
        await servers.check_capacity(key_of(connection()), wish())

    # A refusal because of a reservation would have needed another read.
    assert reads(store) == 1


async def test_connections_to_one_server_share_reservations(clock: list[float]) -> None:
    capacity, store = Capacity(), server(700)
    async with capacity.for_new_agent(connection(), store, wish()):
        with pytest.raises(ServerFull):
            await admit(capacity, store, connection_name="second")


async def test_silent_connection_does_not_hide_known_usage(clock: list[float]) -> None:
    """A key without the right to read metrics does not affect other connections."""
    capacity, full, silent = Capacity(), server(900), server(None, None)
    await capacity.loads(connection(), full)
    await capacity.loads(connection("second"), silent)

    with pytest.raises(ServerFull):
        await admit(capacity, full)


async def test_unknown_usage_or_limit_refuses_no_agent(clock: list[float]) -> None:
    await admit(Capacity(), server(None, None))
    await admit(Capacity(), server(900_000, None))


async def test_failed_metrics_refuse_no_agent(clock: list[float]) -> None:
    """Metrics are read again after a minute, not at each probe."""
    capacity, store = Capacity(), server(900)
    store.error = StoreUnavailable("away")
    assert await capacity.loads(connection(), store) == ()
    store.error = None
    assert await capacity.loads(connection(), store) == ()

    clock[0] += 61
    assert await capacity.loads(connection(), store) != ()


async def test_last_usage_is_kept_without_metrics(clock: list[float]) -> None:
    capacity, store = Capacity(), server(900)
    before = await capacity.loads(connection(), store)
    store.error = StoreUnavailable("away")
    clock[0] += 61

    assert await capacity.loads(connection(), store) == before


async def test_restores_may_use_the_reserve(clock: list[float]) -> None:
    """Restores beyond the reserve wait; new agents are refused earlier."""
    capacity, store = Capacity(), server(840)
    async with capacity.for_existing(connection(), store, MapDemand(100)):
        pass
    store.process_figures = Process(open_maps=860, max_maps=1000)
    clock[0] += 61

    with pytest.raises(ServerFullRetryable):
        async with capacity.for_existing(connection(), store, MapDemand(100)):
            pass


async def test_spec_limit_applies_to_a_silent_server(clock: list[float]) -> None:
    store = server(None, None)
    bound = {"capacity": {"maxMemoryMaps": 1000}}
    await admit(Capacity(), store, **bound)
    store.collections = {f"agent_memory_{slug}__1": Collection(size=8, distance="Dot") for slug in "abc"}

    with pytest.raises(ServerFull):
        await admit(Capacity(), store, **bound)


class Namespaces:
    """A server with collections by name, each with its owner."""

    def __init__(self, **owners: Tenant | None) -> None:
        self.owners = {f"agent_memory_{slug}__1": owner for slug, owner in owners.items()}
        self.owner_reads: list[str] = []

    async def process(self) -> Process:
        return Process()

    async def names(self) -> list[str]:
        return sorted(self.owners)

    async def read_owner(self, physical: str) -> Tenant | None:
        self.owner_reads.append(physical)
        await asyncio.sleep(0)
        return self.owners[physical]


LIMITED = connection(capacity={"maxCollectionsPerNamespace": 3})


async def grant(capacity: Capacity, server: Namespaces, slug: str, *, tenant: Tenant = OURS) -> None:
    """Admit an agent and create its collection."""
    async with capacity.for_new_agent(LIMITED, server, wish(slug, tenant=tenant)):
        await asyncio.sleep(0)
        server.owners[f"agent_memory_{slug}__1"] = tenant
        await asyncio.sleep(0)


async def test_namespace_limit_counts_its_own_collections(clock: list[float]) -> None:
    capacity, server = Capacity(), Namespaces(a=OURS, b=OURS, c=THEIRS, d=None)
    await grant(capacity, server, "e")

    with pytest.raises(NamespaceFull, match="maxCollectionsPerNamespace"):
        await grant(capacity, server, "f")
    await grant(capacity, server, "g", tenant=THEIRS)


async def test_concurrent_agents_keep_the_namespace_limit(clock: list[float]) -> None:
    capacity, server = Capacity(), Namespaces(x=THEIRS)
    outcomes = await asyncio.gather(*(grant(capacity, server, f"n{n}") for n in range(20)), return_exceptions=True)

    assert sum(outcome is None for outcome in outcomes) == 3
    assert sum(owner == OURS for owner in server.owners.values()) == 3


async def test_collection_owners_are_read_once(clock: list[float]) -> None:
    capacity, server = Capacity(), Namespaces(**{f"n{number}": THEIRS for number in range(50)})
    await grant(capacity, server, "a")
    await grant(capacity, server, "b")

    assert len(server.owner_reads) == 51


async def test_deleted_collection_no_longer_counts(clock: list[float]) -> None:
    capacity, server = Capacity(), Namespaces(a=OURS, b=OURS, c=OURS)
    with pytest.raises(NamespaceFull):
        await grant(capacity, server, "d")
    del server.owners["agent_memory_a__1"]

    await grant(capacity, server, "d")


async def test_forget_leaves_no_state(clock: list[float]) -> None:
    capacity, store = Capacity(), server(500)
    await admit(capacity, store)
    assert 0.5 in collect_samples(*capacity.metrics).values()

    capacity.forget(key_of(connection()))
    clock[0] += 1000
    with pytest.raises(ServerFull):
        await admit(capacity, server(900), connection_name="second")

    fields = {name: getattr(capacity, name) for name in ("_readings", "_bounds", "_granted")}
    assert not any(key_of(connection()) in entries for entries in fields.values())
