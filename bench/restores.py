"""`python -m bench.restores`: snapshot, verification and restore of one agent, without load and under searches.

The baseline is a plain copy of the snapshot's file in the same run: read, written and synced to disk.
"""

import argparse
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from bench.clients import Client, Refused
from bench.datasets import Dataset, make_dataset
from bench.measures import TOP_K, load
from bench.progress import log_progress
from bench.stacks import API_VERSION, NAMESPACE, Json, Stack, running
from bench.tables import GOAL_HEAD, Cells, machine, render

COUNT, COPIES = 100_000, 3
DONE_S = 900.0
POLL_S = 0.02


@dataclass(slots=True)
class Searches:
    """Results of a client that searches in a loop."""

    answered: int = 0
    failed: int = 0
    worst_ms: float = 0.0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, url: str, slug: str, body: Json) -> None:
        """Search until `stop` is set."""
        with Client(url) as api:
            request = api.prepare("POST", f"/v1/agents/{slug}/search", body)
            while not self.stop.is_set():
                started_s = time.perf_counter()
                try:
                    api.send(request)
                    self.answered += 1
                except (Refused, OSError):
                    api.close()
                    self.failed += 1
                self.worst_ms = max(self.worst_ms, (time.perf_counter() - started_s) * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreObservation:
    """Observations of one run.

    Attributes:
        snapshot_s: Seconds from the applied snapshot until it succeeded.
        restored_s, searched_s: Seconds from the applied restore until it succeeded, without load and under searches.
        copy_s: Fastest of several plain copies of the snapshot's file.
        grown_mib: Peak growth of the memory of the process of operator and API.
    """

    snapshot_s: float
    restored_s: float
    searched_s: float
    copy_s: float
    file_mib: float
    grown_mib: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.restores", description=__doc__)
    parser.add_argument("--memories", type=int, default=COUNT)
    options = parser.parse_args()
    # On SIGTERM, raise SystemExit, so the contexts stop the servers and remove the folder.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    slug = f"bench-{secrets.token_hex(2)}"
    data = make_dataset(slug, size=options.memories, users=1, now_ms=time.time_ns() // 1_000_000)
    with tempfile.TemporaryDirectory(prefix="agentmemory-bench-") as name:
        folder = Path(name)
        with running(folder, [slug], None) as stack:
            print(f"{machine()}, {stack.engine}", flush=True)
            stack.wait_ready(slug)
            log_progress(f"loading {len(data):,} memories")
            load(stack, data)
            log_progress(f"indexed {stack.wait_indexed(data.alias):,}")
            searches = Searches()
            seen = measure(stack, folder, data, searches)
    log_progress("done\n")
    print(render(GOAL_HEAD, rows(seen, searches)))


@contextlib.contextmanager
def searching(stack: Stack, data: Dataset, searches: Searches) -> Iterator[None]:
    """Search in a thread while the context is open."""
    body: Json = {"vector": data.vectors[0], "user_id": data.user_name(0), "top_k": TOP_K}
    thread = threading.Thread(target=searches.run, args=(stack.api_url, data.slug, body))
    thread.start()
    try:
        yield
    finally:
        searches.stop.set()
        thread.join()


def measure(stack: Stack, folder: Path, data: Dataset, searches: Searches) -> RestoreObservation:
    """Create and verify a snapshot. Restore it twice: without load, and under searches."""
    before_mib = memory_mib(stack.api_pid, "VmRSS")
    log_progress("making and proving a snapshot")
    snapshot_s = run_once(stack, "MemorySnapshot", "kept", {"agentMemoryRef": {"name": data.slug}})
    (file,) = (folder / "qdrant").rglob("*.snapshot")
    log_progress("restoring it")
    source = {"snapshotRef": {"name": "kept"}}
    spec = {"target": {"name": data.slug}, "source": source}
    restored_s = run_once(stack, "MemoryRestore", "back", spec)
    log_progress("restoring it again, while it is searched")
    with searching(stack, data, searches):
        searched_s = run_once(stack, "MemoryRestore", "again", spec)
    grown_mib = memory_mib(stack.api_pid, "VmHWM") - before_mib
    copy_s = min(copy(file, folder / "copy") for _ in range(COPIES))
    size_mib = file.stat().st_size / 2**20
    return RestoreObservation(
        snapshot_s=snapshot_s,
        restored_s=restored_s,
        searched_s=searched_s,
        copy_s=copy_s,
        file_mib=size_mib,
        grown_mib=grown_mib,
    )


def run_once(stack: Stack, kind: str, name: str, spec: Json) -> float:
    """Apply an object that runs once. Return the seconds until it succeeded.

    Raises:
        RuntimeError: If it failed, or did not end in time.
    """
    metadata = {"name": name, "namespace": NAMESPACE}
    document = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
    started_s = time.perf_counter()
    (stack.manifests / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    status_file = stack.manifests / ".status" / f"{NAMESPACE}.{name}.{kind.lower()}.json"
    while time.perf_counter() - started_s < DONE_S:
        conditions = conditions_of(status_file)
        if conditions.get("Succeeded") == "False" or conditions.get("Verified") == "False":
            raise RuntimeError(f"{kind} {name} failed: {status_file.read_text(encoding='utf-8')}")
        if conditions.get("Succeeded") == "True":
            return time.perf_counter() - started_s
        time.sleep(POLL_S)
    raise RuntimeError(f"{kind} {name} did not end within {DONE_S:.0f} s")


def conditions_of(status_file: Path) -> dict[str, str]:
    """Return the status of each condition. Empty before the first status."""
    if not status_file.is_file():
        return {}
    status = json.loads(status_file.read_text(encoding="utf-8"))["status"]
    return {condition["type"]: condition["status"] for condition in status.get("conditions", [])}


def copy(file: Path, to: Path) -> float:
    """Copy a file and sync it to disk. Return the seconds."""
    started_s = time.perf_counter()
    shutil.copyfile(file, to)
    with to.open("rb") as copied:
        os.fsync(copied.fileno())
    return time.perf_counter() - started_s


def memory_mib(pid: int, line: str) -> float:
    """Return a line of /proc/PID/status, such as VmRSS, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(rf"^{line}:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) / 1024 if found else float("nan")


def rows(result: RestoreObservation, searches: Searches) -> list[Cells]:
    times = f"{result.restored_s:.1f} s / {result.copy_s:.1f} s = {result.restored_s / result.copy_s:.1f}"
    return [
        (f"snapshot of {result.file_mib:.0f} MiB made and proven", f"{result.snapshot_s:.1f} s", ""),
        ("restored and swapped, over a plain copy of the file", times, "at most 3"),
        ("the same while a client searches without a break", f"{result.searched_s:.1f} s", ""),
        ("searches meanwhile, failed / answered", f"{searches.failed} / {searches.answered:,}", "0 failed"),
        ("the slowest of them", f"{searches.worst_ms:.0f} ms", ""),
        ("memory of operator and API, more than before", f"{result.grown_mib:.0f} MiB", "at most 50 MiB"),
    ]


if __name__ == "__main__":
    main()
