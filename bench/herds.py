"""Servers for the benchmarks of the operator: a real API server, Qdrant behind a relay, the operator, many objects."""

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from agentmemory_operator.spec.naming import ALIAS_PREFIX
from bench.clients import Client
from bench.relays import Relay, running_relay
from bench.stacks import engine_of, serving_qdrant
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import start_operator
from tests.support.cluster.workspace import MERGE, conditions_of, is_observed
from tests.support.programs import ROOT, Program

Json = dict[str, Any]

NAMESPACE, CONNECTION, DIMENSIONS = "bench", "main", 384
OBJECTS = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/agentmemories"
CONNECTIONS = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/qdrantconnections"
REQUEST_COUNTS = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)$", re.M)
WRITING = re.compile(r"verb=\"(?:POST|PUT|PATCH|APPLY|DELETE)\"")
HEALTH = re.compile(r"health (http://\S+)")
PAGE_KIB, TICKS = 1024, os.sysconf("SC_CLK_TCK")
MAX_WAIT_S = 3600.0


@dataclass(slots=True)
class Watch:
    """Records when each object was first ready and in sync in its generation. Follows the API server in a thread.

    Attributes:
        ready: Generation of each object, and the time at which it was first ready, in perf_counter seconds.
        has_ended: Ends the thread when set.
    """

    plane: ControlPlane
    ready: dict[str, tuple[int, float]] = field(default_factory=dict)
    has_ended: threading.Event = field(default_factory=threading.Event)

    def follow(self) -> None:
        """Read events until the run ends. Each watch starts with all objects, so that no change is missed."""
        while not self.has_ended.is_set():
            with contextlib.suppress(httpx.HTTPError):
                self._read()
            self.has_ended.wait(0.1)

    def _read(self) -> None:
        with self.plane.http.stream("GET", OBJECTS, params={"watch": "true"}, timeout=None) as answer:
            # The API server serves the kinds only a moment after they are established.
            answer.raise_for_status()
            for line in answer.iter_lines():
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED"):
                    self._take(event["object"])

    def _take(self, document: Json) -> None:
        has = conditions_of(document)
        if is_observed(document) and has.get("Ready") == "True/Serving" and has.get("InSync") == "True/Converged":
            metadata = document["metadata"]
            generation, _ = self.ready.get(metadata["name"], (0, 0.0))
            if generation != metadata["generation"]:
                self.ready[metadata["name"]] = metadata["generation"], time.perf_counter()

    def wait(self, name: str, generation: int) -> float:
        """Wait until the object is ready and in sync in a generation or a later one. Return the time in `ready`.

        Raises:
            RuntimeError: If it is not within an hour.
        """
        wait(lambda: self.ready.get(name, (0, 0.0))[0] >= generation, f"{name} is not Ready", every_s=0.005)
        return self.ready[name][1]


