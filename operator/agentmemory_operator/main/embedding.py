"""Embedders, opened with the keys that their sources name."""

from functools import partial
from typing import Protocol, runtime_checkable
from weakref import WeakSet

from agentmemory_operator.adapters.embedders import build_embedder
from agentmemory_operator.adapters.onnx_models import ModelFiles
from agentmemory_operator.domain.collection import EmbeddingSource
from agentmemory_operator.domain.effective import EmbeddingSettings, effective_embedding
from agentmemory_operator.domain.resources import AgentMemory
from agentmemory_operator.errors import RebuildPaused, SpecInvalid
from agentmemory_operator.ports import Embedder, Secrets
from agentmemory_operator.services.metered_embedder import EmbeddingMeter, MeteredEmbedder
from agentmemory_operator.services.rebuild_metering import RebuildMeter
from agentmemory_operator.services.rekeyed_embedder import RekeyedEmbedder
from agentmemory_operator.settings import Settings


@runtime_checkable
class Closable(Protocol):
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
        # Those whose Secret has changed are no more.
        self._built: WeakSet[Closable] = WeakSet()

    async def close(self) -> None:
        """Close the connections of all that were opened."""
        for embedder in list(self._built):
            await embedder.aclose()

    async def open(
        self, source: EmbeddingSource, settings: EmbeddingSettings, *, namespace: str, secrets: Secrets
    ) -> Embedder:
        """Return the embedder of a source.

        Args:
            namespace: where the Secret lies that the source may name.

        Raises:
            SpecInvalid: its key is not there, or the provider has no such model or size.
        """

        def make(api_key: str | None) -> Embedder:
            embedder = build_embedder(source, settings, api_key=api_key, files=self.files)
            if isinstance(embedder, Closable):
                self._built.add(embedder)
            return embedder

        if source.secret_name and source.secret_key:
            read_key = partial(secrets.read, namespace, source.secret_name, source.secret_key)
            embedder: Embedder = RekeyedEmbedder(await read_key(), read_key, make)
        else:
            embedder = make(self._own_key)
        return MeteredEmbedder(embedder, self._meter, provider=source.provider)


class RebuildEmbedders:
    """Opens what embeds for rebuilds; what was opened once serves every later run, with its connections.

    Args:
        secrets: where keys are read, in the namespace of their object.
    """

    def __init__(self, settings: Settings, secrets: Secrets) -> None:
        self.meter = RebuildMeter()
        self._embedders = Embedders(settings, self.meter)
        self._secrets = secrets
        self._opened: dict[tuple[str, EmbeddingSource, EmbeddingSettings], Embedder] = {}
        self.close = self._embedders.close

    async def open(self, source: EmbeddingSource, memory: AgentMemory) -> Embedder:
        """Return the embedder of a rebuild's target.

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
        return await self._embedders.open(source, settings, namespace=namespace, secrets=self._secrets)
