"""Scoring models other than Weighted: each equals its reference values, and each figure has an effect."""

import json
import math
import pathlib
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.search.rules.score import compute_score, score_bounds
from agentmemory_operator.search.rules.score_trees import EXCLUDED_SCORE
from agentmemory_operator.spec.expression.intervals import Interval
from agentmemory_operator.spec.expression.scoring_parameters import Confidence, Horizons, Importance, Model, Priority
from agentmemory_operator.spec.expression.typing import check_expression
from agentmemory_operator.spec.expression.variables import DAY_MS, ScoreInput, ranges_of
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import Weights
from tests.support.engine.agents import EVERYTHING

GOLDEN = json.loads((pathlib.Path(__file__).parents[2] / "golden" / "scoring.json").read_text())
NOW_MS = 1_795_000_000_000
BRAIN_TYPES = (
    MemoryType("fact", 365),
    MemoryType("status", 30),
    MemoryType("event", None),
    MemoryType("decision", None),
)


def at(days: float) -> int:
    return NOW_MS - round(days * DAY_MS)


def ranked(model: Model | None, memory: ScoreInput, **more: Any) -> float:
    return compute_score(memory, replace(EVERYTHING, model=model, **more), now_ms=NOW_MS).score


@pytest.mark.parametrize("case", GOLDEN["confidence"], ids=range(24))
def test_confidence_equals_the_reference_values(case: dict[str, Any]) -> None:
    values, expected = case["in"], case["out"]
    model = Confidence(daily_factor=values["decayFactor"], max_boost=100)
    memory = ScoreInput(
        type=values["type"],
        similarity=values["similarity"],
        created_at=0,
        last_accessed_at=at(values["idleDays"]),
        access_count=values["accessCount"],
        confidence=values["confidence"],
    )

    found = compute_score(memory, replace(EVERYTHING, model=model, types=BRAIN_TYPES), now_ms=NOW_MS)

    assert abs(found.terms["effective_confidence"] - expected["effectiveConfidence"]) < 1e-9
    assert abs(found.terms["access_boost"] - expected["accessBoost"]) < 1e-9
    assert abs(found.score - expected["score"]) < 1e-9


@pytest.mark.parametrize("case", GOLDEN["rfm"], ids=range(24))
def test_priority_equals_the_reference_values(case: dict[str, Any]) -> None:
    values, expected = case["in"], case["out"]
    memory = ScoreInput(
        type="fact",
        similarity=0.4,
        created_at=at(values["ageDays"]),
        importance=values["importance"],
        access_count=values["accessCount"],
    )

    found = compute_score(memory, replace(EVERYTHING, model=Priority()), now_ms=NOW_MS)

    for name in ("recency", "frequency", "priority"):
        assert abs(found.terms[name] - expected[name]) < 1e-9
    assert found.score == pytest.approx(found.terms["horizon"] * (0.2 + 0.5 * expected["priority"]), abs=1e-9)


@pytest.mark.parametrize("case", GOLDEN["importanceDecay"], ids=range(24))
def test_importance_equals_the_reference_values(case: dict[str, Any]) -> None:
    values, expected = case["in"], case["out"]
    memory = ScoreInput(
        type="fact",
        similarity=values["similarity"],
        created_at=at(values["ageDays"]),
        last_accessed_at=at(values["idleDays"]),
        importance=values["importance"],
        decay_rate=values["decayRate"],
    )

    found = compute_score(memory, replace(EVERYTHING, model=Importance()), now_ms=NOW_MS)

    assert abs(found.terms["relevance"] - expected["relevance"]) < 1e-9
    assert abs(found.score - expected["score"]) < 1e-9


