"""Step Copy of a rebuild: copy every point of the source, page by page, and record the progress.

Pages are read one after the other and written concurrently, so the next page is read or embedded while the last one is
written. The recorded cursor is the offset up to which every page is written. So after a crash a few pages are copied
again, which changes nothing.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.connections.embedding_cache import CachedEmbedder, EmbeddingCache
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.rebuilds.budget import BudgetedEmbedder
from agentmemory_operator.rebuilds.point_copier import PointCopier, build_copier
from agentmemory_operator.rebuilds.task import RebuildRun
from agentmemory_operator.spec.effective.embedding import effective_embedding

# Minimum seconds between two records of the progress. Each record costs a call. After a crash, the work since the last
# record is repeated.
PROGRESS_PERIOD_S = 1.0
MAX_CONCURRENT_PAGES = 2
# Concurrent pages by provider. Services process several requests, but a model in this process must leave a CPU free.
MAX_CONCURRENT_REQUESTS = {"openai": 4, "fastembed": 1}
# Size of the cache of vectors, which all rebuilds share, so that repeated contents are embedded only once.
MAX_CACHE_BYTES = 16 << 20


class CopyStep:
    """Step Copy: copies all points of the source into the target.

    Args:
        note_s: Minimum seconds between two records of the progress.
    """

    def __init__(self, *, note_s: float = PROGRESS_PERIOD_S) -> None:
        self._note_s = note_s
        self._cache = EmbeddingCache(MAX_CACHE_BYTES)

    async def __call__(self, task: RebuildRun) -> str:
        """Copy the points from the recorded cursor on; return the number of copied points, as text for users.

        Raises:
            RebuildPaused: If a user must fix something before a point can be embedded, or the rebuild is paused.
            RebuildCancelled: If the rebuild is no longer requested.
            TransientError: If the copy must continue later, from its recorded cursor.
        """
        if task.record.cursor is None:
            await task.update_record(copied=0, total=await task.server.points.count(task.source_name, None))
        run = _Run(task, build_budgeted_embedder(task), self._cache, note_s=self._note_s)
        await run.go()
        return f"{task.record.copied:,} points"


def build_budgeted_embedder(task: RebuildRun) -> BudgetedEmbedder | None:
    """Wrap the embedder of a rebuild to limit and count its calls; return None if vectors are copied."""
    if task.embedder is None:
        return None
    return BudgetedEmbedder(task.embedder, task, effective_embedding(task.memory).batch_size)


@dataclass(slots=True)
class _Page:
    """Page of points that is being written.

    Attributes:
        work: Task that writes the points.
        cursor: Offset of the next page; None if this is the last one.
        size: Number of points.
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
    copier: PointCopier = field(init=False)
    cursor: Any = field(init=False)
    copied: int = field(init=False)
    noted_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.copier = build_copier(self.task, embedder=self._cached_embedder() if self.budget else None)
        self.cursor, self.copied = self.task.record.cursor, self.task.record.copied
        self.noted_s = asyncio.get_running_loop().time()

    async def go(self) -> None:
        offset = self.cursor
        try:
            while True:
                await self.task.check()
                points, offset = await self.copier.read(offset=offset, limit=self._page)
                insertion = asyncio.create_task(self.copier.insert(points))
                self.pages.append(_Page(insertion, offset, len(points)))
                await self._wait_for_pages(0 if offset is None else self._concurrency - 1)
                if offset is None:
                    return
        except asyncio.CancelledError:
            for page in self.pages:
                page.work.cancel()
            raise
        finally:
            await self._finish_pages()

    @property
    def _page(self) -> int:
        return min(self.copier.page, self.budget.batch_size) if self.budget else self.copier.page

    @property
    def _concurrency(self) -> int:
        provider = self.task.marker.embedding.provider if self.budget else ""
        return MAX_CONCURRENT_REQUESTS.get(provider, MAX_CONCURRENT_PAGES)

    def _cached_embedder(self) -> Embedder:
        assert self.budget is not None
        return CachedEmbedder(self.budget, cache=self.cache)

    async def _wait_for_pages(self, max_pending: int) -> None:
        """Wait for the oldest pages until at most `max_pending` are in progress; record the progress when due."""
        while len(self.pages) > max_pending:
            page = self.pages[0]
            await page.work
            self.pages.popleft()
            self.copied += page.size
            self.cursor = self.cursor if page.cursor is None else page.cursor
            await self._record_progress(is_last=page.cursor is None)

    async def _record_progress(self, *, is_last: bool) -> None:
        now_s = asyncio.get_running_loop().time()
        if is_last or now_s - self.noted_s >= self.note_s:
            self.noted_s = now_s
            calls = self.budget.calls if self.budget else self.task.record.calls
            await self.task.update_record(cursor=self.cursor, copied=self.copied, calls=calls)

    async def _finish_pages(self) -> None:
        """Wait for all pages in progress, and ignore their errors. Pages that wait for budget fail immediately.

        Points that are already embedded are still written, because their embedding may have cost money.
        """
        if self.budget is not None:
            self.budget.close()
        await asyncio.gather(*(page.work for page in self.pages), return_exceptions=True)
