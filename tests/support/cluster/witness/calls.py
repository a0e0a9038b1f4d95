"""Requests of a witness: retried if the contract permits it, and reported if the response violates the contract."""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.cluster.witness.journal import Journal

PATIENCE_S = 120.0
PAUSE_S = 0.1
# Statuses of writes that the contract allows at any time. A 503 must have Retry-After, and nothing was written.
RETRYABLE_STATUSES = (429, 503)
UNKNOWN = 504


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a write.

    Attributes:
        status: None if it is unknown whether the write took effect.
        was_repeated: True if an earlier attempt may have taken effect.
    """

    status: int | None
    body: Any = None
    was_repeated: bool = False

    @property
    def is_acknowledged(self) -> bool:
        return self.status in (200, 201, 204)


class WitnessCaller:
    """Sends requests for one agent to random API processes. Use one instance per thread."""

    def __init__(self, urls: Sequence[str], agent: str, journal: Journal, *, seed: object) -> None:
        self._urls = [f"{url}/v1/agents/{agent}" for url in urls]
        self._journal = journal
        self._chance = random.Random(str(seed))
        self._http = httpx.Client(timeout=60)
        self.is_over = threading.Event()

    def close(self) -> None:
        self._http.close()

    def write(self, method: str, path: str, *, is_repeatable: bool, **request: Any) -> Answer:
        """Send a write until it is acknowledged or finally refused.

        Args:
            is_repeatable: True if it may be sent again after an unknown outcome.
        """
        until, was_repeated = time.monotonic() + PATIENCE_S, False
        while time.monotonic() < until:
            begun = time.monotonic()
            answer = self._send(method, path, **request)
            status = self._judged(f"{method} {path}", answer, begun)
            if answer is not None and status is not None and status not in RETRYABLE_STATUSES:
                return Answer(status, answer.json() if answer.content else None, was_repeated)
            if status is None:
                if not is_repeatable or self.is_over.is_set():
                    return Answer(None)
                was_repeated = True
            elif self.is_over.is_set():
                return Answer(None if was_repeated else status, None, was_repeated)
            time.sleep(PAUSE_S)
        self._journal.record_fault(f"{method} {path}: not acknowledged within {PATIENCE_S:.0f} s")
        return Answer(None)

    def read(self, method: str, path: str, **request: Any) -> httpx.Response | None:
        """Send a read once; return None if the response carries no information and the contract allows that.

        A read may fail only while a fault is injected. Any other failure is reported.
        """
        begun = time.monotonic()
        answer = self._send(method, path, **request)
        broken = self._journal.had_fault(begun, "api")
        if answer is None:
            self._blame_unless(broken, f"{method} {path}: no answer")
            return None
        if answer.status_code in (200, 404):
            return None if broken and answer.status_code == 404 else answer
        away = self._journal.had_fault(begun, "api", "store", "embedder")
        self._blame_unless(away and answer.status_code == 503, f"{method} {path}: {format_response(answer)}")
        return None

    def is_served(self, question: dict[str, Any]) -> bool:
        """Return whether a search succeeds."""
        answer = self._send("POST", "/search", json={"user_id": "nobody"} | question)
        return answer is not None and answer.status_code == 200

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response | None:
        try:
            answer = self._http.request(method, self._chance.choice(self._urls) + path, **request)
        except httpx.TransportError:
            self._journal.count_response("lost")
            return None
        self._journal.count_response(answer.status_code)
        return answer

    def _judged(self, what: str, answer: httpx.Response | None, begun: float) -> int | None:
        """Return the status of a write, or None if its outcome is unknown.

        Report statuses that the contract forbids.
        """
        broken = self._journal.had_fault(begun, "api")
        if answer is None:
            self._blame_unless(broken, f"{what}: no answer")
            return None
        status = answer.status_code
        if status == UNKNOWN:
            return None
        if broken and status == 404:  # The process has not read its objects yet.
            return 503
        self._blame_unless(status < 500 or status == 503, f"{what}: {format_response(answer)}")
        self._blame_unless(status != 503 or "retry-after" in answer.headers, f"{what}: 503 without Retry-After")
        return None if status >= 500 and status != 503 else status

    def _blame_unless(self, is_well: bool, fault: str) -> None:
        if not is_well:
            self._journal.record_fault(fault)


def format_response(answer: httpx.Response) -> str:
    """Format a response in one line."""
    return f"{answer.status_code} {answer.text[:300]}"
