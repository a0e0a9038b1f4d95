"""Requests of clients: retried if the contract permits it, recorded, and reported if a response violates it."""

import itertools
import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.cluster.traffic.journal import AWAY, BUSY, Entry, Journal, outcome_of
from tests.support.cluster.traffic.model import Kind, Operation, Outcome

PATIENCE_S = 120.0
PAUSE_S, CONTENDED_PAUSE_S = 0.1, 0.3
# The connection failed, so the request was not sent.
UNSENT = 0
# Nothing was done, but a retry may succeed. A 503 must have Retry-After.
REFUSALS = frozenset({UNSENT, BUSY, AWAY})
# Statuses of contended requests. Another client may have changed or erased the memory.
CONTENDED = frozenset({200, 201, 204, 404, 409, BUSY, AWAY, 504})


@dataclass(frozen=True, slots=True)
class Sent:
    """A completed request, including all attempts.

    Attributes:
        process: API process of the last attempt.
        status: None if there was no response.
        body: None if it was empty.
        was_repeated: True if an earlier attempt may have taken effect.
    """

    process: str
    begun: float
    ended: float
    status: int | None
    body: Any = None
    note: str = ""
    was_repeated: bool = False

    @property
    def is_acknowledged(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_unknown(self) -> bool:
        """True if it is unknown whether the request took effect."""
        return self.status is None or (self.status >= 500 and self.status != AWAY)

    @property
    def is_final(self) -> bool:
        """True if a retry is pointless."""
        return not self.is_unknown and self.status not in REFUSALS


class ApiCaller:
    """Sends requests for one agent to random API processes. Use one instance per thread.

    Args:
        is_contended: True if other clients change the same memories and anything may break at any time. Otherwise a
            request is repeated until it succeeds, and may fail only while a fault is injected.
    """

    def __init__(
        self, urls: Sequence[str], agent: str, journal: Journal, *, seed: object, is_contended: bool = False
    ) -> None:
        self.urls = [f"{url}/v1/agents/{agent}" for url in urls]
        self.is_contended = is_contended
        self._journal = journal
        self._chance = random.Random(str(seed))
        self._http = httpx.Client(timeout=12 if is_contended else 60)
        self.is_over = threading.Event()

    def close(self) -> None:
        self._http.close()

    def write(self, method: str, path: str, *, tries: int = 1, is_repeatable: bool = True, **request: Any) -> Sent:
        """Send a write until it is acknowledged or finally refused.

        A write that is neither within `PATIENCE_S` is recorded as a fault.

        Args:
            tries: Maximum number of attempts of a contended request.
            is_repeatable: True if it may be sent again after an unknown outcome.
        """
        begun, doubt = time.monotonic(), None
        for number in itertools.count(1):
            tried = self._send(method, path, **request)
            is_ended = tried.is_final or (tried.is_unknown and not is_repeatable) or self.is_over.is_set()
            if is_ended or (self.is_contended and number == tries):
                break
            if time.monotonic() > begun + PATIENCE_S:
                self._journal.record_fault(f"{method} {path}: not acknowledged within {PATIENCE_S:.0f} s")
                break
            # The refusal of a later attempt does not undo the effect of an earlier one.
            doubt = doubt or (None if tried.status in REFUSALS else tried)
            time.sleep(CONTENDED_PAUSE_S if self.is_contended else PAUSE_S)
        is_gone = method == "DELETE" and tried.status == 404 and doubt is not None and not self.is_contended
        told = tried if tried.is_acknowledged or (tried.is_final and not self.is_contended) else doubt or tried
        status = 204 if is_gone else told.status
        return Sent(tried.process, begun, time.monotonic(), status, told.body, told.note, doubt is not None)

    def read(
        self,
        kind: Kind,
        user: str,
        method: str,
        path: str,
        *,
        process: int | None = None,
        content: str = "",
        tag: str = "",
        content_if_missing: str = "",
        **request: Any,
    ) -> list[dict[str, Any]] | None:
        """Send a read once, and record its results; return the rows, or None if it failed.

        Args:
            kind: SEARCH if only the newest versions are returned, LIST if earlier ones are too.
            content: Content of the only memory that the read requests.
            tag: Tag of all memories that the read requests.
            content_if_missing: Content of the only memory that a 404 is about.
        """
        asked = self._send(method, path, is_read=True, process=process, **request)
        is_missing = asked.status == 404 and not self.is_contended
        if is_missing and content_if_missing:
            content, tag = content_if_missing, ""
        outcome = Outcome.OK if is_missing else outcome_of(kind, asked.status)
        rows = _rows_of(asked.body) if asked.is_acknowledged else []
        found = frozenset(row["content"] for row in rows)
        if len(found) != len(rows):
            self._journal.record_fault(f"{method} {path} returned a memory twice: {[row['id'] for row in rows]}")
        for row in rows:
            if "id" in row:
                self._journal.name(row["id"], row["content"])
        importance = rows[0].get("importance") if content and rows else None
        self.record(kind, user, asked, outcome, found=found, content=content, tag=tag, importance=importance)
        return rows if outcome is Outcome.OK else None

    def record(
        self,
        kind: Kind,
        user: str,
        asked: Sent,
        outcome: Outcome | None = None,
        *,
        target_id: str | None = None,
        **more: Any,
    ) -> None:
        """Record a request as an operation."""
        operation = Operation(
            kind=kind,
            user=user,
            begun=asked.begun,
            ended=asked.ended,
            outcome=outcome or outcome_of(kind, asked.status),
            process=asked.process,
            status={None: "no answer", UNSENT: "not sent"}.get(asked.status) or str(asked.status),
            **more,
        )
        self._journal.add(Entry(operation, target_id, asked.note))

    def is_served(self, question: dict[str, Any]) -> bool:
        """Return whether every process responds to a search with 200."""
        body = {"user_id": "nobody"} | question
        try:
            return all(self._http.post(f"{url}/search", json=body).status_code == 200 for url in self.urls)
        except httpx.TransportError:
            return False

    def _send(
        self, method: str, path: str, *, is_read: bool = False, process: int | None = None, **request: Any
    ) -> Sent:
        """Send a request once. Report statuses that the contract forbids."""
        begun, what, answer = time.monotonic(), f"{method} {path}", None
        place = self._chance.randrange(len(self.urls)) if process is None else process
        status: int | None = None
        try:
            answer = self._http.request(method, self.urls[place] + path, **request)
            status, note = answer.status_code, what
        except httpx.TransportError as error:
            status, note = UNSENT if isinstance(error, httpx.ConnectError) else None, f"{what} {error!r}"
        self._journal.count_response(answer.status_code if answer is not None else "lost")
        if not all(self._permits(answer, begun, is_read=is_read)):
            told = "no answer" if answer is None else f"{status} {dict(answer.headers)} {answer.text[:300]}"
            self._journal.record_fault(f"{what}: {told}")
        body = answer.json() if answer is not None and answer.content else None
        if status is not None and status >= 400:
            note = f"{what} {(body or {}).get('detail', '')}"
        # A process that has just started has not read its objects yet.
        if status == 404 and not self.is_contended and self._journal.had_fault(begun, "api"):
            status = AWAY
        return Sent(f"api-{place}", begun, time.monotonic(), status, body, note)

    def _permits(self, answer: httpx.Response | None, begun: float, *, is_read: bool) -> Iterable[bool]:
        """Yield for each rule of the contract whether a response keeps it."""
        if self.is_contended:
            yield answer is None or answer.status_code in CONTENDED
        elif answer is None:
            yield self._journal.had_fault(begun, "api")
        elif is_read:
            is_away = answer.status_code == AWAY and self._journal.had_fault(begun, "api", "store", "embedder")
            yield is_away or answer.status_code in (200, 404)
        else:
            yield answer.status_code < 500 or answer.status_code in (AWAY, 504)
            yield answer.status_code != AWAY or "retry-after" in answer.headers


def _rows_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the memories in a response: a list of them, or a single one."""
    rows: list[dict[str, Any]] = body.get("results", [body])
    return rows
