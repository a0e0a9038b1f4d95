"""Feed the events of a source into the object table, and request passes over the objects that they affect.

A source (Kubernetes or a folder) delivers (ADDED | MODIFIED | DELETED, object). After a gap it delivers the whole list.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import (
    AGENT_MEMORY,
    Key,
    ObjectTable,
    key_of,
    slug_of,
    target_memory_key,
    uid_of,
)

log = logging.getLogger(__name__)


class PassRequests(Protocol):
    """Receives the requests for passes. Implemented by `work_queue.Queues`."""

    def request(self, key: Key) -> None:
        """Request a pass over the object of a key."""
        ...

    def forget(self, key: Key) -> None:
        """Cancel the pending requests of a deleted key, and reset its backoff."""
        ...


class OperatorFeed:
    """Updates the table and requests passes.

    Args:
        forget_connection: Called with the key of each deleted object, to drop a cached connection.
        on_job_event: Called with the key of the AgentMemory for each event about a snapshot or restore that names one,
            and with the key of each deleted AgentMemory.
        on_deleted: Called with the last state of each deleted object.
    """

    def __init__(
        self,
        table: ObjectTable,
        queue: PassRequests,
        forget_connection: Callable[[Key], None],
        *,
        on_job_event: Callable[[Key], None],
        on_deleted: Callable[[Json], None],
    ) -> None:
        self._table = table
        self._queue = queue
        self._forget_connection = forget_connection
        self._heard = on_job_event
        self._gone = on_deleted

    def take(self, event: str, document: Json) -> None:
        """Process one event: update the table, and request passes over the object and those that depend on it.

        A deleted object needs no pass itself. If only the status has changed, no pass is requested.

        Args:
            event: Type of the event. "DELETED" removes the object, every other type adds or updates it.
        """
        key = key_of(document)
        self._take(event, key, document)
        memory = target_memory_key(document) or (key if event == "DELETED" and key.kind == AGENT_MEMORY else None)
        if memory is not None:
            # Notify also of status changes, which cause no pass over the snapshot or restore itself.
            self._heard(memory)

    def _take(self, event: str, key: Key, document: Json) -> None:
        if event == "DELETED":
            self._table.remove(key)
            self._queue.forget(key)
            self._forget_connection(key)
            self._gone(document)
        elif not self._table.put(document):
            return
        else:
            self._queue.request(key)
        for affected in self._affected(key, document):
            if affected != key:
                self._queue.request(affected)

    def read_uids(self, kind: str) -> dict[Key, str]:
        """Return the uid of every object of a kind."""
        return {key: uid_of(self._table.get(key)) for key in self._table.keys(kind)}

    def drop_absent(self, uids: Mapping[Key, str], documents: Iterable[Json]) -> None:
        """Process missed deletions: remove the objects of `uids` that the list lacks or has with another uid.

        Args:
            uids: Result of `read_uids` from before the list was read. Objects that were added later stay.
            documents: The complete list of the kind.
        """
        present = {(key_of(document), uid_of(document)) for document in documents}
        for key, uid in uids.items():
            document = self._table.get(key)
            if document is not None and uid_of(document) == uid and (key, uid) not in present:
                self.take("DELETED", document)

    def _affected(self, key: Key, document: Json) -> Iterable[Key]:
        """Return the keys of dependent objects: users of a connection, or all claimants of a slug."""
        match key.kind:
            case "QdrantConnection":
                return self._table.find_users(key)
            case "AgentMemory":
                return self._table.list_claimants(slug_of(document))
            case _:
                return ()
