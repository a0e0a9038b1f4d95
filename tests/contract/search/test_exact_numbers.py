"""Numbers are returned bit for bit; filters, forgets and indexes compare them as Python does."""

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import orjson
import pytest

from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.incoming import IncomingMemory
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.criteria_json import parse_filters
from agentmemory_operator.memories.rules.exact_numbers import find_stored_float
from agentmemory_operator.memories.rules.item_rules import Address
from agentmemory_operator.memories.stored_memories import change_head, read_memory
from tests.contract.memories.test_filters import COMPARED
from tests.support.engine.agents import World, search_request, vector_of
from tests.support.engine.reused_agents import reuse_world
from tests.unit.memories.rules.test_exact_numbers import CHANGED, EDGES, any_double, bits

BIG = 1357924680135792468
# Numbers that a float64 or Qdrant's parser would treat as equal, and equal numbers of different types.
NUMBERS: tuple[int | float, ...] = (
    *(BIG + step for step in (-128, -1, 0, 1, 128)),
    *(float(BIG), 2**53, 2**53 + 1, -(2**53) - 1, 2.0**53),
    *(2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1, 2.0**63, -(2.0**63)),
    *(CHANGED, -12.070162795213855, -12.070162795213859, -12.07016279521386),
    *(5, 5.0, 4.5, 0, -0.0, 5e-324, 0.1 + 0.2, 0.3, 1e22, 1e23, 1.7976931348623157e308),
)
OPERATORS = ("gt", "gte", "lte", "lt")
COUNT = 20_000


@pytest.fixture(params=[None, "integer", "float", "keyword"])
async def world(request: pytest.FixtureRequest, qdrant_url: str) -> AsyncIterator[World]:
    async with reuse_world(qdrant_url) as world:
        if index := request.param:
            url = f"{qdrant_url}/collections/{world.agent.alias}/index?wait=true"
            body = {"field_name": "metadata.n", "field_schema": index}
            async with aiohttp.request("PUT", url, json=body) as answer:
                assert answer.status == 200
            indexes = {**world.agent.settings.indexes, "metadata.n": index}
            world.agent = replace(world.agent, settings=replace(world.agent.settings, indexes=indexes))
        yield world


def findable(world: World, numbers: tuple[int | float, ...]) -> list[int | float]:
    """Return the numbers that filters can find: an integer index has no floats."""
    is_integer = world.agent.settings.indexes.get("metadata.n") == "integer"
    return [number for number in numbers if not (is_integer and isinstance(number, float))]


async def store(world: World, numbers: list[int | float]) -> None:
    for position, number in enumerate(numbers):
        await world.add(f"{position}", metadata={"n": number})


async def found(world: World, filters: dict[str, Any]) -> set[int]:
    request = search_request(criterion=parse_filters(filters), vector=vector_of("q"), top_k=100)
    return {int(hit.record.content) for hit in (await world.recall.search(world.agent, request)).results}


def places(numbers: list[int | float], is_met: Any) -> set[int]:
    return {position for position, number in enumerate(numbers) if is_met(number)}


async def test_filters_compare_numbers_exactly(world: World) -> None:
    numbers = findable(world, NUMBERS)
    await store(world, numbers)
    bounds = findable(world, NUMBERS)

    for position, bound in enumerate(bounds):
        assert await found(world, {"metadata.n": bound}) == places(numbers, lambda n, b=bound: n == b), bound
        assert await found(world, {"metadata.n": {"ne": bound}}) == places(numbers, lambda n, b=bound: n != b), bound
        for name in OPERATORS[position % 2 :: 2]:
            expected = places(numbers, lambda n, b=bound, is_met=COMPARED[name]: is_met(n, b))
            assert await found(world, {"metadata.n": {name: bound}}) == expected, (name, bound)
    assert await found(world, {"metadata.n": {"in": [BIG, 5]}}) == places(numbers, lambda n: n in (BIG, 5))
    within = {"gt": BIG - 1, "gte": BIG - 128, "lt": BIG + 1, "lte": 2**63 - 1}
    assert await found(world, {"metadata.n": within}) == places(numbers, lambda n: BIG - 1 < n < BIG + 1)


async def test_forget_erases_one_of_two_close_numbers(world: World) -> None:
    numbers: list[int | float] = findable(world, (BIG, BIG + 1, CHANGED, find_stored_float(CHANGED)))
    await store(world, numbers)

    for number in numbers[::2]:
        filters = {"metadata.n": number}
        scope = ErasureScope(user_id="u", criterion=parse_filters(filters))
        receipt = await world.forgetting.forget(world.agent, ForgetRequest(scope=scope, filters=filters))
        assert receipt.counts.total == 1

    assert {record.metadata["n"] for record in await world.rows()} == set(numbers[1::2])


