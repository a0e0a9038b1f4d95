"""Open embedders, language models and rerankers with the API keys that their objects name."""

import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from weakref import WeakSet

from cachetools import LRUCache

from agentmemory_operator.adapters.embedding.embedder_factory import build_embedder
from agentmemory_operator.adapters.embedding.fastembed_models import FastEmbedReranker
from agentmemory_operator.adapters.embedding.http_reranker import HttpReranker
from agentmemory_operator.adapters.embedding.onnx_models import ModelFiles, has_fastembed_files
from agentmemory_operator.adapters.embedding.sentence_models import check_runtime, find_model_folder
from agentmemory_operator.connections.embedders import (
    EmbeddingMeter,
    MeteredEmbedder,
    RekeyedEmbedder,
    RekeyedModel,
    RekeyedReranker,
)
from agentmemory_operator.connections.guarded_reranker import GuardedReranker
from agentmemory_operator.connections.rules.agent_secret_slots import RequiredKey, embedding_key, model_key, rerank_key
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.main.egress import build_egress
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.ports.models import Embedder, LanguageModel, Reranker
from agentmemory_operator.settings import SettingInvalid, Settings
from agentmemory_operator.spec.effective.consolidation import ModelSettings
from agentmemory_operator.spec.effective.embedding import (
    DEFAULT_EMBEDDINGS,
    EmbeddingSettings,
    EmbeddingSource,
)
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.spec.kinds.cel.embedding import FASTEMBED_DEFAULT_MODEL
from agentmemory_operator.spec.presets.table import Reranking

if TYPE_CHECKING:
    from agentmemory_operator.adapters.language_model.openai_chat import OpenAIChat
MAX_OPEN = 256
Owner = tuple[str, str]
"""Namespace and slug of an agent."""


@runtime_checkable
class ClosableEmbedder(Protocol):
    """An embedder with connections that must be closed."""

    async def aclose(self) -> None:
        """Close the connections."""
        ...


def check_default_embedding(settings: Settings) -> None:
    """Raise SettingInvalid if the default embedding needs a model or package that this process does not have."""
    default, name = DEFAULT_EMBEDDINGS[settings.default_embedding], settings.default_embedding
    if default.provider != "fastembed":
        return
    files = ModelFiles(folder=settings.models, may_download=settings.may_download_models)
    model = default.model or ""
    if find_model_folder(model, files):
        try:
            check_runtime()
        except SpecInvalid as exc:
            raise SettingInvalid(f"AGENTMEMORY_DEFAULT_EMBEDDING={name}: {exc}") from exc
    elif model != FASTEMBED_DEFAULT_MODEL or not has_fastembed_files(model, files):
        remedy = "build it with MODEL_URL" if model == FASTEMBED_DEFAULT_MODEL else "name a volume that has the model"
        message = f"{model} is not in this image, and AGENTMEMORY_MODELS has none that this process can open: set"
        message += " embedding.default (AGENTMEMORY_DEFAULT_EMBEDDING) to wordllama, or"
        raise SettingInvalid(f"AGENTMEMORY_DEFAULT_EMBEDDING={name}: {message} {remedy}")


class Embedders:
    """Opens embedders; `close` closes the connections of all of them.

    Args:
        meter: Measures calls and tokens of the opened embedders.
    """

    def __init__(self, settings: Settings, meter: EmbeddingMeter) -> None:
        self.files = ModelFiles(folder=settings.models, may_download=settings.may_download_models)
        # In a cluster a manifest's baseURL must not receive a key that the object does not name.
        self._own_key = None if settings.is_in_cluster else settings.openai_api_key
        self._meter = meter
        self._egress = build_egress(settings)
        # Weak references: an embedder is dropped when its key changes.
        self._built: WeakSet[ClosableEmbedder] = WeakSet()

    async def close(self) -> None:
        """Close the connections of all embedders."""
        for embedder in list(self._built):
            await embedder.aclose()

    async def open(
        self, source: EmbeddingSource, settings: EmbeddingSettings, *, namespace: str, secrets: Secrets
    ) -> Embedder:
        """Open the embedder of a source. A key from a Secret is read again when the service rejects the key.

        Args:
            namespace: Namespace of the Secret that the source may name.

        Raises:
            SpecInvalid: If the source's URL is invalid, the key does not exist or its Secret does not list the host, or
                the model, its size or a package is missing.
            TransientError: If the key cannot be read now.
        """

        def make(api_key: str | None) -> Embedder:
            on_used = partial(self._meter.count_tokens, source.provider)
            embedder = build_embedder(
                source, settings, api_key=api_key, files=self.files, egress=self._egress, on_used=on_used
            )
            if isinstance(embedder, ClosableEmbedder):
                self._built.add(embedder)
            return embedder

        if key := embedding_key(source):
            read_key = partial(secrets.read, namespace, key.name, key.key, to=key.to)
            embedder: Embedder = RekeyedEmbedder(await read_key(), read_key, make)
        else:
            embedder = make(self._own_key)
        return MeteredEmbedder(embedder, self._meter, provider=source.provider)


