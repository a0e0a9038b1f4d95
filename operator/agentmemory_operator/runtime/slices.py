"""Run long CPU-bound work in slices, so that it does not block the event loop.

The work is a generator that yields at least every few milliseconds. The first slice of 10 ms runs at once. Work that
needs more waits for a lock of the event loop (its lane) before each further slice. Between two slices the loop runs all
other tasks once, however many such jobs are waiting.

A thread would not help: `re` and `json` hold the interpreter lock for a whole call.
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


async def run_in_slices(work: Generator[None, None, Result]) -> Result:
    """Run the generator to its end in slices; return its result."""
    is_done, result = _slice(work)
    if is_done:
        return result
    lock = _LANES.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    while not is_done:
        async with lock:
            is_done, result = _slice(work)
            # Keep the lock while the loop runs all other tasks once, before the next job gets a slice.
            await asyncio.sleep(0)
    return result


def map_with_pauses(call: Callable[[int, Item], Result], items: Sequence[Item]) -> Generator[None, None, list[Result]]:
    """Yield after each call of `call(index, item)`; return the results."""
    results = []
    for index, item in enumerate(items):
        results.append(call(index, item))
        yield
    return results


def run_without_pause(work: Generator[None, None, Result]) -> Result:
    """Run the generator to its end without a pause, for small work or where no other task waits."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result


def _slice(work: Generator[None, None, Result]) -> tuple[bool, Result]:
    """Run for one slice; return whether the work is complete, and its result."""
    deadline_s = time.perf_counter() + SLICE_S
    try:
        while True:
            next(work)
            if time.perf_counter() > deadline_s:
                return False, None  # type: ignore[return-value]
    except StopIteration as end:
        return True, end.value
