"""Operator and API limited to some namespaces, with rights in these only."""

import asyncio
import pathlib
import sys
import time
from collections.abc import Awaitable, Iterator
from typing import Any

import httpx
import pytest
import yaml
from kubernetes.aio import client, config

from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.errors import TransientError
from agentmemory_operator.spec.kinds.agent_memory import GROUP
from agentmemory_operator.spec.kinds.crds import KINDS
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.installation import NAMESPACE, install, kubeconfig_of, shell
from tests.support.cluster.operators import LEADING, start_operator
from tests.support.cluster.workspace import Workspace, marker_of
from tests.support.forked import run_agentmemory
from tests.support.pages import read_commands
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, clean_environment, running

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNT = "operator"
# Kinds of one-off jobs.
ONCE = ["memorysnapshots", "memoryrestores"]
RULES = [
    {"apiGroups": [GROUP], "resources": ["agentmemories", *ONCE], "verbs": ["list", "watch", "patch"]},
    {"apiGroups": [GROUP], "resources": ["qdrantconnections"], "verbs": ["list", "watch"]},
    {"apiGroups": [GROUP], "resources": [f"{kind.plural}/status" for kind in KINDS], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "get", "patch"]},
]
AT_HOME = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "create", "update", "delete"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch", "create", "update"]},
]
CLAIMS = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}]
KUBE_SYSTEM = [{"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]}]


def allow(control_plane: ControlPlane, home: str, rules: list[Any], *, namespace: str | None) -> None:
    """Grant the account of `home` rights in a namespace, or in the cluster."""
    kind, folder = ("Role", f"{RBAC}/namespaces/{namespace}/") if namespace else ("ClusterRole", f"{RBAC}/")
    name = f"{home}-{len(rules)}"
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": home}],
    }
    for plural, body in ((f"{kind.lower()}s", {"metadata": {"name": name}, "rules": rules}), ("bindings", binding)):
        path = folder + (f"{kind.lower()}bindings" if plural == "bindings" else plural)
        control_plane.http.post(path, json=body).raise_for_status()


def login(control_plane: ControlPlane, home: str, folder: pathlib.Path) -> pathlib.Path:
    """Write a kubeconfig with the account's own token."""
    accounts = f"/api/v1/namespaces/{home}/serviceaccounts"
    control_plane.http.post(accounts, json={"metadata": {"name": ACCOUNT}}).raise_for_status()
    answer = control_plane.http.post(f"{accounts}/{ACCOUNT}/token", json={"spec": {"expirationSeconds": 3600}})
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer.raise_for_status().json()["status"]["token"]}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


# Starts the product as in a container, whose user has no name.
NAMELESS = """
import getpass
def getuser(): raise KeyError("getpwuid(): uid not found: 65532")
getpass.getuser = getuser
from agentmemory_operator.main import run
run()
"""


@pytest.fixture
def program(control_plane: ControlPlane, workspace: Workspace, tmp_path: pathlib.Path) -> Iterator[Program]:
    """Operator of the workspace's namespace and a second one, with rights in these two."""
    home, second = control_plane.create_namespace("home-"), control_plane.create_namespace()
    kubeconfig = login(control_plane, home, tmp_path)
    allow(control_plane, home, KUBE_SYSTEM, namespace=None)
    allow(control_plane, home, AT_HOME, namespace=home)
    for namespace in (workspace.namespace, second):
        allow(control_plane, home, RULES, namespace=namespace)
    options = ["--namespace", workspace.namespace, "--namespace", second, "--lease-namespace", home]
    options += ["--api-namespace", home]
    command = (sys.executable, "-c", NAMELESS, "operator", *options)
    control_plane.watcher.end()
    with running(Program(tmp_path / "log", *command, KUBECONFIG=str(kubeconfig))) as made:
        made.wait_for(LEADING)
        yield made


def test_operator_handles_named_namespaces_only(
    control_plane: ControlPlane, workspace: Workspace, program: Program
) -> None:
    outside = Workspace(control_plane, control_plane.create_namespace(), workspace.qdrant_url)
    outside.connect()
    outside.create()

    workspace.create_ready(deletionPolicy="Delete")
    workspace.patch(index={"hnsw": {"m": 24}})
    workspace.wait_ready()
    workspace.delete()
    workspace.wait_deleted()
    time.sleep(1)

    assert outside.status() == {}
    assert outside.physicals() == []
    assert "403" not in program.log, program.log[-1500:]
    assert "permission" not in program.log.lower()
    outside.clean()