class LanguageModels:
    """Opens language models, and caches up to `MAX_OPEN` of them by agent and settings.

    Connections close by themselves a few seconds after their last use.
    """

    def __init__(self, settings: Settings) -> None:
        # In a cluster a manifest's baseURL must not receive a key that the object does not name.
        self._own_key = None if settings.is_in_cluster else settings.openai_api_key
        self._egress = build_egress(settings)
        self._opened: LRUCache[tuple[Owner, ModelSettings], LanguageModel] = LRUCache(MAX_OPEN)
        # Weak references: a model is dropped when its key changes.
        self._built: WeakSet[OpenAIChat] = WeakSet()

    async def close(self) -> None:
        """Close the connections of all models."""
        self._opened.clear()
        for model in list(self._built):
            await model.aclose()

    async def open(self, settings: ModelSettings, owner: Owner, secrets: Secrets) -> LanguageModel:
        """Open the language model of an agent.

        Args:
            secrets: Reads the key, and checks its destination.

        Raises:
            SpecInvalid: If the URL is invalid, the key does not exist, its Secret does not list the host, or a required
                key is not named.
            TransientError: If the key cannot be read now.
        """
        cache_key = owner, settings
        if found := self._opened.get(cache_key):
            return found
        model = self._opened[cache_key] = await self._open(settings, owner[0], secrets)
        return model

    async def _open(self, settings: ModelSettings, namespace: str, secrets: Secrets) -> LanguageModel:
        def make(api_key: str | None) -> LanguageModel:
            # Import here, because the client library takes a second and most processes open no model.
            chat = import_module("agentmemory_operator.adapters.language_model.openai_chat")
            options = chat.ChatOptions(
                model=settings.model, api_key=api_key, base_url=settings.base_url, timeout_s=settings.timeout_s
            )
            model: OpenAIChat = chat.OpenAIChat(options, egress=self._egress)
            self._built.add(model)
            return model

        key = model_key(settings)
        if key is None:
            return make(self._own_key)
        read_key = partial(secrets.read, namespace, key.name, key.key, to=key.to)
        return RekeyedModel(await read_key(), read_key, make)


class Rerankers:
    """Opens rerankers, and caches up to `MAX_OPEN` remote ones, with their recent failures, by agent and settings.

    Args:
        files: Location of the models that run in this process.
        secrets_of: Returns the reader of an agent's keys, by slug.
    """

    def __init__(self, settings: Settings, files: ModelFiles, secrets_of: Callable[[str], Secrets]) -> None:
        self._local = FastEmbedReranker(files)
        self._secrets_of = secrets_of
        self._egress = build_egress(settings)
        self._services: LRUCache[tuple[Owner, Reranking], Reranker] = LRUCache(MAX_OPEN)
        # Weak references: a client is dropped with its agent or settings.
        self._built: WeakSet[HttpReranker] = WeakSet()

    async def close(self) -> None:
        """Close the connections to all services."""
        self._services.clear()
        for service in list(self._built):
            await service.aclose()

    def open(self, settings: AgentSettings) -> Reranker:
        """Return the reranker of an agent. The first call of a remote one connects to its service and reads its key.

        An agent without a reranker gets the local one, which runs in this process.
        """
        reranking = settings.ranking.rerank
        if reranking is None or reranking.url is None:
            return self._local
        found = self._services.get(cache_key := (settings.owner, reranking))
        if found is None:
            open_service = partial(
                self._connect, reranking.url, rerank_key(reranking), settings.namespace, self._secrets_of(settings.slug)
            )
            found = GuardedReranker(open_service, timeout_s=reranking.timeout_ms / 1000, now_s=time.monotonic)
            self._services[cache_key] = found
        return found

    async def _connect(self, url: str, key: RequiredKey | None, namespace: str, secrets: Secrets) -> Reranker:
        service = HttpReranker(url, egress=self._egress)
        self._built.add(service)
        if key is None:
            return service
        read_key = partial(secrets.read, namespace, key.name, key.key, to=key.to)
        return RekeyedReranker(await read_key(), read_key, service.with_key)
