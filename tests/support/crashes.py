"""A point store whose process dies: before or after one chosen call, and from then on."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from agentmemory_operator.errors import OutcomeUnknown, StoreUnavailable
from agentmemory_operator.ports import PointStore

Moment = Literal["before", "after"]


class CrashingStore:
    """Passes calls on until call number `at` (from 0), where the process dies."""

    def __init__(self, store: PointStore, at: int, moment: Moment = "before") -> None:
        self._store = store
        self._at = at
        self._moment = moment
        self.calls = 0

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **more: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            if number > self._at or (number == self._at and self._moment == "before"):
                raise StoreUnavailable("the process died")
            answer = await getattr(self._store, name)(*args, **more)
            if number == self._at:
                raise OutcomeUnknown("the process died")
            return answer

        return call
