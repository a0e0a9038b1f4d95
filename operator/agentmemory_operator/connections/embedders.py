"""Around an Embedder: the cache, the measure, and the key that changes while it runs, also a LanguageModel's.

A process has one `EmbeddingCache`, which bounds what all its embedders remember together. What a text came to is kept
by the `CachedEmbedder` that asked for it, so by agent, provider, model, dimensions and Secret: no agent is answered
with what another's provider said, and what an embedder remembers goes with it.

Texts are kept as digests and vectors as float32: a vector of d numbers takes 4 d + `ENTRY_BYTES` bytes.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from typing import Any, Protocol
from weakref import WeakSet

from agentmemory_operator.connections.link import Renewable
from agentmemory_operator.errors import AgentMemoryError, EmbedderUnavailable, RequestInvalid, SpecInvalid
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.ports.models import Completion, Embedder, LanguageModel
from agentmemory_operator.runtime.metrics_api import ApiMeter
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


ENTRY_BYTES = 320
"""What a vector takes beside its numbers: digest, object and place in the table; more than was ever measured."""

Key = bytes
Packed = bytes
Fetched = dict[Key, Packed]


class EmbeddingCache:
    """How many bytes the vectors take that a process remembers.

    One agent may use room that nobody else does. Where there is none, whoever has most loses what it used longest ago:
    so nobody loses anything to others who has no more than its equal share.

    Args:
        max_bytes: of all of them together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # What is remembered for an embedder goes with it, and is not counted from then on.
        self._shelves: WeakSet[Shelf] = WeakSet()

    @property
    def size_bytes(self) -> int:
        """Bytes that are taken now."""
        return sum(shelf.size_bytes for shelf in self._shelves)

    def shelf(self) -> "Shelf":
        """An empty place for the vectors of one embedder."""
        shelf = Shelf()
        self._shelves.add(shelf)
        return shelf

    def put(self, shelf: "Shelf", fetched: Fetched, *, entries: int | None) -> None:
        """Remember vectors on a shelf, its newest; those that do not fit any more go first.

        Args:
            entries: the most that the shelf keeps; None is as many as fit.
        """
        size_bytes = self.size_bytes
        for key, vector in fetched.items():
            size_bytes -= shelf.drop(key)
            while shelf.vectors and entries is not None and len(shelf.vectors) >= entries:
                size_bytes -= shelf.drop_oldest()
            size_bytes -= self._make_room(shelf, size_of(vector), size_bytes)
            if entries != 0 and size_bytes + size_of(vector) <= self._max_bytes:
                size_bytes += shelf.add(key, vector)

    def _make_room(self, wanting: "Shelf", wanted_bytes: int, size_bytes: int) -> int:
        """Drop vectors until there is room, or the one that wants it would have most of all; return their bytes."""
        freed_bytes = 0
        while size_bytes - freed_bytes + wanted_bytes > self._max_bytes:
            largest = max(self._shelves, key=lambda shelf: shelf.size_bytes + wanted_bytes * (shelf is wanting))
            if not largest.vectors:
                break
            freed_bytes += largest.drop_oldest()
        return freed_bytes


class Shelf:
    """What is remembered for one embedder, that used longest ago first."""

    def __init__(self) -> None:
        self.vectors: OrderedDict[Key, Packed] = OrderedDict()
        self.size_bytes = 0
        self._most = 0

    def recall(self, keys: Iterable[Key]) -> Fetched:
        """What is remembered of these; it counts as used from now on."""
        found = {key: vector for key in keys if (vector := self.vectors.get(key)) is not None}
        for key in found:
            self.vectors.move_to_end(key)
        return found

    def add(self, key: Key, vector: Packed) -> int:
        """Remember one that is not there; return its bytes."""
        self.vectors[key] = vector
        self._most = max(self._most, len(self.vectors))
        self.size_bytes += size_of(vector)
        return size_of(vector)

    def drop(self, key: Key) -> int:
        """Forget one if it is there; return its bytes."""
        vector = self.vectors.pop(key, None)
        return 0 if vector is None else self._forgotten(vector)

    def drop_oldest(self) -> int:
        """Forget the one that was used longest ago; return its bytes."""
        return self._forgotten(self.vectors.popitem(last=False)[1])

    def _forgotten(self, vector: Packed) -> int:
        if 2 * len(self.vectors) < self._most:
            # A table does not shrink by itself.
            self.vectors, self._most = OrderedDict(self.vectors), len(self.vectors)
        self.size_bytes -= size_of(vector)
        return size_of(vector)


