"""Consensus of a simulated cluster: the peer that takes a change knows it at once, the others `lag` seconds later.

Collections, aliases, configurations and payload indexes go through it, one change after the other: who knows a change
knows those before it. What a peer answers of them is as of the last change that it knows. States of replicas are not
held back: each peer tells those that there are.
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

# No peer is further behind.
KEPT_S = 60.0


@dataclass(frozen=True, slots=True)
class Known:
    """What a peer knows.

    Attributes:
        told: configuration and payload indexes of each collection; None are those that there are now.
    """

    collections: Mapping[str, ServedCollection]
    aliases: Mapping[str, str]
    told: Mapping[str, tuple[Document, Mapping[str, Document]]] | None = None

    def resolve(self, name: str) -> ServedCollection:
        """A collection, which may be gone; raises as `resolve` of the catalogue."""
        return resolve(name, self.collections, self.aliases)

    def of(self, collection: ServedCollection) -> tuple[Document, Mapping[str, Document]]:
        """Configuration and payload indexes of a collection.

        Raises:
            ErrorAnswer: 404, it is not known, or another of its name is.
        """
        if self.collections.get(collection.name) is not collection:
            raise collection_missing(collection.name)
        return _told(collection) if self.told is None else self.told[collection.name]


def _told(collection: ServedCollection) -> tuple[Document, Mapping[str, Document]]:
    return collection.record.configuration, collection.record.payload_schema


@dataclass(frozen=True, slots=True)
class _Change:
    """A change, through which peer it was made, when all know it, and what is known after it."""

    due_s: float
    peer: int
    after: Known


class Consensus:
    """The line of changes.

    Args:
        is_enabled: there are several peers; of a server that is alone nothing is kept.
    """

    def __init__(self, catalogue: Catalogue, faults: InjectedFaults, *, is_enabled: bool) -> None:
        self._catalogue, self._faults, self._is_enabled = catalogue, faults, is_enabled
        self._line: deque[_Change] = deque()
        self._before = self._kept()

    def note(self, peer: int) -> None:
        """Note that a change was made through a peer."""
        if not self._is_enabled:
            return
        now_s = time.monotonic()
        self._line.append(_Change(now_s + min(self._faults.lag_s(), KEPT_S), peer, self._kept()))
        while self._line[0].due_s < now_s - KEPT_S:
            self._before = self._line.popleft().after

    def known_to(self, peer: int) -> Known:
        """What a peer knows now."""
        now = Known(self._catalogue.collections, self._catalogue.aliases)
        if not self._line or not self._faults.lag_s():
            return now
        now_s = time.monotonic()
        heard = [number for number, change in enumerate(self._line) if change.peer == peer or change.due_s <= now_s]
        if heard and heard[-1] == len(self._line) - 1:
            return now
        return self._line[heard[-1]].after if heard else self._before

    def _kept(self) -> Known:
        """What there is, as it stays."""
        collections = dict(self._catalogue.collections)
        told = {name: _told(each) for name, each in collections.items()}
        return Known(collections, dict(self._catalogue.aliases), told)
