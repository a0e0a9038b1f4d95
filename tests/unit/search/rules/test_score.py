"""The weighted score: reference values, and each rule of the model."""

import json
import pathlib
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.search.rules.score import compute_score, score_query
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.formulas import split_constant
from agentmemory_operator.spec.expression.variables import DAY_MS, ScoreInput
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import Weights
from tests.support.engine.agents import EVERYTHING

GOLDEN_VALUES = json.loads((pathlib.Path(__file__).parents[3] / "golden" / "scoring.json").read_text())
GOLDEN = GOLDEN_VALUES["weighted"]
NOW_MS = 1_795_000_000_000


def rank(ranking: Ranking = EVERYTHING, *, age_days: float = 0, **more: object) -> float:
    memory = ScoreInput(**{"type": "fact", "similarity": 0.0, "created_at": NOW_MS - round(age_days * DAY_MS)} | more)
    return compute_score(memory, ranking, now_ms=NOW_MS).score


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_score_equals_the_reference_values(case: dict[str, dict[str, float]]) -> None:
    given_, wanted = case["in"], case["out"]
    ranking = replace(EVERYTHING, weights=Weights(**given_["weights"]), utility_norm=given_["utilityNorm"])
    memory = ScoreInput(
        type=given_["type"],
        similarity=given_["similarity"],
        created_at=NOW_MS - round(given_["ageDays"] * DAY_MS),
        importance=given_["importance"],
        access_count=given_["accessCount"],
    )

    terms = compute_score(memory, ranking, now_ms=NOW_MS)

    assert abs(terms.age_days - given_["ageDays"]) < 1e-8
    assert abs(terms.terms["recency"] - wanted["recency"]) < 1e-9
    assert abs(terms.terms["utility"] - wanted["utility"]) < 1e-9
    assert abs(terms.score - wanted["score"]) < 1e-9


RECENCY_ONLY = replace(EVERYTHING, weights=Weights(0, 1, 0))


@pytest.mark.parametrize(
    ("type_name", "age_days", "recency"),
    [
        ("fact", 365, 0.5),
        ("episodic", 28, 0.25),
        ("fact", -3, 1),
        ("forever", 5000, 1),
        ("removed", 0, 0.5),
        ("removed", 5000, 0.5),
    ],
)
def test_recency_halves_per_half_life(type_name: str, age_days: float, recency: float) -> None:
    types = (*EVERYTHING.types, MemoryType("forever", None))
    ranking = replace(RECENCY_ONLY, types=types)

    assert rank(ranking, type=type_name, age_days=age_days) == pytest.approx(recency)


def test_boost_multiplies_the_score() -> None:
    boosted = replace(EVERYTHING, types=(MemoryType("fact", 365, 1.5),))

    assert rank(boosted, similarity=0.8) == pytest.approx(1.5 * rank(similarity=0.8))


def test_utility_never_exceeds_one() -> None:
    utility_only = replace(EVERYTHING, weights=Weights(0, 0, 1))

    assert rank(utility_only, importance=1.0, access_count=10**9) == 1


def test_ranking_without_types_never_decays() -> None:
    assert rank(replace(RECENCY_ONLY, types=()), age_days=4000) == 1


def test_equal_half_lives_share_a_formula_term() -> None:
    formula = json.dumps(score_query(EVERYTHING, now_ms=NOW_MS, distance="Cosine"))

    assert formula.count("exp_decay") == 5
    assert '{"key": "type", "match": {"any": ["fact", "person", "correction"]}}' in formula


@given(st.integers(0, 2**48 - 1))
def test_split_time_is_exact_in_float32(value: int) -> None:
    parts = split_constant(value)["sum"]

    assert sum(struct.unpack("f", struct.pack("f", part))[0] for part in parts) == value