class CachedEmbedder:
    """Remembers the vectors of the texts used last.

    Equal texts of one call, and of calls that run at the same time, are embedded once. A caller that goes away does
    not spoil the work for the others.

    Args:
        inner: of one agent: what it answers is for nobody else.
        cache: bounds what this and others remember.
        entries: the most vectors that are remembered; None is as many as fit.
    """

    def __init__(
        self, inner: Embedder, *, cache: EmbeddingCache, entries: int | None = None, meter: ApiMeter | None = None
    ) -> None:
        self._meter = meter or ApiMeter()
        self._inner = inner
        self._entries = entries
        self._cache = cache
        self._shelf = cache.shelf()
        self._running: dict[Key, asyncio.Task[Fetched]] = {}

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._inner.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One vector a text, in order; float32 values, remembered or not."""
        wanted = {_digest(text): text for text in texts}
        found = self._shelf.recall(wanted)
        others = {key: task for key in wanted if key not in found and (task := self._running.get(key))}
        self._meter.cached(hits=len(found), misses=len(wanted) - len(found))
        own = {key: text for key, text in wanted.items() if key not in found and key not in others}
        if own:
            found |= await self._fetch(own)
        for key, task in others.items():
            found |= await self._join(task, key=key, text=wanted[key])
        return [_unpacked(found[_digest(text)]) for text in texts]

    async def _fetch(self, texts: dict[Key, str]) -> Fetched:
        task = asyncio.create_task(self._embed(texts))
        self._running |= dict.fromkeys(texts, task)
        task.add_done_callback(lambda done: self._finish(done, texts))
        return await asyncio.shield(task)

    async def _join(self, task: asyncio.Task[Fetched], *, key: Key, text: str) -> Fetched:
        """Wait for another call's embedding; what failed there may have failed for its other texts."""
        try:
            return await asyncio.shield(task)
        except AgentMemoryError:
            return await self._fetch({key: text})

    async def _embed(self, texts: dict[Key, str]) -> Fetched:
        vectors = await self._inner.embed(list(texts.values()))
        fetched = {key: array("f", vector).tobytes() for key, vector in zip(texts, vectors, strict=True)}
        self._cache.put(self._shelf, fetched, entries=self._entries)
        return fetched

    def _finish(self, task: asyncio.Task[Fetched], keys: Iterable[Key]) -> None:
        for key in keys:
            if self._running.get(key) is task:
                del self._running[key]
        if not task.cancelled():
            task.exception()  # marks it as seen: every caller may have gone away


def size_of(vector: Packed) -> int:
    """The bytes that a remembered vector takes."""
    return ENTRY_BYTES + len(vector)


def _digest(text: str) -> Key:
    return blake2b(text.encode(), digest_size=16).digest()


def _unpacked(vector: Packed) -> Vector:
    return memoryview(vector).cast("f").tolist()


class GatheringEmbedder:
    """Embeds in one call what several callers ask for at the same time; while one is under way, the next gathers.

    One serves one request: it keeps every vector, and what made a call fail is raised from then on.
    """

    def __init__(self, inner: Embedder) -> None:
        self._inner = inner
        self._wanted: dict[str, None] = {}
        self._done: dict[str, Embedded] = {}
        self._error: AgentMemoryError | None = None
        self._turn = asyncio.Lock()

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._inner.dimensions

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


class PrefixedEmbedder:
    """Implements ports.Embedder for memories: each text with a prefix before it; questions have another.

    Args:
        inner: what remembers vectors of whole texts, prefixes included.
    """

    def __init__(self, inner: Embedder, prefixes: Prefixes) -> None:
        self._inner = inner
        self._prefixes = prefixes

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._inner.dimensions

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


class MeteredEmbedder:
    """Implements ports.Embedder by another one."""

    def __init__(self, inner: Embedder, meter: EmbeddingMeter, *, provider: str) -> None:
        self._inner = inner
        self._meter = meter
        self._provider = provider

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._inner.dimensions

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
