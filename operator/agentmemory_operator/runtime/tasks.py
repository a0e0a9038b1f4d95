"""Several tasks at once: until the first ends, until all have, and so many at a time."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def race(*runs: Coroutine[Any, Any, None]) -> None:
    """Run all until the first ends, cancel the others, and raise what it raised."""
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(*tasks)
    for task in done:
        task.result()


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def side_by_side(runs: Iterable[Coroutine[Any, Any, T]], *, at_once: int) -> list[T]:
    """What each run returns, in order; so many are under way at a time. One alone costs no task."""
    if len(runs := list(runs)) == 1:
        return [await runs[0]]
    gate = asyncio.Semaphore(at_once)

    async def run_in_turn(run: Coroutine[Any, Any, T]) -> T:
        async with gate:
            return await run

    return await asyncio.gather(*map(run_in_turn, runs))
