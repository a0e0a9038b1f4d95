"""`python -m bench.soak`: minutes of writes and searches while Qdrant is killed and the embedder fails.

It checks that every acknowledged memory is stored, and prints the results. It exits with 1 if a memory is lost, stored
twice, or returned to another user, if the API returns an unexpected status, or if nothing was stored.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.embedder import DIMENSIONS, embedder
from bench.stacks import KillableQdrant, Stack, running
from bench.tables import machine, render

AGENT = "soak"
WRITERS, SEARCHERS = 4, 2
SHARE_SUPERSEDING = 0.1
PATIENCE_S = 120.0
# Statuses that the contract and OpenAPI allow while a server is unavailable. Any other 5xx is a defect.
EXPECTED = {200, 201, 429, 503, 504}
MAX_PAGE = 100


@dataclass
class Observations:
    """Observations of all clients. Shared by their threads.

    Attributes:
        stored: User and content of each acknowledged memory, by id.
        superseded: Ids of memories that a later one supersedes.
        foreign: Number of results that belong to another user.
        found: Number of searches that returned the content which they quote.
        searched: Number of successful searches.
    """

    stored: dict[str, dict[str, str]] = field(default_factory=dict)
    superseded: set[str] = field(default_factory=set)
    statuses: Counter[int] = field(default_factory=Counter)
    foreign: int = 0
    found: int = 0
    searched: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count_status(self, status: int) -> None:
        with self.lock:
            self.statuses[status] += 1


def main() -> int:
    """Run the soak. Return the exit code."""
    args = parse_args()
    seen, stop = Observations(), threading.Event()
    with tempfile.TemporaryDirectory(prefix="agentmemory-soak-") as name, embedder(fail_share=args.fail_share) as model:
        folder = Path(name)
        embedding = {"provider": "openai", "model": "soak", "dimensions": DIMENSIONS, "baseURL": model.url}
        # Without a cache every request reaches the provider, so its failures take effect.
        spec = {"embedding": embedding | {"cacheEntries": 0}, "scoring": {"scoreThreshold": -1}}
        with KillableQdrant(folder) as qdrant, running(folder, [AGENT], qdrant.url, spec=spec) as stack:
            print(f"{machine()}, {stack.engine}", flush=True)
            stack.wait_ready(AGENT)
            threads = [*clients_of(stack, seen, stop)]
            for thread in threads:
                thread.start()
            restart(qdrant, minutes=args.minutes, times=args.restarts)
            stop.set()
            for thread in threads:
                thread.join()
            lost, doubled = compare(stack, seen)
    print(
        render(("what", "seen"), rows_of(seen, lost, doubled, searches=model.request_count, failed=model.failure_count))
    )
    unexpected = set(seen.statuses) - EXPECTED
    return int(bool(lost or doubled or seen.foreign or unexpected or not seen.stored))


def clients_of(stack: Stack, observations: Observations, stop: threading.Event) -> list[threading.Thread]:
    """Return the threads: writers, one for each user, and searchers of the same users."""
    roles: list[Callable[..., None]] = [write] * WRITERS + [search] * SEARCHERS
    return [
        threading.Thread(target=role, args=(stack.api_url, f"user-{number % WRITERS}", observations, stop))
        for number, role in enumerate(roles)
    ]


def restart(qdrant: KillableQdrant, *, minutes: float, times: int) -> None:
    """Kill the server with SIGKILL at regular intervals, and start it again."""
    for number in range(times):
        time.sleep(minutes * 60 / (times + 1))
        qdrant.kill()
        time.sleep(2)
        qdrant.start()
        print(f"Qdrant restarted, {number + 1} of {times}", flush=True)
    time.sleep(minutes * 60 / (times + 1))


def write(url: str, user: str, observations: Observations, stop: threading.Event) -> None:
    """Store one memory after the other, each until it is acknowledged. Occasionally supersede the previous one."""
    chance, last, number = random.Random(user), "", 0
    with httpx.Client(base_url=url, timeout=30) as http:
        while not stop.is_set():
            number += 1
            supersedes = last if last and chance.random() < SHARE_SUPERSEDING else ""
            body = {"user_id": user, "content": f"{user} says {number}", "session_id": f"session-{number // 20}"}
            answer = store(http, body | ({"supersedes": supersedes} if supersedes else {}), observations)
            with observations.lock:
                observations.stored[answer["id"]] = {"user": user, "content": body["content"]}
                observations.superseded |= {supersedes} if supersedes else set()
            last = answer["id"]


def store(http: httpx.Client, body: dict[str, str], observations: Observations) -> dict[str, str]:
    """Store a memory. Repeat it with the same idempotency key after every failure, which the contract declares safe.

    Raises:
        RuntimeError: If it could not be stored within 120 s.
    """
    headers, until = {"Idempotency-Key": str(uuid.uuid4())}, time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            response = http.post(f"/v1/agents/{AGENT}/memories", json=body, headers=headers)
        except httpx.TransportError:
            time.sleep(0.2)
            continue
        observations.count_status(response.status_code)
        if response.status_code == 201:
            return dict(response.json())
        time.sleep(min(1.0, float(response.headers.get("Retry-After", 0.2))))
    raise RuntimeError(f"{body['content']!r} could not be stored within {PATIENCE_S:.0f} s")


def search(url: str, user: str, observations: Observations, stop: threading.Event) -> None:
    """Search for stored contents of the user. Count results that belong to other users."""
    chance = random.Random(user)
    with httpx.Client(base_url=url, timeout=30) as http:
        while not stop.is_set():
            with observations.lock:
                own = [memory["content"] for memory in observations.stored.values() if memory["user"] == user]
            query = chance.choice(own) if own else "anything"
            try:
                response = http.post(f"/v1/agents/{AGENT}/search", json={"user_id": user, "query": query})
            except httpx.TransportError:
                continue
            observations.count_status(response.status_code)
            if response.status_code != 200:
                time.sleep(0.2)
                continue
            results = response.json()["results"]
            with observations.lock:
                observations.searched += 1
                observations.found += any(result["content"] == query for result in results)
                observations.foreign += sum(result["user_id"] != user for result in results)


def compare(stack: Stack, observations: Observations) -> tuple[int, int]:
    """Return the number of lost memories, and of stored ones that were never acknowledged or are duplicates."""
    lost = doubled = 0
    with httpx.Client(base_url=stack.api_url, timeout=30) as http:
        for user in {memory["user"] for memory in observations.stored.values()}:
            listed = read_all(http, user)
            expected = {
                name: memory["content"] for name, memory in observations.stored.items() if memory["user"] == user
            }
            lost += sum(listed.get(name) != content for name, content in expected.items())
            doubled += len(set(listed) - set(expected))
    return lost, doubled


def read_all(http: httpx.Client, user: str) -> dict[str, str]:
    """Return id -> content of all memories of a user, superseded ones included."""
    found: dict[str, str] = {}
    parameters = {"user_id": user, "include_superseded": "true", "limit": str(MAX_PAGE)}
    while True:
        response = http.get(f"/v1/agents/{AGENT}/memories", params=parameters)
        response.raise_for_status()
        page = response.json()
        found |= {memory["id"]: memory["content"] for memory in page["results"]}
        if not page.get("next_cursor"):
            return found
        parameters["cursor"] = page["next_cursor"]


def rows_of(
    observations: Observations, lost: int, doubled: int, *, searches: int, failed: int
) -> list[tuple[str, str]]:
    answers = ", ".join(f"{status}: {count:,}" for status, count in sorted(observations.statuses.items()))
    return [
        (
            "writes acknowledged",
            f"{len(observations.stored):,}, of which {len(observations.superseded):,} supersede another",
        ),
        ("acknowledged and lost", f"{lost:,}"),
        ("there twice, or never acknowledged", f"{doubled:,}"),
        ("results of another user", f"{observations.foreign:,}"),
        ("searches answered; found what they quote", f"{observations.searched:,}; {observations.found:,}"),
        ("embedding calls; failed on purpose", f"{searches:,}; {failed:,}"),
        ("answers by status", answers),
    ]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--restarts", type=int, default=5, help="kills of Qdrant (default: %(default)s)")
    parser.add_argument(
        "--fail-share", type=float, default=0.2, help="of the embedder's answers (default: %(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
