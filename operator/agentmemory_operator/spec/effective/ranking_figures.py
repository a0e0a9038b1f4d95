"""Render the ranking in force for the status, with all figures of its model: a later pass may fall back to it."""

from dataclasses import asdict
from typing import Any

from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.scoring_parameters import Confidence, Importance, Model, Priority, model_name
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.kinds.status_ranking import RankingStatus


def ranking_status(ranking: Ranking, *, has_keyword: bool = False) -> RankingStatus:
    """Build `RankingStatus` from the ranking in force.

    Args:
        has_keyword: True to include the figures of searches by words too.
    """
    fusion = {"method": ranking.fusion.method, "keyword_weight": ranking.fusion.keyword_weight}
    return RankingStatus.model_validate(
        {
            "model": model_name(ranking.model),
            "limit": ranking.limit,
            "score_threshold": ranking.score_threshold,
            "min_similarity": ranking.min_similarity,
        }
        | ({"fusion": fusion, "evidence": ranking.evidence.terms} if has_keyword else {})
        | model_figures(ranking)
    )


def model_figures(ranking: Ranking) -> dict[str, Any]:
    """Return every figure of the model in force, by the snake_case names of the manifest's fields.

    `confidence_share` is omitted if it is 0.
    """
    model: Model | None = ranking.model
    match model:
        case None:
            share = {"confidence_share": ranking.confidence_share} if ranking.confidence_share else {}
            return {"weights": asdict(ranking.weights), "utility_norm": ranking.utility_norm} | share
        case Confidence():
            return {"confidence": asdict(model)}
        case Priority():
            figures = asdict(model)
            return {"horizons": figures.pop("horizons"), "priority": figures}
        case Importance():
            return {"importance": asdict(model)}
        case CheckedExpression(text=text):
            return {"expression": text}
