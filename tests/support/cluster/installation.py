"""Manifests of examples/install on a control plane: apply them, log in with their accounts, run their containers."""

import base64
import contextlib
import copy
import functools
import os
import pathlib
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx
import yaml

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.workspace import MERGE
from tests.support.pages import read_commands
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, ROOT, Program, clean_environment, free_port
from tests.support.spec.documents import Document
from tests.support.spec.golden import LOADER
from tests.support.web.http_server import check_success

MANIFESTS = ROOT / "examples" / "install"
NAMESPACE = "agentmemory-system"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
# In a cluster these values come from the pod's own namespace.
API_NAMESPACE_FLAGS = ("--lease-namespace", NAMESPACE, "--api-namespace", NAMESPACE)
OPERATOR_NAMESPACE_FLAGS = API_NAMESPACE_FLAGS
# The substitutes of the cluster's Services run on this machine. In a pod, loopback would be the pod itself.
ON_LOOPBACK = {"AGENTMEMORY_ALLOWED_HOSTS": "0.0.0.0/0,::/0,127.0.0.1"}


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource for one account, and the role that grants it."""

    account: str
    verb: str
    resource: str
    role: str

    def __str__(self) -> str:
        return f"{self.account} {self.verb} {self.resource}"


def documents(kind: str = "") -> list[Document]:
    """Return the installed objects; of one kind if given."""
    return [copy.deepcopy(found) for found in _manifests() if kind in ("", found["kind"])]


@functools.cache
def _manifests() -> tuple[Document, ...]:
    """Read all manifests. Cached, because parametrised tests read them often while they are collected."""
    files = sorted(MANIFESTS.glob("*.yaml"))
    return tuple(found for path in files for found in yaml.load_all(path.read_text(), Loader=LOADER))


def rights() -> list[Right]:
    """Return all rights that the manifests grant, one for each verb and resource."""
    return sorted(
        Right(subject["name"], verb, resource, binding["roleRef"]["name"])
        for binding in (*documents("ClusterRoleBinding"), *documents("RoleBinding"))
        for subject in binding["subjects"]
        for rule in _role(binding["roleRef"]["name"])["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    )


def _role(name: str) -> Document:
    return next(role for role in (*documents("ClusterRole"), *documents("Role")) if role["metadata"]["name"] == name)


@contextlib.contextmanager
def without_right(control_plane: ControlPlane, right: Right) -> Iterator[None]:
    """Remove one right inside the context."""
    role = _role(right.role)
    path = f"{RBAC}/clusterroles" if role["kind"] == "ClusterRole" else f"{RBAC}/namespaces/{NAMESPACE}/roles"
    path = f"{path}/{right.role}"
    kept = [
        {**rule, "verbs": [verb], "resources": [resource]}
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        if (verb, resource) != (right.verb, right.resource)
    ]
    check_success(control_plane.http.patch(path, json={"rules": kept}, headers=MERGE))
    try:
        yield
    finally:
        check_success(control_plane.http.patch(path, json={"rules": role["rules"]}, headers=MERGE))


def install(control_plane: ControlPlane) -> str:
    """Install as described in docs/install.md; return the output of the last command."""
    control_plane.watcher.end()
    *_, last = [shell(control_plane, command) for command in read_commands("install.md", "Apply")]
    return last


def shell(control_plane: ControlPlane, command: str) -> str:
    """Run a command line of the documentation as the admin; return its output."""
    environment = clean_environment() | {
        "KUBECONFIG": str(control_plane.kubeconfig),
        "KUBECACHEDIR": str(control_plane.folder / "kubectl"),
        "KUBERC": "off",
        "PATH": f"{control_plane.assets}{os.pathsep}{os.environ['PATH']}",
    }
    line = ["sh", "-c", command]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def kubeconfig_of(control_plane: ControlPlane, account: str, folder: pathlib.Path) -> pathlib.Path:
    """Write a kubeconfig with a new token of an installed ServiceAccount."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    answer = check_success(control_plane.http.post(path, json={"spec": {"expirationSeconds": 3600}})).json()
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    file = folder / f"{account}.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file


