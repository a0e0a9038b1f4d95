"""Split long work on the event loop, so concurrent searches wait only for one part of it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Number of points with vectors that are read or rendered at a time: 4 x 384 dimensions take about 0.4 ms. A request
# runs on the loop several times, and waits each time for one such part of every concurrent request.
TURN = 4


async def in_turns(make: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Apply a function to each item. Yield to the event loop after every `TURN` items."""
    results: list[R] = []
    for start in range(0, len(items), TURN):
        if start:
            await asyncio.sleep(0)
        results += [make(item) for item in items[start : start + TURN]]
    return results
