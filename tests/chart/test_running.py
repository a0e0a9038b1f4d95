"""Operator and API of the chart as processes, with their containers' arguments, variables and accounts."""

import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from urllib.parse import urlsplit

import httpx
import pytest

from tests.chart.rendering import of_kind, render
from tests.support.cluster.controlplane import ControlPlane
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
from tests.support.web.http_server import Authority

# Unique names, so that rights of examples/install do not apply.
PREFIX = "listed"
RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
KEY = {"name": "qdrant-key", "key": "api-key"}


def _is_ok(url: str, *, verify: bool = True) -> bool:
    return httpx.get(url, verify=verify).status_code == 200


@pytest.fixture
def namespace(control_plane: ControlPlane, namespaces: None) -> str:
    """Namespace of this test only."""
    return control_plane.create_namespace()


@pytest.fixture
def listed(control_plane: ControlPlane, namespace: str, request: pytest.FixtureRequest) -> Iterator[list[Document]]:
    """The chart, limited to that namespace, with its rights applied; a test may add values as the parameter."""
    rendered = render({"namespaces": [namespace], "fullnameOverride": PREFIX} | getattr(request, "param", {}))
    assert control_plane.apply(*of_kind(rendered, *RIGHTS).values()).returncode == 0
    yield rendered
    for kind in RIGHTS:
        control_plane.kubectl("delete", kind, "-A", "-l", f"app.kubernetes.io/name={PREFIX}")


def container_of(rendered: list[Document], component: str) -> Container:
    return Container(of_kind(rendered, "Deployment")["Deployment", NAMESPACE, f"{PREFIX}-{component}"])


def test_namespaced_roles_are_sufficient(
    control_plane: ControlPlane, workspace: Workspace, listed: list[Document], tmp_path: pathlib.Path
) -> None:
    """The agent of a connection with a key becomes Ready, and a stored memory is found."""
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


@pytest.mark.parametrize("listed", [{"api": {"tls": {"enabled": True, "secretName": "ours"}}}], indirect=True)
def test_api_of_the_chart_serves_https(
    control_plane: ControlPlane, listed: list[Document], tmp_path: pathlib.Path
) -> None:
    """Probes do not check the certificate, `helm test` does, with the Secret's ca.crt."""
    api, authority, other = container_of(listed, "api"), Authority(tmp_path), Authority(tmp_path)
    ports, files = api.free_ports(), authority.issue()
    secret = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key))
    url = f"https://127.0.0.1:{ports[8080]}"

    with running(api.start(control_plane, tmp_path, *API_NAMESPACE_FLAGS, *secret, ports=ports)) as serving:
        serving.wait_for(r"API https://")
        assert {probe["httpGet"]["scheme"] for name, probe in api.spec.items() if name.endswith("Probe")} == {"HTTPS"}
        for path in ("healthz", "readyz"):
            wait_until(partial(_is_ok, f"{url}/{path}", verify=False), seconds=20, what=path)
        trusted = helm_test(listed, url, authority=authority)
        refused = helm_test(listed, url, authority=other)
        stop_cleanly(serving)

    assert (trusted.returncode, trusted.stdout) == (0, "200\n")
    assert refused.returncode == 1
    assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr


def helm_test(
    rendered: list[Document], url: str, authority: Authority | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command of the pod of `helm test`, with another URL instead of the Service's, and another ca.crt."""
    ((_, pod),) = of_kind(rendered, "Pod").items()
    (container,) = pod["spec"]["containers"]
    python, *arguments, url_argument = container["command"]
    service = f"{urlsplit(url).scheme}://{PREFIX}-api.{NAMESPACE}"
    assert python == "python"
    assert url_argument == f"{service}/readyz"
    command = [sys.executable, *arguments, url_argument.replace(service, url)]
    environment = dict(os.environ)
    if authority is not None:
        ((variable,), file) = container["env"], pathlib.Path(tempfile.mkdtemp()) / "ca.crt"
        file.write_text(authority.pem)
        environment |= {variable["name"]: str(file)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
