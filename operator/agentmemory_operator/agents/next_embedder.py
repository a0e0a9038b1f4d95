"""The embedder of the collection that an alias is about to lead to: made, and used once, before searches wait for it.

A model that lies in this process takes seconds to load; a key that it is not given is seen before it is needed.
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
"""Makes the embedder of a source."""


_Wanted = tuple[EmbeddingSource, EmbeddingSettings, tuple[str, str]]


def _wanted(source: EmbeddingSource, settings: AgentSettings) -> _Wanted:
    return source, settings.embedding, settings.owner


class Upcoming:
    """What is prepared for the next move of one agent.

    Args:
        make: makes the embedder of a source.
    """

    def __init__(self, make: EmbedderFactory) -> None:
        self._make = make
        self._for: _Wanted | None = None
        self._making: asyncio.Task[Embedder | None] | None = None

    def prepare(self, source: EmbeddingSource, settings: AgentSettings) -> None:
        """Begin, in the background, unless that was done."""
        if self._for != (wanted := _wanted(source, settings)):
            self._for = wanted
            self._making = asyncio.create_task(self._prepare(source, settings))

    async def take(self, source: EmbeddingSource, settings: AgentSettings) -> Embedder | None:
        """What was prepared, None where that is something else, or failed."""
        if self._making is None or self._for != _wanted(source, settings):
            return None
        making, self._for, self._making = self._making, None, None
        return await asyncio.shield(making)

    async def _prepare(self, source: EmbeddingSource, settings: AgentSettings) -> Embedder | None:
        try:
            embedder = await self._make(source, settings)
            if source.provider != "none":
                await embedder.embed(["a text"])
        except AgentMemoryError as error:
            log.warning("agent %s is about to switch to an embedding that fails: %s", settings.slug, error)
            return None
        return embedder
