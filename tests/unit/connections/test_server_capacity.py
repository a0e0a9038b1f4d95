"""Room on a server: what is being made counts, a server is asked again before anybody is refused, and whose all is."""

import asyncio
from typing import Any

import pytest

from agentmemory_operator.collections.rules.capacity import MapDemand, Process
from agentmemory_operator.collections.rules.collection import Collection, Tenant
from agentmemory_operator.connections import server_capacity as module
from agentmemory_operator.connections.server_capacity import Capacity, CollectionRequest, key_of
from agentmemory_operator.errors import NamespaceFull, ServerFull, ServerFullRetryable, StoreUnavailable
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.parse import parse_connection
from tests.support.engine.collection_store import FakeCollectionStore
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
    """The time in seconds, to be moved."""
    now = [1000.0]
    monkeypatch.setattr(module, "_now_s", lambda: now[0])
    return now


async def admit(known: Capacity, store: FakeCollectionStore, *, by: str = "main", **spec: Any) -> None:
    async with known.for_new_agent(connection(by, **spec), store, wish()):
        pass


async def test_probes_read_once_a_minute(clock: list[float]) -> None:
    capacity, store = Capacity(), server(500)
    for seconds in (0, 5, 5, 49, 2):
        clock[0] += seconds
        await capacity.loads(connection(), store)

    assert reads(store) == 2


async def test_a_new_agent_that_fits_is_asked_nothing_more(clock: list[float]) -> None:
    capacity, store = Capacity(), server(500)
    await capacity.loads(connection(), store)
    await admit(capacity, store)

    assert reads(store) == 1


async def test_the_server_is_asked_again_before_anybody_is_refused(clock: list[float]) -> None:
    capacity, store = Capacity(), server(750)
    await capacity.loads(connection(), store)
    clock[0] += 10
    store.process_figures = Process(open_maps=300, max_maps=1000)

    await admit(capacity, store)

    assert reads(store) == 2


async def test_many_refusals_at_once_ask_once(clock: list[float]) -> None:
    capacity, store = Capacity(), server(750)
    outcomes = await asyncio.gather(*(admit(capacity, store) for _ in range(50)), return_exceptions=True)

    assert {type(outcome) for outcome in outcomes} == {ServerFull}
    assert reads(store) == 1


async def test_of_many_at_once_as_many_begin_as_fit(clock: list[float]) -> None:
    capacity, store, done = Capacity(), server(500), asyncio.Event()

    async def make(number: int) -> None:
        async with capacity.for_new_agent(connection(), store, wish(str(number))):
            await done.wait()

    making = [asyncio.create_task(make(number)) for number in range(20)]
    await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert sum(not task.done() for task in making) == 3
    done.set()

    outcomes = await asyncio.gather(*making, return_exceptions=True)

    assert sum(isinstance(outcome, ServerFull) for outcome in outcomes) == 17


async def test_what_was_made_counts_until_the_server_has_told_of_it(clock: list[float]) -> None:
    capacity, store = Capacity(), server(500)
    for _ in range(3):
        await admit(capacity, store)
    assert reads(store) == 1
    clock[0] += 0.1

    # The reading before the refusal is of a server that has them, however short the time.
    store.process_figures = Process(open_maps=650, max_maps=1000)
    await admit(capacity, store)

    assert reads(store) == 2


async def test_two_connections_to_one_server_see_what_the_other_makes(clock: list[float]) -> None:
    capacity, store = Capacity(), server(700)
    async with capacity.for_new_agent(connection(), store, wish()):
        with pytest.raises(ServerFull):
            await admit(capacity, store, by="second")


async def test_a_server_that_another_key_may_not_ask_is_not_unknown_for_all(clock: list[float]) -> None:
    capacity, full, silent = Capacity(), server(900), server(None, None)
    await capacity.loads(connection(), full)
    await capacity.loads(connection("second"), silent)

    with pytest.raises(ServerFull):
        await admit(capacity, full)


async def test_what_nobody_tells_refuses_nobody(clock: list[float]) -> None:
    await admit(Capacity(), server(None, None))
    await admit(Capacity(), server(900_000, None))


async def test_metrics_that_fail_refuse_nobody_and_are_not_asked_for_at_each_probe(clock: list[float]) -> None:
    capacity, store = Capacity(), server(900)
    store.error = StoreUnavailable("away")
    assert await capacity.loads(connection(), store) == ()
    store.error = None
    assert await capacity.loads(connection(), store) == ()

    clock[0] += 61
    assert await capacity.loads(connection(), store) != ()


