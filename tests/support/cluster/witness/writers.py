"""Writers of a witness: each changes its own memories through all endpoints of the API, and records the responses."""

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from tests.support.cluster.witness.calls import PAUSE_S, RETRYABLE_STATUSES, Answer, WitnessCaller
from tests.support.cluster.witness.journal import CROWD, Journal, Kind, Unit, Version

WORDS = ("invoice", "garden", "harbour", "train", "letter", "winter", "piano", "bicycle", "cheese", "mountain")
CROWD_KEYS = ("weather", "menu")
BATCH = 5
# Maximum units of a writer: enough to detect losses, few enough for the final check.
MAX_UNITS = 80
TYPES = {"plain": "note", "keyed": "fact", "subject": "status"}
# Relative frequencies of the operations.
SHARES = {
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
VectorOf = Callable[[str], list[float]]


class Writer(threading.Thread):
    """Writer of one user. It also writes the keys of the crowd.

    Args:
        vector_of: Returns the vector to send for a text; None if the agent embeds texts.
        pace_s: Pause between two changes.
    """

    def __init__(
        self, name: str, caller: WitnessCaller, journal: Journal, *, vector_of: VectorOf | None, pace_s: float
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.user, self._caller, self._journal = name, caller, journal
        self._vector_of, self._pace_s = vector_of, pace_s
        self._chance = random.Random(name)
        self._units: list[Unit] = []
        self._count = self._done = 0

    def run(self) -> None:
        names, shares = list(SHARES), list(SHARES.values())
        while not self._caller.is_over.is_set():
            self._done += 1
            # The first round is in order, so that a short run includes all operations.
            name = names[self._done - 1] if self._done <= len(names) else self._chance.choices(names, shares)[0]
            if name.startswith("store") and len(self._units) >= MAX_UNITS:
                name = "store_version"
            try:
                getattr(self, name)()
            except Exception as exc:
                self._journal.record_fault(f"{self.name} died: {exc!r}")
                raise
            time.sleep(self._pace_s)

    def store(self) -> None:
        """Store a memory with an Idempotency-Key, so that it can be retried."""
        kind: Kind = self._chance.choice(("plain", "keyed", "subject"))
        self._add_version(self._new_unit(kind))

    def store_once(self) -> None:
        """Store a memory without an Idempotency-Key. It is sent once, whatever the outcome."""
        unit = self._new_unit("plain")
        content = self._new_content()
        self._journal.unconfirmed.add(content)
        answer = self._caller.write("POST", "/memories", json=self._body(unit, content), is_repeatable=False)
        self._take_in(unit, content, answer)
        if answer.status is not None:
            self._journal.unconfirmed.discard(content)

    def store_batch(self) -> None:
        """Store several memories of all kinds in one batch."""
        kinds: tuple[Kind, ...] = ("plain", "keyed", "subject")
        units = [self._new_unit(self._chance.choice(kinds)) for _ in range(BATCH)]
        contents = [self._new_content() for _ in units]
        self._journal.unconfirmed.update(contents)
        bodies = [self._body(unit, content) for unit, content in zip(units, contents, strict=True)]
        headers, answers = {"Idempotency-Key": str(uuid.uuid4())}, [Answer(None)] * BATCH
        while any(answer.status is None or answer.status in RETRYABLE_STATUSES for answer in answers):
            if self._caller.is_over.is_set():
                break
            answer = self._caller.write(
                "POST", "/memories/batch", json={"memories": bodies}, headers=headers, is_repeatable=True
            )
            answers = [_of_item(result) for result in (answer.body or {}).get("results", ())] or answers
            time.sleep(0 if all(answer.is_acknowledged for answer in answers) else PAUSE_S)
        for unit, content, answer in zip(units, contents, answers, strict=True):
            self._take_in(unit, content, answer)
            if answer.is_acknowledged:
                self._journal.unconfirmed.discard(content)

    def store_version(self) -> None:
        """Store another version: by key, by subject, or by naming the superseded memory."""
        for unit in self._pick(lambda unit: unit.kind != "item" and unit.head is not None):
            self._add_version(unit)

    def edit(self) -> None:
        """Change a memory in place."""
        for unit in self._pick(lambda unit: unit.kind != "item" and unit.head is not None):
            with unit.changing():
                importance, head = round(self._chance.random(), 3), unit.stored[-1]
                answer = self._on(unit, "PATCH", json={"importance": importance})
                self._settle(unit, answer)
                if answer.is_acknowledged:
                    head.importance, head.changes = importance, head.changes + 1

    def delete(self) -> None:
        """Delete the newest version, so that the previous one becomes visible again."""
        for unit in self._pick(lambda unit: unit.kind != "item" and unit.head is not None):
            with unit.changing():
                head, answer = unit.stored[-1], self._on(unit, "DELETE")
                is_gone = answer.is_acknowledged or (answer.status == 404 and answer.was_repeated)
                head.is_deleted = is_gone
                self._settle(unit, Answer(204) if is_gone else answer)

    def put_item(self) -> None:
        """Put an item; in most cases it replaces an existing one."""
        known = self._pick(lambda unit: unit.kind == "item")
        unit = known[0] if known and self._chance.random() < 0.7 else self._new_unit("item")
        with unit.changing():
            content = self._new_content()
            body = {"content": content} | self._vector(content)
            headers = {"Idempotency-Key": str(uuid.uuid4())}
            answer = self._caller.write(
                "PUT", "/items", params=place_of(unit), json=body, headers=headers, is_repeatable=True
            )
            self._settle(unit, answer)
            if answer.is_acknowledged:
                unit.versions[:] = [Version(content, answer.body["memory_id"])]
                self._own(unit)
            else:
                self._journal.unconfirmed.add(content)

    def delete_item(self) -> None:
        for unit in self._pick(lambda unit: unit.kind == "item" and unit.head is not None):
            with unit.changing():
                answer = self._caller.write("DELETE", "/items", params=place_of(unit), is_repeatable=True)
                is_gone = answer.is_acknowledged or (answer.status == 404 and answer.was_repeated)
                unit.versions[-1].is_deleted = is_gone
                self._settle(unit, Answer(204) if is_gone else answer)

    def repeat(self) -> None:
        """Repeat an acknowledged request. It must return the same memory and store no second one."""
        for unit in self._pick(lambda unit: any(version.request for version in unit.stored)):
            version = self._chance.choice([version for version in unit.stored if version.request])
            answer = self._send(*(version.request or ("", {})))
            self._settle(unit, answer)
            if answer.is_acknowledged and answer.body["id"] != version.id:
                self._journal.record_fault(f"sent again, {version.content!r} was stored as {answer.body['id']} too")

    def join_crowd(self) -> None:
        """Write a key that the other writers write concurrently."""
        key, content = self._chance.choice(CROWD_KEYS), self._new_content()
        body = {"user_id": CROWD, "type": "fact", "key": key, "content": content, "tags": [key]}
        self._journal.unconfirmed.add(content)
        answer = self._send(str(uuid.uuid4()), body | self._vector(content))
        if answer.is_acknowledged:
            self._journal.stored_in_crowd(key, answer.body["id"], content)

    def forget(self) -> None:
        """Store memories of another user, and forget that user."""
        self._count += 1
        user = f"{self.user}-guest-{self._count}"
        contents = [self._new_content(user) for _ in range(2)]
        bodies = [{"user_id": user, "content": text, "type": "note"} | self._vector(text) for text in contents]
        self._journal.unconfirmed.update(contents)
        stored = [self._caller.write("POST", "/memories", json=body, is_repeatable=False) for body in bodies]
        if not all(answer.is_acknowledged for answer in stored):
            return  # A write that completes later would be stored after the erasure, and stay.
        # A process of an earlier version erases a user without `everything`. A random process gets each request.
        for named in ({"everything": True}, {}) * 5:
            answer = self._caller.write("POST", "/forget", json={"user_id": user, **named}, is_repeatable=True)
            if answer.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                break
            self._journal.take_back(answer.status)
        if answer.is_acknowledged:
            self._journal.forgotten.add(user)

    def _add_version(self, unit: Unit) -> None:
        """Store a version with an Idempotency-Key, so that it can be retried."""
        with unit.changing():
            content, head = self._new_content(), unit.head
            self._journal.unconfirmed.add(content)
            body = self._body(unit, content)
            if unit.kind == "plain" and head is not None:
                body["supersedes"] = head.id
            key = str(uuid.uuid4())
            answer = self._send(key, body)
            self._take_in(unit, content, answer)
            if answer.is_acknowledged:
                unit.versions[-1].request = (key, body)
                self._journal.unconfirmed.discard(content)
                told = answer.body["supersedes"]
                if told != (head.id if head else None):
                    self._journal.record_fault(f"{content!r} replaced {told}, not {head and head.id}")

    def _take_in(self, unit: Unit, content: str, answer: Answer) -> None:
        """Record the outcome of a store."""
        self._settle(unit, answer)
        if answer.is_acknowledged:
            unit.versions.append(Version(content, answer.body["id"]))
            self._own(unit)

    def _settle(self, unit: Unit, answer: Answer) -> None:
        """Record an unknown outcome. Report a refusal, because all requests are valid."""
        if answer.status is None:
            unit.in_doubt = True
        elif not answer.is_acknowledged and answer.status not in RETRYABLE_STATUSES:
            self._journal.record_fault(
                f"{unit.kind} {unit.name}: a change was refused with {answer.status}: {answer.body}"
            )
            unit.in_doubt = True

    def _send(self, key: str, body: dict[str, Any]) -> Answer:
        """Store a memory under an Idempotency-Key."""
        headers = {"Idempotency-Key": key}
        return self._caller.write("POST", "/memories", json=body, headers=headers, is_repeatable=True)

    def _on(self, unit: Unit, method: str, **request: Any) -> Answer:
        """Send a request for the newest version of a unit."""
        path = f"/memories/{unit.stored[-1].id}"
        return self._caller.write(method, path, params={"user_id": unit.user}, is_repeatable=True, **request)

    def _pick(self, suits: Callable[[Unit], bool]) -> list[Unit]:
        """Return a list with one random matching unit, or an empty list."""
        fitting = [unit for unit in self._units if not unit.in_doubt and suits(unit)]
        return [self._chance.choice(fitting)] if fitting else []

    def _own(self, unit: Unit) -> None:
        if all(unit is not known for known in self._units):
            self._units.append(unit)
            self._journal.units.append(unit)

    def _new_unit(self, kind: Kind) -> Unit:
        self._count += 1
        return Unit(kind, self.user, f"{self.user}-{kind}-{self._count}")

    def _new_content(self, user: str | None = None) -> str:
        self._count += 1
        return f"{user or self.user} {self._count} {' '.join(self._chance.choices(WORDS, k=4))}"

    def _body(self, unit: Unit, content: str) -> dict[str, Any]:
        named = {"keyed": {"key": unit.name}, "subject": {"subject": unit.name}}.get(unit.kind, {})
        session = f"{self.user}-session-{self._count // 40}"
        body = {"user_id": unit.user, "content": content, "type": TYPES[unit.kind], "tags": [unit.name]}
        return body | {"session_id": session} | named | self._vector(content)

    def _vector(self, content: str) -> dict[str, Any]:
        return {"vector": self._vector_of(content)} if self._vector_of else {}


def place_of(unit: Unit) -> list[tuple[str, str | int | float | bool | None]]:
    """Return the query parameters of an item."""
    return [("namespace", "memories"), ("namespace", unit.user), ("namespace", "notes"), ("key", unit.name)]


def _of_item(result: dict[str, Any]) -> Answer:
    """Convert the result of one memory of a batch."""
    if "error" not in result:
        return Answer(200, result)
    status = result["error"]["status"]
    return Answer(None if status >= 500 and status != 503 else status, result["error"])


def join_all(threads: Iterable[threading.Thread], *, seconds: float) -> list[str]:
    """Wait for threads; return the names of those that still run."""
    until = time.monotonic() + seconds
    running = []
    for thread in threads:
        thread.join(max(0.1, until - time.monotonic()))
        running += [thread.name] if thread.is_alive() else []
    return running
