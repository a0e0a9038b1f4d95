"""Build and try all files of a release of the version in the sources: `make release-check`.

    usage: [RELEASE_HOMEPAGE=https://...] [RELEASE_IMAGE=registry/name] release/check.py TARGET

TARGET is a new folder for wheels, source archives, npm package, chart, CRDs, manifests, schema, plugin for kubectl,
SBOMs, release notes and SHA256SUMS, with the addresses of the repository and the image. Each wheel is installed into a
new virtual environment and runs a first command. The image's steps run without a container. SHA256SUMS is signed with a
local key, which is not kept. Nothing is pushed.
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from release import chart, npm, signing
from release import wheels as wheels_of
from release.changelog import notes
from release.commands import ROOT, CheckFailed, Release, expect, run
from release.version import disagreements
from tests.controlplane.build import CHARTS, CONTROL_PLANE, find_assets

CLIENT = "import agentmemory_client as c; print(c.__version__); c.Client('http://127.0.0.1:9').close()"


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Print a step and its duration once it is done."""
    begun = time.monotonic()
    yield
    print(f"{time.monotonic() - begun:6.1f} s  {what}", flush=True)


def build_twice(target: pathlib.Path, release: Release) -> dict[str, pathlib.Path]:
    """Build wheels and source archives twice, and the wheels from the source archives; return the first wheels.

    Raises:
        CheckFailed: If a build fails, or two builds of a file differ.
    """
    with tempfile.TemporaryDirectory() as name:
        sources, again, unpacked = (pathlib.Path(name) / part for part in ("sources", "again", "unpacked"))
        folders = wheels_of.stage(sources, release)
        built = wheels_of.build(target, sdist=True, folders=folders)
        wheels_of.build(again, sdist=True, folders=folders)
        expect_same(again, target)
        unpacked.mkdir()
        for archive in target.glob("*.tar.gz"):
            run("tar", "-xf", archive, "-C", unpacked)
        wheels_of.build(unpacked / "wheels", folders=sorted(unpacked.iterdir()))
        expect_same(unpacked / "wheels", target)
    return built


def expect_same(folder: pathlib.Path, first: pathlib.Path) -> None:
    """Raise CheckFailed unless every file of a folder equals its first build."""
    for path in folder.iterdir():
        expect(path.read_bytes() == (first / path.name).read_bytes(), f"{path.name}: two builds of it differ")


