"""`python -m bench.explorer`: time of each page of the explorer, and what people who look cost searches.

One agent with words and names has all memories with one user, spread over a year: 2,000 are stored by the API, and
copies of their points fill the rest. Another has many users with one memory each. The time of a page is that from the
request to the last byte of the response, over one kept-alive connection; *CPU* is that of the API's process. A *move*
is what the browser requests when the slider of the timeline moves.

Searches are sent one after the other, in stretches with and without people, in alternating order. Each person opens a
page every 2 s.
"""

import argparse
import itertools
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from urllib.parse import urlencode
from uuid import UUID

from bench.clients import Client
from bench.progress import log_progress
from bench.stacks import Json, Stack, agent_manifest, running
from bench.tables import Cells, machine, render

BIG, CROWD, USER = "big", "crowd", "ada"
PAGE_HEAD = ("page", "p50, ms", "p95", "CPU, ms", "KiB")
SEARCH_HEAD = ("people", "searches", "p50, ms", "p95", "p50 / without")
LIST_ONLY = b"HX-Request: true\r\nHX-Target: list\r\n"
SPEC: Json = {
    "embedding": {"provider": "wordllama", "dimensions": 64},
    "index": {"keyword": {"enabled": True}},
    "entities": {},
    "scoring": {"allowOverrides": True},
}
CROWD_SPEC: Json = {"embedding": SPEC["embedding"]}
FIRST_DAY = datetime(2025, 11, 1, tzinfo=UTC)
DAYS = 365
BATCH, POINT_BATCH = 1_000, 500
STORED = 2_000
PEOPLE, PAUSE_S = 10, 2.0
STRETCH_S, STRETCHES = 8.0, 8
WORDS = [
    *("tea", "coffee", "invoice", "train", "letter", "refund", "number", "meeting", "green", "winter", "summer"),
    *("project", "budget", "garden"),
]
NAMES = [
    *("Anna Schmidt", "Carl Novak", "Grace Hopper", "Alan Turing", "Blue Heron"),
    *("London", "Lisbon", "Berlin", "Oslo"),
]


def memory_body(number: int, count: int) -> Json:
    """Return the body that stores one of the memories, which repeats for the same number."""
    chosen = random.Random(number)
    text = f"Note {number}: {chosen.choice(NAMES)} and {chosen.choice(NAMES)}, {' '.join(chosen.choices(WORDS, k=8))}"
    created = FIRST_DAY + timedelta(days=DAYS) * (number / count)
    tags = [chosen.choice(WORDS)]
    session = f"s{number // 20}"
    return {"user_id": USER, "content": text, "created_at": created.isoformat(), "session_id": session, "tags": tags}


def fill(api: Client, slug: str, bodies: Iterator[Json]) -> None:
    """Store memories."""
    while batch := list(itertools.islice(bodies, BATCH)):
        stored = api.call("POST", f"/v1/agents/{slug}/memories/batch", {"memories": batch})["results"]
        if not all("id" in result for result in stored):
            raise RuntimeError(f"a memory was not stored: {stored}")


def multiply(qdrant: Client, copies: int) -> None:
    """Write copies of all memories between them in time, with ids and sessions of their own."""
    path = f"/collections/agent_memory_{BIG}/points"
    body = {"limit": STORED * 2, "with_payload": True, "with_vector": True}
    points = qdrant.call("POST", f"{path}/scroll", body)["result"]["points"]
    gap_ms = int(timedelta(days=DAYS).total_seconds() * 1000 / len(points) / copies)
    chosen = random.Random(0)
    written = (copy_of(point, copy, gap_ms, chosen) for copy in range(1, copies) for point in points)
    while batch := list(itertools.islice(written, POINT_BATCH)):
        qdrant.call("PUT", f"{path}?wait=true", {"points": batch})


