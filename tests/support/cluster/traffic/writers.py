"""Writers: each changes memories of its pool through all endpoints of the API, and records the responses."""

import random
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from tests.support.cluster.traffic.calls import PAUSE_S, REFUSALS, ApiCaller, Sent
from tests.support.cluster.traffic.journal import Journal, Unit, UnitKind, Version
from tests.support.cluster.traffic.model import Kind
from tests.support.cluster.traffic.pools import Pool

KEYS = ("weather", "menu")
BATCH = 5
TYPES = {"plain": "note", "keyed": "fact", "subject": "status"}
# Relative frequencies of the operations, of writers with memories of their own and of writers that share theirs.
SHARES: Mapping[str, float] = {
    "store": 20,
    "store_once": 10,
    "store_batch": 8,
    "store_version": 22,
    "edit": 12,
    "delete": 12,
    "put_item": 10,
    "delete_item": 3,
    "repeat": 5,
    "join_crowd": 8,
    "forget": 2,
}
CONTENDED_SHARES: Mapping[str, float] = {"store": 16, "join_crowd": 14, "store_version": 34, "delete": 9, "forget": 1.2}
VectorOf = Callable[[str], list[float]]


class PacedThread(threading.Thread):
    """Runs steps one after another until its caller's `is_over` is set."""

    def __init__(self, name: str, caller: ApiCaller, journal: Journal, *, vector_of: VectorOf | None, pace_s: float):
        super().__init__(name=name, daemon=True)
        self.caller, self._journal, self._vector_of, self._pace_s = caller, journal, vector_of, pace_s
        self._chance = random.Random(f"{name} {pace_s}")

    def run(self) -> None:
        while not self.caller.is_over.wait(self._pace_s * self._chance.uniform(0.5, 1.5)):
            try:
                self.step()
            except Exception as exc:
                self._journal.record_fault(f"{self.name} died: {exc!r}")
                raise

    def step(self) -> None:
        raise NotImplementedError


