"""The ranking in force as the status shows it: complete, so that it can be fallen back to."""

from dataclasses import asdict
from typing import Any

from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.models import Confidence, Importance, Model, Priority, name_of
from agentmemory_operator.spec.expression.typing import CheckedExpression
from agentmemory_operator.spec.kinds.status_agent_memory import RankingStatus


def ranking_status(ranking: Ranking) -> RankingStatus:
    """The ranking as the status shows it."""
    return RankingStatus.model_validate(
        {
            "model": name_of(ranking.model),
            "limit": ranking.limit,
            "score_threshold": ranking.score_threshold,
            "min_similarity": ranking.min_similarity,
        }
        | model_figures(ranking)
    )


def model_figures(ranking: Ranking) -> dict[str, Any]:
    """Every figure of the model in force, by the names of the manifest's fields in snake_case."""
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
