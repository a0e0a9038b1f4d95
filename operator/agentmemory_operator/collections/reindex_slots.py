"""Who may reindex: one collection of a connection at a time, in the order of asking.

The turn is kept in memory while the operator runs, and in the status of the object that has it (`reindexSince`),
written before the Reindex begins. So after a restart it is known whose collection to look at: while it is busy, nobody
begins.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from agentmemory_operator.collections.rules.collection import RED, Observed
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.runtime.cache import Key, ObjectTable, slug_of
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.naming import alias_of

Observe = Callable[[str], Awaitable[Observed | None]]
"""Returns what lies behind an alias."""

FORGOTTEN_S = 120.0
"""Seconds after which one that has not asked again loses its place: it was deleted, suspended or needs no Reindex."""


def is_running(observed: Observed) -> bool:
    """Whether the engine is at work on a collection; a red one has given up."""
    return observed.is_busy and observed.state != RED


@dataclass(slots=True)
class _Place:
    """One that waits: since when, and when it last asked; Unix seconds."""

    since_s: float
    asked_s: float


@dataclass(slots=True)
class Turns:
    """The turns of every connection."""

    table: ObjectTable
    clock: Clock
    _holders: dict[Key, Key] = field(default_factory=dict)
    _lines: dict[Key, dict[Key, _Place]] = field(default_factory=dict)

    async def take(self, key: Key, observe: Observe) -> Key | None:
        """Take the connection's turn for an object; return whom it waits for, None where it has the turn.

        Args:
            observe: looks at any collection of the connection.
        """
        connection = self.table.connection_of(key)
        if connection is None:
            return None
        first = self._ask(connection, key)
        holder = self._holders.get(connection)
        if holder != key and holder is not None and self.table.get(holder) is not None:
            return holder
        if first != key:
            return first
        # Before the first await: passes over other objects go on meanwhile.
        self._holders[connection] = key
        try:
            busy = await self._busy_beside(key, connection, observe)
        except BaseException:
            self.give_back(key)
            raise
        if busy is not None:
            self.give_back(key)
            return busy
        del self._lines[connection][key]
        return None

    def give_back(self, key: Key) -> None:
        """End the object's turn; having none is no error."""
        for connection in [connection for connection, holder in self._holders.items() if holder == key]:
            del self._holders[connection]

    def is_held_by(self, key: Key) -> bool:
        """Whether the object has the turn of its connection."""
        return key in self._holders.values()

    def next_of(self, key: Key) -> Key | None:
        """Who is first in the line of the object's connection."""
        connection = self.table.connection_of(key)
        return self._first(connection) if connection else None

    def _ask(self, connection: Key, key: Key) -> Key | None:
        """Note that the object asks; return who is first in line."""
        now_s = self.clock.now_ms() / 1000
        place = self._lines.setdefault(connection, {}).setdefault(key, _Place(self._queued_since(key, now_s), now_s))
        place.asked_s = now_s
        return self._first(connection)

    def _first(self, connection: Key) -> Key | None:
        now_s = self.clock.now_ms() / 1000
        line = self._lines.get(connection, {})
        # One that seems to ask in the future asked before the clock was set back.
        for key in [key for key, place in line.items() if abs(now_s - place.asked_s) > FORGOTTEN_S]:
            del line[key]
        present = (key for key in line if self.table.get(key) is not None)
        return min(present, key=lambda key: (line[key].since_s, key), default=None)

    def _queued_since(self, key: Key, now_s: float) -> float:
        """Since when the object waits, as its status says: a restart forgets nobody's place."""
        for condition in _status(self.table.get(key)).get("conditions") or []:
            if condition["reason"] == Reason.REINDEX_QUEUED:
                since = condition.get("lastTransitionTime")
                return min(datetime.fromisoformat(since).timestamp(), now_s) if since else now_s
        return now_s

    async def _busy_beside(self, key: Key, connection: Key, observe: Observe) -> Key | None:
        for other, alias in self._begun(connection):
            if other != key:
                observed = await observe(alias)
                if observed is not None and is_running(observed):
                    return other
        return None

    def _begun(self, connection: Key) -> Iterator[tuple[Key, str]]:
        """Yield the objects whose status says that they reindex, each with its alias, which no status names."""
        for key in self.table.users_of(connection):
            document = self.table.get(key)
            status = _status(document)
            if document is None or not status.get("reindexSince") or not status.get("collection"):
                continue
            if self.table.owner_of(slug_of(document)) == key:
                yield key, alias_of(slug_of(document))


def _status(document: Json | None) -> Json:
    return (document or {}).get("status") or {}
