"""Scoring models and expressions: the engine's score equals the oracle's within 1e-5."""

import asyncio
import json
import pathlib
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.errors import RequestInvalid, StoreRejected
from agentmemory_operator.search.rules.score import compute_score, score_query
from agentmemory_operator.spec.effective.settings import AgentSettings, Ranking
from agentmemory_operator.spec.expression.choices import Compare
from agentmemory_operator.spec.expression.scoring_parameters import Confidence, Horizons, Importance, Model, Priority
from agentmemory_operator.spec.expression.syntax import ExpressionInvalid
from agentmemory_operator.spec.expression.tree import Values, Var, nodes_of
from agentmemory_operator.spec.expression.typing import CheckedExpression, check_expression
from agentmemory_operator.spec.expression.variables import DAY_MS, ScoreInput, values_of
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import Weights
from qdrant_devserver.server import create_app
from tests.support.engine.agents import (
    EVERYTHING,
    World,
    agent_of,
    create_collection,
    search_request,
    settings_of,
    vector_of,
)
from tests.support.engine.reused_agents import reuse_world
from tests.support.spec.generator import draw_examples
from tests.support.spec.scores import preset_cases
from tests.support.web.http_server import serve

GOLDEN = json.loads((pathlib.Path(__file__).parents[2] / "golden" / "scoring.json").read_text())
NOW_MS = 1_795_000_000_000
POINTS = 150
TYPES = (MemoryType("fact", 365), MemoryType("task", 0.1), MemoryType("event", None, 1.5), MemoryType("semantic", None))
NAMES = [type_.name for type_ in TYPES] + ["removed"]
RANKING = replace(EVERYTHING, types=TYPES)


@pytest.fixture(scope="module", params=["1.18.3", "1.20.0"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, bool]]:
    """A server without `min` and `max`, and one with them."""
    with serve(create_app(tmp_path_factory.mktemp("qdrant"), qdrant_version=request.param)) as url:
        yield url, request.param == "1.20.0"


@pytest.fixture(scope="module")
def filled_settings(served: tuple[str, bool]) -> AgentSettings:
    """An agent with the read-only memories of all cases."""
    settings = settings_of("filled")
    points = [
        {"id": number, "vector": vector_of(number), "payload": payload_of(memory_of(number))}
        for number in range(1, POINTS + 1)
    ]

    async def fill() -> None:
        await create_collection(served[0], settings)
        async with QdrantPoints(served[0]) as store:
            await store.upsert(settings.alias, points)

    asyncio.run(fill())
    return settings


@pytest.fixture
async def filled(served: tuple[str, bool], filled_settings: AgentSettings) -> AsyncIterator[tuple[World, bool]]:
    url, has_extremes = served
    async with QdrantPoints(url) as store:
        yield World(agent_of(filled_settings, store)), has_extremes


def memory_of(number: int) -> ScoreInput:
    """Return a memory of an age from the future to five years, with boundary and random values, some missing."""
    draw = random.Random(number)
    age_ms = int(draw.choice([-DAY_MS, 0, 1000, DAY_MS, 30 * DAY_MS, 1825 * DAY_MS]) * draw.uniform(0.5, 1.5))
    optional: dict[str, Any] = {}
    if number % 3:
        optional["last_accessed_at"] = NOW_MS - draw.randrange(max(1, abs(age_ms)))
    if number % 4:
        optional["decay_rate"] = draw.choice([0.0, 0.01, 10.0, draw.random()])
    if number % 5:
        optional["confidence"] = draw.choice([0.0, 0.7, 1.0, draw.random()])
    if number % 6:
        optional["access_count"] = draw.choice([0, 1, 2, 9, 1000, 10**6])
    if number % 7:
        optional["importance"] = draw.choice([0.0, 0.25, 0.5, 0.7, 1.0, draw.random()])
    return ScoreInput(
        type=draw.choice(NAMES),
        similarity=draw.choice([0.0, 0.7, -1.0, 1.0, draw.uniform(-1, 1)]),
        keyword=draw.choice([0.0, 1.0, draw.random()]),
        created_at=NOW_MS - age_ms,
        tags=draw.choice([(), ("pinned",), ("größe", "pinned")]),
        **optional,
    )


