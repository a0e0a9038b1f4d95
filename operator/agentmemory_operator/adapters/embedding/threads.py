"""The threads that embed on this machine's processors, off the event loop.

Their own and few: large batches wait here for each other, and nothing else waits behind them.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1), thread_name_prefix="embed")


async def in_thread(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """What the work gives, done in one of the threads."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, lambda: work(*args, **options))
