"""Wrappers of embedders, language models and rerankers: error isolation, batching, prefixes, metrics, new keys."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from agentmemory_operator.connections.link import Renewable
from agentmemory_operator.errors import AgentMemoryError, EmbedderUnavailable, RequestInvalid, SpecInvalid
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.ports.models import Completion, Embedder, LanguageModel, Reranker
from agentmemory_operator.spec.effective.embedding import Prefixes

PROBE_TEXT = "a text"
MAX_HALVING_S = 30.0
"""Seconds after which a failed batch is no longer halved, and all of its texts get its error."""

Embedded = Vector | RequestInvalid | EmbedderUnavailable


async def embed_each(embedder: Embedder, texts: Sequence[str]) -> dict[str, Embedded]:
    """Return the vector of each text, or the provider's error about that text.

    A batch that the provider rejects or fails on is halved until the failing texts are found, for at most
    `MAX_HALVING_S`. If the provider fails on a text before it has embedded or rejected any, a probe text decides
    whether the provider itself fails.

    Raises:
        EmbedderUnavailable: If the provider cannot be reached, or fails on the only text or on the probe text.
        SpecInvalid: As `Embedder.embed`.
    """
    distinct = list(dict.fromkeys(texts))
    embedded: dict[str, Embedded] = {}
    batches = [distinct] if distinct else []
    deadline_s = asyncio.get_running_loop().time() + MAX_HALVING_S
    is_working = False
    while batches:
        batch = batches.pop()
        try:
            embedded |= zip(batch, await embedder.embed(batch), strict=True)
            is_working = True
            continue
        except RequestInvalid as exc:
            error: RequestInvalid | EmbedderUnavailable = exc
        except EmbedderUnavailable as exc:
            if not exc.may_depend_on_text or len(distinct) == 1:
                raise
            error = exc
        is_late = asyncio.get_running_loop().time() > deadline_s
        if len(batch) > 1 and not is_late:
            half = len(batch) // 2
            batches += [batch[half:], batch[:half]]
            continue
        if not is_working and isinstance(error, EmbedderUnavailable):
            await embedder.embed([PROBE_TEXT])
        is_working = True
        embedded |= dict.fromkeys(batch, error)
    return embedded


class WrappedEmbedder:
    """Base of embedders that delegate to another embedder with the same vector space."""

    def __init__(self, inner: Embedder) -> None:
        self._inner = inner

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._inner.dimensions


class GatheringEmbedder(WrappedEmbedder):
    """Merges concurrent calls: while one call runs, the texts of other callers are collected for the next.

    Use one instance per request. It keeps every vector, and raises the error of a failed call in all later calls.
    """

    def __init__(self, inner: Embedder) -> None:
        super().__init__(inner)
        self._queued: dict[str, None] = {}
        self._done: dict[str, Embedded] = {}
        self._error: AgentMemoryError | None = None
        self._lock = asyncio.Lock()

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector for each text, in order.

        Raises:
            RequestInvalid, EmbedderUnavailable: If the provider rejects, or fails on, one of the texts.
            AgentMemoryError: Errors of `embed_each`, which all later calls of this instance raise again.
        """
        self._queued |= {text: None for text in texts if text not in self._done}
        async with self._lock:
            if self._error is not None:
                raise self._error
            if any(text not in self._done for text in texts):
                queued, self._queued = self._queued | dict.fromkeys(texts), {}
                try:
                    self._done |= await embed_each(self._inner, list(queued))
                except AgentMemoryError as error:
                    self._error = error
                    raise
        outcomes = [self._done[text] for text in texts]
        if errors := [outcome for outcome in outcomes if isinstance(outcome, AgentMemoryError)]:
            raise errors[0]
        return [outcome for outcome in outcomes if not isinstance(outcome, AgentMemoryError)]


