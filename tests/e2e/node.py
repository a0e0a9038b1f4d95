"""`make e2e-node`: build the image, start a real node on this machine, install the chart, and run tests/e2e in pods.

Needs root, cgroups, and programs of Debian (`DEBIAN`). The node has namespaces and a cgroup of its own, and one
temporary folder; all of them are gone afterwards, also after Ctrl-C or SIGTERM. After SIGKILL the next run removes
the rest.

1. `main` builds the node's programs (once) and the images, and starts itself again in new namespaces.
2. `run_inside` covers the cgroups of the machine, starts the node, installs the chart and runs the tests.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from tests.controlplane.build import (
    CHARTS,
    CONTROL_PLANE,
    NETWORK_POLICIES,
    NODE,
    OBJECT_STORAGE,
    cache_root,
)
from tests.e2e.installed import HELM_FLAGS, HELM_INSTALL, KUBECONFIG, S3_IMAGE, obtain, status_without
from tests.e2e.node_cluster import CNI_PROGRAMS, NODE_NAME, PAUSE, NodeCluster, call
from tests.e2e.node_images import S3, write_image
from tests.e2e.node_remains import (
    CGROUPS,
    CONTROLLER_NAMES,
    SYSTEMD,
    hierarchies,
    own_cgroup,
    own_folder,
    remove_leftovers,
)
from tests.support.cluster.installation import NAMESPACE
from tests.support.forked import die_with_parent
from tests.support.programs import ROOT

# Program: the Debian package that has it.
DEBIAN = {
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "runc": "runc",
    "unshare": "util-linux",
    f"{CNI_PROGRAMS}/ptp": "containernetworking-plugins",
}
# Image that the product's image is built on. Empty: a Debian with Python, made once with debootstrap.
BASE = "E2E_BASE"
DEBIAN_BASE = "localhost/debian-python:bookworm"
MIRROR = "http://deb.debian.org/debian"
PRODUCT, QDRANT = "localhost/agentmemory-operator:e2e", "localhost/qdrant-devserver:e2e"
NAMESPACES = ("--mount", "--net", "--pid", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child", "--mount-proc")


def report(text: str) -> None:
    """Print one line of progress."""
    print(f"e2e-node: {text}", flush=True)


def find_missing() -> list[str]:
    """Return everything that this machine lacks to run a node."""
    missing = [f"{program} (Debian: {package})" for program, package in DEBIAN.items() if not shutil.which(program)]
    if os.geteuid() != 0:
        missing.insert(0, "root")
    if lacking := [name for name in CONTROLLER_NAMES if not os.access(CGROUPS / name / "cgroup.procs", os.W_OK)]:
        missing.append(f"writable cgroups v1 ({', '.join(lacking)})")
    return missing


def make_base() -> pathlib.Path:
    """Return an archive of a Debian with Python, made once for this user."""
    archive = cache_root(os.environ) / "debian-python-bookworm.tar"
    if not archive.exists():
        report("making the base of the images with debootstrap (about 2 minutes, once)")
        with tempfile.TemporaryDirectory() as folder:
            packages = "python3,python3-venv,ca-certificates"
            call("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", f"{folder}/base", MIRROR)
            unneeded = [f"--exclude=./{path}" for path in ("dev/*", "proc/*", "sys/*", "var/cache/apt", "var/lib/apt")]
            call("tar", "--create", "--file", f"{archive}.part", *unneeded, "--directory", f"{folder}/base", ".")
        pathlib.Path(f"{archive}.part").rename(archive)
    return archive


def build_images(folder: pathlib.Path) -> None:
    """Build the images of the product and of the development Qdrant, as archives in the folder."""
    store = [f"--root={folder / 'images'}", f"--runroot={folder / 'images-run'}", "--storage-driver=overlay"]
    base = os.environ.get(BASE)
    if not base:
        base = DEBIAN_BASE
        container = call("buildah", *store, "from", "scratch").strip()
        call("buildah", *store, "add", "--quiet", container, make_base(), "/")
        call("buildah", *store, "commit", "--quiet", "--rm", container, base)
    # Settings of pip and the certificates of this machine: its package index may have an authority of its own.
    shared = [f"--volume={path}:{path}:ro" for path in ("/etc/ssl/certs", "/etc/pip.conf") if os.path.exists(path)]
    for image, file in ((PRODUCT, "Dockerfile"), (QDRANT, "tests/e2e/qdrant.Dockerfile")):
        report(f"building {image}")
        ignore = ROOT / f"{file}.dockerignore"
        options = [f"--ignorefile={ignore}"] if ignore.exists() else []
        options += ["--isolation=chroot", "--network=host", f"--build-arg=BASE={base}", *shared]
        call("buildah", *store, "build", *options, f"--file={file}", f"--tag={image}", ROOT)
        archive = folder / f"{image.rpartition('/')[2].partition(':')[0]}.tar"
        call("buildah", *store, "push", "--quiet", image, f"docker-archive:{archive}:{image}")
    shutil.rmtree(folder / "images")


def cover_cgroups() -> None:
    """Mount the cgroups again: in a cgroup namespace, the roots are this process's own cgroups.

    containerd reports a kill for memory only if every hierarchy of a process is mounted.
    """
    mounted = hierarchies()
    call("umount", "--recursive", CGROUPS)
    call("mount", "-t", "tmpfs", "tmpfs", CGROUPS)
    for hierarchy in mounted:
        (CGROUPS / hierarchy).mkdir()
        options = f"none,name={hierarchy}" if hierarchy == SYSTEMD else hierarchy
        call("mount", "-t", "cgroup", "-o", options, "cgroup", CGROUPS / hierarchy)


def image_flags() -> list[str]:
    """Return helm's flags for the images of this build."""
    return [
        f"--set={key}image.{part}={value}"
        for key, image in (("", PRODUCT), ("qdrant.", QDRANT))
        for part, value in zip(("repository", "tag"), image.rsplit(":", 1), strict=True)
    ]


