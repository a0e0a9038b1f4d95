"""What every port speaks in."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

Json = dict[str, Any]
Vector = Sequence[float]

Writing = Callable[[], AbstractAsyncContextManager[None]]
"""What is entered around a call that changes something: what it raises stops the call, before it or amid it."""


class Clock(Protocol):
    """Wall clock."""

    def now_ms(self) -> int:
        """Unix milliseconds."""
        ...
