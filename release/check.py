"""Make everything that a release has, of the version in the sources, and try it: `make release-check`.

    usage: release/check.py TARGET

TARGET is a new folder. It gets wheels, chart, definitions, manifests, schema, plugin for kubectl, SBOMs, release notes
and SHA256SUMS. Each wheel is installed into a virtual environment of its own and does its first command. The image's
steps run without a container. Nothing is pushed.
"""

import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Callable, Iterator, Mapping

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from release.version import disagreements  # noqa: E402
from release.wheels import build_wheels  # noqa: E402
from tests.controlplane.build import CHARTS, find_assets  # noqa: E402

HOMEPAGE = "https://example.invalid/agentmemory"
CLIENT = "import agentmemory_client as c; print(c.__version__); c.Client('http://127.0.0.1:9').close()"
UNPUBLISHED = re.compile(r"(?m)^## Unreleased\n(?P<text>.*?)(?=^## )", re.S)


class CheckFailed(Exception):
    """What is wrong, in a line or more."""


def run(*command: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> str:
    """Run a command in the sources; return what it printed."""
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True)
    if done.returncode:
        raise CheckFailed(
            f"{' '.join(map(str, command))}: exit {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


def expect(holds: object, fault: str) -> None:
    """Fail with a sentence where something does not hold."""
    if not holds:
        raise CheckFailed(fault)


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Print what was done, and how long it took."""
    begun = time.monotonic()
    yield
    print(f"{time.monotonic() - begun:6.1f} s  {what}", flush=True)


def build_twice(target: pathlib.Path) -> dict[str, pathlib.Path]:
    """Build the three wheels twice: the same sources give the same bytes."""
    wheels = build_wheels(target)
    with tempfile.TemporaryDirectory() as second:
        for name, again in build_wheels(pathlib.Path(second)).items():
            expect(again.read_bytes() == wheels[name].read_bytes(), f"{again.name}: two builds of it differ")
    return wheels


def check_wheel(name: str, wheel: pathlib.Path, version: str) -> None:
    """Hold a wheel to what every one has: its version, its types, its license, and nothing of the tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [archive.read(found).decode() for found in names if found.endswith(".dist-info/METADATA")]
    packages = {found.partition("/")[0] for found in names} - {f"{name.replace('-', '_')}-{version}.dist-info"}
    expect(packages == {name.replace("-", "_")}, f"{wheel.name} has {sorted(packages)}")
    expect(f"\nVersion: {version}\n" in metadata, f"{wheel.name}: its metadata has another version")
    expect("\nLicense-Expression: Apache-2.0\n" in metadata, f"{wheel.name}: its metadata names no license")
    expect(f"{name.replace('-', '_')}/py.typed" in names, f"{wheel.name} lacks py.typed")
    expect(not [found for found in names if "test" in found.split("/")], f"{wheel.name} has tests")


def installed(wheels: Mapping[str, pathlib.Path], names: tuple[str, ...], folder: pathlib.Path) -> pathlib.Path:
    """Install wheels of ours into a new environment, with the locked versions of all others; return its bin."""
    # With their markers; a constraint may have no extras.
    lines = re.findall(r"(?m)^([\w.-]+)(?:\[.*?\])?(==[^\\\n]+)", (ROOT / "requirements" / "dev.txt").read_text())
    locked = ["".join(line).strip() for line in lines]
    constraints = folder.with_suffix(".txt")
    constraints.write_text("\n".join(locked) + "\n")
    venv.create(folder, with_pip=True)
    pip = (folder / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "install", "--constraint", constraints, *(wheels[name] for name in names))
    return folder / "bin"


def try_client(wheels: Mapping[str, pathlib.Path], folder: pathlib.Path, version: str) -> None:
    """Import the client where nothing but it and httpx is."""
    said = run(installed(wheels, ("agentmemory-client",), folder) / "python", "-c", CLIENT)
    expect(said.strip() == version, f"the client says that it is {said!r}")


def try_operator(wheels: Mapping[str, pathlib.Path], folder: pathlib.Path, version: str) -> pathlib.Path:
    """Run the operator's command line where the development server is not; return the environment's bin."""
    programs = installed(wheels, ("agentmemory-client", "agentmemory-operator"), folder)
    expect(run(programs / "agentmemory", "version").strip() == version, "agentmemory version says another one")
    run(programs / "agentmemory", "validate", "-f", "examples/quickstart")
    run(programs / "kubectl-agentmemory", "--help")
    return programs


def try_devserver(wheels: Mapping[str, pathlib.Path], folder: pathlib.Path) -> None:
    """Start the development server, and wait for its address."""
    programs = installed(wheels, ("qdrant-devserver",), folder)
    command = [programs / "qdrant-devserver", "--data", folder / "data", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        first = server.stdout.readline()
        server.terminate()
        rest = server.stdout.read()
    expect("Qdrant http://127.0.0.1:" in first + rest, f"qdrant-devserver does not start: {first}{rest[-2000:]}")


def write_definitions(target: pathlib.Path, programs: pathlib.Path) -> None:
    """Write definitions and manifests as one file each, and the schema for editors, by the installed wheel."""
    printed = run(programs / "agentmemory", "crds")
    expect(all(path.stem.split("_")[1] in printed for path in (ROOT / "crds").glob("*.yaml")), "crds/ has other kinds")
    (target / "agentmemory-crds.yaml").write_text(printed)
    (target / "agentmemory.schema.json").write_text(run(programs / "agentmemory", "schema"))
    manifests = [
        path.read_text().removeprefix("---\n") for path in sorted((ROOT / "examples" / "install").glob("*.yaml"))
    ]
    (target / "agentmemory-install.yaml").write_text("---\n".join(manifests))


def package_chart(target: pathlib.Path, version: str) -> None:
    """Lint the chart and pack it, with the helm that `make controlplane` builds."""
    assets = find_assets(os.environ, CHARTS)
    if assets is None:
        raise CheckFailed("no helm yet: run `make controlplane` once")
    chart, helm = "charts/agentmemory-operator", assets / "helm"
    with tempfile.TemporaryDirectory() as home:
        alone = {"HOME": home, "KUBECONFIG": os.devnull}
        run(helm, "lint", "--strict", chart, env=alone)
        run(helm, "package", chart, "--destination", target, env=alone)
    expect((target / f"agentmemory-operator-{version}.tgz").is_file(), "the chart has another version")


def write_notes(target: pathlib.Path, version: str) -> None:
    """Write the version's part of the changelog; nothing may be left under Unreleased."""
    text = (ROOT / "CHANGELOG.md").read_text()
    part = re.search(rf"(?m)^## {re.escape(version)}(?: [^\n]*)?\n(?P<text>.*?)(?=^## |\Z)", text, re.S)
    expect(part, f"CHANGELOG.md has no section '## {version}'")
    left = UNPUBLISHED.search(text)
    expect(left is None or not left["text"].strip(), f"CHANGELOG.md has lines under Unreleased: move them to {version}")
    assert part is not None
    (target / "RELEASE_NOTES.md").write_text(part["text"].strip() + "\n")


def list_packages(target: pathlib.Path, environment: pathlib.Path) -> None:
    """Write the SBOM of the operator's environment, by the tool that writes the image's."""
    with tempfile.TemporaryDirectory() as folder:
        tool = pathlib.Path(folder) / "tool"
        venv.create(tool, with_pip=True)
        pip = (tool / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
        run(*pip, "install", "--require-hashes", "--only-binary", ":all:", "-r", "requirements/build.txt")
        cyclonedx = (tool / "bin" / "cyclonedx-py", "environment", "--output-reproducible")
        run(*cyclonedx, "--output-file", target / "agentmemory-operator.cdx.json", environment / "bin" / "python")


def try_image(target: pathlib.Path, folder: pathlib.Path, version: str) -> None:
    """Do the image's steps; keep its SBOM."""
    run("image/install.sh", folder, env={"PYTHON": sys.executable})
    expect(run(folder / "bin" / "agentmemory", "version").strip() == version, "the image has another version")
    shutil.copy(folder / "sbom.cdx.json", target / "agentmemory-image.cdx.json")


def write_sums(target: pathlib.Path) -> None:
    """Write SHA256SUMS of all that is there, as `sha256sum --check` reads it."""
    files = sorted(path for path in target.iterdir() if path.is_file())
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (target / "SHA256SUMS").write_text("".join(sums))


def check(target: pathlib.Path, work: pathlib.Path) -> None:
    """Do all of it."""
    version, wrong = disagreements()
    expect(not wrong, "\n".join(wrong))
    with step("release notes"):
        write_notes(target, version)
    with step("wheels, built twice"):
        wheels = build_twice(target)
        for name, wheel in wheels.items():
            check_wheel(name, wheel, version)
    with step("the client alone"):
        try_client(wheels, work / "client", version)
    with step("the development server alone"):
        try_devserver(wheels, work / "devserver")
    with step("the operator and its client"):
        programs = try_operator(wheels, work / "operator", version)
    steps: dict[str, Callable[[], object]] = {
        "definitions, manifests, schema": lambda: write_definitions(target, programs),
        "the chart": lambda: package_chart(target, version),
        "the plugin for kubectl": lambda: run("krew/pack.sh", target, HOMEPAGE),
        "SBOM": lambda: list_packages(target, work / "operator"),
        "the image's steps": lambda: try_image(target, work / "image", version),
        "SHA256SUMS": lambda: write_sums(target),
    }
    for what, do in steps.items():
        with step(what):
            do()


def main(arguments: list[str]) -> int:
    """Check into a folder."""
    target = pathlib.Path(arguments[0]).resolve()
    if target.exists():
        print(f"release/check.py: {target} exists: name a folder that does not", file=sys.stderr)
        return 2
    target.mkdir(parents=True)
    try:
        with step("in all"), tempfile.TemporaryDirectory() as work:
            check(target, pathlib.Path(work))
    except CheckFailed as failed:
        print(f"release/check.py: {failed}", file=sys.stderr)
        return 1
    for path in sorted(target.iterdir()):
        print(f"{path.stat().st_size:>10}  {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
