"""The `scoring` block of an AgentMemory: the ranking of search results."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.expression.syntax import MAX_EXPRESSION_CHARS
from agentmemory_operator.spec.kinds.cel import scoring as rules
from agentmemory_operator.spec.kinds.model_base import Model, SecretKeyRef
from agentmemory_operator.spec.kinds.schema import INT_OR_STRING, url_rule, validation_rules
from agentmemory_operator.spec.presets.table import (
    DEFAULT_ASSISTANT,
    DEFAULT_CANDIDATES,
    DEFAULT_EFFORT,
    DEFAULT_RERANK_MS,
    MAX_CANDIDATES,
    Effort,
)

Share = Annotated[float, Field(ge=0, le=1)]
Similarity = Annotated[float, Field(ge=-1, le=1)]
RerankUrl = Annotated[
    str, Field(max_length=2048, json_schema_extra=validation_rules(url_rule("url", "http://reranker.ml.svc/rerank")))
]


class WeightsSpec(Model):
    """Weights of the combined score, each 0..1, together 1."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.WEIGHTS))

    similarity: Share = Field(description="Weight of the similarity to the query, 0..1.")
    recency: Share = Field(
        description="Weight of the recency, 0..1, which is 1 when new and halves every half-life of the type."
    )
    utility: Share = Field(description="Weight of the utility, 0..1: importance and accesses, divided by utilityNorm.")


class ConfidenceSpec(Model):
    """Similarity x confidence x dailyFactor ^ idle days x min(1 + accessBoost x log2(1 + accesses), maxBoost)."""

    daily_factor: float | None = Field(
        default=None,
        ge=0.01,
        le=1,
        description="Factor applied to the confidence per day without access, for types that decay, 0.01..1."
        " Default: 0.98.",
    )
    access_boost: float | None = Field(
        default=None,
        ge=0,
        le=10,
        description="Increase of the boost per doubling of the accesses, 0..10. Default: 0.3.",
    )
    max_boost: float | None = Field(default=None, ge=1, le=100, description="Maximum boost, 1..100. Default: 2.5.")


class PrioritySpec(Model):
    """Similarity and a priority of recency, frequency and importance."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.PRIORITY))

    recency: Share | None = Field(
        default=None, description="Weight of the recency in the priority, 0..1. Default: 0.3."
    )
    frequency: Share | None = Field(
        default=None, description="Weight of the access frequency in the priority, 0..1. Default: 0.2."
    )
    importance: Share | None = Field(
        default=None, description="Weight of the importance in the priority, 0..1. Default: 0.5."
    )
    half_life_days: float | None = Field(
        default=None,
        ge=0.001,
        le=36_500,
        description="Days until the recency halves, for all types, 0.001..36500. Default: 30.",
    )
    max_accesses: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Accesses at which the frequency is 1, 1..1000000. Default: 100."
    )
    similarity_share: Share | None = Field(
        default=None,
        description="Weight of the similarity in the score, 0..1; the rest is the priority's. Default: 0.5.",
    )
    min_priority: Share | None = Field(default=None, description="Minimum priority of results, 0..1. Default: 0.")


class HorizonsSpec(Model):
    """Weights by age, each divided by the largest; 0 leaves memories of that age out of results."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.HORIZONS))

    hourly: Share | None = Field(default=None, description="Weight up to an hour of age, 0..1. Default: 0.1.")
    daily: Share | None = Field(default=None, description="Weight up to a day of age, 0..1. Default: 0.3.")
    weekly: Share | None = Field(default=None, description="Weight up to 7 days of age, 0..1. Default: 0.2.")
    monthly: Share | None = Field(default=None, description="Weight up to 30 days of age, 0..1. Default: 0.1.")
    yearly: Share | None = Field(default=None, description="Weight above 30 days of age, 0..1. Default: 0.05.")
    knowledge_bank: Share | None = Field(
        default=None, description="Weight of the type semantic at any age, 0..1. Default: 0.25."
    )


