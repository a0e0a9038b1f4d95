"""`make e2e-kind`: create a cluster, load the image, install the chart with its trial Qdrant, run these tests there.

Without a container engine it prints one line and fails, or succeeds if `E2E_OPTIONAL` is 1. The cluster is always
deleted.
"""

import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

from tests.controlplane.build import CHARTS, CONTROL_PLANE, KIND, OBJECT_STORAGE
from tests.e2e.installed import HELM_FLAGS, HELM_INSTALL, KUBECONFIG, S3_IMAGE, obtain, status_without
from tests.e2e.node_images import S3, write_image
from tests.support.cluster.installation import NAMESPACE
from tests.support.programs import ROOT

CONFIG = pathlib.Path(__file__).parent / "kind.yaml"
CLUSTER = "agentmemory-e2e"
# The name contains a registry: Docker and podman add different defaults.
REPOSITORY, TAG = "localhost/agentmemory-operator", "e2e"
IMAGE = f"{REPOSITORY}:{TAG}"


def find_engine() -> str | None:
    """Return the first container engine that responds."""
    for engine in ("docker", "podman"):
        if shutil.which(engine) and subprocess.run([engine, "info"], capture_output=True).returncode == 0:
            return engine
    return None


def run_tests(engine: str, folder: pathlib.Path) -> None:
    """Run the steps until one fails; delete the cluster in any case.

    Raises:
        subprocess.CalledProcessError: If a step failed; it has printed the reason.
    """
    kubeconfig, archive = folder / "kubeconfig", folder / "image.tar"
    programs = {"kind": str(obtain(KIND) / "kind"), "helm": str(obtain(CHARTS) / "helm")}
    image = f"--set image.repository={REPOSITORY} --set image.tag={TAG}"
    environment = os.environ | {
        "KUBECONFIG": str(kubeconfig),
        "KUBEBUILDER_ASSETS": str(obtain(CONTROL_PLANE)),
        "KIND_EXPERIMENTAL_PROVIDER": engine,
        "PATH": f"{pathlib.Path(programs['helm']).parent}:{os.environ['PATH']}",
        KUBECONFIG: str(kubeconfig),
        HELM_FLAGS: image,
        S3_IMAGE: S3,
    }
    write_image(folder / "s3.tar", S3, obtain(OBJECT_STORAGE) / "versitygw")
    steps = (
        f"kind create cluster --name {CLUSTER} --config {CONFIG} --wait 3m",
        f"{engine} build --tag {IMAGE} .",
        f"{engine} save --output {archive} {IMAGE}",
        f"kind load image-archive {archive} --name {CLUSTER}",
        f"kind load image-archive {folder / 's3.tar'} --name {CLUSTER}",
        f"{HELM_INSTALL} {image}",
        f"helm test agentmemory --namespace {NAMESPACE}",
        f"{sys.executable} -m pytest -q tests/e2e",
    )
    try:
        for step in steps:
            print(f"e2e-kind: {step}", flush=True)
            first, *rest = shlex.split(step)
            subprocess.run([programs.get(first, first), *rest], cwd=ROOT, env=environment, check=True)
    finally:
        subprocess.run([programs["kind"], "delete", "cluster", "--name", CLUSTER], env=environment)


def main() -> int:
    """Run `make e2e-kind`; return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    engine = find_engine()
    if engine is None:
        return status_without("e2e-kind", "docker or podman that answers")
    try:
        with tempfile.TemporaryDirectory() as folder:
            run_tests(engine, pathlib.Path(folder))
    except subprocess.CalledProcessError as error:
        print(f"e2e-kind: failed at: {shlex.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
