"""Operator and API of one version after the other, replaced as Kubernetes does it: the new one is ready first."""

import contextlib
import os
import pathlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from agentmemory_operator import __version__
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import LEADING, WATCHING, start_operator
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, ROOT, Program, free_port
from tests.support.web.cluster_service import ClusterService, cluster_service

REPLICAS = 2
# `preStop` of the chart has 5 s, until every node has heard; this Service hears at once.
PRE_STOP_S = 0.5


@dataclass(frozen=True, slots=True)
class ProductVersion:
    """A version of the product, run from a checkout with the packages of the present.

    Attributes:
        name: shown where it does not start.
    """

    name: str
    sources: pathlib.Path

    @property
    def crds(self) -> pathlib.Path:
        """Its definitions."""
        return self.sources / "crds"

    @property
    def environment(self) -> dict[str, str]:
        """What has `python -m agentmemory_operator` run it."""
        return {"PYTHONPATH": os.pathsep.join(str(self.sources / part) for part in ("operator", "client", "devserver"))}


PRESENT = ProductVersion(__version__, ROOT)


@dataclass(slots=True)
class Rollout:
    """The processes of an installation.

    Attributes:
        service: where callers find the API.
    """

    control_plane: ControlPlane
    folder: pathlib.Path
    service: ClusterService
    _apis: dict[int, Program] = field(default_factory=dict)
    _operator: Program | None = None
    _count: int = 0
    _settings: dict[str, str] = field(default_factory=dict)

    def install(self, version: ProductVersion, **settings: str) -> None:
        """Apply the definitions, and start a leader and the API's replicas, all with the settings."""
        self._settings = settings
        self.control_plane.apply_crds(version.crds)
        self._operator = self._start_operator(version, ready=LEADING)
        for _ in range(REPLICAS):
            self._add_api(version)

    def go_over(self, version: ProductVersion) -> None:
        """Bring another version: the definitions first, then the pods, one for one."""
        self.control_plane.apply_crds(version.crds)
        for port, program in list(self._apis.items()):
            self._add_api(version)
            self.service.remove(port)
            time.sleep(PRE_STOP_S)
            program.stop()
            assert program.returncode == 0, program.log[-1500:]
            del self._apis[port]
        before = self._operator
        assert before is not None
        self._operator = self._start_operator(version, ready=WATCHING)
        before.stop()
        assert before.returncode == 0, before.log[-1500:]
        self._operator.wait_for(LEADING)

    def kill(self) -> None:
        """End every process."""
        for program in (*self._apis.values(), *filter(None, [self._operator])):
            program.kill()

    @property
    def logs(self) -> str:
        """The ends of all logs."""
        programs = (*self._apis.values(), *filter(None, [self._operator]))
        return "\n".join(program.log[-1500:] for program in programs)

    def _start_operator(self, version: ProductVersion, *, ready: str) -> Program:
        self._count += 1
        name = f"operator-{self._count}"
        settings = self._settings | version.environment
        return start_operator(self.control_plane, self.folder, name=name, ready=ready, **settings)

    def _add_api(self, version: ProductVersion) -> None:
        """Start one, and let it be called once it is ready."""
        port = free_port()
        command = (*AGENTMEMORY, "api", "--source", "kubernetes", "--port", str(port))
        settings = {"KUBECONFIG": str(self.control_plane.kubeconfig), "AGENTMEMORY_AUTH": "none"}
        settings |= self._settings | version.environment
        program = Program(self.folder / f"api-{port}.log", *command, **settings)
        program.wait_for(r"API http")
        ready = f"http://127.0.0.1:{port}/readyz"
        wait_until(lambda: httpx.get(ready).status_code == 200, seconds=20, what=f"the API of {version.name}")
        self._apis[port] = program
        self.service.add(port)


@contextlib.contextmanager
def rollout(control_plane: ControlPlane, folder: pathlib.Path) -> Iterator[Rollout]:
    """An installation without any process yet; they end with the context."""
    with cluster_service() as service:
        made = Rollout(control_plane, folder, service)
        try:
            yield made
        finally:
            made.kill()
