"""Preload the embedder of the collection that an alias is about to point to, before searches need it.

Loading a local model takes seconds. A missing API key of a provider is logged before the move. The embedder embeds one
text, because some models load only then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.spec.effective.embedding import EmbeddingSettings, EmbeddingSource
from agentmemory_operator.spec.effective.settings import AgentSettings

log = logging.getLogger(__name__)

EmbedderFactory = Callable[[EmbeddingSource, AgentSettings], Awaitable[Embedder]]
"""Creates the embedder of a source. `AgentDirectory.open` documents its errors."""


_Target = tuple[EmbeddingSource, EmbeddingSettings, tuple[str, str]]


def _target_of(source: EmbeddingSource, settings: AgentSettings) -> _Target:
    return source, settings.embedding, settings.owner


class EmbedderPreloader:
    """The embedder that is prepared for the next move of one agent.

    Args:
        make: Creates the embedder of a source.
    """

    def __init__(self, make: EmbedderFactory) -> None:
        self._make = make
        self._target: _Target | None = None
        self._task: asyncio.Task[Embedder | None] | None = None

    def prepare(self, source: EmbeddingSource, settings: AgentSettings) -> None:
        """Start to create the embedder in the background, unless it is prepared, in preparation, or failed already."""
        if self._target != (target := _target_of(source, settings)):
            self._target = target
            self._task = asyncio.create_task(self._prepare(source, settings))

    async def take(self, source: EmbeddingSource, settings: AgentSettings) -> Embedder | None:
        """Wait for the prepared embedder and return it. None if none was prepared for this source, or it failed."""
        if self._task is None or self._target != _target_of(source, settings):
            return None
        task, self._target, self._task = self._task, None, None
        return await asyncio.shield(task)

    async def _prepare(self, source: EmbeddingSource, settings: AgentSettings) -> Embedder | None:
        try:
            embedder = await self._make(source, settings)
            if source.provider != "none":
                await embedder.embed(["a text"])
        except AgentMemoryError as error:
            log.warning("agent %s is about to switch to an embedding that fails: %s", settings.slug, error)
            return None
        return embedder
