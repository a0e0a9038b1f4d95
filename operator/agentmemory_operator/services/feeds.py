"""What a source's events set in motion: passes of the operator, settings of the retrieval API.

A source (Kubernetes or a folder) gives (ADDED | MODIFIED | DELETED, object); after a gap it gives the whole list.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from agentmemory_operator.domain.effective import effective_settings
from agentmemory_operator.domain.manifests import parse_agent_memory
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports import Json
from agentmemory_operator.services.closing import is_closed
from agentmemory_operator.services.directory import AgentDirectory, Claim
from agentmemory_operator.services.objects import (
    AGENT_MEMORY,
    Key,
    ObjectTable,
    holds_collection,
    key_of,
    memory_named,
    slug_of,
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
    """

    def __init__(
        self,
        table: ObjectTable,
        queue: Requests,
        forget_connection: Callable[[Key], None],
        heard: Callable[[Key], None] = lambda memory: None,
    ) -> None:
        self._table = table
        self._queue = queue
        self._forget_connection = forget_connection
        self._heard = heard

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
        elif not self._table.put(document):
            return
        else:
            self._queue.request(key)
        for affected in self._affected(key, document):
            if affected != key:
                self._queue.request(affected)

    def known(self, kind: str) -> dict[Key, str]:
        """Return the uid of every object of a kind."""
        return {key: _uid_of(self._table.get(key)) for key in self._table.keys(kind)}

    def drop_absent(self, known: Mapping[Key, str], documents: Iterable[Json]) -> None:
        """Drop what was known before a list was made and is not on it: gaps of a watch hide deletions."""
        present = {(key_of(document), _uid_of(document)) for document in documents}
        for key, uid in known.items():
            document = self._table.get(key)
            if document is not None and _uid_of(document) == uid and (key, uid) not in present:
                self.take("DELETED", document)

    def _affected(self, key: Key, document: Json) -> Iterable[Key]:
        """Return the objects that have to follow: users of a connection, other claims on a slug."""
        match key.kind:
            case "QdrantConnection":
                return self._table.users_of(key)
            case "AgentMemory":
                return self._table.claimants_of(slug_of(document))
            case _:
                return ()


class ApiFeed:
    """Keeps the directory of agents in line with the objects; an object that is not valid keeps its last settings.

    Args:
        forget_agent: called with the slug of an object that is gone.
    """

    def __init__(
        self, table: ObjectTable, directory: AgentDirectory, forget_agent: Callable[[str], None] = lambda slug: None
    ) -> None:
        self._table = table
        self._directory = directory
        self._forget_agent = forget_agent

    def take(self, event: str, document: Json) -> None:
        """Take in one event."""
        key = key_of(document)
        if event == "DELETED":
            self._table.remove(key)
        else:
            self._table.put(document)
        if key.kind == AGENT_MEMORY:
            self._serve(event, document)

    def take_list(self, kind: str, documents: list[Json], *, namespace: str = "") -> None:
        """Take in all objects of a kind, of one namespace or of all; what is not among them is gone."""
        present = {key_of(document) for document in documents}
        for key in self._table.keys(kind):
            document = self._table.get(key)
            if key not in present and document is not None and namespace in ("", key.namespace):
                self.take("DELETED", document)
        for document in documents:
            self.take("ADDED", document)

    def _serve(self, event: str, document: Json) -> None:
        uid = _uid_of(document)
        if event == "DELETED":
            self._directory.remove(slug_of(document), uid)
            self._forget_agent(slug_of(document))
            return
        try:
            settings = effective_settings(parse_agent_memory(document))
        except SpecInvalid as exc:
            log.warning("%s keeps its last settings: %s", key_of(document), exc)
            return
        created = document["metadata"].get("creationTimestamp") or ""
        claim = Claim(
            uid=uid,
            created=created,
            settings=settings,
            has_collection=holds_collection(document),
            is_closed=is_closed(document),
        )
        self._directory.put(claim)


def _uid_of(document: Json | None) -> str:
    return document["metadata"].get("uid", "") if document else ""
