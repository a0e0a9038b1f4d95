"""Weights of similarity, keywords and evidence that depend on the embedding model of the collection."""

from dataclasses import fields, replace
from typing import Any

from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.spec.presets.table import Fusion

_FUSION = {field.name for field in fields(Fusion)}


def weighted_for_model(settings: AgentSettings, model: str | None) -> AgentSettings:
    """Return the settings with the preset's weights for a model. Figures that the object sets itself stay.

    The settings are unchanged if the preset has no weights for the model, or if the method of fusion is not Score.

    Args:
        model: Model of the collection, which may differ from the object's until a rebuild is done. None with embedding
            provider `none`.
    """
    ranking = settings.ranking
    figures: dict[str, Any] = dict(dict(ranking.model_weights).get(model or "", ()))
    chosen = {name: value for name, value in figures.items() if name not in ranking.own_weights}
    if not chosen or ranking.fusion.method != "Score":
        return settings
    fusion = {name: value for name, value in chosen.items() if name in _FUSION}
    evidence = {name: value for name, value in chosen.items() if name not in _FUSION}
    weighted = replace(
        ranking, fusion=replace(ranking.fusion, **fusion), evidence=replace(ranking.evidence, **evidence)
    )
    return replace(settings, ranking=weighted)
