"""`python -m bench.transfers`: duration and API memory of import, export and forget of one user's memories.

The API is a process in front of a development server, or of the server at QDRANT_URL.
"""

import argparse
import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agentmemory_client import Client
from bench.datasets import DIMENSIONS
from bench.stacks import running
from bench.tables import machine, render

AGENT, USER = "transfers", "ada"
Line = tuple[str, ...]


def lines_of(memories: int) -> Iterator[bytes]:
    """Yield lines of an export. Of every 10 memories, 2 are versions of one."""
    drawn = np.random.default_rng(1)
    for number in range(memories):
        document: dict[str, Any] = {
            "id": _id(number),
            "content": f"memory {number}",
            "type": "fact",
            "vector": [round(float(value), 4) for value in drawn.normal(size=DIMENSIONS)],
        }
        if number % 10 == 0:
            document |= {"superseded_by": _id(number + 1), "superseded_at": "2026-01-01T00:00:00Z"}
        if number % 10 == 1:
            document |= {"supersedes": _id(number - 1)}
        yield json.dumps(document).encode() + b"\n"


def _id(number: int) -> str:
    return str(uuid.UUID(int=number + 1, version=4))


def measure(url: str, pid: int, memories: int) -> list[Line]:
    """Run each operation once. Return its name, number of memories, seconds, rate, and memory growth of the API."""
    lines: list[Line] = []

    def add(name: str, operation: Callable[[], int]) -> None:
        before_mib, started_s = _peak_mib(pid), time.monotonic()
        count = operation()
        took_s = time.monotonic() - started_s
        lines.append((name, str(count), f"{took_s:.1f}", f"{count / took_s:.0f}", f"{_peak_mib(pid) - before_mib:.0f}"))

    with Client(url, timeout_s=600) as api:
        # Warm up: load all that is loaded at the first call.
        api.agent(AGENT).user("warm").import_memories(lines_of(20))
        list(api.agent(AGENT).user("warm").export())
        api.agent(AGENT).forget_everything("warm")
        add(
            "import",
            lambda: api.agent(AGENT).user(USER).import_memories(lines_of(memories), include_erased=True).imported,
        )
        add("the same again", lambda: api.agent(AGENT).user(USER).import_memories(lines_of(memories)).present)
        add("export", lambda: sum(1 for _ in api.agent(AGENT).user(USER).export()))
        add("export with vectors", lambda: sum(1 for _ in api.agent(AGENT).user(USER).export(vectors=True)))
        add("forget, dry run", lambda: int(api.agent(AGENT).would_forget_everything(USER).counts["total"]))
        add("forget", lambda: int(api.agent(AGENT).forget_everything(USER).counts["total"]))
    return lines


def _peak_mib(pid: int) -> float:
    """Return the peak resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memories", type=int, default=100_000)
    options = parser.parse_args()
    spec = {"lifecycle": {"maxMemoriesPerUser": options.memories + 1_000}}
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), [AGENT], os.environ.get("QDRANT_URL"), spec=spec) as stack,
    ):
        stack.wait_ready(AGENT)
        lines = measure(stack.api_url, stack.api_pid, options.memories)
    print(machine())
    print(f"\n{options.memories} memories of {DIMENSIONS} numbers, {stack.engine}\n")
    print(render(("", "memories", "s", "a second", "MiB more in the API"), lines))


if __name__ == "__main__":
    main()
