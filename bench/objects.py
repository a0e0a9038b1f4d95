"""`python -m bench.objects`: the operator with many objects: created, left idle, after a restart, and one changed."""

import argparse
import re
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import orjson

from agentmemory_operator.runtime.work_queue import LANE_WIDTH
from agentmemory_operator.spec.naming import ALIAS_PREFIX
from bench.clients import Client
from bench.herds import Herd, remove_collections, running_herd, wait
from bench.progress import log_progress
from bench.relays import Call
from bench.tables import GOAL_HEAD, Cells, machine, render
from tests.support.programs import ROOT

COUNT, IDLE_MINUTES, CHANGES = 1_000, 10.0, 20
QUIET_S = 5.0
# Requests that the operator sends to a server regardless of objects.
PROBE = re.compile(r"/$|/cluster$|/telemetry|/collections/agentmemory/exists$")
CHANGED = {"index": {"hnsw": {"m": 24}}}


@dataclass(frozen=True, slots=True)
class Writes:
    """Numbers of write requests to the API server and to Qdrant during a measurement."""

    kubernetes: int
    qdrant: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """Creation of all objects until Ready.

    Attributes:
        duration_s: Seconds from the first object created until the operator has made all of them Ready.
        calls: Requests to Qdrant for one object, without the operator's probes.
        writing_calls: Number of those that change something.
        api_calls: Requests to the API server for one object, including its own creation.
        plain_s: Seconds of a plain client that sends only the writing calls, including Kubernetes objects.
        writing_s: The same without the Kubernetes objects.
        official_s: Seconds of a script with Qdrant's asynchronous client, without the Kubernetes objects.
        cpu_ms: CPU milliseconds of each process for one object.
    """

    objects: int
    calls: int
    writing_calls: int
    api_calls: float
    duration_s: float
    plain_s: float
    writing_s: float
    official_s: float
    cpu_ms: Mapping[str, float]

    def share_of(self, *programs: str) -> float:
        """Return the CPU seconds of some processes divided by the elapsed seconds."""
        return sum(self.cpu_ms[program] for program in programs) / 1000 * self.objects / self.duration_s


@dataclass(frozen=True, slots=True)
class Restart:
    """Reconciliation of all objects by a new process.

    Attributes:
        duration_s: Seconds from the start of the process until it has reconciled every object.
        reads_an_object: Read requests to Qdrant for one object.
    """

    duration_s: float
    writes: Writes
    reads_an_object: float


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
        names = [f"{prefix}-{number:04d}" for number in range(args.objects)]
        creation = measure_creation(herd, names, is_paced=args.paced)
        idle = measure_idle(herd, names, args.idle_minutes * 60)
        restart = measure_restart(herd, names)
        effects = measure_changes(herd, names[:CHANGES])
        herd.stop_operator()
    log_progress("done\n")
    print(render(GOAL_HEAD, rows(args, creation, idle, restart, effects=effects, peak_mib=herd.peak_mib)))


def measure_creation(herd: Herd, names: list[str], *, is_paced: bool) -> Creation:
    """Create every object, after a plain client has created and removed as many with the same calls."""
    herd.connect(herd.relay.url)
    url = herd.relay.url if is_paced else herd.qdrant_url
    calls = record(herd, f"{herd.prefix}-seen")
    writing = [call for call in calls if call.is_write]
    log_progress(f"one object takes {len(calls)} calls, {len(writing)} of them to change something")
    # A running operator would create the same collections as the plain client.
    herd.stop_operator()
    herd.relay.is_paced = is_paced
    writing_s = replay(herd, writing, len(names), url, apply=lambda name: None)
    plain_s = replay(herd, writing, len(names), url, apply=herd.create)
    official_s = replay_official(herd, writing, len(names), url)
    log_progress(
        f"a plain client needed {plain_s:.1f} s for {len(names):,}, {writing_s:.1f} s without the Kubernetes objects"
    )
    log_progress(f"a script with Qdrant's client needed {official_s:.1f} s, without the Kubernetes objects")
    herd.start_operator()
    herd.connect(url)
    herd.create(warm := f"{herd.prefix}-warm")
    herd.watch.wait(warm, 1)
    cpu_s, calls_before, started_s = herd.cpu_s(), herd.api_calls(), time.perf_counter()
    for name in names:
        herd.create(name)
    took_s = max(herd.watch.wait(name, 1) for name in names) - started_s
    cpu_after_s, calls_after = herd.cpu_s(), herd.api_calls()
    herd.relay.is_paced = False
    herd.connect(herd.qdrant_url)
    log_progress(f"the operator needed {took_s:.1f} s")
    return Creation(
        objects=len(names),
        calls=len(calls),
        writing_calls=len(writing),
        api_calls=(calls_after - calls_before) / len(names),
        duration_s=took_s,
        plain_s=plain_s,
        writing_s=writing_s,
        official_s=official_s,
        cpu_ms={program: (cpu_after_s[program] - cpu_s[program]) * 1000 / len(names) for program in cpu_s},
    )


