"""The client's wheel works with its own dependencies only, and they are few."""

import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[1]
# Some versions of Python need the last two for anyio.
NEEDED = {"httpx", "httpcore", "h11", "anyio", "idna", "certifi", "sniffio", "typing-extensions"}
PROGRAM = """
import agentmemory_client, sys
from agentmemory_client import AsyncClient, Client
Client().agent("a").user("u").search
print(*sorted(name for name in sys.modules if name.startswith(("agentmemory_operator", "pydantic", "kubernetes"))))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = shutil.copytree(CLIENT, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "tests"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", str(source)]
    subprocess.run([*command, "--wheel-dir", str(folder)], check=True, timeout=120, capture_output=True)
    (built,) = folder.glob("agentmemory_client-*.whl")
    return built


def needed_by(name: str) -> set[str]:
    """Return the installed transitive dependencies of a package."""
    found: set[str] = set()
    pending = [name]
    while pending:
        for line in distribution(pending.pop()).requires or ():
            needed = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower().replace("_", "-")
            if "extra ==" not in line and needed not in found and is_installed(needed):
                found.add(needed)
                pending.append(needed)
    return found


def is_installed(name: str) -> bool:
    return any(Distribution.discover(name=name))


def test_wheel_contains_only_the_typed_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert "agentmemory_client/py.typed" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"agentmemory_client"}


def test_dependencies_are_those_of_httpx() -> None:
    assert needed_by("agentmemory-client") <= NEEDED


def test_wheel_runs_without_other_packages(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    for name in needed_by("agentmemory-client"):
        for file in distribution(name).files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), tmp_path / file)
    code = f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{str(tmp_path)!r}]{PROGRAM}"

    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)

    assert (done.stderr, done.stdout) == ("", "\n")
    # docs/client.md states this size.
    sources = [file for file in tmp_path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert sum(file.stat().st_size for file in sources) < 5_000_000
