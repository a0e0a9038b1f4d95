"""`python -m bench.rebuilds`: rebuild one agent's collection, without load and under searches.

The datatype is changed and changed back, so vectors are copied. The baseline is a bare client in the same run: it
scrolls the collection and upserts the points into another one of the same shape. Both are measured until the server
reports green.
"""

import argparse
import contextlib
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.clients import Client, Refused
from bench.datasets import DIMENSIONS, Dataset, make_dataset
from bench.measures import load, search_request
from bench.progress import log_progress
from bench.restores import memory_mib
from bench.stacks import Json, Stack, agent_manifest, running
from bench.tables import GOAL_HEAD, Cells, machine, render

COUNT, USERS = 100_000, 100
PAGE = 500
BEFORE_S, DONE_S, POLL_S = 20.0, 1_800.0, 0.02
BARE = "bare_copy"
SPEC: Json = {"changePolicy": "Apply", "keepPreviousHours": 0}
STEPS = ("Copy", "CatchUp", "Converge", "Verify", "Move")


@dataclass(slots=True)
class Searches:
    """Results of a client that searches in a loop.

    Attributes:
        latencies: For each response, its time (perf_counter seconds) and its latency in milliseconds.
    """

    latencies: list[tuple[float, float]] = field(default_factory=list)
    failed: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, url: str, data: Dataset) -> None:
        """Search until `stop` is set."""
        with Client(url) as api:
            requests = [search_request(api, data, user=user, vector=vector) for user, vector in data.questions(200)]
            while not self.stop.is_set():
                for request in requests:
                    self._search(api, request)

    def _search(self, api: Client, request: bytes) -> None:
        started_s = time.perf_counter()
        try:
            api.send(request)
        except (Refused, OSError):
            api.close()
            self.failed += 1
        ended_s = time.perf_counter()
        self.latencies.append((ended_s, (ended_s - started_s) * 1000))

    def p99(self, since_s: float, until_s: float) -> float:
        """Return the 99th percentile of the latencies between two times, in milliseconds."""
        return float(np.percentile([ms for at_s, ms in self.latencies if since_s <= at_s < until_s] or [np.nan], 99))


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildObservation:
    """Observations of one rebuild.

    Attributes:
        step_starts: Start time of each step in perf_counter seconds. `Done` is the end.
        grown_mib: Peak growth of the memory of the process of operator and API.
    """

    started_s: float
    step_starts: Mapping[str, float]
    grown_mib: float

    def seconds(self, step: str) -> float:
        """Return the duration of a step in seconds."""
        following = [at_s for at_s in self.step_starts.values() if at_s > self.step_starts[step]]
        return min(following) - self.step_starts[step]

    @property
    def moved_s(self) -> float:
        """Seconds from the changed manifest to the moved alias."""
        return self.step_starts["Drain"] - self.started_s


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rebuilds", description=__doc__)
    parser.add_argument("--memories", type=int, default=COUNT)
    options = parser.parse_args()
    # On SIGTERM, raise SystemExit, so the contexts stop the servers and remove the folder.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    slug = f"bench-{secrets.token_hex(2)}"
    data = make_dataset(slug, size=options.memories, users=USERS, now_ms=time.time_ns() // 1_000_000)
    with (
        tempfile.TemporaryDirectory(prefix="agentmemory-bench-") as name,
        running(Path(name), [slug], None, spec=SPEC) as stack,
    ):
        print(f"{machine()}, {stack.engine}", flush=True)
        stack.wait_ready(slug)
        log_progress(f"loading {len(data):,} memories")
        load(stack, data)
        log_progress(f"indexed {stack.wait_indexed(data.alias):,}")
        table = measure(stack, data)
    log_progress("done\n")
    print(render(GOAL_HEAD, table))


def measure(stack: Stack, data: Dataset) -> list[Cells]:
    """Copy the collection with a bare client. Then rebuild it twice: without load, and under searches."""
    log_progress("copying it with a bare client")
    copied_s, green_s = bare_copy(stack, data, "float16")
    log_progress(f"{copied_s:.1f} s, green after {green_s:.1f} s; rebuilding it")
    alone = rebuild(stack, data, "Float16")
    stack.wait_indexed(data.alias)
    log_progress(f"{alone.moved_s:.1f} s; searching before")
    searches = Searches()
    with searching(stack, data, searches):
        before_s = time.perf_counter()
        time.sleep(BEFORE_S)
        log_progress("rebuilding it while it is searched")
        searched = rebuild(stack, data, "Float32")
    return rows(copied_s, green_s, alone, searched, searches, before_s)


@contextlib.contextmanager
def searching(stack: Stack, data: Dataset, searches: Searches) -> Iterator[None]:
    """Search in a thread while the context is open."""
    thread = threading.Thread(target=searches.run, args=(stack.api_url, data))
    thread.start()
    try:
        yield
    finally:
        searches.stop.set()
        thread.join()


def bare_copy(stack: Stack, data: Dataset, datatype: str) -> tuple[float, float]:
    """Copy with a bare client. Return the seconds until everything was written, and until the copy was green."""
    with Client(stack.qdrant_url) as qdrant:
        info = qdrant.call("GET", f"/collections/{data.alias}")["result"]
        config = info["config"]
        vectors = config["params"]["vectors"] | {"datatype": datatype}
        shape = {name: config[name] for name in ("hnsw_config", "quantization_config") if config.get(name)}
        shape["optimizers_config"] = {k: v for k, v in config["optimizer_config"].items() if v is not None}
        sparse = config["params"].get("sparse_vectors")
        started_s = time.perf_counter()
        body = shape | {"vectors": vectors} | ({"sparse_vectors": sparse} if sparse else {})
        qdrant.call("PUT", f"/collections/{BARE}", body)
        _copy(qdrant, data.alias)
        copied_s = time.perf_counter() - started_s
        for name, schema in info["payload_schema"].items():
            index = {"field_name": name, "field_schema": schema.get("params") or schema["data_type"]}
            qdrant.call("PUT", f"/collections/{BARE}/index?wait=true", index)
        stack.wait_indexed(BARE)
        green_s = time.perf_counter() - started_s
        qdrant.call("DELETE", f"/collections/{BARE}")
    return copied_s, green_s


def _copy(qdrant: Client, alias: str) -> None:
    body: Json = {"limit": PAGE, "with_payload": True, "with_vector": True}
    while True:
        page = qdrant.call("POST", f"/collections/{alias}/points/scroll", body)["result"]
        qdrant.call("PUT", f"/collections/{BARE}/points?wait=true", {"points": page["points"]})
        if page["next_page_offset"] is None:
            return
        body["offset"] = page["next_page_offset"]


def rebuild(stack: Stack, data: Dataset, datatype: str) -> RebuildObservation:
    """Change the datatype. Return the observations until the rebuild ended.

    Raises:
        RuntimeError: If it did not end in time.
    """
    before_mib = memory_mib(stack.api_pid, "VmRSS")
    # Reset the peak of resident memory.
    Path(f"/proc/{stack.api_pid}/clear_refs").write_text("5", encoding="ascii")
    index = {"vectors": {"datatype": datatype}}
    document = agent_manifest(data.slug, spec=SPEC | {"index": index})
    started_s = time.perf_counter()
    stack.apply(document)
    step_starts = _watch(stack, data.slug, since_s=started_s)
    return RebuildObservation(
        started_s=started_s, step_starts=step_starts, grown_mib=memory_mib(stack.api_pid, "VmHWM") - before_mib
    )


def _watch(stack: Stack, slug: str, *, since_s: float) -> Mapping[str, float]:
    """Return the observed start time of each step of the rebuild, and of its end as `Done`.

    Raises:
        RuntimeError: If it does not end within `DONE_S`.
    """
    step_starts: dict[str, float] = {}
    last = ""
    while time.perf_counter() - since_s < DONE_S:
        status = stack.rebuild_status(slug)
        step, state = status.get("step", ""), status.get("state", "")
        if state in ("Running", "Waiting", "Done") and step not in step_starts and (step_starts or step != "Done"):
            step_starts[step] = time.perf_counter()
        if "Done" in step_starts:
            return step_starts
        if (line := f"{step} {state} {status.get('message', '')}") != last:
            log_progress(last := line)
        time.sleep(POLL_S)
    raise RuntimeError(f"the rebuild did not end within {DONE_S:.0f} s: {last}")


def rows(
    copied_s: float,
    green_s: float,
    alone: RebuildObservation,
    searched: RebuildObservation,
    searches: Searches,
    before_s: float,
) -> list[Cells]:
    took = ", ".join(f"{step} {alone.seconds(step):.1f}" for step in STEPS if step in alone.step_starts)
    before = searches.p99(before_s, before_s + BEFORE_S)
    copy_end_s = searched.step_starts["Copy"] + searched.seconds("Copy")
    during = searches.p99(searched.step_starts["Copy"], copy_end_s)
    whole = searches.p99(copy_end_s, searched.step_starts["Done"])
    grown = max(alone.grown_mib, searched.grown_mib)
    return [
        (f"bare client: written / green, {DIMENSIONS} dimensions", f"{copied_s:.1f} s / {green_s:.1f} s", ""),
        ("rebuild, from the manifest to the moved alias, over that", _over(alone.moved_s, green_s), "at most 1.5"),
        ("its steps, seconds", took, ""),
        ("Drain and Settle", f"{alone.step_starts['Done'] - alone.step_starts['Drain']:.1f} s", ""),
        ("the same while a client searches without a break", f"{searched.moved_s:.1f} s", ""),
        ("searches, failed / answered", f"{searches.failed} / {len(searches.latencies):,}", "0 failed"),
        ("p99 during the copy, over before", _over(during, before, unit="ms"), "at most 2"),
        ("p99 from then to the end, over before", _over(whole, before, unit="ms"), ""),
        ("memory of operator and API, more than before", f"{grown:.0f} MiB", ""),
    ]


def _over(value: float, base: float, *, unit: str = "s") -> str:
    return f"{value:.1f} {unit} / {base:.1f} {unit} = {value / base:.2f}"


if __name__ == "__main__":
    main()
