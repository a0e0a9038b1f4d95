"""Embedding of an agent: the settings in force, and the part of them that a collection records."""

import hashlib
from dataclasses import dataclass

from agentmemory_operator.spec.effective.revisions import preset_of
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.cel.embedding import (
    FASTEMBED_DEFAULT_MODEL,
    FASTEMBED_MODELS,
    OPENAI_DEFAULT_MODEL,
    OPENAI_MODELS,
    WORDLLAMA_DIMENSIONS,
    WORDLLAMA_MODEL,
)
from agentmemory_operator.spec.kinds.model_base import SecretKeyRef
from agentmemory_operator.spec.kinds.spec_embedding import Embedding, PrefixesSpec

EMBEDDING_BATCH_SIZE = 64


EMBEDDING_TIMEOUT_S = 20


EMBEDDING_CACHE_ENTRIES = 10_000


# Dimensions of the models that need no `dimensions` in the spec. For wordllama, which has several, it is the largest.
MODEL_DIMENSIONS = OPENAI_MODELS | FASTEMBED_MODELS | {WORDLLAMA_MODEL: max(WORDLLAMA_DIMENSIONS)}


DEFAULT_MODELS = {"openai": OPENAI_DEFAULT_MODEL, "wordllama": WORDLLAMA_MODEL, "fastembed": FASTEMBED_DEFAULT_MODEL}


WORDLLAMA = "wordllama"


