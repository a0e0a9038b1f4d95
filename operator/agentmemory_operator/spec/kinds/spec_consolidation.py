"""The `consolidation` block of an AgentMemory: a language model that merges, connects and distils memories."""

from typing import Annotated

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.model_base import Model, Schedule, SecretKeyRef
from agentmemory_operator.spec.kinds.schema import CelRule, url_rule, validation_rules

ModelUrl = Annotated[
    str, Field(max_length=2048, json_schema_extra=validation_rules(url_rule("baseURL", "http://llm.ml.svc/v1")))
]


class LanguageModelSpec(Model):
    """A language model with an OpenAI-compatible chat API."""

    model: Annotated[str, Field(min_length=1, max_length=256)] = Field(description="Name of the model at the service.")
    base_url: ModelUrl | None = Field(
        default=None,
        description="Base URL of the OpenAI-compatible API, for example http://llm.ml.svc/v1. Default: OpenAI's.",
    )
    secret_ref: SecretKeyRef | None = Field(
        default=None, description="API key of the service. Default: no key is sent."
    )
    timeout_seconds: int | None = Field(
        default=None, ge=1, le=600, description="Timeout of requests to the model in seconds, 1..600. Default: 120."
    )


Price = Annotated[float, Field(ge=0, le=1_000_000)]

SPEND = CelRule(
    "!has(self.spend) || has(self.inputPrice) || has(self.outputPrice)",
    "spend needs a price: give inputPrice or outputPrice, or remove spend",
    ".spend",
)


class LimitsSpec(Model):
    """Limits of one run; the next run continues with the rest."""

    model_config = ConfigDict(json_schema_extra=validation_rules(SPEND))

    calls: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Maximum requests to the model, 1..10000; each reads up to 50 memories. Default: 20.",
    )
    tokens: int | None = Field(
        default=None,
        ge=10_000,
        le=1_000_000_000,
        description="Maximum tokens read and written, 10000..1000000000. Default: 500000.",
    )
    input_price: Price | None = Field(
        default=None, description="Price of a million input tokens, 0..1000000 in any currency. Default: unknown."
    )
    output_price: Price | None = Field(
        default=None, description="Price of a million output tokens, 0..1000000 in the same currency. Default: unknown."
    )
    spend: Price | None = Field(
        default=None,
        description="Maximum cost of a run at these prices, 0..1000000 in the same currency. Default: unlimited.",
    )


class ConsolidationSpec(Model):
    """Use of a language model on memories."""

    schedule: Schedule | None = Field(
        default=None,
        description="Cron schedule of consolidations in UTC (docs/consolidation.md), for example 0 2 * * *, or"
        " Never. Requires model. Default: the preset's (brain every 6 hours, cognitive daily at 2, else Never).",
    )
    limits: LimitsSpec | None = Field(default=None, description="Limits of one run. Default: see its fields.")
    duplicate_similarity: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Minimum cosine similarity to a stored memory at which a merged fact counts as a duplicate and is"
        " not stored, 0..1. Default: 0.92.",
    )
    model: LanguageModelSpec | None = Field(
        default=None,
        description="Language model to which memories without a zone are sent (docs/distillation.md). Default: none; no"
        " memory is sent.",
    )
