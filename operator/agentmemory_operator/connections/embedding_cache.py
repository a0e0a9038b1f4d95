"""The vectors of texts that a process keeps in memory.

A process has one `EmbeddingCache`, which bounds the vectors of all its embedders together. The vector of a text is kept
by the `CachedEmbedder` that asked for it, so by agent, provider, model, dimensions and Secret: no agent is answered
with a vector of another agent's provider, and the vectors of an embedder go with it.

Texts are kept as digests and vectors as float32: a vector of d numbers takes 4 d + `ENTRY_BYTES` bytes.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from weakref import WeakSet

from agentmemory_operator.connections.embedders import WrappedEmbedder
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.runtime.metrics_api import ApiMeter

ENTRY_BYTES = 320
"""Bytes of a vector beside its numbers: digest, object and place in the table; more than was ever measured."""

Key = bytes
Packed = bytes
Fetched = dict[Key, Packed]


class EmbeddingCache:
    """Bounds the bytes of the vectors that a process keeps.

    An embedder may use room that no other one uses. Where no room is left, the embedder with the most bytes loses the
    vectors that it used longest ago. So an embedder with no more than an equal share loses none to others.

    Args:
        max_bytes: Of all vectors together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # The vectors of an embedder go with it, and are not counted from then on.
        self._shelves: WeakSet[Shelf] = WeakSet()

    @property
    def size_bytes(self) -> int:
        """Bytes that the vectors take now."""
        return sum(shelf.size_bytes for shelf in self._shelves)

    def shelf(self) -> "Shelf":
        """Add an empty shelf for the vectors of one embedder."""
        shelf = Shelf()
        self._shelves.add(shelf)
        return shelf

    def put(self, shelf: "Shelf", fetched: Fetched, *, entries: int | None) -> None:
        """Put vectors on a shelf as its newest; the oldest ones make room for them.

        Args:
            entries: The most vectors that the shelf keeps; None is as many as fit.
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
        """Drop the oldest vectors of the largest shelf (with what it wants) until there is room; return their bytes."""
        freed_bytes = 0
        while size_bytes - freed_bytes + wanted_bytes > self._max_bytes:
            largest = max(self._shelves, key=lambda shelf: shelf.size_bytes + wanted_bytes * (shelf is wanting))
            if not largest.vectors:
                break
            freed_bytes += largest.drop_oldest()
        return freed_bytes


class Shelf:
    """The vectors of one embedder, those used longest ago first."""

    def __init__(self) -> None:
        self.vectors: OrderedDict[Key, Packed] = OrderedDict()
        self.size_bytes = 0
        self._most = 0

    def recall(self, keys: Iterable[Key]) -> Fetched:
        """Return the vectors of these keys that the shelf has; they count as used from now on."""
        found = {key: vector for key in keys if (vector := self.vectors.get(key)) is not None}
        for key in found:
            self.vectors.move_to_end(key)
        return found

    def add(self, key: Key, vector: Packed) -> int:
        """Add a vector under a new key; return its bytes."""
        self.vectors[key] = vector
        self._most = max(self._most, len(self.vectors))
        self.size_bytes += size_of(vector)
        return size_of(vector)

    def drop(self, key: Key) -> int:
        """Drop the vector of a key; return its bytes, 0 if there is none."""
        vector = self.vectors.pop(key, None)
        return 0 if vector is None else self._forgotten(vector)

    def drop_oldest(self) -> int:
        """Drop the vector that was used longest ago; return its bytes."""
        return self._forgotten(self.vectors.popitem(last=False)[1])

    def _forgotten(self, vector: Packed) -> int:
        if 2 * len(self.vectors) < self._most:
            # A table does not shrink by itself.
            self.vectors, self._most = OrderedDict(self.vectors), len(self.vectors)
        self.size_bytes -= size_of(vector)
        return size_of(vector)


class CachedEmbedder(WrappedEmbedder):
    """Keeps the vectors of the texts used last; implements ports.Embedder.

    Equal texts of one call, and of calls that run at the same time, are embedded once. A caller that goes away does
    not spoil the work for the others.

    Args:
        inner: The embedder of one agent, whose vectors are for that agent alone.
        cache: Bounds the vectors of all embedders of the process.
        entries: The most vectors that are kept; None is as many as fit.
    """

    def __init__(
        self, inner: Embedder, *, cache: EmbeddingCache, entries: int | None = None, meter: ApiMeter | None = None
    ) -> None:
        self._meter = meter or ApiMeter()
        super().__init__(inner)
        self._entries = entries
        self._cache = cache
        self._shelf = cache.shelf()
        self._running: dict[Key, asyncio.Task[Fetched]] = {}

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector for each text, in order; float32 values, from the cache or not."""
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
        """Wait for another call's vector; embed the text alone if that call failed, perhaps for its other texts."""
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
            task.exception()  # marks the exception as seen: all callers may have gone away


def size_of(vector: Packed) -> int:
    """Return the bytes that a kept vector takes."""
    return ENTRY_BYTES + len(vector)


def _digest(text: str) -> Key:
    return blake2b(text.encode(), digest_size=16).digest()


def _unpacked(vector: Packed) -> Vector:
    return memoryview(vector).cast("f").tolist()