API_RULES = [
    {"apiGroups": [GROUP], "resources": ["agentmemories", "qdrantconnections", *ONCE], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
]


def test_api_serves_named_namespaces_only(
    control_plane: ControlPlane, workspace: Workspace, tmp_path: pathlib.Path
) -> None:
    home, folder = control_plane.create_namespace("api-"), tmp_path / "api"
    folder.mkdir()
    kubeconfig = login(control_plane, home, folder)
    second, outside = (
        Workspace(control_plane, control_plane.create_namespace(), workspace.qdrant_url) for _ in range(2)
    )
    allow(control_plane, home, KUBE_SYSTEM, namespace=None)
    for watched in (workspace, second):
        allow(control_plane, home, API_RULES, namespace=watched.namespace)

    options = ["--port", "0", "--namespace", workspace.namespace, "--namespace", second.namespace]
    options += ["--lease-namespace", home]
    allow(control_plane, home, CLAIMS, namespace=home)
    environment = {"KUBECONFIG": str(kubeconfig), "AGENTMEMORY_AUTH": "none"}
    with (
        running(start_operator(control_plane, tmp_path, "--lease-namespace", home)) as operator,
        running(Program(folder / "log", *AGENTMEMORY, "api", *options, **environment)) as api,
    ):
        for made in (outside, workspace, second):
            made.create_ready()
        url = api.wait_for(r"API (http://\S+)")[1]

        def answers(of: Workspace) -> bool:
            return httpx.get(f"{url}/v1/agents/{of.slug}").status_code == 200

        for watched in (workspace, second):
            wait_until(lambda served=watched: answers(served), seconds=20, what=f"agent {watched.slug}")
        assert httpx.get(f"{url}/readyz").status_code == 200
        assert not answers(outside)
        assert "Kubernetes answered" not in api.log, api.log[-1500:]
        for made in (second, outside):
            made.clean()
        operator.stop()


@pytest.mark.parametrize("is_set", [False, True])
def test_api_without_kube_system_needs_cluster_id(
    control_plane: ControlPlane, workspace: Workspace, tmp_path: pathlib.Path, is_set: bool
) -> None:
    home, folder = control_plane.create_namespace("api-"), tmp_path / "api"
    folder.mkdir()
    kubeconfig = login(control_plane, home, folder)
    allow(control_plane, home, API_RULES, namespace=workspace.namespace)
    cluster_env = {"AGENTMEMORY_CLUSTER_ID": "here"} if is_set else {}
    options = ["--port", "0", "--namespace", workspace.namespace, "--lease-namespace", home]
    allow(control_plane, home, CLAIMS, namespace=home)
    environment = {"KUBECONFIG": str(kubeconfig), "AGENTMEMORY_AUTH": "none"} | cluster_env
    with (
        running(start_operator(control_plane, tmp_path, "--lease-namespace", home, **cluster_env)) as operator,
        running(Program(folder / "log", *AGENTMEMORY, "api", *options, **environment)) as api,
    ):
        workspace.create_ready()
        url = api.wait_for(r"API (http://\S+)")[1]
        listed = f"{url}/v1/agents/{workspace.slug}"
        if is_set:
            wait_until(lambda: httpx.get(listed).status_code == 200, seconds=20, what="the agent")
            assert httpx.get(f"{url}/readyz").status_code == 200
            assert "kube-system" not in api.log
            assert cleanup_of(control_plane, workspace, **cluster_env)[0] == 0
            code, error = cleanup_of(control_plane, workspace)
            assert (code, "Ready condition" in error) == (1, True)
        else:
            api.wait_for("the cluster ID is not known: .*AGENTMEMORY_CLUSTER_ID")
            answer = httpx.get(listed)
            assert (answer.status_code, answer.headers.get("retry-after")) == (503, "2")
            assert "the cluster ID" in httpx.get(f"{url}/readyz").json()["detail"]
        operator.stop()
    assert marker_of(workspace)["clusterId"] == ("here" if is_set else cluster_uid(control_plane))


def cleanup_of(control_plane: ControlPlane, workspace: Workspace, **environment: str) -> tuple[int, str]:
    """Preview a cleanup; return the exit status and the errors."""
    command = ("cleanup", "memory", "-n", workspace.namespace, "--dry-run")
    environment = clean_environment() | {"KUBECONFIG": str(control_plane.kubeconfig)} | environment
    done = run_agentmemory(*command, env=environment)
    return done.returncode, done.stderr


def cluster_uid(control_plane: ControlPlane) -> str:
    """Return the cluster's id."""
    found = control_plane.http.get("/api/v1/namespaces/kube-system").raise_for_status().json()
    return str(found["metadata"]["uid"])


INSTALLED = ("agentmemory-operator", "agentmemory-api")
# Objects that the page's commands create in addition to the installation.
MADE = ("clusterrolebinding/agentmemory-cluster", "clusterrolebinding/agentmemory-tokens")
MADE += ("clusterrole/agentmemory-cluster", "clusterrole/agentmemory-tokens")


@pytest.fixture
def narrowed(control_plane: ControlPlane, workspace: Workspace) -> Iterator[None]:
    """Installation limited to the workspace's namespace, as in docs/install.md."""
    install(control_plane)
    # Remove leftovers of another section's commands, whose test may have run in this process.
    shell(control_plane, f"kubectl -n {NAMESPACE} delete rolebinding agentmemory-secrets --ignore-not-found")
    try:
        for command in read_commands("install.md", "Some namespaces only"):
            shell(control_plane, command.replace("-n agents", f"-n {workspace.namespace}"))
        yield
    finally:
        shell(control_plane, f"kubectl delete {' '.join(MADE)}")
        shell(control_plane, f"kubectl -n {NAMESPACE} delete rolebinding agentmemory-secrets")
        install(control_plane)


@pytest.mark.parametrize("account", INSTALLED)
async def test_documented_commands_leave_needed_rights_only(
    control_plane: ControlPlane, workspace: Workspace, narrowed: None, tmp_path: pathlib.Path, account: str
) -> None:
    configuration = client.Configuration()
    file = kubeconfig_of(control_plane, account, tmp_path)
    await config.load_kube_config(config_file=str(file), client_configuration=configuration)
    cluster = KubernetesCluster(configuration)
    try:
        async with asyncio.timeout(60):
            while not await works(cluster.list_in("AgentMemory", workspace.namespace)):
                await asyncio.sleep(0.1)
        assert await cluster.cluster_id() == cluster_uid(control_plane)
        # A connection selects namespaces by their labels, and this namespace is one of the watched ones.
        assert await works(cluster.labels(workspace.namespace))
        assert not await works(cluster.labels("default"))
        assert not await works(cluster.list_in("AgentMemory", "default"))
    finally:
        await cluster.close()


async def works(call: Awaitable[Any]) -> bool:
    """Return whether a call is allowed."""
    try:
        await call
    except TransientError:
        return False
    return True
