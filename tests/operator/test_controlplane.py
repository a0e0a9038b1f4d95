"""The control plane of the operator tests: validation, restart and cleanup."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

from tests.controlplane.build import find_assets
from tests.support.cluster.controlplane import ControlPlane, ControlPlaneError

ROOT = pathlib.Path(__file__).resolve().parents[2]
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


def test_data_survives_a_killed_api_server(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.restart_apiserver()
    assert control_plane.http.get(f"/api/v1/namespaces/{namespace}").status_code == 200


def test_servers_end_with_their_parent_process(tmp_path: pathlib.Path) -> None:
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


def test_failed_start_reports_the_log(tmp_path: pathlib.Path) -> None:
    for name in ("etcd", "kube-apiserver", "kubectl"):
        (tmp_path / name).write_text("#!/bin/sh\necho no such luck\nexit 3\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(ControlPlaneError, match=r"etcd ended with 3(.|\n)*no such luck"):
        ControlPlane(tmp_path).start()
