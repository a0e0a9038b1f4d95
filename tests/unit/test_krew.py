"""What krew is given: a manifest that fits its archive, and a plugin that starts the version that it names."""

import hashlib
import pathlib
import subprocess
import tarfile
from typing import Any

import pytest
import yaml

from agentmemory_operator import __version__
from tests.support.programs import ROOT

HOMEPAGE = "https://example.com/agentmemory"


def packed(target: pathlib.Path, homepage: str = HOMEPAGE) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "krew" / "pack.sh"), str(target), homepage]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def plugin(tmp_path: pathlib.Path) -> tuple[dict[str, Any], pathlib.Path]:
    """The manifest, and a folder with what its archive has."""
    done = packed(tmp_path)
    assert done.returncode == 0, done.stderr
    manifest = yaml.safe_load((tmp_path / "agentmemory.yaml").read_text())
    archive = tmp_path / manifest["spec"]["platforms"][0]["uri"].rpartition("/")[2]
    with tarfile.open(archive) as files:
        files.extractall(tmp_path / "unpacked", filter="data")
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == manifest["spec"]["platforms"][0]["sha256"]
    return manifest, tmp_path / "unpacked"


def test_the_manifest_is_one_that_krew_takes(plugin: tuple[dict[str, Any], pathlib.Path]) -> None:
    manifest, folder = plugin
    [platform] = manifest["spec"]["platforms"]

    assert (manifest["apiVersion"], manifest["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert manifest["spec"]["version"] == f"v{__version__}"
    assert platform["uri"] == f"{HOMEPAGE}/releases/download/v{__version__}/kubectl-agentmemory-{__version__}.tar.gz"
    # Their own checks: at most 50 characters, no "kubectl" in it, no full stop behind it.
    short = manifest["spec"]["shortDescription"]
    assert len(short) <= 50
    assert "kubectl" not in short.lower()
    assert not short.endswith(".")
    assert platform["bin"] == "kubectl-agentmemory"
    assert sorted(file["from"] for file in platform["files"]) == sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("runner", ["uvx --from", "pipx run --spec"])
def test_the_plugin_starts_its_version(
    plugin: tuple[dict[str, Any], pathlib.Path], tmp_path: pathlib.Path, runner: str
) -> None:
    program = tmp_path / runner.partition(" ")[0]
    program.write_text('#!/bin/sh\nprintf "%s|" "$0" "$@"\n')
    program.chmod(0o755)

    done = subprocess.run(
        [plugin[1] / "kubectl-agentmemory", "status", "two words"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    wanted = [*runner.split()[1:], f"agentmemory-operator=={__version__}", "kubectl-agentmemory", "status", "two words"]
    assert done.stdout.split("|")[1:-1] == wanted


def test_without_a_runner_it_says_what_it_needs(plugin: tuple[dict[str, Any], pathlib.Path]) -> None:
    done = subprocess.run(
        [plugin[1] / "kubectl-agentmemory"], env={"PATH": ""}, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 1
    assert done.stderr.startswith("kubectl agentmemory needs uv or pipx on the PATH")
