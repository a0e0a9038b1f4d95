"""Cache of embedding vectors in the memory of a process.

A process has one `EmbeddingCache`, which limits the vectors of all its embedders together. Each `CachedEmbedder` has
its own partition (`CachePartition`), so vectors are cached by agent, provider, model, dimensions and Secret. No agent
gets a vector from another agent's provider. A partition is freed with its embedder.

Texts are stored as digests and vectors as float32: a vector of d numbers occupies 4 d + `ENTRY_BYTES` bytes.
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
"""Overhead of a cached vector in bytes: digest, object and table entry. An upper bound of all measurements."""

Key = bytes
Packed = bytes
Fetched = dict[Key, Packed]


class EmbeddingCache:
    """Limits the total size of the cached vectors of a process.

    An embedder may use all space that is free. If none is free, the largest partition loses its least recently used
    vectors. So an embedder that uses at most an equal share of the limit loses no vector to other embedders.

    Args:
        max_bytes: Limit for all vectors together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # Weak references, so that the vectors of an embedder are freed with it, and no longer included in the size.
        self._partitions: WeakSet[CachePartition] = WeakSet()

    @property
    def size_bytes(self) -> int:
        """Bytes of all cached vectors."""
        return sum(partition.size_bytes for partition in self._partitions)

    def add_partition(self) -> "CachePartition":
        """Add an empty partition for one embedder. It is freed once the embedder no longer refers to it."""
        partition = CachePartition()
        self._partitions.add(partition)
        return partition

    def put(self, partition: "CachePartition", fetched: Fetched, *, entries: int | None) -> None:
        """Add vectors to a partition, evicting the least recently used ones as needed.

        Args:
            entries: Maximum number of vectors in the partition; 0 caches none. None limits only the size in bytes.
        """
        size_bytes = self.size_bytes
        for key, vector in fetched.items() if entries != 0 else ():
            size_bytes -= partition.drop(key)
            while partition.vectors and entries is not None and len(partition.vectors) >= entries:
                size_bytes -= partition.drop_oldest()
            size_bytes -= self._evict_for(partition, size_of(vector), size_bytes)
            if size_bytes + size_of(vector) <= self._max_bytes:
                size_bytes += partition.add(key, vector)

    def _evict_for(self, target: "CachePartition", new_bytes: int, size_bytes: int) -> int:
        """Evict until a vector of `new_bytes` fits, each time from the largest partition; return the freed bytes.

        The new vector counts as part of `target`.
        """
        freed_bytes = 0
        while size_bytes - freed_bytes + new_bytes > self._max_bytes:
            largest = max(self._partitions, key=lambda part: part.size_bytes + new_bytes * (part is target))
            if not largest.vectors:
                break
            freed_bytes += largest.drop_oldest()
        return freed_bytes


class CachePartition:
    """The cached vectors of one embedder, least recently used first."""

    def __init__(self) -> None:
        self.vectors: OrderedDict[Key, Packed] = OrderedDict()
        self.size_bytes = 0
        self._max_len = 0

    def find(self, keys: Iterable[Key]) -> Fetched:
        """Return the cached vectors of these keys, and mark them as recently used."""
        found = {key: vector for key in keys if (vector := self.vectors.get(key)) is not None}
        for key in found:
            self.vectors.move_to_end(key)
        return found

    def add(self, key: Key, vector: Packed) -> int:
        """Add a vector with a new key; return its size in bytes."""
        self.vectors[key] = vector
        self._max_len = max(self._max_len, len(self.vectors))
        self.size_bytes += size_of(vector)
        return size_of(vector)

    def drop(self, key: Key) -> int:
        """Remove the vector of a key; return its size in bytes, 0 if it is not cached."""
        vector = self.vectors.pop(key, None)
        return 0 if vector is None else self._count_removed(vector)

    def drop_oldest(self) -> int:
        """Remove the least recently used vector; return its size in bytes."""
        return self._count_removed(self.vectors.popitem(last=False)[1])

    def _count_removed(self, vector: Packed) -> int:
        if 2 * len(self.vectors) < self._max_len:
            # Rebuild the dict, which does not shrink by itself.
            self.vectors, self._max_len = OrderedDict(self.vectors), len(self.vectors)
        self.size_bytes -= size_of(vector)
        return size_of(vector)


class CachedEmbedder(WrappedEmbedder):
    """Implements ports.Embedder: caches the vectors of the most recently used texts.

    Equal texts in one call, and in concurrent calls, are embedded once. If one of these callers is cancelled, the
    others still get their vectors.

    Args:
        inner: Embedder of one agent.
        cache: Cache of the process.
        entries: Maximum number of vectors; 0 caches none. None limits only the size in bytes.
        meter: Counts hits and misses. None counts them in a meter that nothing exports.
    """

    def __init__(
        self, inner: Embedder, *, cache: EmbeddingCache, entries: int | None = None, meter: ApiMeter | None = None
    ) -> None:
        self._meter = meter or ApiMeter()
        super().__init__(inner)
        self._entries = entries
        self._cache = cache
        self._shelf = cache.add_partition()
        self._running: dict[Key, asyncio.Task[Fetched]] = {}

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector for each text, in order, with float32 values whether cached or not."""
        by_digest = {_digest(text): text for text in texts}
        found = self._shelf.find(by_digest)
        shared = {key: task for key in by_digest if key not in found and (task := self._running.get(key))}
        self._meter.count_cache_lookups(hits=len(found), misses=len(by_digest) - len(found))
        missing = {key: text for key, text in by_digest.items() if key not in found and key not in shared}
        if missing:
            found |= await self._fetch(missing)
        for key, task in shared.items():
            found |= await self._join(task, key=key, text=by_digest[key])
        return [memoryview(found[_digest(text)]).cast("f").tolist() for text in texts]

    async def _fetch(self, texts: dict[Key, str]) -> Fetched:
        task = asyncio.create_task(self._embed(texts))
        self._running |= dict.fromkeys(texts, task)
        task.add_done_callback(lambda completed: self._finish(completed, texts))
        return await asyncio.shield(task)

    async def _join(self, task: asyncio.Task[Fetched], *, key: Key, text: str) -> Fetched:
        """Wait for another call's vector.

        If that call failed, maybe because of its other texts, embed the text alone.
        """
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
            task.exception()  # or asyncio logs it if every caller was cancelled


def size_of(vector: Packed) -> int:
    """Return the bytes that a cached vector occupies, including `ENTRY_BYTES`."""
    return ENTRY_BYTES + len(vector)


def _digest(text: str) -> Key:
    return blake2b(text.encode(), digest_size=16).digest()