class ImportanceSpec(Model):
    """Similarity x importance x exp(-decay rate x age in days) / (1 + idleFactor x idle days)."""

    daily_rate: float | None = Field(
        default=None,
        ge=0,
        le=10,
        description="Daily decay rate of memories without one of their own, 0..10; 0 for types that do not decay."
        " Default: 0.01.",
    )
    idle_factor: float | None = Field(
        default=None,
        ge=0,
        le=10,
        description="Increase of the divisor of the importance per day without access, 0..10. Default: 0.1.",
    )
    unimportant_factor: float | None = Field(
        default=None,
        ge=1,
        le=100,
        description="Factor of dailyRate for memories with an importance of at most 0.25 (low), 1..100; 1 turns it"
        " off. A memory's own decay rate is not changed. Default: 4 with the preset importance, otherwise 1.",
    )


class FusionSpec(Model):
    """Combination of similarity and keyword score into one number, if the collection has keywords (`index.keyword`)."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.FUSION))

    method: Literal["Score", "RRF", "None"] | None = Field(
        default=None,
        description="Fusion method: Score weighs both scores, RRF their ranks; None uses the similarity alone."
        " Default: the preset's.",
    )
    keyword_weight: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Weight of the keyword score, 0..1; the rest is the similarity's. With RRF more than 0 and less"
        " than 1. Default: the preset's.",
    )
    k: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="RRF constant, 1..10000; a larger one reduces the advantage of the first ranks. Only with RRF."
        " Default: the preset's.",
    )


class EvidenceSpec(Model):
    """Signals in addition to similarity and keywords, which together count 1; needs weighted keyword text."""

    terse: Share | None = Field(
        default=None,
        description="Weight of the amount of content, full at 30 content words, 0..1. Default: the preset's.",
    )
    author: Share | None = Field(
        default=None,
        description="Weight of a match between the memory's speaker and the question, which names them or uses I or"
        " my, 0..1. Default: the preset's.",
    )
    time: Share | None = Field(
        default=None,
        description="Weight of a memory with a time, if the question asks when, 0..1. Default: the preset's.",
    )
    asked: Share | None = Field(
        default=None, description="Weight of a memory directly after another speaker's question, 0..1. Default: 0."
    )
    date: Share | None = Field(
        default=None,
        description="Weight of a memory from a time that the question names, such as last week or 3 May, 0..1."
        " Default: the preset's.",
    )
    assistant: Share | None = Field(
        default=None,
        description="Value of terse for messages of an assistant, which are long anyway, 0..1. Default:"
        f" {DEFAULT_ASSISTANT}.",
    )


class RerankSpec(Model):
    """Cross-encoder that reranks the best results with the query."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.RERANK))

    provider: Literal["fastembed", "http"] | None = Field(
        default=None,
        description="fastembed runs the model in the API's process, which needs an optional package and a model"
        " folder. http sends the query and the candidates' texts to url; sealed memories are not sent. Default:"
        " fastembed.",
    )
    model: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="Cross-encoder: with fastembed one of its list, for example Xenova/ms-marco-MiniLM-L-6-v2"
        " (docs/scoring.md), with http the service's name for it. If it cannot run, searches answer in the order of"
        " their scores, with a warning."
    )
    url: RerankUrl | None = Field(
        default=None,
        description="Address of the rerank endpoint of Text Embeddings Inference, Jina, Cohere or vLLM, with its path,"
        " for example http://reranker.ml.svc/rerank. Only with http.",
    )
    secret_ref: SecretKeyRef | None = Field(
        default=None, description="API key of the service. Only with http. Default: no key is sent."
    )
    timeout_ms: int | None = Field(
        default=None,
        ge=50,
        le=10_000,
        description="Time limit of the service in milliseconds, 50..10000; after it, the search answers without."
        f" Only with http. Default: {DEFAULT_RERANK_MS}.",
    )
    candidates: int | None = Field(
        default=None,
        ge=1,
        le=MAX_CANDIDATES,
        description="Number of best results to rerank, 1..200. With fastembed each is one pass of the model on the"
        f" API's CPUs per search; after 5 s, the search answers without. Default: {DEFAULT_CANDIDATES}.",
    )