class Writer(PacedThread):
    """Stores, changes and deletes memories of a pool.

    Args:
        vector_of: Returns the vector to send for a text; None if the agent embeds texts.
        pace_s: Mean pause between two changes.
    """

    def __init__(
        self,
        name: str,
        caller: ApiCaller,
        journal: Journal,
        pool: Pool,
        *,
        vector_of: VectorOf | None,
        pace_s: float,
        seed: str,
    ) -> None:
        super().__init__(name, caller, journal, vector_of=vector_of, pace_s=pace_s)
        self._pool, self._chance = pool, random.Random(f"{name} {seed}")
        self._shares = CONTENDED_SHARES if caller.is_contended else SHARES
        # The first round is in order, so that a short run includes all operations.
        self._first = [] if caller.is_contended else list(self._shares)[::-1]

    def step(self) -> None:
        [name] = self._chance.choices(list(self._shares), list(self._shares.values()))
        name = self._first.pop() if self._first else name
        if name.startswith("store") and self._pool.is_full:
            name = "store_version"
        getattr(self, name)()

    def store(self) -> None:
        """Store a memory, sometimes with several attempts."""
        kinds: tuple[UnitKind, ...] = ("plain",) if self.caller.is_contended else ("plain", "keyed", "subject")
        self._add_version(self._pool.new_unit(self._chance.choice(kinds)))

    def store_once(self) -> None:
        """Store a memory without an Idempotency-Key. It is sent once, whatever the outcome."""
        unit = self._pool.new_unit("plain")
        content = self._pool.content(unit.user)
        body = self._body(unit, content)
        self._take_in(unit, content, self.caller.write("POST", "/memories", json=body, is_repeatable=False))

    def store_batch(self) -> None:
        """Store several memories of random kinds in one batch, sent again until each has a final result."""
        kinds: tuple[UnitKind, ...] = ("plain", "keyed", "subject")
        units = [self._pool.new_unit(self._chance.choice(kinds)) for _ in range(BATCH)]
        contents = [self._pool.content(unit.user) for unit in units]
        bodies = [self._body(unit, content) for unit, content in zip(units, contents, strict=True)]
        headers, begun = {"Idempotency-Key": str(uuid.uuid4())}, None
        asked: list[Sent] = []
        while not asked or not all(each.is_final for each in asked):
            sent = self.caller.write("POST", "/memories/batch", json={"memories": bodies}, headers=headers)
            begun = begun or sent.begun
            asked = [_of_item(sent, each) for each in (sent.body or {}).get("results", ())] or asked or [sent] * BATCH
            if self.caller.is_over.wait(PAUSE_S if not all(each.is_final for each in asked) else 0):
                break
        for unit, content, each in zip(units, contents, asked, strict=True):
            self._take_in(unit, content, replace(each, begun=begun))

    def store_version(self) -> None:
        """Store another version: by key, by subject, or by naming the superseded memory."""
        # A shared unit with a key is not superseded by its id.
        kinds = ("plain",) if self.caller.is_contended else tuple(TYPES)
        if unit := self._pool.pick(lambda unit: unit.kind in kinds and unit.head is not None):
            self._add_version(unit)
        elif self.caller.is_contended:
            self.store()

    def edit(self) -> None:
        """Change a memory in place."""
        if unit := self._pick_memory():
            importance, head = round(self._chance.random(), 3), unit.stored[-1]
            asked = self._on(unit, "PATCH", json={"importance": importance})
            self.caller.record(Kind.EDIT, unit.user, asked, targets=(head.content,), importance=importance)
            self._settle(unit, asked)

    def delete(self) -> None:
        """Delete the newest version, so that the previous one becomes visible again."""
        if unit := self._pick_memory():
            head, asked = unit.stored[-1], self._on(unit, "DELETE")
            self.caller.record(Kind.DELETE, unit.user, asked, target_id=head.id)
            # Other clients may still supersede the deleted memory by its id.
            head.is_deleted = asked.is_acknowledged and not self.caller.is_contended
            self._settle(unit, asked)

    def put_item(self) -> None:
        """Put an item; in most cases it replaces an existing one."""
        known = self._pool.pick(lambda unit: unit.kind == "item")
        unit = known if known and self._chance.random() < 0.7 else self._pool.new_unit("item")
        content = self._pool.content(unit.user)
        body = {"content": content} | self._vector(content)
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        asked = self.caller.write("PUT", "/items", params=place_of(unit), json=body, headers=headers)
        self.caller.record(Kind.STORE, unit.user, asked, content=content, tag=unit.name)
        for version in unit.stored:
            self.caller.record(Kind.DELETE, unit.user, asked, targets=(version.content,))
        self._settle(unit, asked)
        if asked.is_acknowledged:
            unit.versions.clear()
            self._pool.add(unit, Version(content, asked.body["memory_id"]))

    def delete_item(self) -> None:
        if unit := self._pool.pick(lambda unit: unit.kind == "item" and unit.head is not None):
            head, asked = unit.stored[-1], self.caller.write("DELETE", "/items", params=place_of(unit))
            self.caller.record(Kind.DELETE, unit.user, asked, targets=(head.content,))
            head.is_deleted = asked.is_acknowledged
            self._settle(unit, asked)

    def repeat(self) -> None:
        """Repeat an acknowledged request. It must return the same memory and store no second one."""
        if unit := self._pool.pick(lambda unit: any(version.request for version in unit.stored)):
            version = self._chance.choice([version for version in unit.stored if version.request])
            asked = self._send(*(version.request or ("", {})))
            self._settle(unit, asked)
            if asked.is_acknowledged and asked.body["id"] != version.id:
                self._journal.record_fault(f"sent again, {version.content!r} was stored as {asked.body['id']} too")

    def join_crowd(self) -> None:
        """Write a key that the other writers write concurrently."""
        key, user = self._chance.choice(KEYS), self._pool.crowded_user()
        crowded = Unit("keyed", user, key)
        content = self._pool.content(user)
        asked = self._send(str(uuid.uuid4()), self._body(crowded, content), tries=self._chance.choice((1, 1, 4)))
        if self._record_store(crowded, content, asked):
            version = Version(content, asked.body["id"])
            if self.caller.is_contended:
                self._pool.add(crowded, version)
            else:
                self._journal.crowd.append(version)

    def forget(self) -> None:
        """Forget a user. Without contention that is one whose memories have just been stored."""
        user = self._pool.guest()
        for content in () if self.caller.is_contended else (self._pool.content(user), self._pool.content(user)):
            body = self._body(guest := Unit("plain", user, user), content)
            stored = self.caller.write("POST", "/memories", json=body, is_repeatable=False)
            if not self._record_store(guest, content, stored):
                return  # A write that completes later would be stored after the erasure, and stay.
        # A process of an earlier version erases a user without `everything`. A random process gets each request.
        for named in ({"everything": True}, {}) * 5:
            asked = self.caller.write("POST", "/forget", json={"user_id": user, **named})
            if asked.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                break
            self._journal.count_response(asked.status, -1)
        self.caller.record(Kind.FORGET, user, asked)

    def _pick_memory(self) -> Unit | None:
        return self._pool.pick(lambda unit: unit.kind != "item" and unit.head is not None)

    def _add_version(self, unit: Unit) -> None:
        """Store a version with an Idempotency-Key, so that it can be retried."""
        content, head = self._pool.content(unit.user), unit.head
        body = self._body(unit, content)
        if unit.kind == "plain" and head is not None:
            body["supersedes"] = head.id
        key = str(uuid.uuid4())
        asked = self._send(key, body, tries=self._chance.choice((1, 1, 1, 4) if head else (1, 1, 4)))
        self._take_in(unit, content, asked, request=(key, body), follows=body.get("supersedes"))
        wanted = head.id if head else None
        if asked.is_acknowledged and not self.caller.is_contended and asked.body["supersedes"] != wanted:
            self._journal.record_fault(f"{content!r} replaced {asked.body['supersedes']}, not {wanted}")

    def _take_in(
        self,
        unit: Unit,
        content: str,
        asked: Sent,
        *,
        request: tuple[str, dict[str, Any]] | None = None,
        follows: str | None = None,
    ) -> None:
        """Record the outcome of a store."""
        self._settle(unit, asked)
        if self._record_store(unit, content, asked, follows):
            self._pool.add(unit, Version(content, asked.body["id"], request=request))

    def _record_store(self, unit: Unit, content: str, asked: Sent, follows: str | None = None) -> bool:
        if asked.is_acknowledged:
            follows = asked.body["supersedes"]
            self._journal.name(asked.body["id"], content)
        chain = "" if unit.kind == "plain" else unit.name
        self.caller.record(Kind.STORE, unit.user, asked, content=content, tag=unit.name, chain=chain, target_id=follows)
        return asked.is_acknowledged

    def _settle(self, unit: Unit, asked: Sent) -> None:
        """Record an unknown outcome. Report a refusal, because all requests are valid unless others change the same."""
        if self.caller.is_contended or asked.is_acknowledged:
            return
        unit.in_doubt = unit.in_doubt or asked.status not in REFUSALS
        if not asked.is_unknown and asked.status not in REFUSALS:
            self._journal.record_fault(
                f"{unit.kind} {unit.name}: a change was refused with {asked.status}: {asked.body}"
            )

    def _send(self, key: str, body: dict[str, Any], *, tries: int = 1) -> Sent:
        """Store a memory under an Idempotency-Key."""
        headers = {"Idempotency-Key": key}
        return self.caller.write("POST", "/memories", json=body, headers=headers, tries=tries)

    def _on(self, unit: Unit, method: str, **request: Any) -> Sent:
        """Send a request for the newest version of a unit."""
        return self.caller.write(method, f"/memories/{unit.stored[-1].id}", params={"user_id": unit.user}, **request)

    def _body(self, unit: Unit, content: str) -> dict[str, Any]:
        named = {"keyed": {"key": unit.name}, "subject": {"subject": unit.name}}.get(unit.kind, {})
        session = f"{unit.user}-session-{self._pool.count // 40}"
        body = {"user_id": unit.user, "content": content, "type": TYPES[unit.kind], "tags": [unit.name]}
        return body | {"session_id": session} | named | self._vector(content)

    def _vector(self, content: str) -> dict[str, Any]:
        return {"vector": self._vector_of(content)} if self._vector_of else {}


def place_of(unit: Unit) -> list[tuple[str, str | int | float | bool | None]]:
    """Return the query parameters of an item."""
    return [("namespace", "memories"), ("namespace", unit.user), ("namespace", "notes"), ("key", unit.name)]


def _of_item(sent: Sent, result: dict[str, Any]) -> Sent:
    """Build the `Sent` of one memory from the result in a batch's response."""
    error = result.get("error")
    return replace(sent, status=error["status"] if error else HTTPStatus.OK, body=error or result)


def join_all(threads: Iterable[threading.Thread], *, seconds: float) -> list[str]:
    """Wait for threads; return the names of those that still run."""
    for thread in threads:
        thread.join(seconds)
    return [thread.name for thread in threads if thread.is_alive()]
