"""Long work in slices: whoever reads, checks or scrubs much leaves the event loop to others in between.

Work is a generator that yields wherever it may be interrupted, at the latest after some milliseconds. What fits into
one slice runs at once. What does not waits in a lane, one slice of one work at a time: between two slices everybody
else has a turn, however many such works there are. A thread would be no cure, for `re` and `json` keep the interpreter
for the whole of a call.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

SLICE_S = 0.01

Result = TypeVar("Result")
Item = TypeVar("Item")

_LANES: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def in_slices(work: Generator[None, None, Result]) -> Result:
    """Do the work and return its result."""
    is_done, result = _slice(work)
    if is_done:
        return result
    lane = _LANES.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    while not is_done:
        async with lane:
            is_done, result = _slice(work)
            # Still in the lane, so that everybody else has a turn before the next work has a slice.
            await asyncio.sleep(0)
    return result


def one_by_one(call: Callable[[int, Item], Result], items: Sequence[Item]) -> Generator[None, None, list[Result]]:
    """Call with the place of each item and the item; the work may be interrupted between two."""
    results = []
    for place, item in enumerate(items):
        results.append(call(place, item))
        yield
    return results


def at_once(work: Generator[None, None, Result]) -> Result:
    """Do the work without a break, where it is small or nobody waits."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result


def _slice(work: Generator[None, None, Result]) -> tuple[bool, Result]:
    """Work for a slice's time; tell whether it is done, and then what came of it."""
    until = time.perf_counter() + SLICE_S
    try:
        while True:
            next(work)
            if time.perf_counter() > until:
                return False, None  # type: ignore[return-value]
    except StopIteration as end:
        return True, end.value
