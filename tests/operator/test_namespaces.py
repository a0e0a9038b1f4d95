"""An operator that looks after some namespaces, with no more rights than that takes."""

import pathlib
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from agentmemory_operator.domain.definitions import KINDS
from agentmemory_operator.domain.resources import GROUP
from tests.support.controlplane import ControlPlane
from tests.support.operator import AGENTMEMORY, LEADING, Program, running, start_operator, wait_until
from tests.support.workspace import Workspace

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNT = "operator"
# What is done once.
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
]
KUBE_SYSTEM = [{"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]}]


def allow(control_plane: ControlPlane, home: str, rules: list[Any], *, namespace: str | None) -> None:
    """Give the account of `home` rights in a namespace, or in the cluster."""
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
    """Return a kubeconfig with the account's own token."""
    accounts = f"/api/v1/namespaces/{home}/serviceaccounts"
    control_plane.http.post(accounts, json={"metadata": {"name": ACCOUNT}}).raise_for_status()
    answer = control_plane.http.post(f"{accounts}/{ACCOUNT}/token", json={"spec": {"expirationSeconds": 3600}})
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer.raise_for_status().json()["status"]["token"]}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def program(control_plane: ControlPlane, workspace: Workspace, tmp_path: pathlib.Path) -> Iterator[Program]:
    """An operator of the workspace's namespace and one more, with rights in those two."""
    home, second = control_plane.create_namespace("home-"), control_plane.create_namespace()
    kubeconfig = login(control_plane, home, tmp_path)
    allow(control_plane, home, KUBE_SYSTEM, namespace=None)
    allow(control_plane, home, AT_HOME, namespace=home)
    for namespace in (workspace.namespace, second):
        allow(control_plane, home, RULES, namespace=namespace)
    options = ["--namespace", workspace.namespace, "--namespace", second, "--lease-namespace", home]
    options += ["--api-namespace", home]
    with running(Program(tmp_path / "log", *AGENTMEMORY, "operator", *options, KUBECONFIG=str(kubeconfig))) as made:
        made.wait_for(LEADING)
        yield made


def test_objects_of_the_named_namespaces_are_looked_after_and_no_others(
    control_plane: ControlPlane, workspace: Workspace, program: Program
) -> None:
    outside = Workspace(control_plane, control_plane.create_namespace(), workspace.qdrant_url)
    outside.connect()
    outside.create()

    workspace.create_ready(deletionPolicy="Delete")
    workspace.patch(index={"hnsw": {"m": 24}})
    workspace.wait_ready()
    workspace.delete()
    workspace.wait_gone()
    time.sleep(1)

    assert outside.status() == {}
    assert outside.physicals() == []
    assert "403" not in program.log, program.log[-1500:]
    assert "permission" not in program.log.lower()
    outside.clean()


API_RULES = [
    {"apiGroups": [GROUP], "resources": ["agentmemories", "qdrantconnections"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
]


def test_the_api_serves_the_agents_of_the_named_namespaces_with_rights_in_them_alone(
    control_plane: ControlPlane, workspace: Workspace, tmp_path: pathlib.Path
) -> None:
    home, folder = control_plane.create_namespace("api-"), tmp_path / "api"
    folder.mkdir()
    kubeconfig = login(control_plane, home, folder)
    second, outside = (
        Workspace(control_plane, control_plane.create_namespace(), workspace.qdrant_url) for _ in range(2)
    )
    for watched in (workspace, second):
        allow(control_plane, home, API_RULES, namespace=watched.namespace)

    options = ["--port", "0", "--namespace", workspace.namespace, "--namespace", second.namespace]
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
