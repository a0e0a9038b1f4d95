"""Operator and API in successive versions, replaced like in Kubernetes: start the new process, stop the old one."""

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
# The chart's `preStop` waits 5 s until all nodes have updated their endpoints. This Service updates at once.
PRE_STOP_S = 0.5


@dataclass(frozen=True, slots=True)
class ProductVersion:
    """A version of the product, run from a checkout with the currently installed packages.

    Attributes:
        name: Name for messages.
    """

    name: str
    sources: pathlib.Path

    @property
    def crds(self) -> pathlib.Path:
        """Folder of its CRDs."""
        return self.sources / "crds"

    @property
    def environment(self) -> dict[str, str]:
        """Environment that makes `python -m agentmemory_operator` run this version."""
        return {"PYTHONPATH": os.pathsep.join(str(self.sources / part) for part in ("operator", "client", "devserver"))}


CURRENT = ProductVersion(__version__, ROOT)


@dataclass(slots=True)
class Rollout:
    """Processes of an installation.

    Attributes:
        service: Service through which callers reach the API.
    """

    control_plane: ControlPlane
    folder: pathlib.Path
    service: ClusterService
    _apis: dict[int, Program] = field(default_factory=dict)
    _operator: Program | None = None
    _count: int = 0
    _settings: dict[str, str] = field(default_factory=dict)

    def install(self, version: ProductVersion, **settings: str) -> None:
        """Apply the CRDs; start a leading operator and the API's replicas with the settings."""
        self._settings = settings
        self.control_plane.apply_crds(version.crds)
        self._operator = self._start_operator(version, ready=LEADING)
        for _ in range(REPLICAS):
            self._add_api(version)

    def upgrade(self, version: ProductVersion) -> None:
        """Upgrade to another version: the CRDs first, then the pods one by one."""
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
        for program in (*self._apis.values(), *filter(None, [self._operator])):
            program.kill()

    @property
    def logs(self) -> str:
        """Ends of all logs."""
        programs = (*self._apis.values(), *filter(None, [self._operator]))
        return "\n".join(program.log[-1500:] for program in programs)

    def _start_operator(self, version: ProductVersion, *, ready: str) -> Program:
        self._count += 1
        name = f"operator-{self._count}"
        settings = self._settings | version.environment
        return start_operator(self.control_plane, self.folder, name=name, ready=ready, **settings)

    def _add_api(self, version: ProductVersion) -> None:
        """Start an API process; add it to the Service once it is ready."""
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
    """Open an installation without processes. Those that are started end with the context."""
    with cluster_service() as service:
        made = Rollout(control_plane, folder, service)
        try:
            yield made
        finally:
            made.kill()
