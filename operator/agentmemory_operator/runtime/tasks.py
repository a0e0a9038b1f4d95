"""Run tasks concurrently; repeat compare-and-set writes and reads; run long CPU-bound work in slices.

Work in slices does not block the event loop. It is a generator that yields at least every few milliseconds. The first
slice of 10 ms runs immediately. Work that needs more waits for a lock of the event loop (its lane) before each further
slice. Between two slices the loop runs all other tasks once, however many such jobs are waiting.

A thread would not help: `re` and `json` hold the interpreter lock for a whole call.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from agentmemory_operator.errors import TransientError

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# Default maximum of attempts of `update`. One fails only if another writer succeeded, so some writer makes progress.
MAX_UPDATE_ATTEMPTS = 100

SLICE_S = 0.01
# Maximum duration of an outage that a command waits for.
MAX_OUTAGE_S = 600.0

Result = TypeVar("Result")
Item = TypeVar("Item")

_LANES: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def race(*runs: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until the first one ends; cancel the others, and raise its exception if it failed."""
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(*tasks)
    for task in done:
        task.result()


def start_task(operation: Coroutine[Any, Any, None], failure_message: str) -> asyncio.Task[None]:
    """Start a background task.

    Args:
        failure_message: Message to log if the task ends with an error.
    """

    def report(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            log.error("%s", failure_message, exc_info=error)

    task = asyncio.create_task(operation)
    task.add_done_callback(report)
    return task


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended; ignore their results."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def gather_bounded(runs: Iterable[Coroutine[Any, Any, T]], *, concurrency: int) -> list[T]:
    """Run coroutines with limited concurrency; return their results in order.

    The first exception is raised immediately; the other coroutines continue. A single one runs without a task.
    """
    if len(runs := list(runs)) == 1:
        return [await runs[0]]
    semaphore = asyncio.Semaphore(concurrency)

    async def run_limited(run: Coroutine[Any, Any, T]) -> T:
        async with semaphore:
            return await run

    return await asyncio.gather(*map(run_limited, runs))


async def update(
    read: Callable[[], Awaitable[T]],
    write: Callable[[T], Awaitable[R | None]],
    *,
    busy: Exception,
    max_attempts: int = MAX_UPDATE_ATTEMPTS,
    wait_s: float = 0.0,
) -> R:
    """Change a stored value by compare-and-set; return the result of `write`.

    Args:
        read: Reads the current value.
        write: Writes a new value, derived from the value of `read`. Returns None if another writer was faster; then
            `read` and `write` are called again.
        busy: Exception to raise if other writers were faster in `max_attempts` attempts.
        wait_s: Upper bound in seconds of the random wait after the first failed attempt; it doubles with each attempt.
    """
    for attempt in range(max_attempts):
        if (result := await write(await read())) is not None:
            return result
        await asyncio.sleep(wait_s * 2**attempt * random.random())
    raise busy


async def run_in_slices(work: Generator[None, None, Result]) -> Result:
    """Run the generator to its end in slices of 10 ms, as the module describes; return its result."""
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
    """Run for one slice; return whether the work is complete, and its result, or None before."""
    deadline_s = time.perf_counter() + SLICE_S
    try:
        while True:
            next(work)
            if time.perf_counter() > deadline_s:
                return False, None  # type: ignore[return-value]
    except StopIteration as end:
        return True, end.value


async def read_through_outage(
    read: Callable[[], Awaitable[T]], *, poll_s: float, report: Callable[[str], None] = lambda _: None
) -> T:
    """Repeat a read that fails with a TransientError until it succeeds, for at most `MAX_OUTAGE_S`; return its result.

    Args:
        poll_s: Pause between two attempts in seconds.
        report: Called with a message when the first attempt fails.

    Raises:
        TransientError: If the outage lasts longer. The message has the last error.
    """
    deadline_s = None
    while True:
        try:
            return await read()
        except TransientError as exc:
            if deadline_s is None:
                deadline_s = time.monotonic() + MAX_OUTAGE_S
                report(f"{exc}: waiting for at most {MAX_OUTAGE_S:.0f} s")
            if time.monotonic() >= deadline_s:
                raise TransientError(f"it could not be read for {MAX_OUTAGE_S:.0f} s: {exc}") from exc
        await asyncio.sleep(poll_s)