async def test_what_was_read_counts_on_while_metrics_fail(clock: list[float]) -> None:
    capacity, store = Capacity(), server(900)
    before = await capacity.loads(connection(), store)
    store.error = StoreUnavailable("away")
    clock[0] += 61

    assert await capacity.loads(connection(), store) == before


async def test_restores_may_use_what_new_agents_may_not_and_wait_beyond(clock: list[float]) -> None:
    capacity, store = Capacity(), server(840)
    async with capacity.for_existing(connection(), store, MapDemand(100)):
        pass
    store.process_figures = Process(open_maps=860, max_maps=1000)
    clock[0] += 61

    with pytest.raises(ServerFullRetryable):
        async with capacity.for_existing(connection(), store, MapDemand(100)):
            pass


async def test_a_bound_by_the_spec_counts_collections_where_the_server_does_not_tell(clock: list[float]) -> None:
    store = server(None, None)
    bound = {"capacity": {"maxMemoryMaps": 1000}}
    await admit(Capacity(), store, **bound)
    store.collections = {f"agent_memory_{slug}__1": Collection(size=8, distance="Dot") for slug in "abc"}

    with pytest.raises(ServerFull):
        await admit(Capacity(), store, **bound)


class Namespaces:
    """A server with collections of namespaces, by name."""

    def __init__(self, **owners: Tenant | None) -> None:
        self.owners = {f"agent_memory_{slug}__1": owner for slug, owner in owners.items()}
        self.asked: list[str] = []

    async def process(self) -> Process:
        return Process()

    async def names(self) -> list[str]:
        return sorted(self.owners)

    async def read_owner(self, physical: str) -> Tenant | None:
        self.asked.append(physical)
        await asyncio.sleep(0)
        return self.owners[physical]


LIMITED = connection(capacity={"maxCollectionsPerNamespace": 3})


async def grant(capacity: Capacity, server: Namespaces, slug: str, *, tenant: Tenant = OURS) -> None:
    """Let an agent have a collection, and make it."""
    async with capacity.for_new_agent(LIMITED, server, wish(slug, tenant=tenant)):
        await asyncio.sleep(0)
        server.owners[f"agent_memory_{slug}__1"] = tenant
        await asyncio.sleep(0)


async def test_every_collection_of_a_namespace_counts_and_no_others(clock: list[float]) -> None:
    capacity, server = Capacity(), Namespaces(a=OURS, b=OURS, c=THEIRS, d=None)
    await grant(capacity, server, "e")

    with pytest.raises(NamespaceFull, match="maxCollectionsPerNamespace"):
        await grant(capacity, server, "f")
    await grant(capacity, server, "g", tenant=THEIRS)


async def test_of_many_at_once_no_more_are_made_than_may_be(clock: list[float]) -> None:
    capacity, server = Capacity(), Namespaces(x=THEIRS)
    outcomes = await asyncio.gather(*(grant(capacity, server, f"n{n}") for n in range(20)), return_exceptions=True)

    assert sum(outcome is None for outcome in outcomes) == 3
    assert sum(owner == OURS for owner in server.owners.values()) == 3


async def test_whose_a_collection_is_is_not_asked_at_each_creation(clock: list[float]) -> None:
    capacity, server = Capacity(), Namespaces(**{f"n{number}": THEIRS for number in range(50)})
    await grant(capacity, server, "a")
    await grant(capacity, server, "b")

    assert len(server.asked) == 51


async def test_a_collection_that_is_gone_counts_no_more(clock: list[float]) -> None:
    capacity, server = Capacity(), Namespaces(a=OURS, b=OURS, c=OURS)
    with pytest.raises(NamespaceFull):
        await grant(capacity, server, "d")
    del server.owners["agent_memory_a__1"]

    await grant(capacity, server, "d")


async def test_nothing_of_a_connection_that_is_gone_is_kept(clock: list[float]) -> None:
    capacity, store = Capacity(), server(500)
    await admit(capacity, store)
    assert 0.5 in collect_samples(*capacity.metrics).values()

    capacity.forget(key_of(connection()))
    clock[0] += 1000
    with pytest.raises(ServerFull):
        await admit(capacity, server(900), by="second")

    fields = {name: getattr(capacity, name) for name in ("_readings", "_bounds", "_granted")}
    assert not any(key_of(connection()) in kept for kept in fields.values())
