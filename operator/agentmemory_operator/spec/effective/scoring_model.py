"""Select the scoring model: the spec's; if its expression is invalid, the last accepted one, else the preset's."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentmemory_operator.spec.expression.scoring_parameters import Confidence, Importance, Model, Priority, model_name
from agentmemory_operator.spec.expression.syntax import ExpressionInvalid
from agentmemory_operator.spec.expression.typing import check_expression
from agentmemory_operator.spec.kinds.spec_scoring import ScoringSpec
from agentmemory_operator.spec.memory_types import MemoryType
from agentmemory_operator.spec.presets import Preset, Weights

FIELD = "spec.scoring.expression"
_MODEL_FIELDS = {
    "model",
    "weights",
    "utilityNorm",
    "confidenceShare",
    "confidence",
    "priority",
    "horizons",
    "importance",
    "expression",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingModel:
    """Selected scoring model.

    Attributes:
        model: Scoring model. None is the weighted sum.
        weights, utility_norm: Figures of the weighted sum. None is the preset's.
        confidence_share: Share of confidence in the weighted sum, 0..1.
        fault: Reason why the expression in the spec cannot be used. None if it can, or if there is none.
        generation: metadata.generation of the object that the model is from. None if it is the preset's because no
            accepted model can be used.
    """

    model: Model | None = None
    weights: Weights | None = None
    utility_norm: float | None = None
    confidence_share: float = 0.0
    fault: str | None = None
    generation: int | None = None


def choose_model(
    spec: ScoringSpec | None,
    status: Mapping[str, Any],
    *,
    preset: Preset,
    types: tuple[MemoryType, ...],
    distance: str,
    generation: int,
) -> RankingModel:
    """Select the model of the spec; if its expression is invalid, the last accepted model, else the preset's.

    Args:
        generation: metadata.generation of the object.
        status: Status of the object, not validated. Its figures in force are the last accepted model.
    """
    try:
        return replace(_chosen(spec or ScoringSpec(), preset, types, distance=distance), generation=generation)
    except ExpressionInvalid as exc:
        fault = str(exc)
    try:
        choice = _chosen(_accepted(status), preset, types, distance=distance)
    except (ValueError, ExpressionInvalid):
        # Use the preset's model: no model was accepted yet, or the accepted model does not fit the current types.
        return RankingModel(model=preset.model, fault=fault)
    return replace(choice, fault=fault, generation=status["scoring"]["generation"])


def _accepted(status: Mapping[str, Any]) -> ScoringSpec:
    """Return the model in force according to the status.

    Raises:
        ValueError: If the status contains no accepted model, or an invalid one.
    """
    figures = _part_of(_part_of(status, "effective"), "scoring")
    if not _part_of(status, "scoring").get("generation") or not figures:
        raise ValueError("no scoring was accepted yet")
    model_values = {name: value for name, value in figures.items() if name in _MODEL_FIELDS}
    return ScoringSpec.model_validate(model_values)


def _part_of(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = status.get(name)
    return part if isinstance(part, Mapping) else {}


def _chosen(spec: ScoringSpec, preset: Preset, types: tuple[MemoryType, ...], *, distance: str) -> RankingModel:
    base = preset.model
    match spec.model or model_name(base):
        case "Confidence":
            base = base if isinstance(base, Confidence) else Confidence()
            return RankingModel(model=replace(base, **_given(spec.confidence)))
        case "Priority":
            base = base if isinstance(base, Priority) else Priority()
            horizons = replace(base.horizons, **_given(spec.horizons))
            return RankingModel(model=replace(base, **_given(spec.priority), horizons=horizons))
        case "Importance":
            base = base if isinstance(base, Importance) else Importance()
            return RankingModel(model=replace(base, **_given(spec.importance)))
        case "Expression":
            return RankingModel(model=check_expression(spec.expression or "", types, distance))
    weights = Weights(**spec.weights.model_dump()) if spec.weights else None
    share = spec.confidence_share or 0.0
    return RankingModel(weights=weights, utility_norm=spec.utility_norm, confidence_share=share)


def _given(block: Any) -> dict[str, Any]:
    figures: dict[str, Any] = block.model_dump(exclude_none=True) if block else {}
    return figures
