"""Wrappers of an Embedder (and a LanguageModel): halved batches, gathered calls, prefixes, measures, renewed keys."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from agentmemory_operator.connections.link import Renewable
from agentmemory_operator.errors import AgentMemoryError, EmbedderUnavailable, RequestInvalid, SpecInvalid
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.ports.models import Completion, Embedder, LanguageModel
from agentmemory_operator.spec.effective.embedding import Prefixes

PROBE_TEXT = "a text"
MAX_HALVING_S = 30.0
"""Time after which texts whose batch failed are not tried in smaller batches any more."""

Embedded = Vector | RequestInvalid | EmbedderUnavailable


async def embed_each(embedder: Embedder, texts: Sequence[str]) -> dict[str, Embedded]:
    """Return the vector of each text, or the provider's error about that text alone.

    A batch that the provider refuses or fails on is halved until the texts at fault are found. If no batch succeeds,
    a text of ours shows whether the fault is the provider's.

    Raises:
        EmbedderUnavailable: If the provider cannot be reached, or fails on every text.
    """
    distinct = list(dict.fromkeys(texts))
    embedded: dict[str, Embedded] = {}
    batches = [distinct] if distinct else []
    deadline_s = asyncio.get_running_loop().time() + MAX_HALVING_S
    works = False
    while batches:
        batch = batches.pop()
        try:
            embedded |= zip(batch, await embedder.embed(batch), strict=True)
            works = True
            continue
        except RequestInvalid as exc:
            error: RequestInvalid | EmbedderUnavailable = exc
        except EmbedderUnavailable as exc:
            if not exc.may_be_one_text or len(distinct) == 1:
                raise
            error = exc
        is_late = asyncio.get_running_loop().time() > deadline_s
        if len(batch) > 1 and not is_late:
            half = len(batch) // 2
            batches += [batch[half:], batch[:half]]
            continue
        if not works and isinstance(error, EmbedderUnavailable):
            await embedder.embed([PROBE_TEXT])
        works = True
        embedded |= dict.fromkeys(batch, error)
    return embedded


class WrappedEmbedder:
    """Base of embedders that pass texts on to another one of the same vector space."""

    def __init__(self, inner: Embedder) -> None:
        self._inner = inner

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._inner.dimensions


class GatheringEmbedder(WrappedEmbedder):
    """Embeds in one call what several callers ask for at the same time; while one is under way, the next gathers.

    One serves one request: it keeps every vector, and what made a call fail is raised from then on.
    """

    def __init__(self, inner: Embedder) -> None:
        super().__init__(inner)
        self._wanted: dict[str, None] = {}
        self._done: dict[str, Embedded] = {}
        self._error: AgentMemoryError | None = None
        self._turn = asyncio.Lock()

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One vector a text, in order."""
        self._wanted |= {text: None for text in texts if text not in self._done}
        async with self._turn:
            if self._error is not None:
                raise self._error
            if any(text not in self._done for text in texts):
                wanted, self._wanted = self._wanted | dict.fromkeys(texts), {}
                try:
                    self._done |= await embed_each(self._inner, list(wanted))
                except AgentMemoryError as error:
                    self._error = error
                    raise
        outcomes = [self._done[text] for text in texts]
        if refused := [outcome for outcome in outcomes if isinstance(outcome, AgentMemoryError)]:
            raise refused[0]
        return [outcome for outcome in outcomes if not isinstance(outcome, AgentMemoryError)]


class PrefixedEmbedder(WrappedEmbedder):
    """Implements ports.Embedder for memories: each text with a prefix before it; questions have another.

    Args:
        inner: what remembers vectors of whole texts, prefixes included.
    """

    def __init__(self, inner: Embedder, prefixes: Prefixes) -> None:
        super().__init__(inner)
        self._prefixes = prefixes

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One vector a memory, in order."""
        return await self._inner.embed([self._prefixes.passage + text for text in texts])

    async def embed_question(self, text: str) -> Vector:
        """The vector of a question."""
        return (await self._inner.embed([self._prefixes.query + text]))[0]


def with_prefixes(embedder: Embedder, prefixes: Prefixes | None) -> Embedder:
    """The embedder of memories of a vector space."""
    return PrefixedEmbedder(embedder, prefixes) if prefixes else embedder


async def embed_question(embedder: Embedder, text: str) -> Vector:
    """The vector of a question to memories that an embedder embeds."""
    if isinstance(embedder, PrefixedEmbedder):
        return await embedder.embed_question(text)
    return (await embedder.embed([text]))[0]


class EmbeddingMeter(Protocol):
    """Whoever measures calls for vectors."""

    def embedding(self, provider: str, texts: int) -> AbstractContextManager[None]:
        """Measure one call."""
        ...

    def used(self, provider: str, tokens: int) -> None:
        """Note how many tokens a service says that a call used."""
        ...


class MeteredEmbedder(WrappedEmbedder):
    """Implements ports.Embedder by another one."""

    def __init__(self, inner: Embedder, meter: EmbeddingMeter, *, provider: str) -> None:
        super().__init__(inner)
        self._meter = meter
        self._provider = provider

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One vector a text, in order."""
        with self._meter.embedding(self._provider, len(texts)):
            return await self._inner.embed(texts)


ReadKey = Callable[[], Awaitable[str]]
MakeEmbedder = Callable[[str], Embedder]


class RekeyedEmbedder(Renewable[Embedder]):
    """Implements ports.Embedder by the embedder of the key that was read last.

    Args:
        key: as it was read first.
        read_key: reads it again.
        make: makes the embedder of a key; all are of one vector space.
    """

    def __init__(self, key: str, read_key: ReadKey, make: MakeEmbedder) -> None:
        super().__init__(make(key))
        self._key = key
        self._read_key = read_key
        self._make = make

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._held.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One vector a text, in order; a call that the provider refused is made once more with another key."""
        held = self._held
        try:
            return await held.embed(texts)
        except SpecInvalid:
            renewed = await self._renewed_after(held, self._renew)
            if renewed is None:
                raise
        return await renewed.embed(texts)

    async def _renew(self) -> None:
        key = await self._read_key()
        if key != self._key:
            self._key, self._held = key, self._make(key)


class RekeyedModel(Renewable[LanguageModel]):
    """Implements ports.LanguageModel by the model of the key that was read last.

    Args:
        key: as it was read first.
        read_key: reads it again.
        make: makes the model of a key.
    """

    def __init__(self, key: str, read_key: Callable[[], Awaitable[str]], make: Callable[[str], LanguageModel]) -> None:
        super().__init__(make(key))
        self._key = key
        self._read_key = read_key
        self._make = make

    async def complete(
        self, instructions: str, material: str, schema: Mapping[str, Any], max_tokens: int
    ) -> Completion:
        """One answer; a call that the service refused is made once more with another key."""
        held = self._held
        try:
            return await held.complete(instructions, material, schema, max_tokens)
        except SpecInvalid:
            renewed = await self._renewed_after(held, self._renew)
            if renewed is None:
                raise
        return await renewed.complete(instructions, material, schema, max_tokens)

    async def _renew(self) -> None:
        key = await self._read_key()
        if key != self._key:
            self._key, self._held = key, self._make(key)
