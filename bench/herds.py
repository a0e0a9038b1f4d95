"""What the operator's figures need: a real API server, Qdrant, a relay before it, the operator, and many objects."""

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
from bench.relays import Relay, relaying
from bench.stacks import engine_of, serving_qdrant
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import start_operator
from tests.support.cluster.workspace import MERGE, conditions_of, is_observed
from tests.support.programs import ROOT, Program

Json = dict[str, Any]

NAMESPACE, CONNECTION, DIMENSIONS = "bench", "main", 384
OBJECTS = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/agentmemories"
CONNECTIONS = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/qdrantconnections"
ASKED = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)$", re.M)
WRITING = re.compile(r"verb=\"(?:POST|PUT|PATCH|APPLY|DELETE)\"")
HEALTH = re.compile(r"health (http://\S+)")
PAGE_KIB, TICKS = 1024, os.sysconf("SC_CLK_TCK")
LONGEST_S = 3600.0


@dataclass(slots=True)
class Watch:
    """When each object was last seen to be as it should, for its generation; follows the API server in a thread."""

    plane: ControlPlane
    ready: dict[str, tuple[int, float]] = field(default_factory=dict)
    has_ended: threading.Event = field(default_factory=threading.Event)

    def follow(self) -> None:
        """Read events until the run ends; each watch begins with all objects, so that none is missed."""
        while not self.has_ended.is_set():
            with contextlib.suppress(httpx.HTTPError):
                self._read()
            self.has_ended.wait(0.1)

    def _read(self) -> None:
        with self.plane.http.stream("GET", OBJECTS, params={"watch": "true"}, timeout=None) as answer:
            # The kinds are served a moment after they were established.
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
        """Return when the object was first seen to be as it should in that generation."""
        wait(lambda: self.ready.get(name, (0, 0.0))[0] >= generation, f"{name} is not Ready", every_s=0.005)
        return self.ready[name][1]


@dataclass(slots=True)
class Herd:
    """Running servers, and the objects by name.

    Attributes:
        prefix: of every object's name, so that a server that outlives the run can be cleaned.
        qdrant_url: the server itself; the operator meets the relay or the server, as the connection says.
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
        """End the operator in good order, having noted its memory."""
        self.note_memory()
        self.operator.stop()

    def note_memory(self) -> None:
        """Keep the largest resident size that any of the run's operators had."""
        told = Path(f"/proc/{self.operator.pid}/status").read_text(encoding="utf-8")
        peak = re.search(r"^VmHWM:\s+(\d+) kB", told, re.M)
        self.peak_mib = max(self.peak_mib, int(peak[1]) / PAGE_KIB if peak else 0.0)

    def cpu_s(self) -> dict[str, float]:
        """Return the seconds of CPU that the operator and the API server's processes have used."""
        return {
            name: _cpu_s(pid) for name, pid in {"agentmemory operator": self.operator.pid, **self.plane.pids}.items()
        }

    def create(self, name: str) -> None:
        spec = {"connectionRef": {"name": CONNECTION}, "embedding": {"provider": "none", "dimensions": DIMENSIONS}}
        body = {"apiVersion": API_VERSION, "kind": "AgentMemory", "metadata": {"name": name}, "spec": spec}
        self.plane.http.post(OBJECTS, json=body).raise_for_status()

    def remove_all(self, prefix: str) -> None:
        """Delete the objects whose names begin so, which no operator has looked at."""
        for found in self.plane.http.get(OBJECTS).raise_for_status().json()["items"]:
            if (name := found["metadata"]["name"]).startswith(prefix):
                self.plane.http.delete(f"{OBJECTS}/{name}").raise_for_status()

    def change(self, name: str, spec: Json) -> int:
        """Merge into the object's spec; return the new generation."""
        answer = self.plane.http.patch(f"{OBJECTS}/{name}", json={"spec": spec}, headers=MERGE).raise_for_status()
        return int(answer.json()["metadata"]["generation"])

    def connect(self, url: str) -> None:
        """Point the connection at an address, and return when the operator has met it there."""
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
        """Return how often the API server was asked to change anything but a Lease, by whomever."""
        return sum(
            count for labels, count in self._asked() if WRITING.search(labels) and 'resource="leases"' not in labels
        )

    def api_calls(self) -> int:
        """Return how often the API server was asked for anything but a watch or the renewal of a Lease, by whomever."""
        ignored = re.compile(r'verb="WATCH"|(?=.*resource="leases")(?=.*verb="PUT")|(?<!sub)resource=""')
        return sum(count for labels, count in self._asked() if not ignored.search(labels))

    def _asked(self) -> list[tuple[str, int]]:
        """Return the labels of each kind of request to the API server, and how many came."""
        told = self.plane.http.get("/metrics").raise_for_status().text
        return [(labels, int(float(count))) for labels, count in ASKED.findall(told)]

    def metric(self, name: str, label: str = "") -> float:
        """Return the sum of one of the operator's metrics, of those series that have the label."""
        if not (address := HEALTH.search(self.operator.log)):
            return 0.0
        told = httpx.get(f"{address[1]}/metrics", trust_env=False).text
        series = re.findall(rf"^{name}(\{{[^}}]*\}})? (\S+)$", told, re.M)
        return sum(float(value) for labels, value in series if label in labels)


def _cpu_s(pid: int) -> float:
    told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(told[11]) + int(told[12])) / TICKS


@contextlib.contextmanager
def herding(folder: Path, prefix: str, qdrant_url: str | None) -> Iterator[Herd]:
    """Run everything while the context is open.

    Args:
        qdrant_url: a server to use, by http; None starts the dev Qdrant.
    """
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(serving_qdrant(folder, qdrant_url))
        stack.callback(remove_collections, url, prefix)
        relay = stack.enter_context(relaying(url))
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
    """Return the folder of kube-apiserver, etcd and kubectl; without KUBEBUILDER_ASSETS they are built once."""
    if named := os.environ.get("KUBEBUILDER_ASSETS"):
        return Path(named)
    built = subprocess.run(
        [sys.executable, str(ROOT / "tests/controlplane/build.py")], capture_output=True, text=True, check=True
    )
    return Path(built.stdout.splitlines()[-1])


def remove_collections(qdrant_url: str, prefix: str) -> None:
    """Delete every collection of the run."""
    with Client(qdrant_url) as qdrant:
        for row in qdrant.call("GET", "/collections")["result"]["collections"]:
            if row["name"].startswith(ALIAS_PREFIX + prefix):
                qdrant.call("DELETE", f"/collections/{row['name']}")


def wait(holds: Callable[[], bool], complaint: str, *, every_s: float = 0.05, limit_s: float = LONGEST_S) -> None:
    until = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > until:
            raise RuntimeError(f"{complaint} after {limit_s:.0f} s")
        time.sleep(every_s)
