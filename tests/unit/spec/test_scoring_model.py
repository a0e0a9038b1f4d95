"""Scoring expressions that are rejected: the last accepted scoring stays in force."""

from typing import Any

import pytest

from agentmemory_operator.spec.effective.ranking_figures import ranking_status
from agentmemory_operator.spec.effective.revisions import at_revision
from agentmemory_operator.spec.effective.settings import effective_ranking, effective_settings
from agentmemory_operator.spec.expression.scoring_parameters import Confidence, Horizons, Importance, Priority
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION, AgentMemory
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.presets import CORTEX, Weights

GOOD: dict[str, Any] = {"model": "Expression", "expression": "2 * similarity"}
BAD: dict[str, Any] = {"model": "Expression", "expression": "2 * similarty"}


def memory_of(scoring: dict[str, Any], *, generation: int = 1, status: Any = None, **spec: Any) -> AgentMemory:
    document = {
        "apiVersion": API_VERSION,
        "kind": "AgentMemory",
        "metadata": {"name": "probe", "generation": generation},
        "spec": {"connectionRef": {"name": "main"}, "preset": "cortex", "scoring": scoring} | spec,
        "status": status or {},
    }
    return parse_agent_memory(document)


def status_after(memory: AgentMemory) -> dict[str, Any]:
    """Return the part of the status that a pass writes for scoring."""
    settings = effective_settings(memory)
    figures = ranking_status(settings.ranking).model_dump(by_alias=True, exclude_none=True)
    generation = settings.scoring_generation
    return {"effective": {"scoring": figures}, "scoring": {"generation": generation} if generation else {}}


@pytest.mark.parametrize(
    ("scoring", "model"),
    [
        ({}, None),
        ({"model": "Weighted"}, None),
        ({"model": "Confidence"}, Confidence(0.98, 0.3, 2.5)),
        ({"model": "Confidence", "confidence": {"maxBoost": 3}}, Confidence(0.98, 0.3, 3)),
        ({"model": "Priority", "priority": {"minPriority": 0.1}}, Priority(min_priority=0.1)),
        ({"model": "Priority", "horizons": {"hourly": 1}}, Priority(horizons=Horizons(hourly=1))),
        ({"model": "Importance", "importance": {"idleFactor": 0.2}}, Importance(0.01, 0.2)),
    ],
)
def test_each_model_overrides_its_defaults(scoring: dict[str, Any], model: object) -> None:
    assert effective_ranking(memory_of(scoring)).model == model


@pytest.mark.parametrize(
    "scoring",
    [
        GOOD,
        {"model": "Confidence", "confidence": {"dailyFactor": 0.5}},
        {"model": "Priority", "priority": {"halfLifeDays": 3}, "horizons": {"daily": 0}},
        {"model": "Importance", "importance": {"dailyRate": 0.5}},
        {"weights": {"similarity": 1, "recency": 0, "utility": 0}, "utilityNorm": 7},
    ],
)
def test_rejected_expression_keeps_the_last_scoring(scoring: dict[str, Any]) -> None:
    accepted = memory_of(scoring, generation=4)

    settings = effective_settings(memory_of(BAD, generation=5, status=status_after(accepted)))

    assert settings.ranking == effective_ranking(accepted)
    assert settings.ranking_generation == 4
    assert settings.scoring_fault is not None
    assert settings.scoring_fault.startswith('character 5: "similarty" is not a variable')


def test_last_scoring_survives_other_changes() -> None:
    status = status_after(memory_of(GOOD, generation=4))
    for generation in (5, 6, 7):
        status = status_after(memory_of(BAD | {"limit": generation}, generation=generation, status=status))

    settings = effective_settings(memory_of(BAD | {"limit": 9}, generation=8, status=status))

    assert isinstance(settings.ranking.model, CheckedExpression)
    assert settings.ranking.model.text == "2 * similarity"
    assert settings.ranking_generation == 4
    assert settings.ranking.limit == 9


def test_preset_ranks_without_an_accepted_scoring() -> None:
    first = effective_settings(memory_of(BAD))
    second = effective_settings(memory_of(BAD, status=status_after(memory_of(BAD))))

    assert first == second
    assert first.ranking.model is None
    assert first.ranking.weights == CORTEX.weights
    assert first.scoring_generation is None
    assert first.ranking_generation == 1


def test_accepted_expression_needs_its_types() -> None:
    text = {"model": "Expression", "expression": "if(type == 'task', 1, similarity)"}
    status = status_after(memory_of(text))

    settings = effective_settings(memory_of(text, generation=2, status=status, types=[{"name": "x", "decay": False}]))

    assert settings.ranking.model is None
    assert "did you mean" in (settings.scoring_fault or "") or "use one of x" in (settings.scoring_fault or "")


def test_good_expression_clears_the_fault() -> None:
    settings = effective_settings(memory_of(GOOD, generation=6, status=status_after(memory_of(BAD, generation=5))))

    assert settings.scoring_fault is None
    assert settings.ranking_generation == 6


@pytest.mark.parametrize("status", [{"scoring": {"generation": 3}}, {"effective": None}, {"scoring": None}, {}])
def test_status_without_a_model_is_ignored(status: dict[str, Any]) -> None:
    assert effective_ranking(memory_of(BAD, status=status)).weights == CORTEX.weights


def test_accepted_weights_are_restored() -> None:
    weights = {"similarity": 0, "recency": 1, "utility": 0}
    status = status_after(memory_of({"weights": weights}, generation=2))

    assert effective_ranking(memory_of(BAD, generation=3, status=status)).weights == Weights(0, 1, 0)


def test_last_scoring_is_found_under_any_revision() -> None:
    rejected = memory_of(BAD, generation=5, status=status_after(memory_of(GOOD, generation=4)))

    assert effective_settings(at_revision(rejected, CORTEX.revision)) == effective_settings(rejected)


def test_confidence_share_is_zero_by_default() -> None:
    plain, counted = effective_settings(memory_of({})), effective_settings(memory_of({"confidenceShare": 0.5}))

    assert (plain.ranking.confidence_share, counted.ranking.confidence_share) == (0.0, 0.5)
    assert "confidence" not in plain.indexes
    assert counted.indexes["confidence"] == "float"
    assert ranking_status(plain.ranking).confidence_share is None
    assert ranking_status(counted.ranking).confidence_share == 0.5
