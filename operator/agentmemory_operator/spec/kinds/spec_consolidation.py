"""What makes fewer and better memories of many: the `consolidation` block of an AgentMemory."""

from typing import Annotated

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.base import Model, Schedule, SecretKeyRef
from agentmemory_operator.spec.kinds.schema import CelRule, is_url, validated

ModelUrl = Annotated[
    str,
    Field(max_length=2048, json_schema_extra=validated(is_url("baseURL", "http://llm.ml.svc/v1"))),
]


class LanguageModelSpec(Model):
    """A language model behind an OpenAI-compatible chat API."""

    model: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="Name of the model, as the service has it."
    )
    base_url: ModelUrl | None = Field(
        default=None,
        alias="baseURL",
        description="Base URL of the OpenAI-compatible API, for example http://llm.ml.svc/v1. Default: OpenAI's.",
    )
    secret_ref: SecretKeyRef | None = Field(
        default=None, description="The API key of the service. Default: no key is sent."
    )
    timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=600,
        description="Seconds until a request to the model is given up, 1..600. Default: 120.",
    )


Price = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]

SPEND = CelRule(
    "!has(self.spend) || has(self.inputPrice) || has(self.outputPrice)",
    "spend needs a price: give inputPrice or outputPrice, or remove spend",
    ".spend",
)


class LimitsSpec(Model):
    """How much one run may use; what is left comes in the next."""

    model_config = ConfigDict(json_schema_extra=validated(SPEND))

    calls: int | None = Field(
        default=None, ge=1, le=10_000, description="Requests to the model, 1..10000; one reads up to 50. Default: 20."
    )
    tokens: int | None = Field(
        default=None,
        ge=10_000,
        le=1_000_000_000,
        description="Tokens read and written, 10000..1000000000. Default: 500000.",
    )
    input_price: Price | None = Field(
        default=None, description="What a million tokens cost that the model reads, in any currency. Default: unknown."
    )
    output_price: Price | None = Field(
        default=None, description="What a million tokens cost that it writes, in the same. Default: unknown."
    )
    spend: Price | None = Field(
        default=None, description="What a run may cost, in that currency, by these prices. Default: any sum."
    )


class ConsolidationSpec(Model):
    """What a language model makes of memories."""

    schedule: Schedule | None = Field(
        default=None,
        description="When memories are consolidated (docs/consolidation.md): minute, hour, day, month and weekday as"
        " cron has them, in UTC, or Never. Acts where a model is named. Default: the preset's (brain every 6 hours,"
        " cognitive daily at 2, else Never).",
    )
    limits: LimitsSpec | None = Field(default=None, description="What one run may use. Default: those of its fields.")
    model: LanguageModelSpec | None = Field(
        default=None,
        description="The model that reads memories without a zone (docs/distillation.md). Default: none, and nothing is"
        " sent to any.",
    )