def record(herd: Herd, name: str) -> list[Call]:
    """Return the requests to Qdrant with which the operator creates one object, in order, without probes."""
    herd.relay.keeps_calls = True
    herd.create(name)
    herd.watch.wait(name, 1)
    herd.relay.keeps_calls = False
    return [call for call in herd.relay.calls if not PROBE.match(call.target)]


def replay(herd: Herd, calls: list[Call], count: int, url: str, *, apply: Callable[[str], None]) -> float:
    """Send the calls of one object for `count` others. Return the seconds, and remove the created collections.

    Args:
        apply: Creates the Kubernetes object of a name, before its calls.
    """
    slug, plain = f"{herd.prefix}-seen", f"{herd.prefix}-plain"
    names = [f"{plain}-{number:04d}" for number in range(count)]

    def create_all(share: list[str]) -> None:
        with Client(url) as client:
            for name in share:
                apply(name)
                _send(client, calls, slug, name)

    with ThreadPoolExecutor(LANE_WIDTH) as pool:
        started_s = time.perf_counter()
        list(pool.map(create_all, _shares(names)))
        took_s = time.perf_counter() - started_s
    remove_collections(herd.qdrant_url, plain)
    herd.remove_all(plain)
    return took_s


def replay_official(herd: Herd, calls: list[Call], count: int, url: str) -> float:
    """Like `replay`, but with Qdrant's own client and without Kubernetes objects."""
    script = f"{herd.prefix}-script"
    command = [sys.executable, "-m", "bench.official", url, f"{herd.prefix}-seen", script, str(count)]
    lines = [orjson.dumps([call.method, call.target, orjson.loads(call.body or b"null")]) for call in calls]
    done = subprocess.run(command, input=b"\n".join(lines), capture_output=True, check=True, cwd=ROOT)
    remove_collections(herd.qdrant_url, script)
    return float(done.stdout)


def _shares(names: list[str]) -> list[list[str]]:
    return [names[start::LANE_WIDTH] for start in range(LANE_WIDTH)]


def _send(client: Client, calls: list[Call], slug: str, name: str) -> None:
    for call in calls:
        body = call.body.replace(slug.encode(), name.encode())
        client.call(call.method, call.target.replace(slug, name), orjson.loads(body) if body else None)


def measure_idle(herd: Herd, names: list[str], seconds: float) -> Writes:
    """Leave all objects unchanged. Return the number of writes in that time."""
    herd.connect(herd.relay.url)
    wait(lambda: _have_passed(herd, names), "not every object was looked at through the relay")
    settle(herd)
    log_progress(f"leaving {len(names):,} objects alone for {seconds / 60:g} minutes")
    return writes_while(herd, lambda: time.sleep(seconds))


def measure_restart(herd: Herd, names: list[str]) -> Restart:
    """Restart the operator. Return the time until it has reconciled every object, its writes and its reads."""
    log_progress("restarting the operator")
    herd.stop_operator()
    took_s = 0.0
    reads = herd.relay.reads

    def restart() -> None:
        nonlocal took_s
        started_s = time.perf_counter()
        herd.start_operator()
        wait(lambda: _has_passed_all(herd, len(names)), "not every object was looked at")
        took_s = time.perf_counter() - started_s
        time.sleep(QUIET_S)

    writes = writes_while(herd, restart)
    return Restart(took_s, writes, (herd.relay.reads - reads) / len(names))


