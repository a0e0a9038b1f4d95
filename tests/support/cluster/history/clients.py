"""Clients that record their requests and responses. They know the agent only from its responses."""

import random
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.cluster.history.journal import BUSY, Entry, HistoryJournal, outcome_of
from tests.support.cluster.history.model import Kind, Operation
from tests.support.cluster.witness.witness import unit_vector_of

# Longer than the API delays a write for a move, shorter than a run.
PATIENCE_S = 12.0
# Maximum number of results of a search; more memories than any user has.
PAGE = 100
MAX_MEMORIES_PER_USER = 24
ACTIVE_USERS = 4
KEYS = ("weather", "menu")
PAUSE_S = 0.3
# The connection failed, so the request was not sent.
UNSENT = 0
# Nothing was done, but a retry may succeed.
REFUSALS = frozenset({UNSENT, BUSY, 503})
ALLOWED = frozenset({200, 201, 204, 404, 409, BUSY, 503, 504})
SHARES = {
    "store": 16,
    "store_keyed": 14,
    "supersede": 34,
    "delete": 9,
    "forget": 1.2,
    "search": 16,
    "listed": 10,
}


@dataclass(frozen=True, slots=True)
class KnownMemory:
    """A memory with an id from a response."""

    user: str
    content: str
    id: str
    is_keyed: bool = False


@dataclass(slots=True)
class Pool:
    """Users and memories that all clients share, so that they compete for the same ones."""

    chance: random.Random
    users: list[str] = field(default_factory=list)
    known: dict[str, list[KnownMemory]] = field(default_factory=dict)
    all_users: list[str] = field(default_factory=list)
    _count: int = 0
    _stored: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def user(self) -> str:
        """Return one of the users that currently get new memories."""
        with self._lock:
            while len(self.users) < ACTIVE_USERS:
                name = f"user-{len(self.all_users)}"
                self.users.append(name)
                self.all_users.append(name)
            return self.chance.choice(self.users)

    def any_user(self) -> str:
        """Return a user with memories, mostly one that currently gets new ones."""
        user = self.user()
        with self._lock:
            return self.chance.choice(self.all_users) if self.chance.random() < 0.3 else user

    def content(self, user: str) -> str:
        """Return a unique text. A user with enough memories gets no further ones."""
        with self._lock:
            self._count += 1
            self._stored[user] = self._stored.get(user, 0) + 1
            if self._stored[user] >= MAX_MEMORIES_PER_USER and user in self.users:
                self.users.remove(user)
            return f"{user} says {self._count}"

    def add(self, memory: KnownMemory) -> None:
        """Record a stored memory."""
        with self._lock:
            self.known.setdefault(memory.user, []).append(memory)

    def memory(self, *, is_plain: bool = False) -> KnownMemory | None:
        """Return a memory to change: a recent one, because fewer of these are superseded already.

        Args:
            is_plain: True for memories without a key, which a request may name as superseded.
        """
        with self._lock:
            known = [
                [each for each in self.known.get(user, ()) if not (is_plain and each.is_keyed)] for user in self.users
            ]
            candidates = [memory for memories in known for memory in memories[-4:]]
            return self.chance.choice(candidates) if candidates else None


