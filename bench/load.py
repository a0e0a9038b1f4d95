"""`python -m bench.load`: throughput, latency, CPU and memory growth of the API under concurrent searches.

`--requests 200000` is the long run. The rate per core is requests divided by CPU seconds of the API's process:
generator and engine run on the same machine, so wall-clock throughput measures all three together.
"""

import argparse
import queue
import secrets
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import measures, rivals
from bench.clients import Client, Refused
from bench.datasets import Dataset, make_dataset
from bench.measures import latency_of
from bench.stacks import Stack, running
from bench.tables import machine, render

USERS = 100
SAMPLES = 10
WARM_UP = 2_000
TICKS_A_SECOND = 100


@dataclass
class Progress:
    """Results of all connections. Shared by their threads."""

    latencies_ms: list[float] = field(default_factory=list)
    failed: int = 0


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """State of the API's process at one moment."""

    answered: int
    cpu_s: float
    resident_mib: float


def main() -> None:
    args = parse_args()
    now_ms = time.time_ns() // 1_000_000
    data = make_dataset(f"bench-load-{secrets.token_hex(2)}", size=args.size, users=USERS, now_ms=now_ms)
    with (
        tempfile.TemporaryDirectory(prefix="agentmemory-load-") as folder,
        running(Path(folder), [data.slug], args.qdrant, spec={"preset": args.preset}, profile=args.profile) as stack,
    ):
        print(f"{machine()}, {stack.engine}, {args.preset}, {len(data):,} memories of {USERS} users", flush=True)
        stack.wait_ready(data.slug)
        texts = rivals.sentences(len(data)) if args.preset == rivals.STANDARD else None
        if texts:
            measures.store_per_second(stack, data, lambda row: rivals.spoken_body(data, row, texts))
        else:
            measures.load(stack, data)
        stack.wait_indexed(data.alias)
        # Exclude imports, first connections and caches from the growth.
        measure_searches(stack, data, texts, count=WARM_UP, connections=args.connections)
        started_s = time.monotonic()
        progress, looks = measure_searches(stack, data, texts, count=args.requests, connections=args.connections)
        took_s = time.monotonic() - started_s
    print(render(("what", "measured", "goal"), rows_of(progress, looks, duration_s=took_s)))
    if args.profile:
        print("\n" + args.profile.read_text(encoding="utf-8"))


def measure_searches(
    stack: Stack, data: Dataset, texts: Sequence[str] | None, *, count: int, connections: int
) -> tuple[Progress, list[ProcessSample]]:
    """Send `count` searches over concurrent connections, one at a time on each. Sample the process in the meantime."""
    progress, work = Progress(), requests_of(data, texts, count)
    threads = [threading.Thread(target=send, args=(stack.api_url, work, progress)) for _ in range(connections)]
    samples = [sample_process(stack.api_pid, 0)]
    for thread in threads:
        thread.start()
    for step in range(1, SAMPLES + 1):
        while len(progress.latencies_ms) + progress.failed < count * step // SAMPLES:
            time.sleep(0.2)
        samples.append(sample_process(stack.api_pid, len(progress.latencies_ms)))
    for thread in threads:
        thread.join()
    return progress, samples


def requests_of(data: Dataset, texts: Sequence[str] | None, count: int) -> "queue.SimpleQueue[bytes]":
    """Return the prepared requests. Questions repeat, and users take turns.

    Args:
        texts: Contents of the memories, to search by their words too. None searches by meaning only.
    """
    work: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    number = min(count, 1_000)
    questions = (
        rivals.spoken(data, texts, number)
        if texts
        else (rivals.Question(user, vector, "") for user, vector in data.questions(number))
    )
    with Client("http://127.0.0.1") as api:
        distinct = [
            api.prepare("POST", f"/v1/agents/{data.slug}/search", rivals.api_body(data, question))
            for question in questions
        ]
    for number in range(count):
        work.put(distinct[number % len(distinct)])
    return work


def send(url: str, work: "queue.SimpleQueue[bytes]", progress: Progress) -> None:
    """Send requests until the queue is empty."""
    with Client(url) as api:
        while True:
            try:
                request = work.get_nowait()
            except queue.Empty:
                return
            try:
                progress.latencies_ms.append(api.timed(request)[1])
            except (OSError, Refused):
                progress.failed += 1


def sample_process(pid: int, answered: int) -> ProcessSample:
    """Read the CPU time and resident memory of a process."""
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    resident_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return ProcessSample(answered, (int(after_name[11]) + int(after_name[12])) / TICKS_A_SECOND, resident_kib / 1024)


def rows_of(progress: Progress, samples: list[ProcessSample], *, duration_s: float) -> list[tuple[str, str, str]]:
    count, latency = len(progress.latencies_ms), latency_of(progress.latencies_ms)
    per_core = count / (samples[-1].cpu_s - samples[0].cpu_s)
    resident = ", ".join(f"{look.resident_mib:.0f}" for look in samples)
    return [
        ("searches; failed", f"{count:,}; {progress.failed}", "0 failed"),
        ("a second, with generator and engine on the same cores", f"{count / duration_s:,.0f}", ""),
        ("a second and core of the API's process", f"{per_core:,.0f}", "at least 1,000"),
        ("p50 / p99", f"{latency.p50:.1f} / {latency.p99:.1f} ms", "p99 below 50 ms"),
        ("resident MiB, at every tenth", resident, "flat"),
    ]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--preset", choices=(rivals.CORTEX, rivals.STANDARD), default=rivals.CORTEX)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--size", type=int, default=20_000, help="memories (default: %(default)s)")
    parser.add_argument("--qdrant", metavar="URL", help="a real server (default: the dev server)")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="sample the API's CPU time into FILE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
