"""The ranking in force as `status.effective.scoring` shows it: complete, so that it can be fallen back to."""

from dataclasses import asdict
from typing import Any

from agentmemory_operator.domain.effective import Ranking
from agentmemory_operator.domain.scoring_models import Confidence, Importance, Model, Priority, name_of
from agentmemory_operator.domain.status import RankingStatus
from agentmemory_operator.domain.typed_expressions import Scoring


def ranking_status(ranking: Ranking) -> RankingStatus:
    """Return the ranking as the status shows it."""
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
    """Return every figure of the model in force, by the names of the manifest's fields in snake_case."""
    model: Model | None = ranking.model
    match model:
        case None:
            return {"weights": asdict(ranking.weights), "utility_norm": ranking.utility_norm}
        case Confidence():
            return {"confidence": asdict(model)}
        case Priority():
            figures = asdict(model)
            return {"horizons": figures.pop("horizons"), "priority": figures}
        case Importance():
            return {"importance": asdict(model)}
        case Scoring(text=text):
            return {"expression": text}
