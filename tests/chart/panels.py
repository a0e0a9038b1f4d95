"""Send every query of the dashboard to a Prometheus that scrapes a real operator and API, and print the results.

Run it manually: it needs a Prometheus, which nothing here builds (Debian's package `prometheus` has one).
`KUBEBUILDER_ASSETS="$(python3 tests/controlplane/build.py --all)" .venv/bin/python -m tests.chart.panels`

Exits with status 1 if a query returns no series. Memories are stored and searched, and a snapshot is verified. Qdrant
first stops responding and is then killed: series of failures need failures.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import yaml

from tests.chart.rendering import DASHBOARD, RATE_INTERVAL
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import run_command, start_api, start_operator
from tests.support.cluster.workspace import AGENT, Workspace
from tests.support.programs import ROOT, Program, free_port, running, start_qdrant

NAMESPACE = "agents"
OFFLINE = {"provider": "wordllama", "dimensions": 256}
# Seconds of requests: while Qdrant responds, and while it does not.
BUSY_S, AWAY_S = 20.0, 5.0
WINDOW = "1m"
SHOWN_SERIES = 3


def main() -> int:
    """Run everything; return 1 if a query returns no series, else 0."""
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        sys.exit("there is no prometheus on the path: apt-get install prometheus")
    with (
        tempfile.TemporaryDirectory() as name,
        stack(Path(name)) as (workspace, qdrant, operator, api),
        scraping(prometheus, Path(name), operator, api) as prometheus_client,
    ):
        use(workspace, qdrant, Path(name), api)
        return print_panels(prometheus_client)


@contextlib.contextmanager
def stack(folder: Path) -> Iterator[tuple[Workspace, Program, str, str]]:
    """Run all processes with metrics; yield the agents' namespace, Qdrant, and the addresses of operator and API."""
    health = free_port()
    with (
        ControlPlane(Path(os.environ["KUBEBUILDER_ASSETS"])) as plane,
        running((started := start_qdrant(folder / "qdrant"))[0]) as qdrant,
    ):
        plane.apply_crds(ROOT / "crds")
        plane.http.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}}).raise_for_status()
        with (
            running(start_operator(plane, folder, "--health-port", str(health))),
            running((serving := start_api(plane, folder))[0]),
        ):
            workspace = Workspace(plane, NAMESPACE, started[1])
            yield workspace, qdrant, f"127.0.0.1:{health}", serving[1].removeprefix("http://")


@contextlib.contextmanager
def scraping(prometheus: str, folder: Path, *targets: str) -> Iterator[httpx.Client]:
    """Run a Prometheus that scrapes the targets like the chart's PodMonitor; yield a client of it."""
    jobs = [{"job_name": "agentmemory", "honor_labels": True, "static_configs": [{"targets": [*targets]}]}]
    file, at = folder / "prometheus.yaml", f"127.0.0.1:{free_port()}"
    file.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    options = (f"--config.file={file}", f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address={at}")
    program = Program(folder / "prometheus.log", prometheus, *options)
    with running(program), httpx.Client(base_url=f"http://{at}/api/v1", timeout=30) as client:
        program.wait_for("Server is ready")
        yield client


def use(workspace: Workspace, qdrant: Program, folder: Path, api: str) -> None:
    """Produce values of every metric."""
    workspace.connect(timeoutSeconds=1)
    workspace.create(embedding=OFFLINE, agent=AGENT, snapshots={"schedule": "0 3 * * *"})
    workspace.wait_ready(seconds=30)
    agent = f"http://{api}/v1/agents/{AGENT}"
    store_and_search(agent)
    done = run_command(workspace.control_plane, "snapshot", "create", AGENT, "-n", NAMESPACE, "--wait")
    assert done[0] == 0, done
    qdrant.pause()
    store_and_search(agent, seconds=AWAY_S)
    qdrant.kill()
    store_and_search(agent, seconds=AWAY_S)
    with running(start_qdrant(folder / "qdrant", port=int(workspace.qdrant_url.rpartition(":")[2]))[0]):
        workspace.wait_ready(seconds=60)
        store_and_search(agent)


def store_and_search(agent: str, *, seconds: float = BUSY_S) -> None:
    """Store and search, ignoring the responses."""
    until, number = time.monotonic() + seconds, 0
    with httpx.Client(base_url=agent, timeout=30) as client:
        while time.monotonic() < until:
            number += 1
            client.post("/memories", json={"user_id": "u", "content": f"note {number} of {until}"})
            client.post("/search", json={"user_id": "u", "query": f"which note is {number}?"})
            time.sleep(0.05)


def print_panels(prometheus_client: httpx.Client) -> int:
    """Print each panel with the results of its queries; return the exit status."""
    empty = 0
    for panel in DASHBOARD["panels"]:
        print(f"{panel['title']} ({panel['type']})")
        for target in panel["targets"]:
            query = target["expr"].replace(RATE_INTERVAL, WINDOW)
            answer = prometheus_client.get("/query", params={"query": query}).raise_for_status().json()
            series = answer["data"]["result"]
            empty += not series
            shown = [f"{one['metric']} {float(one['value'][1]):.4g}" for one in series[:SHOWN_SERIES]]
            print(f"  {len(series)} series: {query}", *shown, sep="\n      ")
    print(f"{empty} queries without series")
    return int(empty > 0)


if __name__ == "__main__":
    sys.exit(main())
