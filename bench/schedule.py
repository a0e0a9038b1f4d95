"""`python -m bench.schedule`: a thousand agents on one schedule. Concurrency and completeness of their snapshots."""

import argparse
import contextlib
import json
import secrets
import signal
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from agentmemory_operator.settings import MAX_CONCURRENT_SNAPSHOTS
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from agentmemory_operator.spec.naming import ALIAS_PREFIX, SCRATCH_PREFIX
from bench.clients import Client
from bench.herds import NAMESPACE, Herd, running_herd, wait
from bench.progress import log_progress
from bench.tables import GOAL_HEAD, Cells, machine, render
from tests.support.cluster.workspace import conditions_of

Json = dict[str, Any]

AGENTS, AHEAD_S = 1_000, 60
SNAPSHOTS = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/memorysnapshots"


@dataclass(slots=True)
class Snapshots:
    """Snapshots as observed by a watch on the API server, in a thread.

    Attributes:
        active: Names of snapshots with a step in progress.
        max_active: Largest size of `active` so far.
        completed: Result of each completed snapshot, and its duration in seconds.
    """

    herd: Herd
    active: set[str] = field(default_factory=set)
    max_active: int = 0
    completed: dict[str, tuple[str, float]] = field(default_factory=dict)
    is_over: threading.Event = field(default_factory=threading.Event)

    def follow(self) -> None:
        """Read events until the run ends."""
        while not self.is_over.is_set():
            with contextlib.suppress(httpx.HTTPError):
                self._read()
            self.is_over.wait(0.1)

    def _read(self) -> None:
        with self.herd.plane.http.stream("GET", SNAPSHOTS, params={"watch": "true"}, timeout=None) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                self._take(json.loads(line)["object"])

    def _take(self, document: Json) -> None:
        name, status = document["metadata"]["name"], document.get("status") or {}
        succeeded = conditions_of(document).get("Succeeded", "")
        if succeeded.startswith(("True", "False")):
            took = datetime.fromisoformat(status["endTime"]) - datetime.fromisoformat(status["startTime"])
            self.completed[name] = succeeded, took.total_seconds()
        (self.active.add if status.get("step") else self.active.discard)(name)
        self.max_active = max(self.max_active, len(self.active))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """Results of one scheduled time.

    Attributes:
        duration_s: Seconds from the scheduled time until the last snapshot ended.
        files: Number of snapshots in Qdrant for each agent.
        remaining_scratch: Number of remaining scratch collections.
        names: Names of the MemorySnapshot objects.
    """

    duration_s: float
    files: list[int]
    remaining_scratch: int
    names: list[str]


def main() -> None:
    args = parse_args()
    # On SIGTERM, raise SystemExit, so the contexts stop the servers and remove the folder.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    prefix = f"bench-{secrets.token_hex(2)}"
    with (
        tempfile.TemporaryDirectory(prefix="agentmemory-bench-") as folder,
        running_herd(Path(folder), prefix, args.qdrant) as herd,
    ):
        print(f"{machine()}, {herd.engine}", flush=True)
        names = [f"{prefix}-{number:04d}" for number in range(args.agents)]
        herd.connect(herd.qdrant_url)
        for name in names:
            herd.create(name)
        for name in names:
            herd.watch.wait(name, 1)
        log_progress(f"{len(names):,} agents serve")
        snapshots = Snapshots(herd)
        threading.Thread(target=snapshots.follow, daemon=True).start()
        results = measure(herd, names, snapshots, verify=args.verify)
        snapshots.is_over.set()
        herd.stop_operator()
    log_progress("done\n")
    print(render(GOAL_HEAD, rows(args, results, snapshots, peak_mib=herd.peak_mib)))


def measure(herd: Herd, names: list[str], snapshots: Snapshots, *, verify: str) -> RoundResult:
    """Set one schedule for all agents, kill the operator after half of the snapshots, and collect the results."""
    slot = (datetime.now(UTC) + timedelta(seconds=AHEAD_S + 60)).replace(second=0, microsecond=0)
    for name in names:
        herd.change(name, {"snapshots": {"schedule": f"{slot.minute} {slot.hour} * * *", "verify": verify}})
    log_progress(f"all of them have a schedule, due at {slot:%H:%M} UTC")
    wait(lambda: len(snapshots.completed) >= len(names) // 2, "half of the snapshots have not ended")
    log_progress("half of them are made: the operator is killed, and another one started")
    herd.record_memory()
    herd.operator.kill()
    herd.start_operator()
    wait(lambda: len(snapshots.completed) >= len(names), "not every snapshot has ended")
    took_s = time.time() - slot.timestamp()
    log_progress(f"all have ended {took_s:.0f} s after the schedule's time")
    items = herd.plane.http.get(SNAPSHOTS).raise_for_status().json()["items"]
    with Client(herd.qdrant_url) as qdrant:
        files = [len(qdrant.call("GET", f"/collections/{ALIAS_PREFIX}{name}/snapshots")["result"]) for name in names]
        collections = [row["name"] for row in qdrant.call("GET", "/collections")["result"]["collections"]]
    left = sum(name.startswith(SCRATCH_PREFIX) for name in collections)
    return RoundResult(
        duration_s=took_s, files=files, remaining_scratch=left, names=[item["metadata"]["name"] for item in items]
    )


def rows(args: argparse.Namespace, results: RoundResult, snapshots: Snapshots, *, peak_mib: float) -> list[Cells]:
    many = f"{args.agents:,}"
    good = sum(how.startswith("True") for how, _ in snapshots.completed.values())
    doubled = len(results.names) - args.agents + sum(max(number - 1, 0) for number in results.files)
    seconds = [took_s for _, took_s in snapshots.completed.values()]
    return [
        (f"snapshots of {many} agents of one schedule that succeeded", f"{good:,}", many),
        ("made twice, though the operator was killed midway", str(doubled), "0"),
        ("under way at once, at most", str(snapshots.max_active), f"at most {MAX_CONCURRENT_SNAPSHOTS}"),
        ("scratch collections left", str(results.remaining_scratch), "0"),
        (f"from the schedule's time to the last one, verify {args.verify}", f"{results.duration_s:.0f} s", ""),
        ("one of them, median / worst", f"{statistics.median(seconds):.0f} / {max(seconds):.0f} s", ""),
        ("the operator's memory, largest", f"{peak_mib:.0f} MiB", "at most 200 MiB"),
    ]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.schedule", description=__doc__)
    parser.add_argument("--agents", type=int, default=AGENTS, help="(default: %(default)s)")
    parser.add_argument("--verify", choices=("Full", "Checksum", "None"), default="Full", help="(default: %(default)s)")
    parser.add_argument("--qdrant", metavar="URL", help="a real server, by http (default: the dev server)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
