"""How much work the chart's containers do until their probes say that they are ready."""

import os
import pathlib

import httpx
import pytest

from tests.chart.rendering import of_kind, render
from tests.chart.test_running import RIGHTS
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import API_HERE, NAMESPACE, Container
from tests.support.patience import wait_until
from tests.support.programs import running

PREFIX = "starting"


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("component", "most_s"), [("operator", 3.0), ("api", 2.0)])
def test_a_container_is_ready_soon(
    control_plane: ControlPlane, namespaces: None, tmp_path: pathlib.Path, component: str, most_s: float
) -> None:
    """Of CPU time, which a busy machine makes longer by less than the time by the clock."""
    namespace = control_plane.create_namespace()
    rendered = render({"namespaces": [namespace], "fullnameOverride": PREFIX})
    assert control_plane.apply(*of_kind(rendered, *RIGHTS).values()).returncode == 0
    container = Container(of_kind(rendered, "Deployment")["Deployment", NAMESPACE, f"{PREFIX}-{component}"])
    ports = container.free_ports()
    url = container.probe_urls(ports)["readinessProbe"]
    with running(container.start(control_plane, tmp_path, *API_HERE, ports=ports)) as program, httpx.Client() as client:

        def is_ready() -> bool:
            try:
                return client.get(url).status_code == 200
            except httpx.TransportError:
                return False

        wait_until(is_ready, seconds=60, what=url)
        spent_s = cpu_s(program.pid)
    assert spent_s <= most_s
