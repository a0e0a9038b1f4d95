"""Slots for reindexing: one collection of a connection at a time, in the order of the requests.

The holders of slots are kept in memory. The operator writes `reindexSince` into an object's status before its Reindex
starts. After a restart, an object gets the slot only if no other object with `reindexSince` has a busy collection.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from agentmemory_operator.collections.rules.collection import RED, Observation
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.runtime.object_table import Key, ObjectTable, slug_of
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.naming import alias_of

Observe = Callable[[str], Awaitable[Observation | None]]
"""Returns the observed collection behind an alias, or None if there is none."""

WAITING_TTL_S = 120.0
"""Seconds without a request after which a waiting object is removed from the queue. Such an object was deleted or
suspended, or needs no Reindex any more."""


def is_running(observed: Observation) -> bool:
    """Return whether Qdrant is optimizing a collection. In a red collection, the optimizers stopped with an error."""
    return observed.is_busy and observed.state != RED


@dataclass(slots=True)
class _Waiter:
    """A waiting object: times of its first and last request, Unix seconds."""

    since_s: float
    requested_s: float


@dataclass(slots=True)
class ReindexSlots:
    """Slots of all connections, one for each connection."""

    table: ObjectTable
    clock: Clock
    _holders: dict[Key, Key] = field(default_factory=dict)
    _lines: dict[Key, dict[Key, _Waiter]] = field(default_factory=dict)

    async def acquire(self, key: Key, observe: Observe) -> Key | None:
        """Acquire the slot of the object's connection, or queue the object.

        Args:
            observe: Reads any collection of the connection.

        Returns:
            The object that has the slot, still reindexes, or gets the slot first. None if the slot is acquired, or if
            the object has no connection.

        Raises:
            AgentMemoryError: Errors of `observe`. The slot is free again, and the object stays queued.
        """
        connection = self.table.find_connection(key)
        if connection is None:
            return None
        first = self._enqueue(connection, key)
        holder = self._holders.get(connection)
        if holder != key and holder is not None and self.table.get(holder) is not None:
            return holder
        if first != key:
            return first
        # Set the holder before the first await, at which passes over other objects run.
        self._holders[connection] = key
        try:
            busy = await self._find_busy(key, connection, observe)
        except BaseException:
            self.release(key)
            raise
        if busy is not None:
            self.release(key)
            return busy
        del self._lines[connection][key]
        return None

    def release(self, key: Key) -> None:
        """Release the object's slot. Does nothing if it has none."""
        for connection in [connection for connection, holder in self._holders.items() if holder == key]:
            del self._holders[connection]

    def has_slot(self, key: Key) -> bool:
        """Return whether the object has the slot of its connection."""
        return key in self._holders.values()

    def first_waiting(self, key: Key) -> Key | None:
        """Return the first waiting object of the connection of `key`. None if none waits, or without a connection."""
        connection = self.table.find_connection(key)
        return self._first(connection) if connection else None

    def _enqueue(self, connection: Key, key: Key) -> Key | None:
        """Record the request of an object; return the first waiting object."""
        now_s = self.clock.now_ms() / 1000
        entry = self._lines.setdefault(connection, {}).setdefault(key, _Waiter(self._queued_since(key, now_s), now_s))
        entry.requested_s = now_s
        return self._first(connection)

    def _first(self, connection: Key) -> Key | None:
        now_s = self.clock.now_ms() / 1000
        queue = self._lines.get(connection, {})
        # Use `abs`, because the clock may have been set back since the last request.
        for key in [key for key, entry in queue.items() if abs(now_s - entry.requested_s) > WAITING_TTL_S]:
            del queue[key]
        present = (key for key in queue if self.table.get(key) is not None)
        return min(present, key=lambda key: (queue[key].since_s, key), default=None)

    def _queued_since(self, key: Key, now_s: float) -> float:
        """Return the start of an object's wait, Unix seconds: from its status after a restart, otherwise now."""
        for condition in _status(self.table.get(key)).get("conditions") or []:
            if condition["reason"] == Reason.REINDEX_QUEUED:
                since = condition.get("lastTransitionTime")
                return min(datetime.fromisoformat(since).timestamp(), now_s) if since else now_s
        return now_s

    async def _find_busy(self, key: Key, connection: Key, observe: Observe) -> Key | None:
        for holder, alias in self._reindexing(connection):
            if holder != key:
                observed = await observe(alias)
                if observed is not None and is_running(observed):
                    return holder
        return None

    def _reindexing(self, connection: Key) -> Iterator[tuple[Key, str]]:
        """Yield the objects with `reindexSince` in their status that own their slug, each with its alias."""
        for key in self.table.find_users(connection):
            document = self.table.get(key)
            status = _status(document)
            if document is None or not status.get("reindexSince") or not status.get("collection"):
                continue
            if self.table.find_owner(slug_of(document)) == key:
                yield key, alias_of(slug_of(document))


def _status(document: Json | None) -> Json:
    return (document or {}).get("status") or {}