@dataclass(frozen=True, slots=True)
class CompletedRequest:
    """A completed request. `status` is None if there was no response; `body` is None if it was empty."""

    process: str
    begun: float
    ended: float
    status: int | None
    body: Any = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Tried:
    status: int | None
    body: Any
    note: str

    @property
    def is_done(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_final(self) -> bool:
        """True if a retry is pointless."""
        return self.is_done or (self.status is not None and 400 <= self.status < 500 and self.status != BUSY)


class ApiCaller:
    """Sends requests to any of the API processes and records the results."""

    def __init__(self, urls: Sequence[str], agent: str, journal: HistoryJournal, chance: random.Random) -> None:
        self._urls = [f"{url}/v1/agents/{agent}" for url in urls]
        self._journal, self._chance = journal, chance
        self._http = httpx.Client(timeout=PATIENCE_S)

    def close(self) -> None:
        self._http.close()

    def store(self, user: str, content: str, *, tries: int = 1, **more: Any) -> KnownMemory | None:
        """Store a memory; return it if that was acknowledged.

        Args:
            tries: Maximum number of attempts, under one Idempotency-Key, while the outcome is unknown.
        """
        body = {"user_id": user, "content": content, "type": "note", "vector": unit_vector_of(content)} | more
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        asked = self._send("POST", "/memories", tries=tries, json=body, headers=headers)
        known, follows = None, more.get("supersedes")
        if asked.status in (200, 201):
            known, follows = KnownMemory(user, content, asked.body["id"], "key" in more), asked.body["supersedes"]
            self._journal.name(known.id, content)
        self._write(Kind.STORE, user, asked, content=content, chain=more.get("key", ""), target_id=follows)
        return known

    def delete(self, memory: KnownMemory) -> None:
        asked = self._send("DELETE", f"/memories/{memory.id}", params={"user_id": memory.user})
        self._write(Kind.DELETE, memory.user, asked, target_id=memory.id)

    def forget(self, user: str) -> None:
        self._write(Kind.FORGET, user, self._send("POST", "/forget", json={"user_id": user, "everything": True}))

    def search(self, user: str, *, process: int | None = None) -> bool:
        """Search among all memories of a user; return whether the search succeeded."""
        body = {"user_id": user, "vector": unit_vector_of(user), "top_k": PAGE}
        return self._read(Kind.SEARCH, user, self._send("POST", "/search", process=process, json=body))

    def list_all(self, user: str, *, process: int | None = None) -> bool:
        """List all memories of a user, including superseded ones; return whether that succeeded."""
        parameters = {"user_id": user, "include_superseded": "true", "limit": PAGE}
        return self._read(Kind.LIST, user, self._send("GET", "/memories", process=process, params=parameters))

    def _read(self, kind: Kind, user: str, asked: CompletedRequest) -> bool:
        rows = asked.body["results"] if asked.status == 200 else []
        for row in rows:
            self._journal.name(row["id"], row["content"])
        self._write(kind, user, asked, found=frozenset(row["content"] for row in rows))
        return asked.status == 200

    def _send(
        self, method: str, path: str, *, tries: int = 1, process: int | None = None, **request: Any
    ) -> CompletedRequest:
        begun, doubt = time.monotonic(), None
        for number in range(tries):
            time.sleep(PAUSE_S if number else 0)
            place = self._chance.randrange(len(self._urls)) if process is None else process
            tried = self._once(method, self._urls[place] + path, **request)
            if tried.is_final:
                break
            # The refusal of a later attempt does not undo the effect of an earlier one.
            doubt = doubt or (None if tried.status in REFUSALS else tried)
        told = tried if tried.is_done else doubt or tried
        return CompletedRequest(f"api-{place}", begun, time.monotonic(), told.status, told.body, told.note)

    def _once(self, method: str, url: str, **request: Any) -> "_Tried":
        try:
            answer = self._http.request(method, url, **request)
        except httpx.ConnectError as error:
            return _Tried(UNSENT, None, repr(error))
        except httpx.TransportError as error:
            return _Tried(None, None, repr(error))
        if answer.status_code not in ALLOWED:
            self._journal.record_fault(f"{method} {url} was answered {answer.status_code} {answer.text[:300]}")
        body = answer.json() if answer.content else None
        note = str((body or {}).get("detail", "")) if answer.status_code >= 400 else ""
        return _Tried(answer.status_code, body, note)

    def _write(
        self, kind: Kind, user: str, asked: CompletedRequest, *, target_id: str | None = None, **more: Any
    ) -> None:
        operation = Operation(
            kind=kind,
            user=user,
            begun=asked.begun,
            ended=asked.ended,
            outcome=outcome_of(kind, asked.status),
            process=asked.process,
            status={None: "no answer", UNSENT: "not sent"}.get(asked.status) or str(asked.status),
            **more,
        )
        self._journal.add(Entry(operation, target_id, asked.note))


class Client(threading.Thread):
    """Runs random operations one after another until it is stopped."""

    def __init__(
        self, name: str, asker: ApiCaller, pool: Pool, journal: HistoryJournal, *, seed: str, pace_s: float
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._asker, self._pool, self._journal = asker, pool, journal
        self._chance, self._pace_s = random.Random(seed), pace_s
        self.is_over = threading.Event()

    def run(self) -> None:
        names, shares = list(SHARES), list(SHARES.values())
        while not self.is_over.wait(self._pace_s * self._chance.uniform(0.5, 1.5)):
            name = self._chance.choices(names, shares)[0]
            try:
                getattr(self, name)()
            except Exception as exc:
                self._journal.record_fault(f"{self.name} died in {name}: {exc!r}")
                raise
        self._asker.close()

    def store(self) -> None:
        """Store a memory, sometimes with several attempts."""
        user = self._pool.user()
        self._learn(self._asker.store(user, self._pool.content(user), tries=self._chance.choice((1, 1, 4))))

    def store_keyed(self) -> None:
        """Store a memory that supersedes the last one with its key. Other clients use the same keys."""
        user = self._pool.user()
        more = {"type": "fact", "key": self._chance.choice(KEYS), "tries": self._chance.choice((1, 1, 4))}
        self._learn(self._asker.store(user, self._pool.content(user), **more))

    def supersede(self) -> None:
        """Supersede a memory that others may have superseded already."""
        if (memory := self._pool.memory(is_plain=True)) is None:
            self.store()
            return
        content, tries = self._pool.content(memory.user), self._chance.choice((1, 1, 1, 4))
        self._learn(self._asker.store(memory.user, content, tries=tries, supersedes=memory.id))

    def delete(self) -> None:
        if memory := self._pool.memory():
            self._asker.delete(memory)

    def forget(self) -> None:
        """Forget a user that may get new memories later."""
        self._asker.forget(self._pool.user())

    def search(self) -> None:
        """Search; this counts an access to each memory found."""
        self._asker.search(self._pool.any_user())

    def listed(self) -> None:
        self._asker.list_all(self._pool.any_user())

    def _learn(self, known: KnownMemory | None) -> None:
        if known is not None:
            self._pool.add(known)
