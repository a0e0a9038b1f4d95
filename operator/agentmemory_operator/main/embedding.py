"""Embedders, opened with the keys that their sources name."""

from functools import partial
from typing import Protocol, runtime_checkable
from weakref import WeakSet

from agentmemory_operator.adapters.embedding.choice import build_embedder
from agentmemory_operator.adapters.embedding.onnx_models import ModelFiles
from agentmemory_operator.connections.embedders import (
    EmbeddingMeter,
    MeteredEmbedder,
    RekeyedEmbedder,
    with_prefixes,
)
from agentmemory_operator.connections.rules.handover import embedding_key
from agentmemory_operator.errors import RebuildPaused, SpecInvalid
from agentmemory_operator.main.egress import egress_of
from agentmemory_operator.ports.embedding import Embedder
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.rebuilds.budget import RebuildMeter
from agentmemory_operator.settings import Settings
from agentmemory_operator.spec.effective.embedding import EmbeddingSettings, EmbeddingSource, effective_embedding
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory


@runtime_checkable
class ClosableEmbedder(Protocol):
    """An embedder with connections."""

    async def aclose(self) -> None:
        """Close them."""
        ...


class Embedders:
    """Opens embedders.

    Args:
        meter: measures their calls.
    """

    def __init__(self, settings: Settings, meter: EmbeddingMeter) -> None:
        self.files = ModelFiles(folder=settings.models, may_download=settings.may_download_models)
        # In a cluster a manifest's baseURL must not receive a key that the object does not name.
        self._own_key = None if settings.is_in_cluster else settings.openai_api_key
        self._meter = meter
        self._egress = egress_of(settings)
        # Those whose Secret has changed are no more.
        self._built: WeakSet[ClosableEmbedder] = WeakSet()

    async def close(self) -> None:
        """Close the connections of all that were opened."""
        for embedder in list(self._built):
            await embedder.aclose()

    async def open(
        self, source: EmbeddingSource, settings: EmbeddingSettings, *, namespace: str, secrets: Secrets
    ) -> Embedder:
        """The embedder of a source.

        Args:
            namespace: where the Secret lies that the source may name.

        Raises:
            SpecInvalid: its key is not there, or not for the service, or the provider has no such model or size.
        """

        def make(api_key: str | None) -> Embedder:
            on_used = partial(self._meter.used, source.provider)
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


class RebuildEmbedders:
    """Opens what embeds for rebuilds; what was opened once serves every later run, with its connections.

    Args:
        secrets: where keys are read, in the namespace of their object, for their service alone.
    """

    def __init__(self, settings: Settings, secrets: Secrets) -> None:
        self.meter = RebuildMeter()
        self._embedders = Embedders(settings, self.meter)
        self._secrets = secrets
        self._opened: dict[tuple[str, EmbeddingSource, EmbeddingSettings], Embedder] = {}
        self.close = self._embedders.close

    async def open(self, source: EmbeddingSource, memory: AgentMemory) -> Embedder:
        """The embedder of a rebuild's target.

        Raises:
            RebuildPaused: it cannot be opened before somebody has mended something.
        """
        settings, namespace = effective_embedding(memory), memory.metadata.namespace
        opened = self._opened.get((namespace, source, settings))
        if opened is None:
            try:
                opened = await self._open(source, settings, namespace)
            except SpecInvalid as exc:
                raise RebuildPaused(str(exc)) from exc
            self._opened[namespace, source, settings] = opened
        return opened

    async def _open(self, source: EmbeddingSource, settings: EmbeddingSettings, namespace: str) -> Embedder:
        if source.provider == "none":
            raise SpecInvalid("InvalidSpec", "spec.embedding.provider: none makes no vectors, callers send them")
        embedder = await self._embedders.open(source, settings, namespace=namespace, secrets=self._secrets)
        return with_prefixes(embedder, source.prefixes)
