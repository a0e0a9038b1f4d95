"""What turns an agent's texts into vectors: the `embedding` block of an AgentMemory."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.base import Model, SecretKeyRef
from agentmemory_operator.spec.kinds.cel import embedding as rules
from agentmemory_operator.spec.kinds.cel.embedding import FASTEMBED_DEFAULT_MODEL, OPENAI_DEFAULT_MODEL, WORDLLAMA_MODEL
from agentmemory_operator.spec.kinds.schema import is_url, validated

ProviderUrl = Annotated[
    str,
    Field(max_length=2048, json_schema_extra=validated(is_url("baseURL", "http://embedder.ml.svc/v1"))),
]
Prefix = Annotated[str, Field(max_length=512)]


class PrefixesSpec(Model):
    """What is put before texts, to the letter, for models that were trained so."""

    query: Prefix | None = Field(
        default=None, description="Before a question, as 'query: ' for E5; at most 512 characters. Default: nothing."
    )
    passage: Prefix | None = Field(
        default=None, description="Before a memory, as 'passage: ' for E5; at most 512 characters. Default: nothing."
    )


class Embedding(Model):
    """What turns text into vectors."""

    model_config = ConfigDict(json_schema_extra=validated(*rules.EMBEDDING))

    provider: Literal["openai", "wordllama", "fastembed", "none"] = Field(
        description="Who embeds: openai is any OpenAI-compatible HTTP API, wordllama a small model inside the process"
        " (offline, no key), fastembed an ONNX model inside the process (an optional package, and a folder of models),"
        " none means that callers send vectors. Another provider is another vector space: a Rebuild."
    )
    model: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None,
        description=f"Model of the provider. Default: openai {OPENAI_DEFAULT_MODEL}, wordllama {WORDLLAMA_MODEL},"
        f" fastembed {FASTEMBED_DEFAULT_MODEL},"
        " with preset keyed all-MiniLM-L6-v2. Another model is another vector space, of the same size too: a Rebuild.",
    )
    dimensions: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="Numbers in a vector, 1..65536. Default: the model's own where it is known; with less, the openai"
        " provider is asked for shortened vectors. wordllama: 64, 128 or 256. none: required. A change is a Rebuild.",
    )
    prefixes: PrefixesSpec | None = Field(
        default=None,
        description="What the model wants before questions and before memories. Other prefixes are another vector"
        " space: a Rebuild. Default: nothing.",
    )
    device: Literal["Auto", "CPU", "CUDA"] | None = Field(
        default=None,
        description="Of fastembed, where the model runs: CUDA is refused where the runtime has none, Auto takes it"
        " where there is one. Acts on the next call. Default: Auto.",
    )
    base_url: ProviderUrl | None = Field(
        default=None,
        alias="baseURL",
        description="Base URL of an OpenAI-compatible API, for example http://embedder.ml.svc/v1. Default: OpenAI's.",
    )
    secret_ref: SecretKeyRef | None = Field(
        default=None, description="The API key of the openai provider. Default: no key is sent."
    )
    batch_size: int | None = Field(
        default=None, ge=1, le=2048, description="Texts in one request to the provider, 1..2048. Default: 64."
    )
    timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=300,
        description="Seconds until a request to the provider is given up, 1..300. Default: 20.",
    )
    cache_entries: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Texts whose vectors are kept in memory at most, least recently used out, 0..1000000; 0 keeps none."
        " All agents of a process share AGENTMEMORY_EMBEDDING_CACHE_MIB. Default: the preset's, 100 of keyed and 10000"
        " of the others.",
    )
