"""Thread pool for embedding on local CPUs, off the event loop.

It is separate and small: embeddings wait only for each other, and no other work waits for them.
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
    """Run a function in one of the threads; return its result."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, lambda: work(*args, **options))
