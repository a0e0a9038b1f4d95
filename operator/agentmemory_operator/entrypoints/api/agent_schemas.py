"""Response models of agents, for the OpenAPI document."""

from typing import Literal

from pydantic import Field

from agentmemory_operator.entrypoints.api.fields import Time
from agentmemory_operator.entrypoints.api.memory_schemas import Answer, WeightsOut


class AgentOut(Answer):
    """Summary of an agent."""

    agent: str
    namespace: str
    preset: str
    ready: bool
    state: str | None = Field(
        description="State that the operator reports of the object, in words; null if it has reported none."
    )
    generation: int
    memories: int | None = Field(description="null while the agent is not ready.")


class AgentsOut(Answer):
    """All agents that the caller may read."""

    results: list[AgentOut]


class TypeOut(Answer):
    """Settings of one of the agent's types of memory."""

    name: str
    meaning: str = Field(description="Meaning of the type; empty if not set.")
    half_life_days: float | None = Field(description="null if the type does not decay.")
    boost: float
    confidence: float | None = Field(description="Default confidence of its memories; null if none.")
    event_types: list[str] = Field(description="Allowed values of `event_type`; empty allows any.")
    required: list[str] = Field(description="Required fields of its memories.")


class EmbeddingOut(Answer):
    """Embedding that the collection's vectors were created with."""

    provider: str
    model: str | None
    dimensions: int


class KeywordOut(Answer):
    """Settings of the keyword search."""

    language: str
    method: str = Field(description="Combination of similarity and keyword score; not used with an expression.")
    keyword_weight: float
    k: int = Field(description="RRF constant; only used with the method RRF.")


class RerankOut(Answer):
    """Cross-encoder that reranks the best results."""

    provider: Literal["fastembed", "http"] = Field(description="http if a service outside the API's process runs it.")
    model: str
    candidates: int = Field(description="Number of best results that it reranks.")


class CountsOut(Answer):
    """Number of memories by state; each memory has one state."""

    active: int = Field(description="Found by searches.")
    superseded: int
    hidden: int = Field(description="Past the TTL of their type: stored, but not found by searches.")
    expired: int = Field(description="Expired; the next cleanup removes them.")
    pending: int = Field(description="From an interrupted write, which a background task completes or abandons.")


class PeriodOut(Answer):
    """Active memories that were created in a period of whole days."""

    start: Time = Field(description="Start of the first day, in UTC.")
    days: int
    memories: int


class StatsOut(Answer):
    """Counts of an agent's memories, or of a user's."""

    user_id: str | None = Field(description="null for all users and scopes.")
    total: int
    states: CountsOut
    types: dict[str, CountsOut] = Field(description="By type, for types that have memories.")
    decayed_below_50pct: int | None = Field(
        description="Active memories with an effective confidence below 0.5; null if the model is not Confidence or"
        " more than 10,000 are active."
    )
    oldest: Time | None = Field(description="`created_at` of the oldest active memory; null if there is none.")
    newest: Time | None = Field(description="`created_at` of the newest active memory; null if there is none.")
    periods: list[PeriodOut] | None = Field(default=None, description="Oldest first; only with `periods`.")


class AgentDetailOut(AgentOut):
    """Effective settings of an agent."""

    types: list[TypeOut]
    model: str = Field(description="The scoring model.")
    weights: WeightsOut | None = Field(description="Only with the model Weighted.")
    utility_norm: float | None = Field(description="Only with the model Weighted.")
    confidence_share: float | None = Field(description="Only with the model Weighted; null if confidence is not used.")
    confidence: dict[str, float] | None = Field(description="Parameters of the model Confidence.")
    priority: dict[str, float] | None = Field(description="Parameters of the model Priority.")
    horizons: dict[str, float] | None = Field(description="Weights by age of the model Priority.")
    importance: dict[str, float] | None = Field(description="Parameters of the model Importance.")
    expression: str | None = Field(description="Only with the model Expression.")
    scoring_fault: str | None = Field(
        description="Reason why the object's expression is rejected, while the last accepted scoring is in effect;"
        " null if it is accepted."
    )
    limit: int
    score_threshold: float
    min_similarity: float
    candidates: int | Literal["Auto"]
    effort: Literal["Fast", "Balanced", "Exact"] = Field(description="How many memories a search scores.")
    rerank: RerankOut | None = Field(description="null if results are ordered by score.")
    distance: str
    embedding: EmbeddingOut
    keyword: KeywordOut | None = Field(description="null if searches use vectors only.")
    evidence: dict[str, float] | None = Field(
        description="Weights of `scoring.evidence`; null if no evidence is stored."
    )