@dataclass(slots=True)
class Herd:
    """Running servers and their objects.

    Attributes:
        prefix: Prefix of every object's name, to clean up a server that outlives the run.
        qdrant_url: URL of the Qdrant server itself. The operator uses it or the relay, as the connection specifies.
    """

    plane: ControlPlane
    folder: Path
    relay: Relay
    watch: Watch
    qdrant_url: str
    prefix: str
    engine: str
    operator: Program = field(init=False)
    peak_mib: float = 0.0
    starts: Iterator[int] = field(default_factory=itertools.count)

    def start_operator(self) -> None:
        name = f"operator-{next(self.starts)}"
        self.operator = start_operator(self.plane, self.folder, "--health-port", "0", name=name)

    def stop_operator(self) -> None:
        """Record the operator's memory and stop it gracefully."""
        self.record_memory()
        self.operator.stop()

    def record_memory(self) -> None:
        """Record the largest peak of resident memory of the run's operators."""
        status = Path(f"/proc/{self.operator.pid}/status").read_text(encoding="utf-8")
        peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.M)
        self.peak_mib = max(self.peak_mib, int(peak[1]) / PAGE_KIB if peak else 0.0)

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds of the operator and of the API server's processes."""
        return {
            name: _cpu_s(pid) for name, pid in {"agentmemory operator": self.operator.pid, **self.plane.pids}.items()
        }

    def create(self, name: str) -> None:
        spec = {"connectionRef": {"name": CONNECTION}, "embedding": {"provider": "none", "dimensions": DIMENSIONS}}
        body = {"apiVersion": API_VERSION, "kind": "AgentMemory", "metadata": {"name": name}, "spec": spec}
        self.plane.http.post(OBJECTS, json=body).raise_for_status()

    def remove_all(self, prefix: str) -> None:
        """Delete the objects with this prefix, which no operator has processed."""
        for found in self.plane.http.get(OBJECTS).raise_for_status().json()["items"]:
            if (name := found["metadata"]["name"]).startswith(prefix):
                self.plane.http.delete(f"{OBJECTS}/{name}").raise_for_status()

    def change(self, name: str, spec: Json) -> int:
        """Merge fields into the object's spec. Return the new generation."""
        answer = self.plane.http.patch(f"{OBJECTS}/{name}", json={"spec": spec}, headers=MERGE).raise_for_status()
        return int(answer.json()["metadata"]["generation"])

    def connect(self, url: str) -> None:
        """Set the URL of the connection, and wait until the operator has connected to it."""
        body = {"apiVersion": API_VERSION, "kind": "QdrantConnection", "metadata": {"name": CONNECTION}}
        body |= {"spec": {"url": url}}
        if self.plane.http.post(CONNECTIONS, json=body).status_code == httpx.codes.CONFLICT:
            patch = {"spec": body["spec"]}
            self.plane.http.patch(f"{CONNECTIONS}/{CONNECTION}", json=patch, headers=MERGE).raise_for_status()
        wait(self._is_connected, "the connection is not Ready")

    def _is_connected(self) -> bool:
        found = self.plane.http.get(f"{CONNECTIONS}/{CONNECTION}").json()
        return is_observed(found) and conditions_of(found).get("Ready", "").startswith("True")

    def api_writes(self) -> int:
        """Return the number of write requests to the API server, by any client, except on Leases."""
        return sum(
            count
            for labels, count in self._request_counts()
            if WRITING.search(labels) and 'resource="leases"' not in labels
        )

    def api_calls(self) -> int:
        """Return the number of requests to the API server, by any client, except watches and renewals of Leases."""
        ignored = re.compile(r'verb="WATCH"|(?=.*resource="leases")(?=.*verb="PUT")|(?<!sub)resource=""')
        return sum(count for labels, count in self._request_counts() if not ignored.search(labels))

    def _request_counts(self) -> list[tuple[str, int]]:
        """Return the labels of each kind of request to the API server, and its count."""
        text = self.plane.http.get("/metrics").raise_for_status().text
        return [(labels, int(float(count))) for labels, count in REQUEST_COUNTS.findall(text)]

    def metric(self, name: str, label: str = "") -> float:
        """Return the sum of an operator metric over the series with the label."""
        if not (address := HEALTH.search(self.operator.log)):
            return 0.0
        text = httpx.get(f"{address[1]}/metrics", trust_env=False).text
        series = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", text, re.M)
        return sum(float(value) for labels, value in series if label in labels)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextlib.contextmanager
def running_herd(folder: Path, prefix: str, qdrant_url: str | None) -> Iterator[Herd]:
    """Run all servers while the context is open.

    Args:
        qdrant_url: Server to use, by http. None starts the dev Qdrant.
    """
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(serving_qdrant(folder, qdrant_url))
        stack.callback(remove_collections, url, prefix)
        relay = stack.enter_context(running_relay(url))
        plane = stack.enter_context(ControlPlane(assets()))
        plane.apply_crds(ROOT / "crds")
        plane.http.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}}).raise_for_status()
        watch = Watch(plane)
        threading.Thread(target=watch.follow, daemon=True).start()
        stack.callback(watch.has_ended.set)
        herd = Herd(plane, folder, relay, watch, url, prefix, engine_of(url, is_dev=qdrant_url is None))
        herd.start_operator()
        stack.callback(lambda: herd.operator.kill())
        yield herd


def assets() -> Path:
    """Return the folder of kube-apiserver, etcd and kubectl. Without KUBEBUILDER_ASSETS they are built once."""
    if named := os.environ.get("KUBEBUILDER_ASSETS"):
        return Path(named)
    built = subprocess.run(
        [sys.executable, str(ROOT / "tests/controlplane/build.py")], capture_output=True, text=True, check=True
    )
    return Path(built.stdout.splitlines()[-1])


def remove_collections(qdrant_url: str, prefix: str) -> None:
    """Delete every collection with this prefix."""
    with Client(qdrant_url) as qdrant:
        for row in qdrant.call("GET", "/collections")["result"]["collections"]:
            if row["name"].startswith(ALIAS_PREFIX + prefix):
                qdrant.call("DELETE", f"/collections/{row['name']}")


def wait(is_met: Callable[[], bool], complaint: str, *, every_s: float = 0.05, limit_s: float = MAX_WAIT_S) -> None:
    until = time.monotonic() + limit_s
    while not is_met():
        if time.monotonic() > until:
            raise RuntimeError(f"{complaint} after {limit_s:.0f} s")
        time.sleep(every_s)
