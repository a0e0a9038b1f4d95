"""Build the three Python packages; the same sources give the same bytes.

    usage: release/wheels.py TARGET [--sdist]

TARGET gets a wheel of each package, with --sdist also its source archive. The build backend of requirements/backend.txt
is installed into a temporary folder if it is missing here. Standard library only.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROJECTS = {"agentmemory-client": "client", "agentmemory-operator": ".", "qdrant-devserver": "devserver"}
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


class BuildFailed(Exception):
    """The output of the command that failed."""


def run(*command: str, folder: pathlib.Path, environment: dict[str, str]) -> None:
    """Run a command without showing its output.

    Raises:
        BuildFailed: If it fails.
    """
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)}: exit {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")


def commit_time_s() -> str:
    """Return the time of the last commit, which the archives record; 1980 outside a git checkout."""
    command = ("git", "log", "-1", "--format=%ct")
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "315532800"


def build(target: pathlib.Path, *, sdist: bool = False) -> dict[str, pathlib.Path]:
    """Build the packages into a folder; return the wheel of each by its name on the index.

    Raises:
        BuildFailed: If a package cannot be built.
    """
    target = target.resolve()
    target.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": commit_time_s(), "PIP_ROOT_USER_ACTION": "ignore"}
    with tempfile.TemporaryDirectory() as backend:
        if importlib.util.find_spec("hatchling") is None:
            locked = ("--require-hashes", "-r", "requirements/backend.txt")
            run(*PIP, "install", "--target", backend, *locked, folder=ROOT, environment=environment)
            environment["PYTHONPATH"] = backend
        kinds = ("-t", "wheel", *(("-t", "sdist") if sdist else ()))
        command = (sys.executable, "-m", "hatchling", "build", "-d", str(target), *kinds)
        for folder in PROJECTS.values():
            run(*command, folder=ROOT / folder, environment=environment)
    return {name: next(target.glob(f"{name.replace('-', '_')}-*.whl")) for name in PROJECTS}


def main(arguments: list[str]) -> int:
    """Build into a folder, and print what was built."""
    folders = [argument for argument in arguments if argument != "--sdist"]
    if len(folders) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        wheels = build(pathlib.Path(folders[0]), sdist="--sdist" in arguments)
    except BuildFailed as failed:
        print(f"release/wheels.py: {failed}", file=sys.stderr)
        return 1
    print(*wheels.values(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