class ScoringSpec(Model):
    """Ranking of search results. Changes apply to the next request."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.SCORING))

    model: Literal["Weighted", "Confidence", "Priority", "Importance", "Expression"] | None = Field(
        default=None,
        description="Scoring formula (docs/scoring.md): Weighted, Confidence, Priority, Importance or Expression."
        " Only settings of the chosen one may be given. Default: the preset's.",
    )
    weights: WeightsSpec | None = Field(
        default=None,
        description="Weights of the combined score, together 1. Default: the preset's. Applies to the next search.",
    )
    utility_norm: float | None = Field(
        default=None,
        ge=0.001,
        le=1000,
        description="Divisor of importance * (1 + log10(1 + accesses)), which gives the utility (at most 1),"
        " 0.001..1000. Default: the preset's.",
    )
    confidence_share: Share | None = Field(
        default=None,
        description="Influence of a memory's confidence in the model Weighted, 0..1: the score is multiplied by 1 -"
        " confidenceShare + confidenceShare x confidence. A missing confidence counts as 1. Default: 0.",
    )
    confidence: ConfidenceSpec | None = Field(default=None, description="Settings of the model Confidence.")
    priority: PrioritySpec | None = Field(default=None, description="Settings of the model Priority.")
    horizons: HorizonsSpec | None = Field(
        default=None, description="Weights by age of the model Priority, each divided by the largest."
    )
    importance: ImportanceSpec | None = Field(default=None, description="Settings of the model Importance.")
    expression: (
        Annotated[str, Field(min_length=1, max_length=MAX_EXPRESSION_CHARS, pattern=rules.EXPRESSION_PATTERN)] | None
    ) = Field(
        default=None,
        description="Score of the model Expression, at most 1000 characters, for example 0.7*similarity +"
        " 0.3*decay(ageDays, halfLifeDays). docs/scoring.md lists variables and functions. If it cannot be used,"
        " the last accepted one stays in force, and the condition Stalled gives the reason.",
    )
    limit: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Memories returned if the request has no top_k, 1..10000. Default: the preset's.",
    )
    score_threshold: float | None = Field(
        default=None,
        ge=-1,
        le=10,
        description="Minimum combined score of results, -1..10; -1 returns everything. Default: the preset's.",
    )
    min_similarity: Similarity | None = Field(
        default=None,
        description="Minimum similarity of a memory to be considered, -1..1; -1 considers everything. Default: the"
        " preset's.",
    )
    fusion: FusionSpec | None = Field(
        default=None,
        description="Combination of similarity and keyword score into one number, which replaces the similarity. Not"
        " with model Expression, which uses keyword itself. Default: the preset's.",
    )
    evidence: EvidenceSpec | None = Field(
        default=None,
        description="Further signals that a memory answers the question (docs/hybrid.md); the share of each is its"
        " weight divided by 1 plus the sum of all weights. Not with model Expression, which uses the signals itself."
        " Applies to the next search.",
    )
    rerank: RerankSpec | None = Field(
        default=None,
        description="Reranks the best results with a cross-encoder; scores and thresholds stay. Default: off."
        " Applies to the next search that has a query.",
    )
    allow_overrides: bool | None = Field(
        default=None,
        description="Whether a search may send its own weights and min_similarity, for that search only. Applies to"
        " the next search. Default: true.",
    )
    candidates: Literal["Auto"] | Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None,
        description="Memories that Qdrant scores per search: Auto or 1..10000. Auto derives it from the number"
        " of memories that pass the filter. Default: Auto.",
        json_schema_extra={INT_OR_STRING: True} | validation_rules(rules.CANDIDATES),
    )
    effort: Effort | None = Field(
        default=None,
        description="How many memories a search scores, unless candidates is a number: Fast, Balanced or Exact."
        f" docs/scoring.md has their speed and precision. Applies to the next search. Default: {DEFAULT_EFFORT}.",
    )
