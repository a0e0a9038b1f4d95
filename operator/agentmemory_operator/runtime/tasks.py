"""Run tasks concurrently; repeat compare-and-set writes."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

# An attempt fails only if another writer succeeded, so some writer always makes progress.
MAX_UPDATE_ATTEMPTS = 100


async def race(*runs: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until the first one ends; cancel the others, and raise its exception if it failed."""
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(*tasks)
    for task in done:
        task.result()


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended; ignore their results."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def gather_bounded(runs: Iterable[Coroutine[Any, Any, T]], *, concurrency: int) -> list[T]:
    """Run coroutines with limited concurrency; return their results in order.

    The first exception is raised at once; the other coroutines continue. A single one runs without a task.
    """
    if len(runs := list(runs)) == 1:
        return [await runs[0]]
    semaphore = asyncio.Semaphore(concurrency)

    async def run_in_turn(run: Coroutine[Any, Any, T]) -> T:
        async with semaphore:
            return await run

    return await asyncio.gather(*map(run_in_turn, runs))


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
        write: Writes a new value that follows from the one that was read. Returns None if another writer was faster;
            then `read` and `write` are called again.
        busy: Exception to raise if other writers were faster `max_attempts` times.
        wait_s: Upper bound of the random wait after the first failed attempt; it doubles with each attempt.
    """
    for attempt in range(max_attempts):
        if (result := await write(await read())) is not None:
            return result
        await asyncio.sleep(wait_s * 2**attempt * random.random())
    raise busy
