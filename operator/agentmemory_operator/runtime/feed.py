"""What a source's events set in motion: passes of the operator, settings of the retrieval API.

A source (Kubernetes or a folder) gives (ADDED | MODIFIED | DELETED, object); after a gap it gives the whole list.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.cache import (
    AGENT_MEMORY,
    Key,
    ObjectTable,
    key_of,
    memory_named,
    slug_of,
    uid_of,
)

log = logging.getLogger(__name__)


class Requests(Protocol):
    """Where passes are asked for."""

    def request(self, key: Key) -> None:
        """Ask for a pass."""
        ...

    def forget(self, key: Key) -> None:
        """Drop what is scheduled for a key that is gone."""
        ...


class OperatorFeed:
    """Keeps the table and asks for passes.

    Args:
        forget_connection: called when a connection is gone.
        heard: called with an AgentMemory of whose snapshots or restores there is news, and with one that is gone.
        gone: called with every object that is gone.
    """

    def __init__(
        self,
        table: ObjectTable,
        queue: Requests,
        forget_connection: Callable[[Key], None],
        *,
        heard: Callable[[Key], None],
        gone: Callable[[Json], None],
    ) -> None:
        self._table = table
        self._queue = queue
        self._forget_connection = forget_connection
        self._heard = heard
        self._gone = gone

    def take(self, event: str, document: Json) -> None:
        """Take in one event."""
        key = key_of(document)
        self._take(event, key, document)
        memory = memory_named(document) or (key if event == "DELETED" and key.kind == AGENT_MEMORY else None)
        if memory is not None:
            # Also of a status, which is no reason for a pass over the snapshot itself.
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

    def known(self, kind: str) -> dict[Key, str]:
        """The uid of every object of a kind."""
        return {key: uid_of(self._table.get(key)) for key in self._table.keys(kind)}

    def drop_absent(self, known: Mapping[Key, str], documents: Iterable[Json]) -> None:
        """Drop what was known before a list was made and is not on it: gaps of a watch hide deletions."""
        present = {(key_of(document), uid_of(document)) for document in documents}
        for key, uid in known.items():
            document = self._table.get(key)
            if document is not None and uid_of(document) == uid and (key, uid) not in present:
                self.take("DELETED", document)

    def _affected(self, key: Key, document: Json) -> Iterable[Key]:
        """The objects that have to follow: users of a connection, other claims on a slug."""
        match key.kind:
            case "QdrantConnection":
                return self._table.users_of(key)
            case "AgentMemory":
                return self._table.claimants_of(slug_of(document))
            case _:
                return ()
