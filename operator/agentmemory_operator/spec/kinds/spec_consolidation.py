"""What makes fewer and better memories of many: the `consolidation` block of an AgentMemory."""

from typing import Annotated

from pydantic import Field

from agentmemory_operator.spec.kinds.base import Model, SecretKeyRef
from agentmemory_operator.spec.kinds.cel.url import is_url
from agentmemory_operator.spec.kinds.schema import validated

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
        description="Base URL of the OpenAI-compatible API, as http://llm.ml.svc/v1. Default: OpenAI's own.",
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


class ConsolidationSpec(Model):
    """What a language model makes of memories."""

    model: LanguageModelSpec | None = Field(
        default=None,
        description="The model that reads memories without a zone (docs/distillation.md). Default: none, and nothing is"
        " sent to any.",
    )