class PrefixedEmbedder(WrappedEmbedder):
    """Implements ports.Embedder with a prefix before each memory, and another prefix before each query.

    Args:
        inner: Embedder, or cache, of texts with their prefix.
    """

    def __init__(self, inner: Embedder, prefixes: Prefixes) -> None:
        super().__init__(inner)
        self._prefixes = prefixes

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector for each text, in order, embedded with the prefix for memories."""
        return await self._inner.embed([self._prefixes.passage + text for text in texts])

    async def embed_question(self, text: str) -> Vector:
        """Return the vector of a query, embedded with the prefix for queries."""
        return (await self._inner.embed([self._prefixes.query + text]))[0]


def with_prefixes(embedder: Embedder, prefixes: Prefixes | None) -> Embedder:
    """Wrap an embedder so that it puts a prefix before each memory and query. None returns the embedder unchanged."""
    return PrefixedEmbedder(embedder, prefixes) if prefixes else embedder


async def embed_question(embedder: Embedder, text: str) -> Vector:
    """Return the vector of a query. It is embedded like a memory, unless the embedder has a prefix for queries."""
    if isinstance(embedder, PrefixedEmbedder):
        return await embedder.embed_question(text)
    return (await embedder.embed([text]))[0]


class EmbeddingMeter(Protocol):
    """Measures embedding calls and their tokens, by provider."""

    def measure_embedding(self, provider: str, texts: int) -> AbstractContextManager[None]:
        """Return a context that measures one embedding call for this number of texts."""
        ...

    def count_tokens(self, provider: str, tokens: int) -> None:
        """Record the tokens that a service reports for a call."""
        ...


class MeteredEmbedder(WrappedEmbedder):
    """Implements ports.Embedder by another embedder, and measures each call of it."""

    def __init__(self, inner: Embedder, meter: EmbeddingMeter, *, provider: str) -> None:
        super().__init__(inner)
        self._meter = meter
        self._provider = provider

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector for each text, in order."""
        with self._meter.measure_embedding(self._provider, len(texts)):
            return await self._inner.embed(texts)


C = TypeVar("C")
R = TypeVar("R")


class Rekeyed(Renewable[C]):
    """Base of clients of a service whose key is read again after the service has refused it.

    Args:
        key: First key.
        read_key: Reads the key again.
        make: Creates the client of a key. All embedders that it creates must have the same vector space.
    """

    def __init__(self, key: str, read_key: Callable[[], Awaitable[str]], make: Callable[[str], C]) -> None:
        super().__init__(make(key))
        self._key = key
        self._read_key = read_key
        self._make = make

    async def _call(self, call: Callable[[C], Awaitable[R]]) -> R:
        """Return the result of a call. A refused call is repeated once if the key has changed."""
        client = self._held
        try:
            return await call(client)
        except SpecInvalid:
            renewed = await self._renewed_after(client, self._renew)
            if renewed is None:
                raise
        return await call(renewed)

    async def _renew(self) -> None:
        key = await self._read_key()
        if key != self._key:
            self._key, self._held = key, self._make(key)


class RekeyedEmbedder(Rekeyed[Embedder]):
    """Implements ports.Embedder with a key that is read again after it was refused."""

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._held.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector for each text, in order. A refused call is repeated once if the key has changed."""
        return await self._call(lambda embedder: embedder.embed(texts))


class RekeyedModel(Rekeyed[LanguageModel]):
    """Implements ports.LanguageModel with a key that is read again after it was refused."""

    async def complete(
        self, instructions: str, material: str, schema: Mapping[str, Any], max_tokens: int
    ) -> Completion:
        """Return one completion. A refused call is repeated once if the key has changed."""
        return await self._call(lambda model: model.complete(instructions, material, schema, max_tokens))


class RekeyedReranker(Rekeyed[Reranker]):
    """Implements ports.Reranker with a key that is read again after it was refused."""

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """Return a score for each text, in order. A refused call is repeated once if the key has changed."""
        return await self._call(lambda reranker: reranker.rerank(model, query, texts))
