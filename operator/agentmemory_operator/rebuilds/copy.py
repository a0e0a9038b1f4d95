"""The step of a rebuild that fills the target: every point of the source, page by page, and on record how far it is.

Pages are read one after the other and written some at a time, so that the next one is read, or embedded, while the last
one is written. What is on record is what every page before it has reached; so a step that was killed does a few pages
again, which changes nothing.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.connections.embedding_cache import CachedEmbedder, EmbeddingCache
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.budget import BudgetedEmbedder
from agentmemory_operator.rebuilds.carry import Carrying, carrying_of
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.effective.embedding import effective_embedding

# Between two notes of the progress: each is a call, and what came since the last one is done again after a kill.
NOTE_S = 1.0
PAGES_AT_ONCE = 2
# By provider: services answer several requests at a time; a model in this process leaves a processor to others.
REQUESTS_AT_ONCE = {"openai": 4, "fastembed": 1}
# Of the vectors that all rebuilds remember: contents that come again are not embedded again.
CACHE_BYTES = 16 << 20


class Copying:
    """Copies what the source holds.

    Args:
        note_s: seconds between two notes of the progress.
    """

    def __init__(self, *, note_s: float = NOTE_S) -> None:
        self._note_s = note_s
        self._cache = EmbeddingCache(CACHE_BYTES)

    async def __call__(self, task: RebuildRun) -> str:
        """Do what is left of the copy; return what it came to.

        Raises:
            RebuildPaused: a point cannot be embedded before somebody has mended something.
            TransientError: it goes on where it was, later.
        """
        if task.record.cursor is None:
            await task.note(copied=0, total=await task.server.points.count(task.source_name, None))
        run = _Run(task, embedding_of(task), self._cache, note_s=self._note_s)
        await run.go()
        return f"{task.record.copied:,} points"


def embedding_of(task: RebuildRun) -> BudgetedEmbedder | None:
    """The embedder of a rebuild within its budget, None where vectors are copied."""
    if task.embedder is None:
        return None
    return BudgetedEmbedder(task.embedder, task, effective_embedding(task.memory).batch_size)


@dataclass(slots=True)
class _Page:
    """Points that are on their way.

    Attributes:
        cursor: where the next page begins.
    """

    work: "asyncio.Task[None]"
    cursor: Any
    size: int


@dataclass(slots=True)
class _Run:
    task: RebuildRun
    budget: BudgetedEmbedder | None
    cache: EmbeddingCache
    note_s: float
    pages: deque[_Page] = field(default_factory=deque)
    carrying: Carrying = field(init=False)
    cursor: Any = field(init=False)
    copied: int = field(init=False)
    noted_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.carrying = carrying_of(self.task, embedder=self._remembering() if self.budget else None)
        self.cursor, self.copied = self.task.record.cursor, self.task.record.copied
        self.noted_s = asyncio.get_running_loop().time()

    async def go(self) -> None:
        offset = self.cursor
        try:
            while True:
                await self.task.check()
                points, offset = await self.carrying.read(offset=offset, limit=self._page)
                work = asyncio.create_task(self.carrying.insert(points))
                self.pages.append(_Page(work, offset, len(points)))
                await self._settle(0 if offset is None else self._width - 1)
                if offset is None:
                    return
        except asyncio.CancelledError:
            for page in self.pages:
                page.work.cancel()
            raise
        finally:
            await self._end()

    @property
    def _page(self) -> int:
        return min(self.carrying.page, self.budget.batch_size) if self.budget else self.carrying.page

    @property
    def _width(self) -> int:
        provider = self.task.marker.embedding.provider if self.budget else ""
        return REQUESTS_AT_ONCE.get(provider, PAGES_AT_ONCE)

    def _remembering(self) -> Embedder:
        assert self.budget is not None
        return CachedEmbedder(self.budget, cache=self.cache)

    async def _settle(self, left: int) -> None:
        """Wait for the oldest pages until so many are on their way, and note how far it is."""
        while len(self.pages) > left:
            page = self.pages[0]
            await page.work
            self.pages.popleft()
            self.copied += page.size
            self.cursor = self.cursor if page.cursor is None else page.cursor
            await self._note(is_last=page.cursor is None)

    async def _note(self, *, is_last: bool) -> None:
        now_s = asyncio.get_running_loop().time()
        if is_last or now_s - self.noted_s >= self.note_s:
            self.noted_s = now_s
            calls = self.budget.calls if self.budget else self.task.record.calls
            await self.task.note(cursor=self.cursor, copied=self.copied, calls=calls)

    async def _end(self) -> None:
        """Leave nothing behind that goes on; what was embedded is written, as it was paid for."""
        if self.budget is not None:
            self.budget.close()
        await asyncio.gather(*(page.work for page in self.pages), return_exceptions=True)
