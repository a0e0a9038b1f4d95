"""`python -m bench.adoptions`: move a plain collection behind an alias while one client searches and one stores.

It measures the interruption: for how long no collection existed, and for how long clients were refused.
"""

import argparse
import contextlib
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.clients import Client, Refused
from bench.datasets import DIMENSIONS, Dataset, make_dataset
from bench.measures import TOP_K, load
from bench.progress import log_progress
from bench.stacks import Json, Stack, agent_manifest, running
from bench.tables import GOAL_HEAD, Cells, machine, render

COUNT = 30_000
DONE_S = 1800.0
POLL_S = 0.02
MOVE_TO_ALIAS = "agentmemory.dev/move-to-alias"


@dataclass(slots=True)
class RequestLoop:
    """Results of a client that sends the same request in a loop.

    Attributes:
        refused: Start of each refused request, in seconds of the monotonic clock.
        worst_s: Longest duration of a request, refused ones included.
        stop: Ends the loop when set.
    """

    answered: int = 0
    refused: list[float] = field(default_factory=list)
    worst_s: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, url: str, path: str, body: Json) -> None:
        """Send the request until `stop` is set."""
        with Client(url) as api:
            request = api.prepare("POST", path, body)
            while not self.stop.is_set():
                started_s = time.monotonic()
                try:
                    api.send(request)
                    self.answered += 1
                except (Refused, OSError):
                    api.close()
                    self.refused.append(started_s)
                self.worst_s = max(self.worst_s, time.monotonic() - started_s)

    @property
    def refused_ms(self) -> float:
        """Milliseconds from the first refused request to the last; 0 without any."""
        return (self.refused[-1] - self.refused[0]) * 1000 if self.refused else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.adoptions", description=__doc__)
    parser.add_argument("--memories", type=int, default=COUNT)
    options = parser.parse_args()
    # On SIGTERM, raise SystemExit, so the contexts stop the servers and remove the folder.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    slug = f"bench-{secrets.token_hex(2)}"
    data = make_dataset(slug, size=options.memories, users=1, now_ms=time.time_ns() // 1_000_000)
    with tempfile.TemporaryDirectory(prefix="agentmemory-bench-") as name, running(Path(name), [], None) as stack:
        print(f"{machine()}, {stack.engine}", flush=True)
        adopt(stack, data)
        searches, stores = RequestLoop(), RequestLoop()
        with running_clients(stack, data, searches, stores):
            status, took_s = move(stack, slug)
    log_progress("done\n")
    print(render(GOAL_HEAD, rows(status, took_s, searches, stores)))


def adopt(stack: Stack, data: Dataset) -> None:
    """Create a plain collection, let the operator adopt it, and fill it."""
    log_progress("having an empty plain collection adopted")
    with Client(stack.qdrant_url) as qdrant:
        qdrant.call("PUT", f"/collections/{data.alias}", {"vectors": {"size": DIMENSIONS, "distance": "Cosine"}})
    stack.declare(data.slug)
    stack.wait_ready(data.slug)
    log_progress(f"loading {len(data):,} memories")
    load(stack, data)
    log_progress(f"indexed {stack.wait_indexed(data.alias):,}")


@contextlib.contextmanager
def running_clients(stack: Stack, data: Dataset, searches: RequestLoop, stores: RequestLoop) -> Iterator[None]:
    """Search and store in two threads while the context is open."""
    question = {"vector": data.vectors[0], "user_id": data.user_name(0), "top_k": TOP_K}
    memory = {"vector": data.vectors[0], "user_id": "another", "content": "written meanwhile"}
    path = f"/v1/agents/{data.slug}"
    threads = [
        threading.Thread(target=searches.run, args=(stack.api_url, f"{path}/search", question)),
        threading.Thread(target=stores.run, args=(stack.api_url, f"{path}/memories", memory)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        searches.stop.set()
        stores.stop.set()
        for thread in threads:
            thread.join()


def move(stack: Stack, slug: str) -> tuple[Json, float]:
    """Request the alias, and wait for the move. Return its status and its duration in seconds.

    Raises:
        RuntimeError: If it failed, or did not complete in time.
    """
    log_progress("putting it behind the alias, while it is searched and written to")
    manifest = agent_manifest(slug, spec={"changePolicy": "Apply"})
    manifest["metadata"]["annotations"] = {MOVE_TO_ALIAS: "true"}
    started_s = time.perf_counter()
    stack.apply(manifest)
    last = ""
    while time.perf_counter() - started_s < DONE_S:
        status = stack.rebuild_status(slug)
        if (line := f"{status.get('step', '')} {status.get('state', '')} {status.get('message', '')}") != last:
            log_progress(last := line)
        if status.get("state") == "Done":
            return status, time.perf_counter() - started_s
        if status.get("state") in ("Failed", "Stopped"):
            raise RuntimeError(f"it was not moved: {status}")
        time.sleep(POLL_S)
    raise RuntimeError(f"it was not moved within {DONE_S:.0f} s: {stack.rebuild_status(slug)}")


def rows(status: Json, duration_s: float, searches: RequestLoop, stores: RequestLoop) -> list[Cells]:
    return [
        ("there was no collection", f"{status['pauseMs']} ms", ""),
        ("searches refused / answered", f"{len(searches.refused)} / {searches.answered:,}", ""),
        ("from the first refused to the last", f"{searches.refused_ms:.0f} ms", ""),
        ("the slowest search", f"{searches.worst_s * 1000:.0f} ms", ""),
        ("stores refused / answered", f"{len(stores.refused)} / {stores.answered:,}", ""),
        ("from the first refused to the last", f"{stores.refused_ms:.0f} ms", ""),
        ("the slowest store", f"{stores.worst_s * 1000:.0f} ms", ""),
        ("the whole, from the request to the end", f"{duration_s:.0f} s", ""),
    ]


if __name__ == "__main__":
    main()
