"""Answers about agents, as the document describes them."""

from typing import Literal

from pydantic import Field

from agentmemory_operator.entrypoints.api.fields import Time
from agentmemory_operator.entrypoints.api.schemas import Answer, WeightsOut


class AgentOut(Answer):
    """An agent in the list."""

    agent: str
    namespace: str
    preset: str
    ready: bool
    generation: int
    memories: int | None = Field(description="null while the agent is not ready.")


class AgentsOut(Answer):
    """Every agent."""

    results: list[AgentOut]


class TypeOut(Answer):
    """A type of memory."""

    name: str
    meaning: str = Field(description="How to recognise what belongs to it; empty: nobody said.")
    half_life_days: float | None = Field(description="null: does not decay.")
    boost: float
    confidence: float | None = Field(description="Of a memory that is stored without one; null: none.")
    event_types: list[str] = Field(description="What `event_type` of its memories may be; empty: anything.")
    required: list[str] = Field(description="Fields that a memory of it is refused without.")


class EmbeddingOut(Answer):
    """What turns text into vectors, as the collection's vectors were made."""

    provider: str
    model: str | None
    dimensions: int


class KeywordOut(Answer):
    """Search by words too."""

    language: str
    method: str = Field(description="How similarity and keyword term become one number; an expression names both.")
    keyword_weight: float
    k: int = Field(description="Of the method RRF.")


class RerankOut(Answer):
    """A cross-encoder that reads the best again."""

    model: str
    candidates: int = Field(description="How many of the best by score it reads.")


class CountsOut(Answer):
    """Memories by state; each stored memory is in one."""

    active: int = Field(description="What a search can find.")
    superseded: int
    hidden: int = Field(description="Past the time of its type, out of sight and kept.")
    expired: int = Field(description="Past its time; the next cleanup removes it.")
    pending: int = Field(description="Of a write that was broken off; the sweeper finishes it.")


class StatsOut(Answer):
    """Counts of an agent's memories, or of a user's."""

    user_id: str | None = Field(description="null: of all users and scopes.")
    total: int
    states: CountsOut
    types: dict[str, CountsOut] = Field(description="By type, of types that there are memories of.")
    decayed_below_50pct: int | None = Field(
        description="Active memories whose effective confidence is below 0.5; null: the model is not Confidence, or"
        " more than 10,000 are active."
    )
    oldest: Time | None = Field(description="`created_at` of an active memory.")
    newest: Time | None = Field(description="`created_at` of an active memory.")


class AgentDetailOut(AgentOut):
    """An agent's settings in force."""

    types: list[TypeOut]
    model: str = Field(description="The scoring model.")
    weights: WeightsOut | None = Field(description="Of the model Weighted.")
    utility_norm: float | None = Field(description="Of the model Weighted.")
    confidence_share: float | None = Field(description="Of the model Weighted; null: confidence does not count.")
    confidence: dict[str, float] | None = Field(description="Figures of the model Confidence.")
    priority: dict[str, float] | None = Field(description="Figures of the model Priority.")
    horizons: dict[str, float] | None = Field(description="Weights by age of the model Priority.")
    importance: dict[str, float] | None = Field(description="Figures of the model Importance.")
    expression: str | None = Field(description="Of the model Expression.")
    scoring_fault: str | None = Field(
        description="Why the object's own expression cannot be used; what was accepted last is in force."
    )
    limit: int
    score_threshold: float
    min_similarity: float
    candidates: int | Literal["Auto"]
    rerank: RerankOut | None = Field(description="null: results are in the order of their scores.")
    distance: str
    embedding: EmbeddingOut
    keyword: KeywordOut | None = Field(description="null: searches are by meaning alone.")
