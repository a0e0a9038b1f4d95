"""Consensus of a simulated cluster: a peer sees its own changes at once, other peers `lag` seconds later.

Collections, aliases, configurations and payload indexes are subject to it. Changes are ordered: a peer that sees a
change also sees all earlier ones, and responds with the state after the last change that it sees. Replica states have
no lag: every peer responds with the current ones.
"""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from qdrant_devserver.error_answers import collection_missing
from qdrant_devserver.fields import Document
from qdrant_devserver.injected_faults import InjectedFaults
from qdrant_devserver.storage.catalogue import Catalogue, resolve
from qdrant_devserver.storage.collection import ServedCollection

# Upper bound of the lag. Older changes are visible to every peer and are dropped from the queue.
MAX_LAG_S = 60.0


@dataclass(frozen=True, slots=True)
class PeerView:
    """State of the cluster as one peer sees it.

    Attributes:
        facts: Configuration and payload indexes of each collection; None for the current ones.
    """

    collections: Mapping[str, ServedCollection]
    aliases: Mapping[str, str]
    facts: Mapping[str, tuple[Document, Mapping[str, Document]]] | None = None

    def resolve(self, name: str) -> ServedCollection:
        """Return a collection by name or alias. It may be deleted by now.

        Raises:
            ErrorAnswer: 404 if the peer sees neither a collection nor an alias of the name.
        """
        return resolve(name, self.collections, self.aliases)

    def read_facts(self, collection: ServedCollection) -> tuple[Document, Mapping[str, Document]]:
        """Return the configuration and the payload indexes of a collection.

        Raises:
            ErrorAnswer: 404 if the peer does not see it, or sees another collection under its name.
        """
        if self.collections.get(collection.name) is not collection:
            raise collection_missing(collection.name)
        return _facts(collection) if self.facts is None else self.facts[collection.name]


def _facts(collection: ServedCollection) -> tuple[Document, Mapping[str, Document]]:
    return collection.record.configuration, collection.record.payload_schema


@dataclass(frozen=True, slots=True)
class _Change:
    """A change: when all peers see it, the peer that made it, and the state after it."""

    due_s: float
    peer: int
    after: PeerView


class Consensus:
    """Queue of changes, from which the state that a peer sees is derived.

    Args:
        is_enabled: True if there are several peers. For a single server nothing is recorded.
    """

    def __init__(self, catalogue: Catalogue, faults: InjectedFaults, *, is_enabled: bool) -> None:
        self._catalogue, self._faults, self._is_enabled = catalogue, faults, is_enabled
        self._changes: deque[_Change] = deque()
        self._before = self._copy_state()

    def record_change(self, peer: int) -> None:
        """Record that a peer has just made a change."""
        if not self._is_enabled:
            return
        now_s = time.monotonic()
        self._changes.append(_Change(now_s + min(self._faults.lag_s(), MAX_LAG_S), peer, self._copy_state()))
        while self._changes[0].due_s < now_s - MAX_LAG_S:
            self._before = self._changes.popleft().after

    def view_of(self, peer: int) -> PeerView:
        """Return the state that a peer sees now."""
        now = PeerView(self._catalogue.collections, self._catalogue.aliases)
        if not self._changes or not self._faults.lag_s():
            return now
        now_s = time.monotonic()
        visible = [
            number for number, change in enumerate(self._changes) if change.peer == peer or change.due_s <= now_s
        ]
        if visible and visible[-1] == len(self._changes) - 1:
            return now
        return self._changes[visible[-1]].after if visible else self._before

    def _copy_state(self) -> PeerView:
        collections = dict(self._catalogue.collections)
        facts = {name: _facts(collection) for name, collection in collections.items()}
        return PeerView(collections, dict(self._catalogue.aliases), facts)
