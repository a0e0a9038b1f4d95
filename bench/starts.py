"""`python -m bench.starts`: CPU and time that the chart's containers need until their readiness probes succeed.

Each container runs as a process with the arguments, environment and token from the chart, against a real API server.
CPU seconds depend less than elapsed time on other load of the machine. Both are printed.
"""

import os
import tempfile
import time
from pathlib import Path

import httpx

from bench.tables import machine
from tests.chart.rendering import of_kind, render
from tests.chart.test_running import RIGHTS
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import API_NAMESPACE_FLAGS, NAMESPACE, Container
from tests.support.patience import wait_until
from tests.support.programs import ROOT, find_built, running

PREFIX, TIMES = "starting", 5
MAX_READY_S = 60.0


def main() -> None:
    print(machine())
    with ControlPlane(find_built()) as control_plane:
        control_plane.apply_crds(ROOT / "crds")
        control_plane.http.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}}).raise_for_status()
        for component in ("operator", "api"):
            started = [start(control_plane, component) for _ in range(TIMES)]
            cpu_s, clock_s = (sorted(figures)[TIMES // 2] for figures in zip(*started, strict=True))
            print(f"{component}: ready after {cpu_s:.2f} s of CPU, {clock_s:.2f} s by the clock (medians of {TIMES})")


def start(control_plane: ControlPlane, component: str) -> tuple[float, float]:
    """Start one container and wait until it is ready. Return CPU seconds and elapsed seconds."""
    namespace = control_plane.create_namespace()
    rendered = render({"namespaces": [namespace], "fullnameOverride": PREFIX})
    assert control_plane.apply(*of_kind(rendered, *RIGHTS).values()).returncode == 0
    container = Container(of_kind(rendered, "Deployment")["Deployment", NAMESPACE, f"{PREFIX}-{component}"])
    ports = container.free_ports()
    url = container.probe_urls(ports)["readinessProbe"]
    with tempfile.TemporaryDirectory(prefix="agentmemory-bench-") as folder:
        command = container.start(control_plane, Path(folder), *API_NAMESPACE_FLAGS, ports=ports)
        started_s = time.monotonic()
        with running(command) as program, httpx.Client() as client:
            wait_until(lambda: client.get(url).status_code == 200, seconds=MAX_READY_S, what=url)
            return cpu_s(program.pid), time.monotonic() - started_s


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