OLD = ScoreInput(type="fact", similarity=0.8, created_at=at(10), access_count=9, confidence=0.5)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Confidence(daily_factor=1, access_boost=0), 0.8 * 0.5),
        (Confidence(daily_factor=0.5, access_boost=0), 0.8 * 0.5 * 0.5**10),
        (Confidence(daily_factor=1, access_boost=1, max_boost=3), 0.8 * 0.5 * 3),
        (Importance(daily_rate=0, idle_factor=0), 0.8 * 0.5),
        (Importance(daily_rate=0, idle_factor=0.1), 0.8 * 0.5 / 2),
        (Importance(daily_rate=0, idle_factor=0, unimportant_factor=9), 0.8 * 0.5),
        (Priority(recency=0, frequency=0, importance=1, similarity_share=0, horizons=Horizons(monthly=0.3)), 0.5),
        (Priority(recency=1, frequency=0, importance=0, half_life_days=5, similarity_share=0), 0.25 / 3),
        (Priority(recency=0, frequency=1, importance=0, max_accesses=9, similarity_share=0), 1 / 3),
        (Priority(similarity_share=1), 0.8 / 3),
        (Priority(similarity_share=1, min_priority=0.9), EXCLUDED_SCORE),
        (Priority(similarity_share=1, horizons=Horizons(monthly=0)), EXCLUDED_SCORE),
    ],
)
def test_every_figure_has_an_effect(model: Model, expected: float) -> None:
    assert ranked(model, OLD) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("age_days", "weight"),
    [(0, 1), (1 / 24, 1), (1 / 23, 2), (1, 2), (1.01, 3), (7, 3), (7.01, 4), (30, 4), (30.01, 5), (9999, 5)],
)
def test_horizon_depends_on_age(age_days: float, weight: int) -> None:
    horizons = Horizons(0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    memory = ScoreInput(type="fact", similarity=1, created_at=at(age_days))

    assert ranked(Priority(similarity_share=1, horizons=horizons), memory) == pytest.approx(weight / 6)


def test_semantic_memory_has_its_own_horizon() -> None:
    """The horizon of a semantic memory does not depend on its age."""
    memory = ScoreInput(type="semantic", similarity=1, created_at=0)

    assert ranked(Priority(similarity_share=1), memory) == pytest.approx(0.25 / 0.3)


def test_type_without_half_life_does_not_decay() -> None:
    timeless = replace(OLD, type="event")

    assert ranked(Confidence(access_boost=0), timeless, types=BRAIN_TYPES) == pytest.approx(0.8 * 0.5)
    assert ranked(Importance(idle_factor=0), timeless, types=BRAIN_TYPES) == pytest.approx(0.8 * 0.5)


def test_own_decay_rate_overrides_the_type() -> None:
    own = replace(OLD, type="event", decay_rate=0.1)

    assert ranked(Importance(idle_factor=0), own, types=BRAIN_TYPES) == pytest.approx(0.8 * 0.5 * 2.718281828**-1)


EPISODES = (MemoryType("episodic", 69.31), MemoryType("semantic", None))


@pytest.mark.parametrize(
    ("memory", "rate"),
    [
        ({"importance": 0.25}, 0.04),
        ({"importance": 0.0625}, 0.04),
        ({"importance": 0.2501}, 0.01),
        ({"importance": 0.5}, 0.01),
        ({"importance": 0.25, "decay_rate": 0.02}, 0.02),
        ({"importance": 0.25, "type": "semantic"}, 0.0),
        ({"importance": 0.25, "type": "semantic", "decay_rate": 0.02}, 0.02),
    ],
)
def test_unimportant_memory_decays_faster(memory: dict[str, Any], rate: float) -> None:
    """A memory with its own decay rate is exempt."""
    values: dict[str, Any] = {"type": "episodic", "similarity": 0.8, "created_at": at(40), **memory}
    episode = ScoreInput(**values)
    expected = 0.8 * memory["importance"] * math.exp(-rate * 40)

    assert ranked(Importance(0.01, 0, unimportant_factor=4), episode, types=EPISODES) == pytest.approx(expected)
    # Without the factor: the formula of the reference design.
    plain = 0.01 if rate == 0.04 else rate
    assert ranked(Importance(0.01, 0), episode, types=EPISODES) == pytest.approx(
        0.8 * memory["importance"] * math.exp(-plain * 40)
    )


MODELS: list[Model | None] = [
    None,
    Confidence(),
    Priority(),
    Importance(),
    check_expression("0.5*similarity + 0.3*decay(ageDays, halfLifeDays)", EVERYTHING.types, "Cosine"),
]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_boost_multiplies_the_score_of_every_model(model: Model | None) -> None:
    boosted = tuple(replace(type_, boost=1.5) for type_ in EVERYTHING.types)

    assert ranked(model, OLD, types=boosted) == pytest.approx(1.5 * ranked(model, OLD))


def test_expression_can_equal_the_weighted_model() -> None:
    text = "0.5*similarity + 0.3*decay(ageDays, halfLifeDays) + 0.2*importance"
    expression = check_expression(text, EVERYTHING.types, "Cosine")
    unused = replace(OLD, access_count=0)

    for type_name in ("fact", "task", "removed"):
        memory = replace(unused, type=type_name)
        assert ranked(expression, memory) == pytest.approx(ranked(None, memory, utility_norm=1.0))


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_scores_stay_within_the_bounds(model: Model | None) -> None:
    ranking = replace(EVERYTHING, model=model)
    ranges = ranges_of("Cosine").with_interval("similarity", Interval(-1, 0.4)).with_interval("ageDays", Interval(3, 9))
    bounds = score_bounds(ranking, ranges)

    for type_ in ("fact", "episodic", "removed"):
        for similarity, age, count in ((0.4, 3, 10**6), (-1, 9, 0), (0.1, 5, 7)):
            memory = ScoreInput(type=type_, similarity=similarity, created_at=at(age), access_count=count, importance=1)
            assert bounds.low - 1e-12 <= ranked(model, memory) <= bounds.high + 1e-12


def test_bounds_of_the_weighted_sum_are_tight() -> None:
    ranking = replace(EVERYTHING, weights=Weights(0.5, 0.3, 0.2))
    ranges = (
        ranges_of("Cosine").with_interval("similarity", Interval(-1, 0.4)).with_interval("ageDays", Interval(365, 1e6))
    )

    bounds = score_bounds(ranking, replace(ranges, types=frozenset({"fact"})))

    assert bounds.high == pytest.approx(0.5 * 0.4 + 0.3 * 0.5 + 0.2)
