"""The `scoring` block of an AgentMemory: how search ranks."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.expression.syntax import MAX_LENGTH
from agentmemory_operator.spec.kinds.base import Model
from agentmemory_operator.spec.kinds.cel import scoring as rules
from agentmemory_operator.spec.kinds.schema import INT_OR_STRING, validated
from agentmemory_operator.spec.presets.table import DEFAULT_ASSISTANT, DEFAULT_CANDIDATES, MAX_CANDIDATES

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Similarity = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]


class WeightsSpec(Model):
    """The shares of the combined score; each 0..1, together 1."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.WEIGHTS))

    similarity: Share = Field(description="Share of the similarity to the query, 0..1.")
    recency: Share = Field(description="Share of the recency, 0..1: 1 when new, halved every half-life of the type.")
    utility: Share = Field(description="Share of the utility, 0..1: importance and accesses over utilityNorm.")


class ConfidenceSpec(Model):
    """Similarity x confidence x dailyFactor ^ idle days x min(1 + accessBoost x log2(1 + accesses), maxBoost)."""

    daily_factor: float | None = Field(
        default=None,
        ge=0.01,
        le=1,
        allow_inf_nan=False,
        description="What is left of the confidence after a day without access, for types that fade, 0.01..1."
        " Default: 0.98.",
    )
    access_boost: float | None = Field(
        default=None,
        ge=0,
        le=10,
        allow_inf_nan=False,
        description="Added to the boost for each doubling of the accesses, 0..10. Default: 0.3.",
    )
    max_boost: float | None = Field(
        default=None, ge=1, le=100, allow_inf_nan=False, description="The largest boost, 1..100. Default: 2.5."
    )


class PrioritySpec(Model):
    """Similarity and a priority of recency, frequency and importance."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.PRIORITY))

    recency: Share | None = Field(default=None, description="Share of the recency in the priority, 0..1. Default: 0.3.")
    frequency: Share | None = Field(
        default=None, description="Share of the frequency of access in the priority, 0..1. Default: 0.2."
    )
    importance: Share | None = Field(
        default=None, description="Share of the importance in the priority, 0..1. Default: 0.5."
    )
    half_life_days: float | None = Field(
        default=None,
        ge=0.001,
        le=36_500,
        allow_inf_nan=False,
        description="Days after which the recency has halved, for every type, 0.001..36500. Default: 30.",
    )
    max_accesses: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Accesses from which the frequency is 1, 1..1000000. Default: 100.",
    )
    similarity_share: Share | None = Field(
        default=None, description="Share of the similarity in the score, 0..1; the priority has the rest. Default: 0.5."
    )
    min_priority: Share | None = Field(
        default=None, description="Memories of a lower priority are left out of results, 0..1. Default: 0."
    )


class HorizonsSpec(Model):
    """What a memory's age makes its score worth, each over the largest; 0 leaves such memories out of results."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.HORIZONS))

    hourly: Share | None = Field(default=None, description="Weight up to an hour of age, 0..1. Default: 0.1.")
    daily: Share | None = Field(default=None, description="Weight up to a day of age, 0..1. Default: 0.3.")
    weekly: Share | None = Field(default=None, description="Weight up to 7 days of age, 0..1. Default: 0.2.")
    monthly: Share | None = Field(default=None, description="Weight up to 30 days of age, 0..1. Default: 0.1.")
    yearly: Share | None = Field(default=None, description="Weight beyond 30 days of age, 0..1. Default: 0.05.")
    knowledge_bank: Share | None = Field(
        default=None, description="Weight of the type semantic, whatever its age, 0..1. Default: 0.25."
    )


class ImportanceSpec(Model):
    """Similarity x importance x exp(-decay rate x age in days) / (1 + idleFactor x idle days)."""

    daily_rate: float | None = Field(
        default=None,
        ge=0,
        le=10,
        allow_inf_nan=False,
        description="Decay rate a day of memories that have none of their own, 0..10; it is 0 for types that do not"
        " fade. Default: 0.01.",
    )
    idle_factor: float | None = Field(
        default=None,
        ge=0,
        le=10,
        allow_inf_nan=False,
        description="What each day without access adds to the divisor of the importance, 0..10. Default: 0.1.",
    )