def payload_of(memory: ScoreInput) -> dict[str, Any]:
    """Return the payload of a memory, without default values."""
    keys = {
        "type": memory.type,
        "createdAt": memory.created_at,
        "lastAccessedAt": memory.last_accessed_at,
        "decayRate": memory.decay_rate,
        "confidence": None if memory.confidence == 1.0 else memory.confidence,
        "accessCount": memory.access_count or None,
        "importance": None if memory.importance == 0.5 else memory.importance,
        "tags": list(memory.tags) or None,
        "sim": memory.similarity,
        "words": memory.keyword,
    }
    return {key: value for key, value in keys.items() if value is not None}


async def scores_of(filled: tuple[World, bool], ranking: Ranking) -> dict[int, float]:
    """Return the engine's score of each point; similarity and keyword score come from the payload."""
    world, has_extremes = filled
    query = score_query(
        ranking, now_ms=NOW_MS, distance="Cosine", similarity="sim", keyword="words", has_extremes=has_extremes
    )
    nearest = {"query": vector_of("query"), "limit": POINTS, "params": {"exact": True}}
    body = {"prefetch": nearest, "query": query, "limit": POINTS}
    scored = await world.agent.store.query(world.agent.alias, body)
    assert len(scored) == POINTS
    return {point["id"]: point["score"] for point in scored}


async def largest_difference(filled: tuple[World, bool], ranking: Ranking, numbers: Sequence[int] = ()) -> float:
    """Return the largest difference between engine and oracle, relative for scores above 1."""
    found = await scores_of(filled, ranking)
    differences = [0.0]
    for number in numbers or found:
        expected = compute_score(memory_of(number), ranking, now_ms=NOW_MS).score
        differences.append(abs(found[number] - expected) / max(1.0, abs(expected)))
    return max(differences)


def expression(text: str) -> Ranking:
    return replace(RANKING, model=check_expression(text, TYPES, "Cosine"))


MODELS: dict[str, Model | None] = {
    "weighted": None,
    "confidence": Confidence(),
    "confidence, other figures": Confidence(daily_factor=0.7, access_boost=1.1, max_boost=7.3),
    "priority": Priority(),
    "priority, other figures": Priority(0.1, 0.8, 0.1, 0.3, 7, 0.3, 0.25, Horizons(0, 0.7, 0, 0.3, 0.9, 0.1)),
    "importance": Importance(),
    "importance, other figures": Importance(daily_rate=0.37, idle_factor=1.7),
    "importance, unimportant": Importance(daily_rate=0.01, idle_factor=0.1, unimportant_factor=4),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
async def test_model_equals_oracle(filled: tuple[World, bool], model: Model | None) -> None:
    assert await largest_difference(filled, replace(RANKING, model=model)) < 1e-5


@pytest.mark.parametrize(
    "text",
    [
        "0.5*similarity + 0.3*decay(ageDays, halfLifeDays) + 0.2*importance",
        "if(importance > 0.7, 1, 0)",
        "if(importance >= 0.7, 1, 0)",
        "if(importance == 0.7, 1, 0) + if(importance != 0.7, 0, 1)",
        "if(0.7 < confidence, if(0.7 <= importance, 1, 2), 3)",
        "if(accessCount > 0, 1 / accessCount, 0)",
        "if(accessCount > 0, ln(accessCount), -1)",
        "0.01 * if(importance > 0, log10(importance), -1) * if(importance == 0, 0, log2(importance))",
        "if(ageDays < 1, 1, sqrt(1 / ageDays))",
        "if(type == 'event', pow(similarity, 3), if(type != 'fact', 0 - 1, decayRate))",
        "min(accessCount, 100) / max(accessCount, 10)",
        "min(accessCount, importance, 0.3) + max(accessCount * 0.00001, confidence, similarity)",
        "clamp(similarity, 0.1, 0.6) * keyword",
        "tag('pinned') * 0.1 - tag('größe') + tag('other') + max(tag('pinned'), tag('other'))",
        "decay(idleDays, 0.1) + decay(ageDays, 0.0007) + decay(idleDays - ageDays / 30, 40000)",
        "exp(0 - decayRate * ageDays) / (1 + 0.1 * idleDays)",
        "pow(similarity, 2) + pow(0.98, idleDays) + pow(importance, confidence)",
        "min(halfLifeDays, 5000) / 5000 + ln(halfLifeDays)",
        "abs(similarity) * sqrt(1.1 - similarity) - -keyword",
        "0.1234567890123 * accessCount / 12345.678901234",
    ],
)
async def test_expression_equals_oracle(filled: tuple[World, bool], text: str) -> None:
    assert await largest_difference(filled, expression(text)) < 1e-5


_VARIABLES = (
    *("similarity", "keyword", "ageDays", "idleDays", "importance", "accessCount", "confidence", "decayRate"),
    *("halfLifeDays", "tag('pinned')"),
)
_LEAVES = st.sampled_from([*_VARIABLES, "0", "1", "0.7", "2.5", "1000", "0.001", "(0 - 1)"]) | st.floats(
    0.0001, 100
).map(lambda number: f"{number:.7f}")
_SIGNS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])


