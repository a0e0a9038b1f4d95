"""The embedding cache: a decorator around an Embedder that never embeds one text twice while it is remembered.

One instance serves one vector space (one embedding identity), so the text alone is the key. Texts are kept as digests
and vectors as float32: 10,000 vectors of 1,536 numbers take 61 MB, as Python floats they would take 490 MB.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.ports import Embedder, Vector
from agentmemory_operator.services.api_metering import ApiMeter

Key = bytes
Fetched = dict[Key, "array[float]"]


class CachedEmbedder:
    """Remembers the vectors of the texts used last.

    Equal texts of one call, and of calls that run at the same time, are embedded once. A caller that goes away does
    not spoil the work for the others.
    """

    def __init__(self, inner: Embedder, *, entries: int, meter: ApiMeter | None = None) -> None:
        self._meter = meter or ApiMeter()
        self._inner = inner
        self._entries = entries
        self._vectors: OrderedDict[Key, array[float]] = OrderedDict()
        self._running: dict[Key, asyncio.Task[Fetched]] = {}

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._inner.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector a text, in order; float32 values, remembered or not."""
        wanted = {_digest(text): text for text in texts}
        found = self._recall(wanted)
        others = {key: task for key in wanted if key not in found and (task := self._running.get(key))}
        self._meter.cached(hits=len(found), misses=len(wanted) - len(found))
        own = {key: text for key, text in wanted.items() if key not in found and key not in others}
        if own:
            found |= await self._fetch(own)
        for key, task in others.items():
            found |= await self._join(task, key=key, text=wanted[key])
        return [found[_digest(text)].tolist() for text in texts]

    def _recall(self, keys: Iterable[Key]) -> Fetched:
        found = {key: vector for key in keys if (vector := self._vectors.get(key)) is not None}
        for key in found:
            self._vectors.move_to_end(key)
        return found

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
        fetched = {key: array("f", vector) for key, vector in zip(texts, vectors, strict=True)}
        self._remember(fetched)
        return fetched

    def _remember(self, fetched: Fetched) -> None:
        self._vectors |= fetched
        while len(self._vectors) > self._entries:
            self._vectors.popitem(last=False)

    def _finish(self, task: asyncio.Task[Fetched], keys: Iterable[Key]) -> None:
        for key in keys:
            if self._running.get(key) is task:
                del self._running[key]
        if not task.cancelled():
            task.exception()  # marks it as seen: every caller may have gone away


def _digest(text: str) -> Key:
    return blake2b(text.encode(), digest_size=16).digest()
