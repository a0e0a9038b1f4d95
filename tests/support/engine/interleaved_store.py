"""Stores that act at a chosen call: another client acts once and the call continues, or the process dies."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentmemory_operator.errors import OutcomeUnknown, StoreUnavailable
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.points import PointStore
from tests.support.fault_injection import record_effect, record_planted

Moment = Literal["before", "after"]
WRITES = frozenset({"upsert", "set_payload", "batch", "delete"})

Calls = Callable[[str, tuple[Any, ...]], bool]
"""Returns whether a call, by name and positional arguments, is the chosen one."""


class CrashingStore:
    """Forwards calls up to number `at` (from 0); then the process dies."""

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


def writes(name: str, arguments: tuple[Any, ...]) -> bool:
    """Match any call that changes points."""
    return name in WRITES


@dataclass(frozen=True, slots=True)
class Event:
    """An action of other clients at a call.

    Attributes:
        at: Matches the call.
        act: The action.
        after: True to act after the call was carried out and before its caller receives the result.
    """

    at: Calls
    act: Callable[[], Awaitable[object]]
    after: bool = False


class InterleavedStore:
    """Forwards calls. Events happen in order, each at the first call that matches."""

    def __init__(self, store: object, *events: Event) -> None:
        self._store = store
        self._events = list(events)
        for event in events:
            record_planted(event, "at", f"an event at {event.at}")

    @property
    def is_over(self) -> bool:
        """True if all events happened. Otherwise the test has proven nothing."""
        return not self._events

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **more: Any) -> Any:
            due = self._events.pop(0) if self._events and self._events[0].at(name, arguments) else None
            if due:
                record_effect(due, "at")
            if due and not due.after:
                await due.act()
            answer = await getattr(self._store, name)(*arguments, **more)
            if due and due.after:
                await due.act()
            return answer

        return call


class TornReadStore(InterleavedStore):
    """Reads the points of a call one by one in reverse order, as the engine may do.

    An event happens between two reads.
    """

    _store: PointStore

    async def retrieve(self, collection: str, ids: Sequence[str], **more: Any) -> list[Json]:
        found: list[Json] = []
        for id_ in reversed(ids):
            found += await self._store.retrieve(collection, [id_], **more)
            if self._events and self._events[0].at("retrieve", (collection, ids)):
                event = self._events.pop(0)
                record_effect(event, "at")
                await event.act()
        return found


class ProcessKilled(BaseException):
    """Death of the process. A BaseException, so that the code under test does not handle it as an error."""