def check_wheel(name: str, wheel: pathlib.Path, version: str) -> None:
    """Check that a wheel has a single package without tests, its version, license, repository and `py.typed`."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [archive.read(found).decode() for found in names if found.endswith(".dist-info/METADATA")]
    packages = {found.partition("/")[0] for found in names} - {f"{name.replace('-', '_')}-{version}.dist-info"}
    expect(packages == {name.replace("-", "_")}, f"{wheel.name} has {sorted(packages)}")
    expect(f"\nVersion: {version}\n" in metadata, f"{wheel.name}: its metadata has another version")
    expect("\nLicense-Expression: Apache-2.0\n" in metadata, f"{wheel.name}: its metadata names no license")
    expect("\nLicense-File: LICENSE\n" in metadata, f"{wheel.name} has no license")
    expect("\nProject-URL: Homepage, https://" in metadata, f"{wheel.name}: its metadata names no repository")
    expect(f"{name.replace('-', '_')}/py.typed" in names, f"{wheel.name} lacks py.typed")
    expect(not [found for found in names if "test" in found.split("/")], f"{wheel.name} has tests")


def installed(wheels: Mapping[str, pathlib.Path], names: tuple[str, ...], folder: pathlib.Path) -> pathlib.Path:
    """Install built wheels into a new environment, with locked versions of other packages; return its `bin`."""
    # Keep the markers and remove the extras, which a constraint may not have.
    lines = re.findall(r"(?m)^([\w.-]+)(?:\[.*?\])?(==[^\\\n]+)", (ROOT / "requirements" / "dev.txt").read_text())
    locked = ["".join(line).strip() for line in lines]
    constraints = folder.with_suffix(".txt")
    constraints.write_text("\n".join(locked) + "\n")
    venv.create(folder, with_pip=True)
    pip = (folder / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "install", "--constraint", constraints, *(wheels[name] for name in names))
    return folder / "bin"


def try_client(wheels: Mapping[str, pathlib.Path], folder: pathlib.Path, version: str) -> None:
    """Import the client in an environment with only its own dependencies."""
    said = run(installed(wheels, ("agentmemory-client",), folder) / "python", "-c", CLIENT)
    expect(said.strip() == version, f"the client says that it is {said!r}")


def try_operator(wheels: Mapping[str, pathlib.Path], folder: pathlib.Path, version: str) -> pathlib.Path:
    """Run the command line in an environment without the development server; return its `bin`."""
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


def write_definitions(target: pathlib.Path, programs: pathlib.Path, release: Release) -> None:
    """Write the CRDs and the schema for editors with the installed program, and the manifests as one file."""
    printed = run(programs / "agentmemory", "crds")
    expect(all(path.stem.split("_")[1] in printed for path in (ROOT / "crds").glob("*.yaml")), "crds/ has other kinds")
    (target / "agentmemory-crds.yaml").write_text(printed)
    (target / "agentmemory.schema.json").write_text(run(programs / "agentmemory", "schema"))
    paths = sorted((ROOT / "examples" / "install").glob("*.yaml"))
    manifests = "---\n".join(path.read_text().removeprefix("---\n") for path in paths)
    image = f"image: {release.image}:{release.version}"
    (target / "agentmemory-install.yaml").write_text(
        re.sub(rf"image: agentmemory-operator:{re.escape(release.version)}\b", image, manifests)
    )


def pack_chart(target: pathlib.Path, release: Release) -> None:
    """Pack the chart with the helm that `make tools` builds; check that the packed chart renders."""
    assets = find_assets(os.environ, CHARTS)
    if assets is None:
        raise CheckFailed("no helm yet: run `make tools` once")
    chart.pack(target, release, assets / "helm")
    packed = target / f"agentmemory-operator-{release.semver}.tgz"
    # A helm built from its module assumes an old cluster.
    rendered = run(assets / "helm", "template", "agentmemory", packed, "--kube-version", CONTROL_PLANE.version)
    expect(f"image: {release.image}:{release.version}" in rendered, "the chart does not install the release's image")


def list_packages(target: pathlib.Path, environment: pathlib.Path, release: Release) -> None:
    """Write the SBOM of the operator's environment, with the tool that also writes the image's."""
    with tempfile.TemporaryDirectory() as folder:
        tool = pathlib.Path(folder) / "tool"
        venv.create(tool, with_pip=True)
        pip = (tool / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
        run(*pip, "install", "--require-hashes", "--only-binary", ":all:", "-r", "requirements/build.txt")
        cyclonedx = (tool / "bin" / "cyclonedx-py", "environment", "--output-reproducible")
        listed = run(*cyclonedx, environment / "bin" / "python").replace(target.as_uri(), release.files)
    expect("file://" not in listed, "the SBOM names files of this machine")
    (target / "agentmemory-operator.cdx.json").write_text(listed)


def try_image(target: pathlib.Path, folder: pathlib.Path, version: str) -> None:
    """Run the installation steps of the image; copy its SBOM to `target`."""
    run("image/install.sh", folder, env={"PYTHON": sys.executable})
    expect(run(folder / "bin" / "agentmemory", "version").strip() == version, "the image has another version")
    shutil.copy(folder / "sbom.cdx.json", target / "agentmemory-image.cdx.json")


def write_sums(target: pathlib.Path) -> None:
    """Write the checksums of all files to SHA256SUMS, for `sha256sum --check`."""
    files = sorted(path for path in target.iterdir() if path.is_file())
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (target / "SHA256SUMS").write_text("".join(sums))


def check(target: pathlib.Path, work: pathlib.Path) -> None:
    """Build and check all files of the release."""
    version, wrong = disagreements()
    expect(not wrong, "\n".join(wrong))
    release = Release(version, **addresses())
    with step("release notes"):
        (target / "RELEASE_NOTES.md").write_text(notes(release))
    with step("wheels and source archives, built twice, and wheels from the archives"):
        wheels = build_twice(target, release)
        for name, wheel in wheels.items():
            check_wheel(name, wheel, version)
    with step("the client alone"):
        try_client(wheels, work / "client", version)
    with step("the development server alone"):
        try_devserver(wheels, work / "devserver")
    with step("the operator and its client"):
        programs = try_operator(wheels, work / "operator", version)
    signer = signing.find_signer()
    steps: dict[str, Callable[[], object]] = {
        "definitions, manifests, schema": lambda: write_definitions(target, programs, release),
        "the chart": lambda: pack_chart(target, release),
        "the plugin for kubectl": lambda: run("krew/pack.sh", target, release.homepage),
        "SBOM": lambda: list_packages(target, work / "operator", release),
        "the image's steps": lambda: try_image(target, work / "image", version),
        **npm_step(target, release),
        "SHA256SUMS": lambda: write_sums(target),
        f"a signature with a local key, by {signer.program}": lambda: signing.rehearse(target / "SHA256SUMS", signer),
    }
    for what, do in steps.items():
        with step(what):
            do()


def addresses() -> dict[str, str]:
    """Return the addresses that the environment sets."""
    named = {"homepage": os.environ.get("RELEASE_HOMEPAGE"), "image": os.environ.get("RELEASE_IMAGE")}
    return {name: address for name, address in named.items() if address}


def npm_step(target: pathlib.Path, release: Release) -> dict[str, Callable[[], object]]:
    """Return the step for the npm package. If npm is not installed, print a line and return {}."""
    if shutil.which("npm"):
        return {"the npm package": lambda: npm.pack(target, release, has_sbom=True)}
    print("npm is not here: no npm package")
    return {}


def main(arguments: list[str]) -> int:
    """Build and check a release in a new folder, and print its files."""
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
