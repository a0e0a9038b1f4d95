"""Long work on the event loop, in pieces: who searches meanwhile waits for one of them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# Points with vectors that are read or rendered at a time: 4 x 384 dimensions take about 0.4 ms. A request has several
# turns on the loop, and waits in each for one such piece of every other.
TURN = 4


async def in_turns(make: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """What is made of each item."""
    made: list[R] = []
    for start in range(0, len(items), TURN):
        if start:
            await asyncio.sleep(0)
        made += [make(item) for item in items[start : start + TURN]]
    return made