async def test_float_missing_in_integer_index_is_warned_of(world: World) -> None:
    number = {"metadata": {"n": [1, 2.5]}}
    memory = IncomingMemory(user_id="u", content="a", vector=vector_of("a"), **number)
    [stored] = await world.remember.store(world.agent, [memory])
    address = Address(namespace=("a", "b"), key="k", user_id="u")
    put = await world.items.put(world.agent, address, ItemContent(content="a", vector=vector_of("a"), **number))

    is_integer = world.agent.settings.indexes.get("metadata.n") == "integer"
    for outcome in (stored, put):
        warnings = [warning for warning in outcome.warnings if warning.startswith("metadata.n: ")]
        assert [True for warning in warnings if "type: float" in warning] == [True] * is_integer
    assert (await world.try_add("b", metadata={"n": [1, 2]})).warnings == ()


async def test_memory_keeps_all_numbers(qdrant_url: str) -> None:
    generator = random.Random(43)
    many = [any_double(generator) for _ in range(500)]
    numbers = [*EDGES, CHANGED, 2**63 - 1, -(2**63), *many]
    metadata = {"list": [numbers, {"deep": numbers}], **{f"n{position}": n for position, n in enumerate(numbers)}}
    assert sum(isinstance(n, float) and find_stored_float(n) != n for n in numbers) > 100
    async with reuse_world(qdrant_url) as world:
        scalars: dict[str, Any] = {"importance": 0.30000000000000004, "confidence": 0.12070162795213857}
        assert find_stored_float(scalars["confidence"]) != scalars["confidence"]
        id_ = await world.add("1", metadata=metadata, context={"c": CHANGED}, decay_rate=0.12070162795213857, **scalars)

        record = await read_memory(world.agent, id_, user_id="u")

        assert bits(dict(record.metadata)) == bits(metadata)
        assert (record.context, record.decay_rate) == ({"c": CHANGED}, 0.12070162795213857)
        assert (record.importance, record.confidence) == (scalars["importance"], scalars["confidence"])
        assert await found(world, scalars) == {1}
        assert await found(world, {"confidence": find_stored_float(scalars["confidence"])}) == set()


def doubles(generator: random.Random) -> list[int | float]:
    everyday = (
        lambda: generator.gauss(0, 100),
        lambda: generator.random(),
        lambda: round(generator.uniform(0, 1e4), 2),
    )
    return [any_double(generator) for _ in range(COUNT // 2)] + [everyday[n % 3]() for n in range(COUNT // 2)]


def integers(generator: random.Random) -> list[int | float]:
    return [generator.getrandbits(64) - 2**63 >> (n % 2) * generator.randrange(64) for n in range(COUNT)]


@pytest.mark.parametrize(("draw", "changed"), [(doubles, 3_728), (integers, 0)])
async def test_round_trip_of_20_000_numbers(
    qdrant_url: str, draw: Callable[[random.Random], list[int | float]], changed: int
) -> None:
    numbers = draw(random.Random(44))
    parts = [numbers[position : position + 2_000] for position in range(0, len(numbers), 2_000)]
    points = [
        {"id": position, "vector": {}, "payload": {"metadata": {"n": part}}} for position, part in enumerate(parts)
    ]
    async with reuse_world(qdrant_url) as world:
        agent = world.agent
        for point in points:
            await agent.store.upsert(agent.alias, [point])

        points_read, _ = await agent.store.scroll(agent.alias, {"limit": 100, "with_payload": True})
        url = f"{qdrant_url}/collections/{agent.alias}/points/scroll"
        async with aiohttp.request("POST", url, json={"limit": 100}) as answer:
            stored = (await answer.json(loads=orjson.loads))["result"]["points"]

    assert bits(numbers_of(points_read)) == bits(numbers)
    # Without the stored texts, `changed` numbers would differ. Storing a stored number again does not change it.
    stored_numbers = numbers_of(stored)
    assert sum(one != other for one, other in zip(stored_numbers, numbers, strict=True)) == changed
    assert bits(stored_numbers) == bits([find_stored_float(n) if isinstance(n, float) else n for n in numbers])


def numbers_of(points: list[dict[str, Any]]) -> list[int | float]:
    ordered = sorted(points, key=lambda point: point["id"])
    return [number for point in ordered for number in point["payload"]["metadata"]["n"]]


async def test_edit_keeps_new_and_other_numbers(qdrant_url: str) -> None:
    async with reuse_world(qdrant_url) as world:
        small = abs(CHANGED) / 100
        id_ = await world.add("it", metadata={"n": CHANGED}, importance=small, confidence=small)

        await change_head(world.agent, id_, {"importance": 0.5, "metadata": {"n": 1.5}}, user_id="u")
        record = await read_memory(world.agent, id_, user_id="u")

        assert (record.importance, record.confidence, record.metadata) == (0.5, small, {"n": 1.5})


async def test_item_versions_keep_their_numbers(qdrant_url: str) -> None:
    async with reuse_world(qdrant_url) as world:
        world.agent = replace(world.agent, settings=replace(world.agent.settings, keep_versions=3))
        address = Address(namespace=("a", "b"), key="k", user_id="u")
        for number in (CHANGED, 1.5, CHANGED * 3):
            item = ItemContent(content=f"{number}", metadata={"n": number}, vector=vector_of("v"))
            await world.items.put(world.agent, address, item)

        versions = await world.items.versions(world.agent, address)

        assert (await world.items.get(world.agent, address)).metadata == {"n": CHANGED * 3}
        assert [version.metadata["n"] for version in versions if version.metadata] == [1.5, CHANGED]