def _larger(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    conditions = st.builds("{} {} {}".format, parts, _SIGNS, parts) | st.sampled_from(
        ["type == 'fact'", "type != 'event'", "tag('größe')"]
    )
    return st.one_of(
        st.builds("({} {} {})".format, parts, st.sampled_from("+-*"), parts),
        st.builds("({} / (1 + abs({})))".format, parts, parts),
        st.builds("if({}, {}, {})".format, conditions, parts, parts),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), parts, parts),
        st.builds("clamp({}, -3, 5)".format, parts),
        st.builds("{}(0.01 + abs({}))".format, st.sampled_from(["ln", "log10", "log2", "sqrt"]), parts),
        st.builds("exp(min({}, 3))".format, parts),
        st.builds("abs({})".format, parts),
        st.builds("pow(abs(clamp({}, -9, 9)) + 0.1, clamp({}, -2, 2))".format, parts, parts),
        st.builds("decay(abs({}), 0.001 + abs({}))".format, parts, parts),
        st.builds("decay(abs({}), halfLifeDays)".format, parts),
        st.builds("(-{})".format, parts),
    )


def check_or_none(text: str) -> CheckedExpression | None:
    try:
        return check_expression(text, TYPES, "Cosine")
    except ExpressionInvalid:
        return None


ACCEPTED = (
    st.recursive(_LEAVES, _larger, max_leaves=12)
    .map(lambda text: check_or_none(f"clamp({text}, -1000, 1000)"))
    .filter(lambda found: found is not None)
)


def is_rounding_dependent(model: CheckedExpression, values: Values) -> bool:
    """Return whether a comparison depends on the rounding of its last digit."""
    for node in nodes_of(model.root):
        if not isinstance(node, Compare) or all(isinstance(side, Var) for side in (node.left, node.right)):
            continue
        try:
            left, right = node.left.evaluate(values), node.right.evaluate(values)
        except (ValueError, ZeroDivisionError, OverflowError):
            continue
        if abs(left - right) <= 1e-9 * (abs(left) + abs(right)):
            return True
    return False


async def test_random_expression_equals_oracle(filled: tuple[World, bool]) -> None:
    for model in draw_examples(ACCEPTED, count=40):
        stable = [
            number
            for number in range(1, POINTS + 1)
            if not is_rounding_dependent(model, values_of(memory_of(number), now_ms=NOW_MS))
        ]
        if stable:
            assert await largest_difference(filled, replace(RANKING, model=model), stable) < 1e-5, model.text


def golden_cases() -> Iterator[tuple[Ranking, ScoreInput, float]]:
    """Yield a ranking, a memory and its score for each formula."""
    for case in GOLDEN["weighted"]:
        given = case["in"]
        weighted = replace(EVERYTHING, weights=Weights(**given["weights"]), utility_norm=given["utilityNorm"])
        yield weighted, golden_memory(given), case["out"]["score"]
    kept = (MemoryType("fact", 1), MemoryType("status", 1), MemoryType("event", None), MemoryType("decision", None))
    for case in GOLDEN["confidence"]:
        model = Confidence(daily_factor=case["in"]["decayFactor"], max_boost=100)
        yield replace(EVERYTHING, types=kept, model=model), golden_memory(case["in"]), case["out"]["score"]
    bare = Priority(similarity_share=0, horizons=Horizons(1, 1, 1, 1, 1, 1))
    for case in GOLDEN["rfm"]:
        yield replace(EVERYTHING, model=bare), golden_memory(case["in"]), case["out"]["priority"]
    for case in GOLDEN["importanceDecay"]:
        yield replace(EVERYTHING, model=Importance()), golden_memory(case["in"]), case["out"]["score"]


