"""The `embedding` block of an AgentMemory: the conversion of texts to vectors."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from agentmemory_operator.spec.kinds.cel import embedding as rules
from agentmemory_operator.spec.kinds.cel.embedding import FASTEMBED_DEFAULT_MODEL, OPENAI_DEFAULT_MODEL, WORDLLAMA_MODEL
from agentmemory_operator.spec.kinds.model_base import Model, SecretKeyRef
from agentmemory_operator.spec.kinds.schema import url_rule, validation_rules

ProviderUrl = Annotated[
    str, Field(max_length=2048, json_schema_extra=validation_rules(url_rule("baseURL", "http://embedder.ml.svc/v1")))
]
Prefix = Annotated[str, Field(max_length=512)]


class PrefixesSpec(Model):
    """Literal prefixes, for models that are trained with them."""

    query: Prefix | None = Field(
        default=None,
        description="Prefix of queries, for example 'query: ' with E5; at most 512 characters. Default: none.",
    )
    passage: Prefix | None = Field(
        default=None,
        description="Prefix of memories, for example 'passage: ' with E5; at most 512 characters. Default: none.",
    )


class Embedding(Model):
    """Conversion of texts to vectors."""

    model_config = ConfigDict(json_schema_extra=validation_rules(*rules.EMBEDDING))

    provider: Literal["openai", "wordllama", "fastembed", "none"] = Field(
        description="Embedding provider: openai is any OpenAI-compatible HTTP API, wordllama a small model in the"
        " process (offline, no key), fastembed an ONNX model in the process (the image has bge-small-en-v1.5; others"
        " need a model folder, or the package fastembed); with none, callers send vectors. Changing it requires a"
        " Rebuild."
    )
    model: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None,
        description=f"Model of the provider. Default: openai {OPENAI_DEFAULT_MODEL}, wordllama {WORDLLAMA_MODEL},"
        f" fastembed {FASTEMBED_DEFAULT_MODEL}, with preset keyed all-MiniLM-L6-v2. Changing it requires a Rebuild,"
        " even with the same dimensions.",
    )
    dimensions: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="Vector size, 1..65536. Default: the model's, if known; openai shortens vectors if this is"
        " less. wordllama: 64, 128 or 256. none: required. Changing it requires a Rebuild.",
    )
    prefixes: PrefixesSpec | None = Field(
        default=None,
        description="Prefixes that the model expects before queries and memories. Changing them requires a Rebuild."
        " Default: none.",
    )
    device: Literal["Auto", "CPU", "CUDA"] | None = Field(
        default=None,
        description="Device for fastembed: CUDA fails if the ONNX runtime has none, Auto uses CUDA if available."
        " Applies to the next call. Default: Auto.",
    )
    base_url: ProviderUrl | None = Field(
        default=None,
        description="Base URL of an OpenAI-compatible API, for example http://embedder.ml.svc/v1. Default: OpenAI's.",
    )
    secret_ref: SecretKeyRef | None = Field(
        default=None, description="API key of the openai provider. Default: no key is sent."
    )
    batch_size: int | None = Field(
        default=None, ge=1, le=2048, description="Texts per request to the provider, 1..2048. Default: 64."
    )
    timeout_seconds: int | None = Field(
        default=None, ge=1, le=300, description="Timeout of requests to the provider in seconds, 1..300. Default: 20."
    )
    cache_entries: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Maximum number of texts with cached vectors, 0..1000000; the least recently used text is removed"
        " first. 0 disables the cache. All agents of a process share AGENTMEMORY_EMBEDDING_CACHE_MIB. Default: the"
        " preset's (keyed 100, else 10000).",
    )
