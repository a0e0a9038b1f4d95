"""What the image holds, installed by the image's own script into a folder instead of a container."""

import pathlib
import subprocess

import pytest

from agentmemory_operator import __version__
from tests.support.programs import ROOT, clean_environment

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

# No home, nothing writable but what a test names: as in the container.
ENVIRONMENT = {"HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
EMBED = (
    "from agentmemory_operator.adapters.embedding.wordllama_embedder import _embed;"
    " print(len(_embed(['one text'], 256)[0]))"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder that the Dockerfile copies into the image."""
    target = tmp_path_factory.mktemp("image") / "agentmemory"
    done = subprocess.run([str(ROOT / "image" / "install.sh"), str(target)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def run(installed: pathlib.Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the image, away from the sources."""
    return subprocess.run(
        [str(installed / "bin" / program), *arguments],
        cwd=installed,
        env=clean_environment() | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command_of_the_image_starts(installed: pathlib.Path) -> None:
    assert run(installed, "agentmemory", "version").stdout.strip() == __version__


def test_nothing_that_only_builds_or_develops_is_in_the_image(installed: pathlib.Path) -> None:
    look = "import importlib.util as u; print([n for n in {!r} if u.find_spec(n)])"

    found = run(
        installed,
        "python",
        "-c",
        look.format(["qdrant_devserver", "qdrant_edge", "hatchling", "editables", "pip", "pytest"]),
    )

    assert found.stdout.strip() == "[]"


def test_the_package_is_installed_as_a_wheel_not_as_a_link_to_the_sources(installed: pathlib.Path) -> None:
    found = run(installed, "python", "-c", "import agentmemory_operator as a; print(a.__file__)")

    assert found.stdout.startswith(str(installed))


@pytest.mark.parametrize("verb", [("dev", "--manifests", "."), ("devserver",)], ids=lambda verb: verb[0])
def test_the_dev_qdrant_that_the_image_lacks_says_how_to_get_it(
    installed: pathlib.Path, tmp_path: pathlib.Path, verb: tuple[str, ...]
) -> None:
    done = run(installed, "agentmemory", *verb, "--data", str(tmp_path / "data"))

    assert done.returncode == 1
    assert "agentmemory-operator[dev]" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_offline_embedder_works_without_a_home_and_without_a_cache(installed: pathlib.Path) -> None:
    assert run(installed, "python", "-c", EMBED).stdout.strip() == "256"


def test_a_target_that_exists_is_refused(tmp_path: pathlib.Path) -> None:
    done = subprocess.run([str(ROOT / "image" / "install.sh"), str(tmp_path)], capture_output=True, text=True)

    assert done.returncode == 1
    assert f"{tmp_path} exists" in done.stderr
