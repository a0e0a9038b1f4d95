"""Split long work on the event loop, so concurrent searches wait only for one part of it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Number of points with vectors that are read or rendered at a time: 4 x 384 dimensions take about 0.4 ms. A request
# runs on the loop several times, and waits each time for one such part of every concurrent request.
CHUNK_SIZE = 4


async def map_in_chunks(make: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Apply a function to each item. Yield to the event loop after every `CHUNK_SIZE` items."""
    results: list[R] = []
    for start in range(0, len(items), CHUNK_SIZE):
        if start:
            await asyncio.sleep(0)
        results += [make(item) for item in items[start : start + CHUNK_SIZE]]
    return results
