"""Weights of the preset `standard` by embedding model."""

from dataclasses import asdict
from typing import Any

import pytest

from agentmemory_operator.spec.effective.model_weights import weighted_for_model
from agentmemory_operator.spec.effective.settings import Ranking, effective_settings
from agentmemory_operator.spec.presets import STANDARD
from tests.support.spec.plans import probe

BGE, E5 = "BAAI/bge-small-en-v1.5", "intfloat/multilingual-e5-small"


def ranking_with(model: str | None, *, preset: str = "standard", **scoring: Any) -> Ranking:
    memory = probe({"preset": preset} | ({"scoring": scoring} if scoring else {}))
    return weighted_for_model(effective_settings(memory), model).ranking


@pytest.mark.parametrize(
    ("model", "keyword_weight", "evidence"),
    [
        (BGE, 0.4, {"terse": 0.1}),
        (E5, 0.25, {"terse": 0.1, "author": 0.03, "time": 0.05}),
        ("l2_supercat", 0.65, {}),
        (None, 0.65, {}),
    ],
)
def test_model_decides_the_weights(model: str | None, keyword_weight: float, evidence: dict[str, float]) -> None:
    ranking = ranking_with(model)

    assert ranking.fusion.keyword_weight == keyword_weight
    assert asdict(ranking.evidence) == asdict(STANDARD.evidence) | evidence


def test_figures_of_the_object_stay() -> None:
    ranking = ranking_with(BGE, fusion={"keywordWeight": 0.65}, evidence={"author": 0.2})

    assert ranking.fusion.keyword_weight == 0.65
    assert (ranking.evidence.terse, ranking.evidence.author) == (0.1, 0.2)
    assert ranking_with(BGE, evidence={"terse": 0.25}).evidence.terse == 0.25


@pytest.mark.parametrize("scoring", [{"fusion": {"method": "RRF"}}, {"fusion": {"method": "None"}}])
def test_other_method_has_the_weights_of_the_preset(scoring: dict[str, Any]) -> None:
    assert ranking_with(BGE, **scoring) == ranking_with(None, **scoring)


@pytest.mark.parametrize("preset", ["cortex", "brain", "keyed"])
def test_other_preset_has_no_weights_by_model(preset: str) -> None:
    assert ranking_with(BGE, preset=preset) == ranking_with(None, preset=preset)