def copy_of(point: Json, copy: int, gap_ms: int, chosen: random.Random) -> Json:
    """Return a copy of a point that is later by some gaps."""
    payload = dict(point["payload"])
    id_ = payload["id"] = str(UUID(int=chosen.getrandbits(128), version=4))
    for name in ("createdAt", "validFrom"):
        if name in payload:
            payload[name] += copy * gap_ms
    payload["sessionId"] += f"-{copy}"
    return {"id": id_, "vector": point["vector"], "payload": payload}


def addresses_of(name: str, memory_id: str, numbers: Sequence[int]) -> list[str]:
    """Return an address of a page for each number; the number chooses day, question or user."""
    day = [(FIRST_DAY + timedelta(days=number * DAYS // len(numbers))).date().isoformat() for number in numbers]
    asked = [f"who had {WORDS[number % len(WORDS)]} in {NAMES[number % len(NAMES)]}" for number in numbers]
    sliders = {"w_similarity": 20, "w_recency": 60, "w_utility": 20}
    pages: dict[str, list[tuple[str, str, Json]]] = {
        "Overview": [(BIG, "", {}) for _ in numbers],
        "Ask": [(BIG, "ask", {"user_id": USER, "query": text}) for text in asked],
        "Ask, two settings": [(BIG, "ask", {"user_id": USER, "query": text, **sliders}) for text in asked],
        "Timeline": [(BIG, "timeline", {"user_id": USER}) for _ in numbers],
        "Timeline, a move": [(BIG, "timeline", {"user_id": USER, "at": at}) for at in day],
        "Timeline, superseded": [(BIG, "timeline", {"user_id": USER, "state": "superseded"}) for _ in numbers],
        "Memory": [(BIG, f"memories/{memory_id}", {"user_id": USER}) for _ in numbers],
        "User": [(BIG, "user", {"user_id": USER}) for _ in numbers],
        "Graph": [(BIG, "graph", {"user_id": USER}) for _ in numbers],
        "Changes": [(BIG, "changes", {}) for _ in numbers],
        "Receipts": [(BIG, "receipts", {"user_id": USER}) for _ in numbers],
        "Users": [(CROWD, "users", {}) for _ in numbers],
        "Users, found": [(CROWD, "users", {"prefix": f"user-{number:04}"}) for number in numbers],
    }
    return [
        f"/ui/agents/{slug}" + (f"/{page}" if page else "") + (f"?{urlencode(query)}" if query else "")
        for slug, page, query in pages[name]
    ]


PAGES = (
    *("Overview", "Ask", "Ask, two settings", "Timeline", "Timeline, a move", "Timeline, superseded", "Memory", "User"),
    *("Graph", "Changes", "Receipts", "Users", "Users, found"),
)


def open_page(api: Client, name: str, address: str) -> tuple[float, int]:
    """Open a page; return its milliseconds and bytes."""
    request = api.prepare("GET", address)
    if name.endswith("a move"):
        request = request.replace(b"Content-Type", LIST_ONLY + b"Content-Type", 1)
    started_s = time.perf_counter()
    size = api.size_of(request)
    return (time.perf_counter() - started_s) * 1000, size


def cpu_ms(pid: int) -> float:
    """Return the CPU time of a process in milliseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def measure_pages(api: Client, pid: int, memory_id: str, repeats: int) -> list[Cells]:
    rows = []
    for name in PAGES:
        addresses = addresses_of(name, memory_id, range(repeats))
        open_page(api, name, addresses[0])
        before_ms = cpu_ms(pid)
        opened = [open_page(api, name, address) for address in addresses]
        used_ms = (cpu_ms(pid) - before_ms) / repeats
        times = sorted(milliseconds for milliseconds, _ in opened)
        p50, p95 = median(times), times[min(len(times) - 1, int(len(times) * 0.95))]
        log_progress(f"{name}: {p50:.0f} ms, {used_ms:.0f} ms of CPU")
        kib = max(size for _, size in opened) / 1024
        rows.append((name, *(f"{figure:.0f}" for figure in (p50, p95, used_ms, kib))))
    return rows


@contextmanager
def people_looking(url: str, memory_id: str, number: int) -> Iterator[None]:
    """Let people open pages while the context is open."""
    has_ended = threading.Event()

    def look(person: int) -> None:
        chosen = random.Random(person)
        has_ended.wait(PAUSE_S * person / number)
        with Client(url) as api:
            while not has_ended.is_set():
                name = chosen.choice(PAGES)
                open_page(api, name, chosen.choice(addresses_of(name, memory_id, range(20))))
                has_ended.wait(PAUSE_S)

    threads = [threading.Thread(target=look, args=(person,)) for person in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        has_ended.set()
        for thread in threads:
            thread.join()


def search_for(api: Client, seconds: float) -> list[float]:
    """Search one after the other; return the milliseconds of each."""
    requests = [
        api.prepare("POST", f"/v1/agents/{BIG}/search", {"user_id": USER, "query": f"{word} for {name}"})
        for word, name in itertools.product(WORDS, NAMES)
    ]
    until_s, times = time.monotonic() + seconds, list[float]()
    for request in itertools.cycle(requests):
        if time.monotonic() > until_s:
            return times
        times.append(api.timed(request)[1])
    return times


def measure_searches(api: Client, url: str, memory_id: str) -> list[Cells]:
    """Search with and without people, in stretches of both orders."""
    times: dict[int, list[float]] = {0: [], PEOPLE: []}
    for number in range(STRETCHES):
        for people in (0, PEOPLE) if number % 2 else (PEOPLE, 0):
            with people_looking(url, memory_id, people):
                times[people] += search_for(api, STRETCH_S)
        log_progress(f"searches: {', '.join(f'{median(found):.1f} ms' for found in times.values())}")
    base = median(times[0])
    rows: list[Cells] = []
    for people, found in times.items():
        p95 = sorted(found)[int(len(found) * 0.95)]
        rows.append(
            (str(people), f"{len(found):,}", f"{median(found):.1f}", f"{p95:.1f}", f"{median(found) / base:.2f}")
        )
    return rows


def declare_and_fill(stack: Stack, api: Client, memories: int, users: int) -> str:
    """Store all memories; return the id of one."""
    stack.apply(agent_manifest(CROWD, spec=CROWD_SPEC))
    for slug in (BIG, CROWD):
        stack.wait_ready(slug)
    fill(api, CROWD, ({"user_id": f"user-{number:05}", "content": f"Note {number}"} for number in range(users)))
    log_progress(f"{users:,} users")
    stored = min(memories, STORED)
    fill(api, BIG, (memory_body(number, stored) for number in range(stored)))
    with Client(stack.qdrant_url) as qdrant:
        multiply(qdrant, memories // stored)
    log_progress(f"{memories:,} memories")
    [memory] = api.call("GET", f"/v1/agents/{BIG}/memories?user_id={USER}&limit=1")["results"]
    return str(memory["id"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.explorer", description="What the explorer's pages cost.")
    parser.add_argument("--qdrant", help="URL of a real server in the dev server's place")
    parser.add_argument("--memories", type=int, default=100_000)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=40, help="how often each page is opened")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), [BIG], arguments.qdrant, spec=SPEC) as stack,
        Client(stack.api_url) as api,
    ):
        memory_id = declare_and_fill(stack, api, arguments.memories, arguments.users)
        pages = measure_pages(api, stack.api_pid, memory_id, arguments.repeats)
        searches = measure_searches(api, stack.api_url, memory_id)
    print(f"{machine()}, {stack.engine}, {arguments.memories:,} memories, {arguments.users:,} users\n")
    print(f"{render(PAGE_HEAD, pages)}\n\n{render(SEARCH_HEAD, searches)}")


if __name__ == "__main__":
    main()