class FusionSpec(Model):
    """How similarity and keywords become one number, where the collection has keywords (`index.keyword`)."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.FUSION))

    method: Literal["Score", "RRF", "None"] | None = Field(
        default=None,
        description="Score weighs the two terms, RRF their ranks; None leaves the similarity as it is. Default: the"
        " preset's.",
    )
    keyword_weight: float | None = Field(
        default=None,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Share of the keywords, 0..1, the rest is the similarity's; with RRF more than 0 and less than 1."
        " Default: the preset's.",
    )
    k: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Only with RRF: the larger, the less the first places stand out, 1..10000. Default: the preset's.",
    )


class EvidenceSpec(Model):
    """What counts beside similarity and keywords, which are 1 together, where memories have weighted keyword text."""

    terse: Share | None = Field(
        default=None,
        description="Weight of how much a memory says: 1 from 30 content words on, 0..1. Default: the preset's.",
    )
    author: Share | None = Field(
        default=None,
        description="Weight of a question that names the memory's speaker, or says I or my of what the user said, 0..1."
        " Default: the preset's.",
    )
    time: Share | None = Field(
        default=None,
        description="Weight of a question that asks when and a memory that holds a time, 0..1. Default: the preset's.",
    )
    asked: Share | None = Field(
        default=None,
        description="Weight of a memory right before which another speaker asked something, 0..1. Default: 0.",
    )
    date: Share | None = Field(
        default=None, description="Weight of a memory of a date that the question names, 0..1. Default: 0."
    )
    assistant: Share | None = Field(
        default=None,
        description="What stands in the place of terse for what an assistant said, which is long anyway, 0..1. Default:"
        f" {DEFAULT_ASSISTANT}.",
    )


class RerankSpec(Model):
    """A cross-encoder that reads the best results again, beside the query."""

    model: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="A cross-encoder that fastembed lists, as Xenova/ms-marco-MiniLM-L-6-v2 (docs/scoring.md). It runs"
        " inside the API's process, by an optional package and a folder of models; where it cannot, searches answer in"
        " the order of their scores, with a warning."
    )
    candidates: int | None = Field(
        default=None,
        ge=1,
        le=MAX_CANDIDATES,
        description="How many of the best by the combined score are read, 1..200. Each is one pass of the model on the"
        f" API's processors, at every search; beyond 5 s the search answers without. Default: {DEFAULT_CANDIDATES}.",
    )


class ScoringSpec(Model):
    """How search ranks; every figure acts on the next request."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.SCORING))

    model: Literal["Weighted", "Confidence", "Priority", "Importance", "Expression"] | None = Field(
        default=None,
        description="What makes the score (docs/scoring.md has the formulas): Weighted, Confidence, Priority,"
        " Importance or Expression; only the chosen one's figures may be given. Default: the preset's.",
    )
    weights: WeightsSpec | None = Field(
        default=None,
        description="Shares of the combined score, together 1. Default: the preset's. Acts on the next search.",
    )
    utility_norm: float | None = Field(
        default=None,
        ge=0.001,
        le=1000,
        allow_inf_nan=False,
        description="What importance * (1 + log10(1 + accesses)) is divided by to give the utility (at most 1),"
        " 0.001..1000. Default: the preset's.",
    )
    confidence_share: Share | None = Field(
        default=None,
        description="Of the model Weighted: how much a memory's confidence counts, 0..1. The score is multiplied by 1 -"
        " share + share x confidence; a memory without a confidence counts as sure. Default: 0, not at all.",
    )
    confidence: ConfidenceSpec | None = Field(default=None, description="Figures of the model Confidence.")
    priority: PrioritySpec | None = Field(default=None, description="Figures of the model Priority.")
    horizons: HorizonsSpec | None = Field(
        default=None, description="Weights by age of the model Priority, each over the largest."
    )
    importance: ImportanceSpec | None = Field(default=None, description="Figures of the model Importance.")
    expression: Annotated[str, Field(min_length=1, max_length=MAX_LENGTH, pattern=rules.EXPRESSION_PATTERN)] | None = (
        Field(
            default=None,
            description="The score of the model Expression, at most 1000 characters, as 0.7*similarity +"
            " 0.3*decay(ageDays, halfLifeDays). docs/scoring.md lists variables and functions. One that cannot be used"
            " leaves the last accepted one in force, and the condition Stalled says why.",
        )
    )
    limit: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Memories returned when the request names no top_k, 1..10000. Default: the preset's.",
    )
    score_threshold: float | None = Field(
        default=None,
        ge=-1,
        le=10,
        allow_inf_nan=False,
        description="Combined score below which nothing is returned, -1..10; -1 returns everything. Default: the"
        " preset's.",
    )
    min_similarity: Similarity | None = Field(
        default=None,
        description="Similarity below which a memory is not considered, -1..1; -1 considers everything. Default: the"
        " preset's.",
    )
    fusion: FusionSpec | None = Field(
        default=None,
        description="How similarity and keywords become one number, which ranks in the similarity's place; not with"
        " model Expression, which names keyword itself. Default: the preset's.",
    )
    evidence: EvidenceSpec | None = Field(
        default=None,
        description="What else tells that a memory answers the question (docs/hybrid.md); a term counts by its weight"
        " over 1 plus all weights. Not with model Expression, which names the terms itself. Acts on the next search.",
    )
    rerank: RerankSpec | None = Field(
        default=None,
        description="Reads the best results again by a cross-encoder, and answers in its order; scores and thresholds"
        " stay. Default: off. Acts on the next search that has a query.",
    )
    allow_overrides: bool | None = Field(
        default=None,
        description="Whether a search may bring weights of its own, for that search alone. Acts on the next search."
        " Default: true.",
    )
    candidates: Literal["Auto"] | Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None,
        description="Memories that the engine scores for one search: Auto or 1..10000. Auto sizes it from the number of"
        " memories behind the filter. Default: Auto.",
        json_schema_extra={INT_OR_STRING: True} | validated(rules.CANDIDATES),
    )
