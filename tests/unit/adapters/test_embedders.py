import pathlib

import pytest

from agentmemory_operator.adapters.embedding.embedder_factory import build_embedder
from agentmemory_operator.adapters.embedding.fastembed_models import FastEmbedEmbedder
from agentmemory_operator.adapters.embedding.onnx_models import ModelFiles
from agentmemory_operator.adapters.embedding.openai_embedder import OpenAIEmbedder
from agentmemory_operator.adapters.embedding.wordllama_embedder import WordLlamaEmbedder
from agentmemory_operator.errors import RequestInvalid, SpecInvalid
from agentmemory_operator.spec.effective.embedding import EmbeddingSettings, EmbeddingSource

SETTINGS = EmbeddingSettings(provider="wordllama", model=None, dimensions=256)


def source(provider: str, model: str | None = None, dimensions: int = 256, **rest: str) -> EmbeddingSource:
    return EmbeddingSource(provider=provider, model=model, dimensions=dimensions, **rest)


def test_wordllama_is_built_with_the_given_size() -> None:
    embedder = build_embedder(source("wordllama", "l2_supercat", 64), SETTINGS, api_key=None)

    assert isinstance(embedder, WordLlamaEmbedder)
    assert embedder.dimensions == 64


def test_openai_is_built_with_the_key() -> None:
    embedder = build_embedder(source("openai", "text-embedding-3-small", 1536), SETTINGS, api_key="k")

    assert isinstance(embedder, OpenAIEmbedder)
    assert embedder.dimensions == 1536


def test_fastembed_is_built_with_the_model_folder() -> None:
    files = ModelFiles(folder=pathlib.Path("models"))
    embedder = build_embedder(source("fastembed", "m", 384), SETTINGS, api_key=None, files=files)

    assert isinstance(embedder, FastEmbedEmbedder)
    assert embedder.dimensions == 384


async def test_missing_provider_requires_vectors() -> None:
    embedder = build_embedder(source("none", dimensions=8), SETTINGS, api_key=None)

    assert embedder.dimensions == 8
    with pytest.raises(RequestInvalid, match="vector: required"):
        await embedder.embed(["text"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (source("other"), "'other' is unknown"),
        (source("fastembed", "m"), "AGENTMEMORY_MODELS"),
        (source("fastembed"), "spec.embedding.model: required"),
        (source("openai"), "spec.embedding.model: required"),
        (source("openai", "m"), "secretRef"),
        (source("wordllama", dimensions=100), "not 100"),
    ],
)
def test_unsupported_source_is_rejected(given: EmbeddingSource, message: str) -> None:
    with pytest.raises(SpecInvalid, match=message):
        build_embedder(given, SETTINGS, api_key=None)
