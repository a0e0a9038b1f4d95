"""Build the three Python packages; the same sources give the same bytes.

    usage: release/wheels.py TARGET

TARGET is replaced by a folder with a wheel of each package, and with the npm package if `make client-ts` has built it.
The build backend of requirements/backend.txt is installed into a temporary folder if it is missing here. Standard
library only.
"""

import importlib.util
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from release import npm  # noqa: E402
from release.commands import CheckFailed, Release, run  # noqa: E402
from release.links import absolute  # noqa: E402
from release.version import disagreements  # noqa: E402

# Folder of each package's pyproject.toml, and of its modules below it.
PROJECTS = {"agentmemory-client": "client", "agentmemory-operator": ".", "qdrant-devserver": "devserver"}
MODULES = {
    "agentmemory-client": "agentmemory_client",
    "agentmemory-operator": "operator/agentmemory_operator",
    "qdrant-devserver": "qdrant_devserver",
}
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
EARLIEST_ZIP_TIME_S = "315532800"


def commit_time_s() -> str:
    """Return the time of the last commit, which the archives record; 1980 outside a git checkout."""
    try:
        return run("git", "log", "-1", "--format=%ct").strip()
    except (OSError, CheckFailed):
        return EARLIEST_ZIP_TIME_S


def stage(target: pathlib.Path, release: Release) -> list[pathlib.Path]:
    """Copy the sources of each package into a folder, with the addresses for an index; return the folders."""
    for name, folder in PROJECTS.items():
        source, copy = ROOT / folder, target / name
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
        shutil.copytree(source / MODULES[name], copy / MODULES[name], ignore=ignored)
        shutil.copy(ROOT / "LICENSE", copy)
        (copy / "README.md").write_text(absolute((source / "README.md").read_text(), release, folder))
        urls = {
            "Homepage": release.homepage,
            "Documentation": release.url("docs/index.md"),
            "Changelog": release.url("CHANGELOG.md"),
            "Issues": f"{release.homepage}/issues",
        }
        lines = ["", "[project.urls]", *(f'{label} = "{url}"' for label, url in urls.items()), ""]
        (copy / "pyproject.toml").write_text((source / "pyproject.toml").read_text() + "\n".join(lines))
    return sorted(target.iterdir())


def build(
    target: pathlib.Path, *, sdist: bool = False, folders: Iterable[pathlib.Path] | None = None
) -> dict[str, pathlib.Path]:
    """Build the packages into a folder; return the wheel of each by its name on the index.

    Args:
        target: Folder for the wheels; created if it is missing.
        sdist: True to build the source archives too.
        folders: Unpacked sources of the packages. Default: those of this checkout.

    Raises:
        CheckFailed: If a package cannot be built.
    """
    target = target.resolve()
    target.mkdir(parents=True, exist_ok=True)
    environment = {"SOURCE_DATE_EPOCH": commit_time_s(), "PIP_ROOT_USER_ACTION": "ignore"}
    with tempfile.TemporaryDirectory() as backend:
        if importlib.util.find_spec("hatchling") is None:
            lock = ROOT / "requirements" / "backend.txt"
            run(*PIP, "install", "--target", backend, "--require-hashes", "-r", lock, env=environment)
            environment["PYTHONPATH"] = backend
        kinds = ("-t", "wheel", *(("-t", "sdist") if sdist else ()))
        for folder in folders or (ROOT / name for name in PROJECTS.values()):
            command = (sys.executable, "-m", "hatchling", "build", "-d", target, *kinds)
            run(*command, env=environment, folder=folder)
    return {name: next(target.glob(f"{name.replace('-', '_')}-*.whl")) for name in PROJECTS}


def build_all(target: pathlib.Path) -> list[pathlib.Path]:
    """Replace a folder by one with all packages; return their files. If a build fails, the folder is unchanged."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = pathlib.Path(folder) / target.name
        build(built)
        if shutil.which("npm") and npm.is_built():
            npm.pack(built, Release(disagreements()[0]))
        shutil.rmtree(target, ignore_errors=True)
        built.rename(target)
    return sorted(target.iterdir())


def main(arguments: list[str]) -> int:
    """Build into a folder, and print its files."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(*build_all(pathlib.Path(arguments[0])), sep="\n")
    except CheckFailed as failed:
        print(f"release/wheels.py: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