@dataclass(frozen=True, slots=True)
class Container:
    """The only container of an installed Deployment."""

    deployment: Document

    @property
    def account(self) -> str:
        """Name of its ServiceAccount."""
        return str(self._pod["serviceAccountName"])

    @property
    def spec(self) -> Document:
        """The container in the manifest."""
        (found,) = self._pod["containers"]
        return dict(found)

    @property
    def _pod(self) -> Document:
        return dict(self.deployment["spec"]["template"]["spec"])

    def start(
        self,
        control_plane: ControlPlane,
        folder: pathlib.Path,
        *options: str,
        ports: Mapping[int, int] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> Program:
        """Run the container's command as a process with the settings of a pod and its account's token.

        Args:
            options: Options that replace files which Kubernetes would mount.
            ports: Declared port -> port to listen on instead.
            more: Variables in addition to those of the manifest.
        """
        control_plane.watcher.end()
        swapped = {str(declared): str(port) for declared, port in (ports or {}).items()}
        arguments = [swapped.get(argument, argument) for argument in self.spec["args"]]
        environment = self.environment(control_plane)
        # The host variable makes the settings those of a pod. Without the port variable, the login uses the kubeconfig.
        in_a_pod = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "HOME": "/nonexistent"}
        # Only the image has the chart's default model.
        without_model = {"AGENTMEMORY_DEFAULT_EMBEDDING": "wordllama"}
        environment = ON_LOOPBACK | environment | without_model | in_a_pod | dict(more or {})
        kubeconfig = kubeconfig_of(control_plane, self.account, folder)
        log = folder / f"{self.account}.log"
        return Program(log, *AGENTMEMORY, *arguments, *options, KUBECONFIG=str(kubeconfig), **environment)

    def environment(self, control_plane: ControlPlane) -> dict[str, str]:
        """Return its variables; those from a Secret are resolved like in the kubelet."""
        return {variable["name"]: _value_of(control_plane, variable) for variable in self.spec.get("env", ())}

    def free_ports(self) -> dict[int, int]:
        """Return a free port for each declared one."""
        return {port["containerPort"]: free_port() for port in self.spec.get("ports", ())}

    def probe_urls(self, ports: Mapping[int, int]) -> dict[str, str]:
        """Return the URL of each probe, with the ports given to `start`."""
        named = {port["name"]: ports[port["containerPort"]] for port in self.spec.get("ports", ())}
        probes = {name: probe for name, probe in self.spec.items() if name.endswith("Probe")}
        return {
            name: f"http://127.0.0.1:{named[probe['httpGet']['port']]}{probe['httpGet']['path']}"
            for name, probe in probes.items()
        }


def container_of(name: str) -> Container:
    """Return the container of an installed Deployment."""
    return Container(next(found for found in documents("Deployment") if found["metadata"]["name"] == name))


def _value_of(control_plane: ControlPlane, variable: Document) -> str:
    if "value" in variable:
        return str(variable["value"])
    reference = variable["valueFrom"]["secretKeyRef"]
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{reference['name']}"
    data = check_success(control_plane.http.get(path)).json()["data"]
    return base64.b64decode(data[reference["key"]]).decode()


def found_after_storing(url: str, token: str) -> list[str]:
    """Store a memory and search for it with the token; return the contents found."""
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=30) as caller:
        wait_until(lambda: caller.get(url).status_code == 200, seconds=20, what="the agent in the API")
        check_success(caller.post(f"{url}/memories", json={"user_id": "u", "content": "the printer is broken"}))
        answer = check_success(caller.post(f"{url}/search", json={"user_id": "u", "query": "is the printer broken?"}))
    return [found["content"] for found in answer.json()["results"]]


def stop_cleanly(*programs: Program) -> None:
    """Stop programs like Kubernetes does. Fail unless each exits with 0 and its log reports no missing right."""
    for program in programs:
        program.stop()
        assert program.returncode == 0, program.log[-1500:]
        assert "forbidden" not in program.log.lower(), program.log
        assert "permission" not in program.log.lower(), program.log