def run_inside(folder: pathlib.Path) -> int:
    """Run the node, the installation and the tests in the new namespaces; return the exit status."""
    tempfile.tempdir = str(folder)
    cover_cgroups()
    began_s = time.monotonic()
    with NodeCluster(*map(obtain, (CONTROL_PLANE, NODE, NETWORK_POLICIES))) as cluster:
        report(f"the node is Ready after {time.monotonic() - began_s:.0f} s")
        for archive in folder.glob("*.tar"):
            cluster.import_image(archive)
        cluster.create_volume("qdrant", folder / "volume")
        images = image_flags()
        helm = obtain(CHARTS) / "helm"
        environment = os.environ | {
            "KUBECONFIG": str(cluster.kubeconfig),
            "PATH": f"{helm.parent}:{os.environ['PATH']}",
            KUBECONFIG: str(cluster.kubeconfig),
            HELM_FLAGS: " ".join(images),
            S3_IMAGE: S3,
        }
        began_s = time.monotonic()
        try:
            subprocess.run([helm, *HELM_INSTALL.split()[1:], *images], cwd=ROOT, env=environment, check=True)
            report(f"the chart is installed after {time.monotonic() - began_s:.0f} s")
            subprocess.run([helm, "test", "agentmemory", f"--namespace={NAMESPACE}"], env=environment, check=True)
            for line in cluster.measure_pods(NAMESPACE):
                report(line)
            command = [sys.executable, "-m", "pytest", "-q", "tests/e2e", "-p", "no:cacheprovider", *sys.argv[3:]]
            return subprocess.run(command, cwd=ROOT, env=environment).returncode
        except subprocess.CalledProcessError as error:
            report(f"failed at: {error.cmd}")
            print(cluster.kubectl("--namespace", NAMESPACE, "get", "pods").stdout, flush=True)
            for path in sorted(pathlib.Path("/var/log/pods").glob(f"{NAMESPACE}_*/*/*.log")):
                print(f"--- {path.relative_to('/var/log/pods')}\n{path.read_text()[-1500:]}", flush=True)
            return 1


def main() -> int:
    """Run `make e2e-node`, outside or inside the new namespaces; return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if sys.argv[1:2] == ["--inside"]:
        return run_inside(pathlib.Path(sys.argv[2]))
    if missing := find_missing():
        return status_without("e2e-node", ", ".join(missing))
    began_s = time.monotonic()
    for tools in (CONTROL_PLANE, CHARTS, OBJECT_STORAGE, NODE, NETWORK_POLICIES):
        obtain(tools)
    for name in remove_leftovers():
        report(f"removed {name}, which a killed run had left")
    with own_folder() as folder:
        try:
            build_images(folder)
        except subprocess.CalledProcessError as error:
            report(f"failed at: {error.cmd}\n{error.stderr[-3000:]}")
            return 1
        write_image(folder / "pause.tar", PAUSE, obtain(NODE) / "pause")
        write_image(folder / "s3.tar", S3, obtain(OBJECT_STORAGE) / "versitygw")
        report(f"images are built after {time.monotonic() - began_s:.0f} s; starting {NODE_NAME}")
        with own_cgroup(folder.name):
            inside = [sys.executable, "-m", "tests.e2e.node", "--inside", str(folder), *sys.argv[1:]]
            command = ["unshare", *NAMESPACES, *inside]
            status = subprocess.run(command, cwd=ROOT, preexec_fn=die_with_parent()).returncode
    report(f"{'passed' if status == 0 else 'failed'} after {time.monotonic() - began_s:.0f} s in all")
    return status


if __name__ == "__main__":
    sys.exit(main())
