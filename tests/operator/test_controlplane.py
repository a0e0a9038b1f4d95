"""What every operator test relies on: the API server is real, and says no where a real one does."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

from tests.controlplane.build import CONTROL_PLANE, find_assets
from tests.support.cluster.controlplane import ControlPlane, ControlPlaneError

ROOT = pathlib.Path(__file__).resolve().parents[2]
AUDIENCE = "memory-tests"
PIPES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "pipes.tests.agentmemory.dev"},
    "spec": {
        "group": "tests.agentmemory.dev",
        "names": {"kind": "Pipe", "listKind": "PipeList", "plural": "pipes", "singular": "pipe"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"inner": {"type": "integer"}, "outer": {"type": "integer"}},
                                "x-kubernetes-validations": [
                                    {"rule": "self.inner < self.outer", "message": "inner must be below outer"}
                                ],
                            }
                        },
                    }
                },
            }
        ],
    },
}


def pipe(namespace: str, **spec: int) -> dict[str, object]:
    return {
        "apiVersion": "tests.agentmemory.dev/v1",
        "kind": "Pipe",
        "metadata": {"name": "drain", "namespace": namespace},
        "spec": spec,
    }


@pytest.fixture(scope="module")
def pipes(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("crds")
    (folder / "pipes.yaml").write_text(json.dumps(PIPES))
    control_plane.apply_crds(folder)


def service_account_token(control_plane: ControlPlane, namespace: str) -> str:
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    control_plane.http.post(accounts, json={"metadata": {"name": "caller"}}).raise_for_status()
    answer = control_plane.http.post(f"{accounts}/caller/token", json={"spec": {"audiences": [AUDIENCE]}})
    return str(answer.raise_for_status().json()["status"]["token"])


def review(control_plane: ControlPlane, token: str, audience: str) -> dict[str, object]:
    body = {"spec": {"token": token, "audiences": [audience]}}
    answer = control_plane.http.post("/apis/authentication.k8s.io/v1/tokenreviews", json=body)
    status: dict[str, object] = answer.raise_for_status().json()["status"]
    return status


def test_server_reports_the_pinned_version(control_plane: ControlPlane) -> None:
    assert control_plane.http.get("/version").json()["gitVersion"] == CONTROL_PLANE.version == "v1.36.1"


def test_kubectl_reports_the_pinned_version(control_plane: ControlPlane) -> None:
    assert "Client Version: v1.36.1" in control_plane.kubectl("version").stdout


def test_requests_without_a_token_are_refused(control_plane: ControlPlane) -> None:
    answer = control_plane.http.get("/api/v1/namespaces", headers={"Authorization": ""})
    assert answer.status_code in (401, 403)


def test_a_service_account_may_do_nothing_until_rbac_says_so(control_plane: ControlPlane, namespace: str) -> None:
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    control_plane.http.post(accounts, json={"metadata": {"name": "caller"}}).raise_for_status()
    token = control_plane.http.post(f"{accounts}/caller/token", json={"spec": {}}).json()["status"]["token"]
    answer = control_plane.http.get("/api/v1/namespaces", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 403


def test_a_token_is_accepted_for_its_audience(control_plane: ControlPlane, namespace: str) -> None:
    status = review(control_plane, service_account_token(control_plane, namespace), AUDIENCE)
    assert status["authenticated"] is True
    assert status["user"]["username"] == f"system:serviceaccount:{namespace}:caller"  # type: ignore[index]


def test_a_token_is_refused_for_another_audience(control_plane: ControlPlane, namespace: str) -> None:
    status = review(control_plane, service_account_token(control_plane, namespace), "somebody-else")
    assert status.get("authenticated", False) is False


@pytest.mark.usefixtures("pipes")
def test_a_cel_rule_refuses_at_admission(control_plane: ControlPlane, namespace: str) -> None:
    done = control_plane.apply(pipe(namespace, inner=9, outer=8))
    assert done.returncode == 1
    assert "inner must be below outer" in done.stderr


@pytest.mark.usefixtures("pipes")
def test_an_object_within_the_rule_is_stored(control_plane: ControlPlane, namespace: str) -> None:
    assert control_plane.apply(pipe(namespace, inner=7, outer=8)).returncode == 0
    assert control_plane.kubectl("get", "pipe", "drain", "-n", namespace).returncode == 0


@pytest.mark.usefixtures("pipes")
def test_an_unknown_field_is_refused_by_name(control_plane: ControlPlane, namespace: str) -> None:
    done = control_plane.apply(pipe(namespace, inner=7, outer=8, colour=1))
    assert 'unknown field "spec.colour"' in done.stderr


def test_data_survives_a_killed_api_server(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.restart_apiserver()
    assert control_plane.http.get(f"/api/v1/namespaces/{namespace}").status_code == 200


def test_servers_die_with_the_process_that_started_them(tmp_path: pathlib.Path) -> None:
    code = (
        "import os, pathlib, sys\n"
        "from tests.support.cluster.controlplane import ControlPlane\n"
        "plane = ControlPlane(pathlib.Path(sys.argv[1])).start()\n"
        "print(plane.etcd_url, plane.url, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(find_assets(os.environ))]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    addresses = done.stdout.split()
    assert len(addresses) == 2, done.stderr
    deadline = time.monotonic() + 10
    while any(is_listening(address) for address in addresses):
        assert time.monotonic() < deadline, f"still listening: {addresses}"
        time.sleep(0.05)


def is_listening(address: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(address.rsplit(":", 1)[1]))) == 0


def test_a_server_that_cannot_start_says_so_with_its_log(tmp_path: pathlib.Path) -> None:
    for name in ("etcd", "kube-apiserver", "kubectl"):
        (tmp_path / name).write_text("#!/bin/sh\necho no such luck\nexit 3\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(ControlPlaneError, match=r"etcd ended with 3(.|\n)*no such luck"):
        ControlPlane(tmp_path).start()