def measure_changes(herd: Herd, names: list[str]) -> list[float]:
    """Change some objects, one after the other. Return the milliseconds until each was Ready again."""
    log_progress(f"changing {len(names)} objects")
    effects = []
    for name in names:
        started_s = time.perf_counter()
        generation = herd.change(name, CHANGED)
        effects.append((herd.watch.wait(name, generation) - started_s) * 1000)
    return effects


def writes_while(herd: Herd, run: Callable[[], None]) -> Writes:
    """Return the number of writes while `run` runs."""
    kubernetes, qdrant = herd.api_writes(), herd.relay.writes
    run()
    return Writes(herd.api_writes() - kubernetes, herd.relay.writes - qdrant)


def settle(herd: Herd) -> None:
    """Wait until there is no write to Kubernetes or Qdrant for `QUIET_S` seconds."""

    def is_quiet() -> bool:
        return writes_while(herd, lambda: time.sleep(QUIET_S)) == Writes(0, 0)

    wait(is_quiet, "changes have not ended")


def _have_passed(herd: Herd, names: list[str]) -> bool:
    return all(herd.relay.targets[f"/collections/{ALIAS_PREFIX}{name}"] for name in names)


def _has_passed_all(herd: Herd, count: int) -> bool:
    passes = herd.metric("agentmemory_reconciles_total", 'kind="AgentMemory"')
    return passes > count and not herd.metric("agentmemory_queue_length")


def rows(
    args: argparse.Namespace,
    creation: Creation,
    idle: Writes,
    restart: Restart,
    *,
    effects: list[float],
    peak_mib: float,
) -> list[Cells]:
    many = f"{args.objects:,} objects"
    ratio, bare = creation.duration_s / creation.plain_s, creation.duration_s / creation.writing_s
    times = f"{creation.duration_s:.1f} s / {creation.plain_s:.1f} s = {ratio:.2f}"
    median, worst = statistics.median(effects), max(effects)
    operator, *servers = sorted(creation.cpu_ms)
    engine, official = creation.writing_s / creation.duration_s, creation.duration_s / creation.official_s
    shares = f"{engine:.2f} / {creation.share_of(*servers):.2f} / {creation.share_of(operator):.2f}"
    return [
        (
            f"{many} from nothing to Ready / a script with Qdrant's own client, without the Kubernetes objects",
            f"{creation.duration_s:.1f} s / {creation.official_s:.1f} s = {official:.2f}",
            "at most 1.3",
        ),
        ("the same / a plain client, Kubernetes objects and all", times, ""),
        ("the same / the plain client without the Kubernetes objects", f"{bare:.2f}", ""),
        (
            "calls an object, of Qdrant (those that change something) / of the API server",
            f"{creation.calls} ({creation.writing_calls}) / {creation.api_calls:.2f}",
            "",
        ),
        (f"of the time: Qdrant's calls alone / CPU of {', '.join(servers)} / of the operator", shares, ""),
        ("CPU for each of them: " + ", ".join(creation.cpu_ms), _milliseconds(creation.cpu_ms.values()), ""),
        ("the operator's memory, largest", f"{peak_mib:.0f} MiB", "at most 220 MiB"),
        (
            f"writes in {args.idle_minutes:g} idle minutes, Kubernetes / Qdrant",
            f"{idle.kubernetes} / {idle.qdrant}",
            "0 / 0",
        ),
        (f"{many} after a restart", f"{restart.duration_s:.1f} s", "at most 20 s"),
        ("writes meanwhile, Kubernetes / Qdrant", f"{restart.writes.kubernetes} / {restart.writes.qdrant}", "0 / 0"),
        ("reads of Qdrant meanwhile, an object", f"{restart.reads_an_object:.2f}", ""),
        (
            f"one changed of {many}, median / worst of {len(effects)}",
            f"{median:.0f} / {worst:.0f} ms",
            "at most 1,000 ms",
        ),
    ]


def _milliseconds(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values) + " ms"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.objects", description=__doc__)
    parser.add_argument("--objects", type=int, default=COUNT, help="(default: %(default)s)")
    parser.add_argument("--idle-minutes", type=float, default=IDLE_MINUTES, help="(default: %(default)s)")
    parser.add_argument("--qdrant", metavar="URL", help="a real server, by http (default: the dev server)")
    parser.add_argument("--paced", action="store_true", help="hold calls of creation as long as a real server does")
    return parser.parse_args()


if __name__ == "__main__":
    main()