# Embeddings that an operator may give to objects without `spec.embedding`, by their name in its settings. They run in
# the process, so that an object never sends texts to a service that its spec does not name.
DEFAULT_EMBEDDINGS = {
    WORDLLAMA: Embedding(provider="wordllama", model=WORDLLAMA_MODEL),
    "bge-small-en-v1.5": Embedding(provider="fastembed", model=FASTEMBED_DEFAULT_MODEL),
    "multilingual-e5-small": Embedding(
        provider="fastembed",
        model="intfloat/multilingual-e5-small",
        prefixes=PrefixesSpec(query="query: ", passage="passage: "),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """Text put before each query or passage, for models that were trained with such prefixes."""

    query: str = ""
    passage: str = ""

    @property
    def name(self) -> str:
        """Part of a vector space's name that identifies the prefixes: a hash of both."""
        return f"prefixes-{hashlib.sha256(repr((self.query, self.passage)).encode()).hexdigest()[:8]}"


Identity = tuple[str, str | None, int, Prefixes | None]
"""Provider, model, dimensions and prefixes. Embeddings with equal identities share a vector space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSettings:
    """The embedding in force.

    Provider, model, dimensions and prefixes identify the vector space. The other fields only state how the provider is
    reached and called, and how many vectors are cached.

    Attributes:
        model: Model of the provider. None with provider `none`.
        prefixes: None if both are empty.
        base_url: Base URL of provider openai. None is OpenAI's.
        secret: Key of a Secret with the API key. None sends no key.
        batch_size: Maximum number of texts in a request.
        timeout_s: Timeout of a request in seconds.
        cache_entries: Maximum number of texts with cached vectors. 0 disables the cache.
    """

    provider: str
    model: str | None
    dimensions: int
    prefixes: Prefixes | None = None
    device: str = "Auto"
    base_url: str | None = None
    secret: SecretKeyRef | None = None
    batch_size: int = EMBEDDING_BATCH_SIZE
    timeout_s: int = EMBEDDING_TIMEOUT_S
    cache_entries: int = EMBEDDING_CACHE_ENTRIES


DEFAULT_SIZES = frozenset(MODEL_DIMENSIONS[default.model or ""] for default in DEFAULT_EMBEDDINGS.values())
"""Sizes of the vectors of `DEFAULT_EMBEDDINGS`."""


def effective_embedding(memory: AgentMemory) -> EmbeddingSettings:
    """Return the embedding settings.

    Without `spec.embedding`, in any preset, they are those of the default that the status records, else of wordllama.
    """
    preset, spec = (
        preset_of(memory),
        memory.spec.embedding or DEFAULT_EMBEDDINGS[_recorded_default(memory) or WORDLLAMA],
    )
    model = spec.model or (DEFAULT_MODELS | dict(preset.embedding_models)).get(spec.provider)
    return EmbeddingSettings(
        provider=spec.provider,
        model=model,
        dimensions=spec.dimensions or MODEL_DIMENSIONS[model or ""],
        prefixes=_prefixes(spec.prefixes),
        device=spec.device or "Auto",
        base_url=spec.base_url,
        secret=spec.secret_ref,
        batch_size=spec.batch_size or EMBEDDING_BATCH_SIZE,
        timeout_s=spec.timeout_seconds or EMBEDDING_TIMEOUT_S,
        cache_entries=preset.embedding_cache_entries if spec.cache_entries is None else spec.cache_entries,
    )


def with_default_embedding(memory: AgentMemory, name: str) -> AgentMemory:
    """Return the object with a default embedding in its status, unless its spec or its status has one already.

    Args:
        name: Key in `DEFAULT_EMBEDDINGS`. Wordllama needs no entry: it is the embedding of an object that has none.
    """
    is_decided = memory.spec.embedding is not None or _recorded_default(memory) is not None
    return memory if is_decided or name == WORDLLAMA else _with_recorded(memory, name)


def with_embedding_of(memory: AgentMemory, source: "EmbeddingSource") -> AgentMemory:
    """Return the object with the embedding of its collection in its status, if the object follows the default.

    That is the case if the spec has no embedding and the collection's is in `DEFAULT_EMBEDDINGS`; any other object is
    returned unchanged. So another default of the operator changes no existing collection.

    Args:
        source: Embedding in the collection's metadata.
    """
    name = _default_name(source.provider, source.model, source.dimensions)
    if memory.spec.embedding is not None or name in (None, _recorded_default(memory)):
        return memory
    return _with_recorded(memory, name or WORDLLAMA)


def _recorded_default(memory: AgentMemory) -> str | None:
    """Return the name of the default embedding in the status. None if it has no embedding, or another one."""
    effective = memory.status.get("effective")
    recorded = effective.get("embedding") if isinstance(effective, dict) else None
    if not isinstance(recorded, dict):
        return None
    return _default_name(recorded.get("provider"), recorded.get("model"), recorded.get("dimensions"))


def _default_name(provider: object, model: object, dimensions: object) -> str | None:
    for name, default in DEFAULT_EMBEDDINGS.items():
        if (provider, model, dimensions) == _recorded_fields(default):
            return name
    return None


def _recorded_fields(default: Embedding) -> tuple[str, str | None, int]:
    return default.provider, default.model, MODEL_DIMENSIONS[default.model or ""]


def _with_recorded(memory: AgentMemory, name: str) -> AgentMemory:
    fields = dict(zip(("provider", "model", "dimensions"), _recorded_fields(DEFAULT_EMBEDDINGS[name]), strict=True))
    effective = memory.status.get("effective")
    status = memory.status | {"effective": (effective if isinstance(effective, dict) else {}) | {"embedding": fields}}
    return memory.model_copy(update={"status": status})


def _prefixes(spec: PrefixesSpec | None) -> Prefixes | None:
    """Return the prefixes, or None if both are empty, which is the same vector space."""
    if spec is None or not (spec.query or spec.passage):
        return None
    return Prefixes(query=spec.query or "", passage=spec.passage or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSource:
    """Embedding of one collection's vectors, as recorded in its metadata. Contains names of Secrets, never secrets."""

    provider: str
    model: str | None
    dimensions: int
    base_url: str | None = None
    secret_name: str | None = None
    secret_key: str | None = None
    prefixes: Prefixes | None = None

    @property
    def identity(self) -> Identity:
        """Identity of the vector space. Collections with equal identities share it."""
        return self.provider, self.model, self.dimensions, self.prefixes


def embedding_source(settings: EmbeddingSettings) -> EmbeddingSource:
    """Return the part of the embedding settings that the collection's metadata records."""
    return EmbeddingSource(
        provider=settings.provider,
        model=settings.model,
        dimensions=settings.dimensions,
        base_url=settings.base_url,
        secret_name=settings.secret.name if settings.secret else None,
        secret_key=settings.secret.key if settings.secret else None,
        prefixes=settings.prefixes,
    )
