"""Build the embedder for an embedding source."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentmemory_operator.adapters.embedding.fastembed_models import FastEmbedEmbedder
from agentmemory_operator.adapters.embedding.onnx_models import ModelFiles
from agentmemory_operator.adapters.embedding.wordllama_embedder import WordLlamaEmbedder
from agentmemory_operator.errors import FieldError, RequestInvalid, SpecInvalid
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.spec.effective.embedding import EmbeddingSettings, EmbeddingSource

if TYPE_CHECKING:
    from agentmemory_operator.adapters.embedding.openai_embedder import OpenAIOptions
    from agentmemory_operator.adapters.http.egress import Egress


class CallerVectors:
    """Embedder for provider `none`: callers send vectors, and text cannot be embedded."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions

    @property
    def dimensions(self) -> int:
        """Length of the vectors that callers send."""
        return self._dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Raise RequestInvalid: callers must send vectors."""
        raise RequestInvalid([FieldError("vector", "required: this agent has embedding.provider none")])


def build_embedder(
    source: EmbeddingSource,
    settings: EmbeddingSettings,
    *,
    api_key: str | None,
    files: ModelFiles | None = None,
    egress: "Egress | None" = None,
    on_used: Callable[[int], None] | None = None,
) -> Embedder:
    """Build the embedder for the vectors of a collection.

    Args:
        source: Provider, model and address, as recorded in the collection's metadata.
        settings: Batch size, timeout and device, from the object.
        api_key: Value of the Secret, or OPENAI_API_KEY if the source names no Secret. None sends no key.
        files: Location of fastembed models. None: no folder, and no downloads.
        egress: Policy for outgoing connections. None is the default policy.
        on_used: Called with the number of tokens that a service reports. None ignores it.

    Raises:
        SpecInvalid: If the provider is unknown, or a model, key or package that it requires is missing. Also if
            wordllama does not have the model or the dimensions, or if, for fastembed, `files` has no folder and permits
            no downloads.
    """
    match source.provider:
        case "none":
            return CallerVectors(source.dimensions)
        case "wordllama":
            return WordLlamaEmbedder(dimensions=source.dimensions, model=source.model)
        case "openai":
            return _openai(_options_of(source, settings, api_key), egress, on_used)
        case "fastembed":
            return _fastembed(source, settings, files or ModelFiles())
        case unknown:
            message = f"spec.embedding.provider: {unknown!r} is unknown: openai, wordllama, fastembed or none"
            raise SpecInvalid("InvalidSpec", message)


def _fastembed(source: EmbeddingSource, settings: EmbeddingSettings, files: ModelFiles) -> Embedder:
    if source.model is None:
        raise SpecInvalid("InvalidSpec", "spec.embedding.model: required with provider fastembed")
    return FastEmbedEmbedder(
        model=source.model,
        dimensions=source.dimensions,
        files=files,
        batch_size=settings.batch_size,
        device=settings.device,
    )


def _options_of(source: EmbeddingSource, settings: EmbeddingSettings, api_key: str | None) -> "OpenAIOptions":
    # The client library takes a second to import, so import it only if it is used.
    from agentmemory_operator.adapters.embedding.openai_embedder import OpenAIOptions

    if source.model is None:
        raise SpecInvalid("InvalidSpec", "spec.embedding.model: required with provider openai")
    return OpenAIOptions(
        model=source.model,
        dimensions=source.dimensions,
        api_key=api_key,
        base_url=source.base_url,
        batch_size=settings.batch_size,
        timeout_s=settings.timeout_s,
    )


def _openai(options: "OpenAIOptions", egress: "Egress | None", on_used: Callable[[int], None] | None) -> Embedder:
    from agentmemory_operator.adapters.embedding.openai_embedder import OpenAIEmbedder
    from agentmemory_operator.adapters.http.egress import DEFAULT_EGRESS

    return OpenAIEmbedder(options, egress=egress or DEFAULT_EGRESS, on_used=on_used)
