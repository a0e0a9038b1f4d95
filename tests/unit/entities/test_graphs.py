"""Cached entity graphs of scopes: lifetime, invalidation, renewal and memory."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entities.graphs import MAX_AGE_S, RENEW_AFTER_S, EntityGraphs
from agentmemory_operator.errors import StoreUnavailable
from tests.support.engine.agents import agent_of, settings_of


class Store:
    """Returns the newest memories of a scope, each naming the same two entities, and no sheet."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.count = 1
        self.is_unavailable = False

    async def query_batch(self, collection: str, bodies: Any) -> list[list[Any]]:
        if self.is_unavailable:
            raise StoreUnavailable("away")
        self.requests.append([body["filter"]["must"][0]["match"]["value"] for body in bodies[::2]])
        named = [{"name": name, "kind": "phrase", "role": "mentioned"} for name in ("A A", "B B")]
        memories = [{"id": f"m{n}", "payload": {"entities": named}} for n in range(self.count)]
        return [part for _ in bodies[::2] for part in (memories, [])]


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def agent(store: Store) -> Agent:
    return agent_of(settings_of("a"), store)  # type: ignore[arg-type]


async def test_graph_is_read_once_until_it_expires(store: Store, agent: Agent) -> None:
    graphs = EntityGraphs(monotonic=(clock := Clock()))

    await graphs.read(agent, ["u", "global"])
    await graphs.read(agent, ["global", "u"])
    clock.now_s = MAX_AGE_S
    await graphs.read(agent, ["u"])

    assert store.requests == [["u", "global"], ["u"]]


async def test_many_scopes_are_read_in_batches(store: Store, agent: Agent) -> None:
    scopes = [f"group:{number}" for number in range(20)]

    found = await EntityGraphs().read(agent, scopes)

    assert [len(request) for request in store.requests] == [8, 8, 4]
    assert [scope for request in store.requests for scope in request] == scopes
    assert len(found) == 20


async def test_own_writes_invalidate_their_scope_only(store: Store, agent: Agent) -> None:
    graphs = EntityGraphs(monotonic=Clock())
    await graphs.read(agent, ["u", "v"])
    agent.sizes.forget("u")

    await graphs.read(agent, ["u", "v"])

    assert store.requests == [["u", "v"], ["u"]]


async def test_write_during_a_read_invalidates_it(store: Store, agent: Agent) -> None:
    graphs = EntityGraphs(monotonic=Clock())
    reading = asyncio.create_task(graphs.read(agent, ["u"]))
    await asyncio.sleep(0)
    agent.sizes.forget("u")
    await reading

    await graphs.read(agent, ["u"])

    assert len(store.requests) == 2


async def test_search_renews_an_ageing_graph(store: Store, agent: Agent) -> None:
    """The search gets the cached graph; the renewal runs concurrently."""

    graphs = EntityGraphs(monotonic=(clock := Clock()))
    await graphs.read(agent, ["u"])
    clock.now_s, store.count = RENEW_AFTER_S, 2

    [before] = await graphs.read(agent, ["u"])
    await asyncio.gather(*graphs._renewing.values())
    [after] = await graphs.read(agent, ["u"])

    assert (len(before.memory_ids), len(after.memory_ids), len(store.requests)) == (1, 2, 2)


async def test_failed_renewal_keeps_graph_until_it_expires(store: Store, agent: Agent) -> None:
    graphs = EntityGraphs(monotonic=(clock := Clock()))
    await graphs.read(agent, ["u"])
    clock.now_s, store.is_unavailable = RENEW_AFTER_S, True
    await graphs.read(agent, ["u"])
    await asyncio.gather(*graphs._renewing.values())
    await graphs.read(agent, ["u"])
    clock.now_s = MAX_AGE_S

    with pytest.raises(StoreUnavailable):
        await graphs.read(agent, ["u"])


async def test_agents_and_collections_share_no_graph(store: Store, agent: Agent) -> None:
    graphs = EntityGraphs(monotonic=Clock())
    other = replace(agent, settings=settings_of("b"), sizes=agent.sizes)
    moved = replace(agent, epoch=replace(agent.epoch, number=7))

    for user in (agent, other, moved):
        await graphs.read(user, ["u"])

    assert len(store.requests) == 3


async def test_least_recently_used_graphs_are_evicted(store: Store, agent: Agent) -> None:
    [graph] = await EntityGraphs().read(agent, ["u"])
    graphs = EntityGraphs(monotonic=Clock(), max_bytes=2 * graph.size_bytes)
    store.requests.clear()
    for scope in ("u", "v", "u", "w"):
        await graphs.read(agent, [scope])

    await graphs.read(agent, ["u"])
    await graphs.read(agent, ["v"])

    assert store.requests == [["u"], ["v"], ["w"], ["v"]]