def golden_memory(given: dict[str, Any]) -> ScoreInput:
    plain = {"importance": "importance", "accessCount": "access_count", "decayRate": "decay_rate"}
    known = {name: given[key] for key, name in (plain | {"confidence": "confidence"}).items() if key in given}
    if "idleDays" in given:
        known["last_accessed_at"] = NOW_MS - round(given["idleDays"] * DAY_MS)
    return ScoreInput(
        type=given.get("type", "fact"),
        similarity=given.get("similarity", 0.0),
        created_at=NOW_MS - round(given.get("ageDays", 0) * DAY_MS),
        **known,
    )


async def test_engine_equals_reference_values(served: tuple[str, bool]) -> None:
    url, has_extremes = served
    cases = [*golden_cases(), *(case[1:] for case in preset_cases())]
    async with reuse_world(url) as world:
        points = [
            {"id": number, "vector": vector_of(number), "payload": payload_of(memory) | {"number": number}}
            for number, (_, memory, _) in enumerate(cases, 1)
        ]
        await world.agent.store.upsert(world.agent.alias, points)
        bodies = [
            {
                "prefetch": {"query": vector_of("query"), "limit": 1, "filter": {"must": [{"has_id": [number]}]}},
                "query": score_query(
                    ranking, now_ms=NOW_MS, distance="Cosine", similarity="sim", has_extremes=has_extremes
                ),
                "limit": 1,
            }
            for number, (ranking, _, _) in enumerate(cases, 1)
        ]
        found = await world.agent.store.query_batch(world.agent.alias, bodies)

    assert len(found) == 2 * 96
    for (point,), (_, _, expected) in zip(found, cases, strict=True):
        assert abs(point["score"] - expected) < 1e-5


async def test_min_and_max_are_sent_if_supported(served: tuple[str, bool]) -> None:
    """An older server rejects them, which proves that they were sent."""
    url, has_extremes = served
    async with reuse_world(url, ranking=expression("min(similarity, 0.3) + max(importance, 0.6)")) as world:
        await world.add("a", vector=vector_of("query"), importance=0.9)
        request = search_request(user_id="u", vector=vector_of("query"))
        portable = await world.recall.search(world.agent, request)
        supporting = replace(world.agent, capabilities=frozenset({"minMax"}))
        if has_extremes:
            native = await world.recall.search(supporting, request)
            assert native.results[0].score == pytest.approx(1.2, abs=1e-5)
        else:
            with pytest.raises(StoreRejected):
                await world.recall.search(supporting, request)

    assert portable.results[0].score == pytest.approx(1.2, abs=1e-5)


@pytest.mark.parametrize(("min_priority", "contents"), [(None, ["much", "little"]), (0.5, ["much"]), (0.9, [])])
async def test_min_priority_limits_results(
    served: tuple[str, bool], min_priority: float | None, contents: list[str]
) -> None:
    async with reuse_world(served[0], ranking=replace(EVERYTHING, model=Priority())) as world:
        await world.add("much", vector=vector_of("query"), importance=0.9)
        await world.add("little", vector=vector_of("query"), importance=0.1)

        answer = await world.recall.search(
            world.agent, search_request(user_id="u", vector=vector_of("query"), min_priority=min_priority)
        )

    assert [found.record.content for found in answer.results] == contents
    assert answer.removed_by_threshold == 0


async def test_min_priority_requires_a_priority_model(served: tuple[str, bool]) -> None:
    async with reuse_world(served[0]) as world:
        with pytest.raises(RequestInvalid, match="min_priority"):
            await world.recall.search(
                world.agent, search_request(user_id="u", vector=vector_of("query"), min_priority=0.1)
            )
