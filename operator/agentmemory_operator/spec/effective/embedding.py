"""How an agent's texts become vectors: the settings in force, and what of them is kept beside the vectors."""

from dataclasses import dataclass

from agentmemory_operator.spec.effective.revisions import preset_of
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory, Embedding
from agentmemory_operator.spec.kinds.base import SecretKeyRef
from agentmemory_operator.spec.kinds.cel import (
    FASTEMBED_DEFAULT_MODEL,
    FASTEMBED_MODELS,
    OPENAI_DEFAULT_MODEL,
    OPENAI_MODELS,
    WORDLLAMA_DIMENSIONS,
    WORDLLAMA_MODEL,
)

EMBEDDING_BATCH_SIZE = 64


EMBEDDING_TIMEOUT_S = 20


EMBEDDING_CACHE_ENTRIES = 10_000


# Sizes of the models that can be named without `dimensions`; of an offline model the largest.
MODEL_DIMENSIONS = OPENAI_MODELS | FASTEMBED_MODELS | {WORDLLAMA_MODEL: max(WORDLLAMA_DIMENSIONS)}


DEFAULT_MODELS = {
    "openai": OPENAI_DEFAULT_MODEL,
    "wordllama": WORDLLAMA_MODEL,
    "fastembed": FASTEMBED_DEFAULT_MODEL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSettings:
    """How text becomes vectors.

    The identity (provider, model, dimensions) decides the vector space; the rest is how to reach the provider.
    """

    provider: str
    model: str | None
    dimensions: int
    base_url: str | None = None
    secret: SecretKeyRef | None = None
    batch_size: int = EMBEDDING_BATCH_SIZE
    timeout_s: int = EMBEDDING_TIMEOUT_S
    cache_entries: int = EMBEDDING_CACHE_ENTRIES

    @property
    def identity(self) -> tuple[str, str | None, int]:
        """Two equal identities share a vector space."""
        return self.provider, self.model, self.dimensions


def effective_embedding(memory: AgentMemory) -> EmbeddingSettings:
    """The embedding settings; without `spec.embedding` the offline embedder, whatever the preset."""
    preset, spec = preset_of(memory), memory.spec.embedding or Embedding(provider="wordllama")
    model = spec.model or (DEFAULT_MODELS | dict(preset.embedding_models)).get(spec.provider)
    return EmbeddingSettings(
        provider=spec.provider,
        model=model,
        dimensions=spec.dimensions or MODEL_DIMENSIONS[model or ""],
        base_url=spec.base_url,
        secret=spec.secret_ref,
        batch_size=spec.batch_size or EMBEDDING_BATCH_SIZE,
        timeout_s=spec.timeout_seconds or EMBEDDING_TIMEOUT_S,
        cache_entries=preset.embedding_cache_entries if spec.cache_entries is None else spec.cache_entries,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSource:
    """The embedding in force for the vectors of one collection, as its metadata says; names, never secrets."""

    provider: str
    model: str | None
    dimensions: int
    base_url: str | None = None
    secret_name: str | None = None
    secret_key: str | None = None

    @property
    def identity(self) -> tuple[str, str | None, int]:
        """Two equal identities share a vector space."""
        return self.provider, self.model, self.dimensions


def embedding_source(settings: EmbeddingSettings) -> EmbeddingSource:
    """The part of the embedding settings that is kept beside the vectors."""
    return EmbeddingSource(
        provider=settings.provider,
        model=settings.model,
        dimensions=settings.dimensions,
        base_url=settings.base_url,
        secret_name=settings.secret.name if settings.secret else None,
        secret_key=settings.secret.key if settings.secret else None,
    )
