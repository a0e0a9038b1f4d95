"""The ranking in `status.effective.scoring` of an AgentMemory."""

from pydantic import Field

from agentmemory_operator.spec.kinds.model_base import StatusModel


class WeightsStatus(StatusModel):
    """Weights of the combined score in force."""

    similarity: float | None = Field(default=None, description="Weight of the similarity.")
    recency: float | None = Field(default=None, description="Weight of the recency.")
    utility: float | None = Field(default=None, description="Weight of the utility.")


class ConfidenceStatus(StatusModel):
    """Figures of the model Confidence in force."""

    daily_factor: float | None = Field(default=None, description="Factor per day without access.")
    access_boost: float | None = Field(default=None, description="Increase per doubling of the accesses.")
    max_boost: float | None = Field(default=None, description="Maximum boost.")


class PriorityStatus(StatusModel):
    """Figures of the model Priority in force."""

    recency: float | None = Field(default=None, description="Weight of the recency.")
    frequency: float | None = Field(default=None, description="Weight of the frequency.")
    importance: float | None = Field(default=None, description="Weight of the importance.")
    half_life_days: float | None = Field(default=None, description="Days until the recency halves.")
    max_accesses: int | None = Field(default=None, description="Accesses at which the frequency is 1.")
    similarity_share: float | None = Field(default=None, description="Weight of the similarity in the score.")
    min_priority: float | None = Field(default=None, description="Minimum priority of results.")


class HorizonsStatus(StatusModel):
    """Weights by age in force."""

    hourly: float | None = Field(default=None, description="Weight up to an hour.")
    daily: float | None = Field(default=None, description="Weight up to a day.")
    weekly: float | None = Field(default=None, description="Weight up to 7 days.")
    monthly: float | None = Field(default=None, description="Weight up to 30 days.")
    yearly: float | None = Field(default=None, description="Weight above 30 days.")
    knowledge_bank: float | None = Field(default=None, description="Weight of the type semantic.")


class ImportanceStatus(StatusModel):
    """Figures of the model Importance in force."""

    daily_rate: float | None = Field(default=None, description="Daily decay rate of memories without one of their own.")
    idle_factor: float | None = Field(default=None, description="Increase of the divisor per idle day.")
    unimportant_factor: float | None = Field(
        default=None, description="Factor of the daily rate for memories of low importance."
    )


class FusionStatus(StatusModel):
    """Combination of similarity and keywords in force, which may depend on the embedding model."""

    method: str | None = Field(default=None, description="Score, RRF or None.")
    keyword_weight: float | None = Field(default=None, description="Share of the keywords.")


class EvidenceStatus(StatusModel):
    """Weights of evidence in force, which may depend on the embedding model; absent if 0."""

    terse: float | None = Field(default=None, description="Weight of the amount of content.")
    author: float | None = Field(default=None, description="Weight of the author that a question names.")
    time: float | None = Field(default=None, description="Weight of a time that a question asks for.")
    asked: float | None = Field(default=None, description="Weight of an answer to a question.")
    date: float | None = Field(default=None, description="Weight of a date that a question names.")


class RankingStatus(StatusModel):
    """Ranking in force. If an expression is rejected, the ranking falls back to it."""

    model: str | None = Field(default=None, description="Scoring model.")
    weights: WeightsStatus | None = Field(default=None, description="Weights of the combined score.")
    utility_norm: float | None = Field(default=None, description="Divisor of the utility.")
    confidence_share: float | None = Field(default=None, description="Influence of the confidence; absent if none.")
    confidence: ConfidenceStatus | None = Field(default=None, description="Settings of the model Confidence.")
    priority: PriorityStatus | None = Field(default=None, description="Settings of the model Priority.")
    horizons: HorizonsStatus | None = Field(default=None, description="Weights by age of the model Priority.")
    importance: ImportanceStatus | None = Field(default=None, description="Settings of the model Importance.")
    expression: str | None = Field(default=None, description="Score of the model Expression.")
    limit: int | None = Field(default=None, description="Memories returned without a top_k.")
    score_threshold: float | None = Field(default=None, description="Minimum combined score.")
    min_similarity: float | None = Field(default=None, description="Minimum similarity.")
    fusion: FusionStatus | None = Field(
        default=None, description="Combination of similarity and keywords; absent without keyword vectors."
    )
    evidence: EvidenceStatus | None = Field(
        default=None, description="Weights of evidence; absent without keyword vectors."
    )
