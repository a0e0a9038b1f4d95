"""Readers: they read acknowledged memories continuously, through all endpoints of the API."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.support.cluster.traffic.calls import ApiCaller
from tests.support.cluster.traffic.journal import CROWD, Journal, Unit, Version
from tests.support.cluster.traffic.model import Kind
from tests.support.cluster.traffic.pools import SharedPool
from tests.support.cluster.traffic.writers import PacedThread, VectorOf, place_of

MIN_SIMILARITY = 0.97
"""Minimum similarity of a text to itself with vectors of one model. Quantized vectors differ slightly."""
# Maximum number of results of a search; more memories than any shared user has.
PAGE = 100


class Reads:
    """Reads, one method per endpoint. The caller records the results.

    Args:
        vector_of: Returns the vector to send for a text; None if the agent embeds texts.
    """

    def __init__(self, caller: ApiCaller, journal: Journal, *, vector_of: VectorOf | None) -> None:
        self._caller, self._journal, self._vector_of = caller, journal, vector_of

    def search(self, unit: Unit) -> None:
        """Search with the head's own text. Record a fault if the head's vector is not one of the current model."""
        text = (unit.head or unit.versions[-1]).content
        for row in self._search(Kind.SEARCH, unit, text, top_k=50, explain=True) or ():
            if row["content"] == text and (similarity := row["explain"]["similarity"]) < MIN_SIMILARITY:
                self._journal.record_fault(f"a search finds {text!r} at similarity {similarity:.3f} to itself")

    def search_all(self, unit: Unit) -> None:
        """Search for all versions."""
        self._search(Kind.LIST, unit, unit.versions[-1].content, top_k=50, include_superseded=True)

    def in_list(self, unit: Unit) -> None:
        """List the unit's current memories by tag."""
        parameters = {"user_id": unit.user, "tag": unit.name}
        self._caller.read(Kind.SEARCH, unit.user, "GET", "/memories", tag=unit.name, params=parameters)

    def get(self, unit: Unit) -> None:
        """Read its newest version by id, deleted or not."""
        self.get_version(unit.user, unit.versions[-1])

    def get_first(self, unit: Unit) -> None:
        """Read its first version by id, deleted or not."""
        self.get_version(unit.user, unit.versions[0])

    def get_version(self, user: str, version: Version) -> None:
        path, content = f"/memories/{version.id}", version.content
        self._caller.read(Kind.LIST, user, "GET", path, content=content, params={"user_id": user})

    def history(self, unit: Unit) -> None:
        """Read the history through the newest version. Record a fault if its order is not oldest first."""
        if (head := unit.head) is None:
            return
        path, parameters = f"/memories/{head.id}/history", {"user_id": unit.user}
        read = partial(self._caller.read, Kind.LIST, unit.user, "GET", path, content_if_missing=head.content)
        rows = read(tag=unit.name, params=parameters) or ()
        told, order = [row["content"] for row in rows], [version.content for version in unit.versions]
        known = [content for content in order if content in told]
        if [content for content in told if content in known] != known:
            self._journal.record_fault(f"{unit.kind} {unit.name}: the history is {told}, not in order of {order}")

    def item(self, unit: Unit) -> None:
        self._caller.read(Kind.SEARCH, unit.user, "GET", "/items", tag=unit.name, params=place_of(unit))

    def search_user(self, user: str, *, process: int | None = None) -> bool:
        """Search among all memories of a user; return whether the search succeeded."""
        body = {"user_id": user, "top_k": PAGE} | self._question(user)
        return self._caller.read(Kind.SEARCH, user, "POST", "/search", process=process, json=body) is not None

    def list_user(self, user: str, *, process: int | None = None) -> bool:
        """List all memories of a user, including superseded ones; return whether that succeeded."""
        parameters = {"user_id": user, "include_superseded": "true", "limit": PAGE}
        return self._caller.read(Kind.LIST, user, "GET", "/memories", process=process, params=parameters) is not None

    def of_unit(self, unit: Unit) -> list[Callable[[], object]]:
        """Return all reads that apply to a unit."""
        if unit.kind == "item":
            return [partial(self.item, unit)]
        looks = (self.search, self.search_all, self.in_list, self.get, self.get_first, self.history)
        return [partial(look, unit) for look in looks]

    def _search(self, kind: Kind, unit: Unit, text: str, **more: Any) -> list[dict[str, Any]] | None:
        body = {"user_id": unit.user, "tags": [unit.name]} | self._question(text) | more
        return self._caller.read(kind, unit.user, "POST", "/search", tag=unit.name, json=body)

    def _question(self, text: str) -> dict[str, Any]:
        return {"vector": self._vector_of(text)} if self._vector_of else {"query": text}


class Reader(PacedThread):
    """Reads random units; of a shared pool, all memories of random users.

    Args:
        pool: None if the writers have pools of their own.
    """

    def __init__(
        self,
        name: str,
        caller: ApiCaller,
        journal: Journal,
        pool: SharedPool | None,
        *,
        vector_of: VectorOf | None,
        pace_s: float,
    ) -> None:
        super().__init__(name, caller, journal, vector_of=vector_of, pace_s=pace_s)
        self._reads, self._pool = Reads(caller, journal, vector_of=vector_of), pool
        self._chance = random.Random(name)

    def step(self) -> None:
        if self._pool is not None:
            look = self._chance.choices((self._reads.search_user, self._reads.list_user), (16, 10))[0]
            look(self._pool.any_user())
        elif self._journal.crowd and self._chance.random() < 0.1:
            self._reads.get_version(CROWD, self._chance.choice(self._journal.crowd))
        elif self._journal.units:
            self._chance.choice(self._reads.of_unit(self._chance.choice(self._journal.units)))()
