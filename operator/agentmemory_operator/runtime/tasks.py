"""Several tasks at once: until the first ends, and until all have."""

import asyncio
from collections.abc import Coroutine
from typing import Any


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
