"""Operator and API of the chart as processes, with their containers' arguments, variables and accounts."""

import pathlib
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from tests.chart.rendering import of_kind, render
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.fixtures import qdrant_url, workspace
from tests.support.cluster.installation import (
    API_NAMESPACE_FLAGS,
    NAMESPACE,
    OPERATOR_NAMESPACE_FLAGS,
    Container,
    found_after_storing,
    stop_cleanly,
)
from tests.support.cluster.operators import LEADING
from tests.support.cluster.tenants import Account, create_secret
from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until
from tests.support.programs import free_port, running
from tests.support.spec.documents import Document

__all__ = ["qdrant_url", "workspace"]

# Unique names, so that rights of examples/install do not apply.
PREFIX = "listed"
RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
KEY = {"name": "qdrant-key", "key": "api-key"}


def _is_ok(url: str) -> bool:
    return httpx.get(url).status_code == 200


@pytest.fixture
def namespace(control_plane: ControlPlane, namespaces: None) -> str:
    """Namespace of this test only."""
    return control_plane.create_namespace()


@pytest.fixture
def listed(control_plane: ControlPlane, namespace: str) -> Iterator[list[Document]]:
    """The chart, limited to that namespace, with its rights applied."""
    rendered = render({"namespaces": [namespace], "fullnameOverride": PREFIX})
    assert control_plane.apply(*of_kind(rendered, *RIGHTS).values()).returncode == 0
    yield rendered
    for kind in RIGHTS:
        control_plane.kubectl("delete", kind, "-A", "-l", f"app.kubernetes.io/name={PREFIX}")


def container_of(rendered: list[Document], component: str) -> Container:
    return Container(of_kind(rendered, "Deployment")["Deployment", NAMESPACE, f"{PREFIX}-{component}"])


def test_namespaced_roles_are_sufficient(
    control_plane: ControlPlane, workspace: Workspace, listed: list[Document], tmp_path: pathlib.Path
) -> None:
    """Connection with a key, agent Ready, memory stored and found."""
    operator, api = container_of(listed, "operator"), container_of(listed, "api")
    ports = api.free_ports() | operator.free_ports()
    create_secret(workspace, KEY["name"], **{KEY["key"]: "secret"})
    workspace.connect(apiKeySecretRef=KEY)
    bot = Account.create(control_plane, workspace.namespace, "bot")
    access = {"subjects": [bot.subject("read", "write")]}
    workspace.create(embedding={"provider": "wordllama", "dimensions": 256}, access=access)

    with (
        running(operator.start(control_plane, tmp_path, *OPERATOR_NAMESPACE_FLAGS, ports=ports)) as operating,
        running(api.start(control_plane, tmp_path, *API_NAMESPACE_FLAGS, ports=ports)) as serving,
    ):
        operating.wait_for(LEADING)
        workspace.wait_ready(seconds=30)
        for url in (*operator.probe_urls(ports).values(), *api.probe_urls(ports).values()):
            wait_until(partial(_is_ok, url), seconds=20, what=url)
        tested = helm_test(listed, f"http://127.0.0.1:{ports[8080]}")
        found = found_after_storing(f"http://127.0.0.1:{ports[8080]}/v1/agents/{workspace.slug}", bot.token())
        workspace.delete()
        workspace.wait_deleted()
        stop_cleanly(operating, serving)

    assert found == ["the printer is broken"]
    assert (tested.returncode, tested.stdout) == (0, "200\n")
    assert helm_test(listed, f"http://127.0.0.1:{free_port()}").returncode == 1


def helm_test(rendered: list[Document], url: str) -> subprocess.CompletedProcess[str]:
    """Run the command of the pod of `helm test`, with another URL instead of the Service's."""
    ((_, pod),) = of_kind(rendered, "Pod").items()
    (container,) = pod["spec"]["containers"]
    python, *arguments, url_argument = container["command"]
    service = f"http://{PREFIX}-api.{NAMESPACE}"
    assert python == "python"
    assert url_argument == f"{service}/readyz"
    command = [sys.executable, *arguments, url_argument.replace(service, url)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)
