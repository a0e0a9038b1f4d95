"""The graphs of scopes in memory: how long they last, what ends them, how much they take."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.entities.graphs import MAX_AGE_S, RENEW_AFTER_S, EntityGraphs
from agentmemory_operator.errors import StoreUnavailable
from tests.support.engine.agents import agent_of, settings_of


class Store:
    """Answers the newest memories of a scope, each naming the same two, and no sheet."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.count = 1
        self.is_away = False

    async def query_batch(self, collection: str, bodies: Any) -> list[list[Any]]:
        if self.is_away:
            raise StoreUnavailable("away")
        self.asked.append([body["filter"]["must"][0]["match"]["value"] for body in bodies[::2]])
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


async def test_a_graph_is_read_once_and_again_when_it_is_old(store: Store, agent: Agent) -> None:
    graphs = EntityGraphs(monotonic=(clock := Clock()))

    await graphs.read(agent, ["u", "global"])
    await graphs.read(agent, ["global", "u"])
    clock.now_s = MAX_AGE_S
    await graphs.read(agent, ["u"])

    assert store.asked == [["u", "global"], ["u"]]


async def test_many_scopes_are_asked_for_within_what_one_request_may_have(store: Store, agent: Agent) -> None:
    scopes = [f"group:{number}" for number in range(20)]

    found = await EntityGraphs().read(agent, scopes)

    assert [len(asked) for asked in store.asked] == [8, 8, 4]
    assert [scope for asked in store.asked for scope in asked] == scopes
    assert len(found) == 20


async def test_own_writes_end_it_for_their_scope_alone(store: Store, agent: Agent) -> None:
    graphs = EntityGraphs(monotonic=Clock())
    await graphs.read(agent, ["u", "v"])
    agent.sizes.forget("u")

    await graphs.read(agent, ["u", "v"])

    assert store.asked == [["u", "v"], ["u"]]


async def test_a_write_while_it_is_read_ends_it_too(store: Store, agent: Agent) -> None:
    graphs = EntityGraphs(monotonic=Clock())
    reading = asyncio.create_task(graphs.read(agent, ["u"]))
    await asyncio.sleep(0)
    agent.sizes.forget("u")
    await reading

    await graphs.read(agent, ["u"])

    assert len(store.asked) == 2


async def test_it_is_renewed_beside_the_search_that_finds_it_nearly_old(store: Store, agent: Agent) -> None:
    graphs = EntityGraphs(monotonic=(clock := Clock()))
    await graphs.read(agent, ["u"])
    clock.now_s, store.count = RENEW_AFTER_S, 2

    [before] = await graphs.read(agent, ["u"])
    await asyncio.gather(*graphs._renewing.values())
    [after] = await graphs.read(agent, ["u"])

    assert (len(before.memory_ids), len(after.memory_ids), len(store.asked)) == (1, 2, 2)


async def test_where_it_cannot_be_renewed_it_lasts_until_it_is_old(store: Store, agent: Agent) -> None:
    graphs = EntityGraphs(monotonic=(clock := Clock()))
    await graphs.read(agent, ["u"])
    clock.now_s, store.is_away = RENEW_AFTER_S, True
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

    for one in (agent, other, moved):
        await graphs.read(one, ["u"])

    assert len(store.asked) == 3


async def test_the_least_recently_used_go_where_they_take_too_much(store: Store, agent: Agent) -> None:
    [graph] = await EntityGraphs().read(agent, ["u"])
    graphs = EntityGraphs(monotonic=Clock(), max_bytes=2 * graph.size_bytes)
    store.asked.clear()
    for scope in ("u", "v", "u", "w"):
        await graphs.read(agent, [scope])

    await graphs.read(agent, ["u"])
    await graphs.read(agent, ["v"])

    assert store.asked == [["u"], ["v"], ["w"], ["v"]]
