"""The installed chart with its trial Qdrant: as processes on this machine, or as pods in a cluster."""

import base64
import contextlib
import json
import os
import pathlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import httpx

from tests.chart.rendering import helm
from tests.controlplane.build import Toolset, build, find_assets
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import API_NAMESPACE_FLAGS, NAMESPACE, OPERATOR_NAMESPACE_FLAGS, Container
from tests.support.cluster.operators import LEADING
from tests.support.cluster.workspace import API_VERSION, MERGE, PLURALS
from tests.support.pages import read_commands
from tests.support.patience import wait_until
from tests.support.programs import Program, find_built, running, start_qdrant
from tests.support.web.http_server import check_success

# Name of the variable with the kubeconfig of a cluster that has the chart.
KUBECONFIG = "E2E_KUBECONFIG"
# Name of the variable with the flags that were added to its installation.
HELM_FLAGS = "E2E_HELM_FLAGS"
# Name of the variable with the name of an image of versitygw, an S3 server.
S3_IMAGE = "E2E_S3_IMAGE"
OPTIONAL = "E2E_OPTIONAL"
HELM_INSTALL, WAIT_FOR_CONNECTION = read_commands("install.md", "A Qdrant to try it out")
API, OPERATOR, QDRANT = "agentmemory-api", "agentmemory-operator", "agentmemory-qdrant"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/{QDRANT}"
CONNECTION = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/{PLURALS['QdrantConnection']}/{QDRANT}"
ADMIN = ("agentmemory-e2e", "default")
FORWARDED = r"from (127\.0\.0\.1:\d+)"


def status_without(command: str, missing: str) -> int:
    """Print the parts of a cluster that this machine lacks; return 0 if `E2E_OPTIONAL` is 1, else 1."""
    print(f"{command}: this machine lacks {missing}")
    return 0 if os.environ.get(OPTIONAL) == "1" else 1


def obtain(tools: Toolset) -> pathlib.Path:
    """Return the folder of a set of programs, building it if it is missing."""
    return find_assets(os.environ, tools) or build(os.environ, tools)


@dataclass(frozen=True, slots=True)
class Installed:
    """Addresses and credentials of an installation."""

    control_plane: ControlPlane
    api_url: str
    qdrant_url: str
    qdrant_key: str


class RunningCluster(ControlPlane):
    """Running cluster; the user of its kubeconfig must be an admin."""

    def __init__(self, kubeconfig: pathlib.Path) -> None:
        super().__init__(find_built())
        self.kubeconfig = kubeconfig

    def start(self) -> Self:
        """Log in with an account of the cluster: a kubeconfig may contain a certificate, a token or a program."""
        config = json.loads(self.ask("config", "view", "--raw", "--minify", "--flatten", "--output=json"))
        cluster = config["clusters"][0]["cluster"]
        self.url = cluster["server"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        account, namespace = ADMIN
        user = f"{namespace}:{account}"
        # Both objects exist already on a second run.
        self.kubectl("create", "serviceaccount", account, "--namespace", namespace)
        self.kubectl("create", "clusterrolebinding", account, "--clusterrole=cluster-admin", f"--serviceaccount={user}")
        self.token = self.ask("create", "token", account, "--namespace", namespace, "--duration=2h").strip()
        self._http = httpx.Client(
            base_url=self.url,
            verify=ssl.create_default_context(cadata=authority),
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=30,
            trust_env=False,
        )
        return self

    def ask(self, *arguments: str) -> str:
        """Return kubectl's output; it must succeed."""
        done = self.kubectl(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def forward(self, service: str, folder: pathlib.Path) -> Program:
        """Forward a port of this machine to a Service."""
        command = (str(self.assets / "kubectl"), "--namespace", NAMESPACE, "port-forward", f"service/{service}")
        (port,) = check_success(self.http.get(f"/api/v1/namespaces/{NAMESPACE}/services/{service}")).json()["spec"][
            "ports"
        ]
        return Program(folder / f"{service}.log", *command, f":{port['port']}", KUBECONFIG=str(self.kubeconfig))


@contextlib.contextmanager
def reach(cluster: RunningCluster, service: str, folder: pathlib.Path) -> Iterator[str]:
    """Forward to a pod that a Service has now; yield the URL."""
    with running(cluster.forward(service, folder)) as forward:
        yield f"http://{forward.wait_for(FORWARDED)[1]}"


@contextlib.contextmanager
def as_pods(kubeconfig: pathlib.Path, folder: pathlib.Path) -> Iterator[Installed]:
    """Connect to the chart in a cluster."""
    with (
        RunningCluster(kubeconfig) as cluster,
        reach(cluster, API, folder) as api_url,
        reach(cluster, QDRANT, folder) as qdrant_url,
    ):
        yield Installed(cluster, api_url, qdrant_url, key_of(cluster))


@contextlib.contextmanager
def as_processes(folder: pathlib.Path) -> Iterator[Installed]:
    """Install the chart on a control plane without nodes, and run its containers' commands as processes."""
    with ControlPlane(find_built()) as cluster:
        _, *command = HELM_INSTALL.removesuffix(" --wait").split()  # pods do not become ready on this control plane
        done = helm(*command, kubeconfig=cluster.kubeconfig)
        assert done.returncode == 0, done.stderr
        key = key_of(cluster)
        qdrant, qdrant_url = start_qdrant(folder / "qdrant", api_key=key)
        redirect_connection(cluster, qdrant_url)
        operator, api = (container(cluster, name) for name in (OPERATOR, API))
        ports = api.free_ports() | operator.free_ports()
        with (
            running(qdrant),
            running(operator.start(cluster, folder, *OPERATOR_NAMESPACE_FLAGS, ports=ports)) as operating,
            running(api.start(cluster, folder, *API_NAMESPACE_FLAGS, ports=ports)),
        ):
            operating.wait_for(LEADING)
            yield Installed(cluster, f"http://127.0.0.1:{ports[8080]}", qdrant_url, key)


def key_of(cluster: ControlPlane) -> str:
    """Return the key that the chart created for its Qdrant."""
    return base64.b64decode(check_success(cluster.http.get(SECRET)).json()["data"]["api-key"]).decode()


def redirect_connection(cluster: ControlPlane, qdrant_url: str) -> None:
    """Point the chart's connection to a server of this machine, which resolves no Service names."""
    annotations = {"agentmemory.dev/hosts": "127.0.0.1"}
    check_success(cluster.http.patch(SECRET, json={"metadata": {"annotations": annotations}}, headers=MERGE))
    is_patched = lambda: cluster.http.patch(CONNECTION, json={"spec": {"url": qdrant_url}}, headers=MERGE).is_success  # noqa: E731
    wait_until(is_patched, seconds=20, what=CONNECTION)


def container(cluster: ControlPlane, deployment: str) -> Container:
    """Return the only container of a Deployment of the release."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{deployment}"
    return Container(check_success(cluster.http.get(path)).json())


def wait_installed(installed: Installed) -> None:
    """Wait until the API is ready and the chart's connection works, as in docs/install.md."""
    answers = lambda: httpx.get(f"{installed.api_url}/readyz").status_code == 200  # noqa: E731
    wait_until(answers, seconds=60, what="the API")
    _, *command = WAIT_FOR_CONNECTION.split()
    done = installed.control_plane.kubectl(*command)
    assert done.returncode == 0, done.stderr
