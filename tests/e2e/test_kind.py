"""`make e2e-kind` and `make e2e-node` without their programs: the config, the order of the steps, and the cleanup."""

import pathlib
import subprocess
import sys

import pytest

from tests.controlplane.build import CHARTS, CONTROL_PLANE, KIND, OBJECT_STORAGE
from tests.e2e.kind import CLUSTER, CONFIG, IMAGE
from tests.support.programs import ROOT, clean_environment, find_built

COMMAND = (sys.executable, "-m", "tests.e2e.kind")
# Has every image, and fails to create containers.
ENGINE = """#!/bin/sh
echo "docker $*" >> {log}
case "$1" in
  info) echo '{{}}' ;;
  ps) ;;
  inspect) ;;
  *) echo "this is no engine" >&2; exit 1 ;;
esac
"""
WELL = '#!/bin/sh\necho "${{0##*/}} $*" >> {log}\n'


@pytest.fixture
def log(tmp_path: pathlib.Path) -> pathlib.Path:
    """Calls of the fake programs, one per line."""
    made = tmp_path / "log"
    made.touch()
    return made


def stand_in(folder: pathlib.Path, name: str, log: pathlib.Path, *, script: str = WELL) -> pathlib.Path:
    """Write a fake program; return its folder."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(script.format(log=log))
    (folder / name).chmod(0o755)
    return folder


def run(*command: str, path: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose PATH contains fake programs only."""
    variables = clean_environment() | {"PATH": str(path)} | environment
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables, timeout=120)


def make_cluster(config: pathlib.Path, engine: pathlib.Path, kubeconfig: pathlib.Path) -> str:
    """Let kind create a cluster; return its error output."""
    command = (str(find_built(KIND) / "kind"), "create", "cluster", "--name", CLUSTER, "--config", str(config))
    variables = {"KIND_EXPERIMENTAL_PROVIDER": "docker", "KUBECONFIG": str(kubeconfig)}
    done = run(*command, path=engine, **variables)
    assert done.returncode != 0
    return done.stderr


def test_kind_accepts_config_and_creates_nodes(tmp_path: pathlib.Path, log: pathlib.Path) -> None:
    engine = stand_in(tmp_path / "bin", "docker", log, script=ENGINE)

    error_output = make_cluster(CONFIG, engine, tmp_path / "kubeconfig")

    assert "this is no engine" in error_output
    assert "docker inspect --type=image kindest/node:" in log.read_text()


@pytest.mark.parametrize("command", ["kind", "node"])
@pytest.mark.parametrize(("optional", "status"), [("", 1), ("1", 0)])
def test_missing_programs_fail_unless_optional(
    tmp_path: pathlib.Path, command: str, optional: str, status: int
) -> None:
    done = run(sys.executable, "-m", f"tests.e2e.{command}", path=tmp_path, E2E_OPTIONAL=optional)

    assert (done.returncode, done.stdout.count("\n")) == (status, 1)
    assert done.stdout.startswith(f"e2e-{command}: this machine lacks ")


def test_failing_step_is_named_and_cluster_deleted(tmp_path: pathlib.Path, log: pathlib.Path) -> None:
    """The image is loaded before the chart is installed, which fails here."""
    path = stand_in(tmp_path / "bin", "docker", log)
    assets = {KIND: "kind", CONTROL_PLANE: "kubectl", OBJECT_STORAGE: "versitygw"}
    variables = {tools.variable: str(stand_in(tmp_path / name, name, log)) for tools, name in assets.items()}
    for name in ("kube-apiserver", "etcd"):
        stand_in(tmp_path / "kubectl", name, log)
    variables[CHARTS.variable] = str(stand_in(tmp_path / "helm", "helm", log, script=f"{WELL}exit 1\n"))

    done = run(*COMMAND, path=path, **variables)

    assert done.returncode == 1
    assert "e2e-kind: failed at: " in done.stderr
    called = log.read_text().splitlines()
    assert [" ".join(call.split()[:3]) for call in called] == [
        "docker info",
        "kind create cluster",
        "docker build --tag",
        "docker save --output",
        "kind load image-archive",
        "kind load image-archive",
        "helm install agentmemory",
        "kind delete cluster",
    ]
    assert called[2].endswith(f" {IMAGE} .")
    assert "--wait" in called[6]
    assert [call for call in called if call.startswith("kind") and CLUSTER not in call] == []
