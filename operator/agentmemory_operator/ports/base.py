"""Types that every port uses."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

Json = dict[str, Any]
Vector = Sequence[float]

WriteContext = Callable[[], AbstractAsyncContextManager[None]]
"""Returns a context to enter around a call that changes something.

An exception from the context stops the call, before or while it runs.
"""


class Clock(Protocol):
    """Wall clock."""

    def now_ms(self) -> int:
        """Return Unix milliseconds."""
        ...
