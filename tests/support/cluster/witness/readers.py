"""Readers of a witness: they read acknowledged memories continuously, through all endpoints of the API."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.support.cluster.witness.calls import WitnessCaller
from tests.support.cluster.witness.journal import CROWD, Journal, Unit, Version
from tests.support.cluster.witness.writers import VectorOf, place_of

MIN_SIMILARITY = 0.97
"""Minimum similarity of a text to itself with vectors of one model. Quantized vectors differ slightly."""

ReadError = str | None
"""Description of a wrong response; None if it was right."""


class UnitReads:
    """Reads of a settled unit, one method per endpoint; each returns a description of the error, or None."""

    def __init__(self, caller: WitnessCaller, *, vector_of: VectorOf | None) -> None:
        self._caller, self._vector_of = caller, vector_of

    def search(self, unit: Unit) -> ReadError:
        """Search with the head's own text. It must find only the head, with a vector of the current model."""
        head = unit.head
        content = head.content if head else unit.versions[-1].content
        rows = self._found(unit, content)
        if rows is None or (wrong := _differ(rows, [head] if head else [])):
            return None if rows is None else f"a search {wrong}"
        if head and (similarity := rows[0]["explain"]["similarity"]) < MIN_SIMILARITY:
            return f"a search finds {head.content!r} at similarity {similarity:.3f} to itself"
        return None

    def search_all(self, unit: Unit) -> ReadError:
        """Search for all versions."""
        rows = self._found(unit, unit.versions[-1].content, include_superseded=True)
        wrong = None if rows is None else _differ(rows, unit.stored)
        return wrong and f"a search for superseded ones too {wrong}"

    def in_list(self, unit: Unit) -> ReadError:
        """List its current memories."""
        parameters = {"user_id": unit.user, "tag": unit.name}
        answer = self._caller.read("GET", "/memories", params=parameters)
        wrong = answer and _differ(answer.json()["results"], [unit.head] if unit.head else [])
        return f"a list {wrong}" if wrong else None

    def get(self, unit: Unit) -> ReadError:
        """Read its newest version by id, deleted or not."""
        return self.get_version(unit.user, unit.versions[-1])

    def get_first(self, unit: Unit) -> ReadError:
        """Read its first version by id, deleted or not."""
        return self.get_version(unit.user, unit.versions[0])

    def get_version(self, user: str, version: Version) -> ReadError:
        answer = self._caller.read("GET", f"/memories/{version.id}", params={"user_id": user})
        if answer is None:
            return None
        if (answer.status_code == 404) != version.is_deleted:
            return f"{version.content!r}, {version.id}: {answer.status_code}"
        row = answer.json()
        if not version.is_deleted and (row["content"], row["importance"]) != (version.content, version.importance):
            return f"{version.id} has {row['content']!r} of importance {row['importance']}, not {version}"
        return None

    def history(self, unit: Unit) -> ReadError:
        """Read the complete chain."""
        if unit.head is None:
            return None
        path, parameters = f"/memories/{unit.head.id}/history", {"user_id": unit.user}
        answer = self._caller.read("GET", path, params=parameters)
        if answer is None:
            return None
        told = [row["content"] for row in answer.json().get("results", ())]
        wanted = [version.content for version in unit.stored]
        return None if told == wanted else f"the history is {told}, not {wanted}"

    def item(self, unit: Unit) -> ReadError:
        answer = self._caller.read("GET", "/items", params=place_of(unit))
        if answer is None:
            return None
        told, head = answer.json().get("content"), unit.head
        return None if told == (head.content if head else None) else f"the item is {told!r}, not {head}"

    def _found(self, unit: Unit, content: str, **more: Any) -> list[dict[str, Any]] | None:
        question = {"vector": self._vector_of(content)} if self._vector_of else {"query": content}
        body = {"user_id": unit.user, "tags": [unit.name], "top_k": 50, "explain": True} | question | more
        answer = self._caller.read("POST", "/search", json=body)
        if answer is None:
            return None
        return list(answer.json().get("results", ()))


def reads_for(unit: Unit, looks: UnitReads) -> list[Callable[[Unit], ReadError]]:
    """Return all reads that apply to a unit."""
    if unit.kind == "item":
        return [looks.item]
    return [looks.search, looks.search_all, looks.in_list, looks.get, looks.get_first, looks.history]


class Reader(threading.Thread):
    """Reads random units, and checks results of units that did not change in the meantime."""

    def __init__(
        self, name: str, caller: WitnessCaller, journal: Journal, *, vector_of: VectorOf | None, pace_s: float
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._caller, self._journal, self._pace_s = caller, journal, pace_s
        self._looks = UnitReads(caller, vector_of=vector_of)
        self._chance = random.Random(name)
        self.judged = 0

    def run(self) -> None:
        while not self._caller.is_over.is_set():
            try:
                self._look()
            except Exception as exc:
                self._journal.record_fault(f"{self.name} died: {exc!r}")
                raise
            time.sleep(self._pace_s)

    def _look(self) -> None:
        if self._journal.crowd and self._chance.random() < 0.1:
            self._look_at_crowd()
        elif self._journal.units:
            self._look_at(self._chance.choice(self._journal.units))

    def _look_at(self, unit: Unit) -> None:
        turn = unit.turn
        if not unit.is_settled:
            return
        look = self._chance.choice(reads_for(unit, self._looks))
        seen = look(unit)
        if unit.turn == turn and unit.is_settled:
            self.judged += 1
            if seen:
                self._journal.record_fault(f"{unit.kind} {unit.name}: {seen}")

    def _look_at_crowd(self) -> None:
        key = self._chance.choice(list(self._journal.crowd))
        memory_id, content = self._chance.choice(list(self._journal.crowd[key].items()))
        answer = self._caller.read("GET", f"/memories/{memory_id}", params={"user_id": CROWD})
        if answer is not None and answer.json().get("content") != content:
            self._journal.record_fault(f"{CROWD} {key}: {content!r}, {memory_id}: {answer.status_code}")


def _differ(rows: list[dict[str, Any]], wanted: list[Version]) -> ReadError:
    """Compare the memories in a response with the expected versions."""
    told = {row["id"]: row["content"] for row in rows}
    if told == {version.id: version.content for version in wanted} and len(rows) == len(told):
        return None
    return f"finds {sorted(told.values())}, not {sorted(version.content for version in wanted)}"
