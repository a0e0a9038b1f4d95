"""Krew plugin: its manifest matches the archive, and it starts the named version."""

import hashlib
import pathlib
import subprocess
from typing import Any

import pytest
import yaml

from agentmemory_operator import __version__
from tests.support.programs import ROOT

HOMEPAGE = "https://example.com/agentmemory"


def pack(target: pathlib.Path, homepage: str = HOMEPAGE) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "krew" / "pack.sh"), str(target), homepage]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def plugin(tmp_path: pathlib.Path) -> tuple[dict[str, Any], pathlib.Path]:
    """Return the manifest and the folder with the unpacked archive."""
    done = pack(tmp_path)
    assert done.returncode == 0, done.stderr
    manifest = yaml.safe_load((tmp_path / "agentmemory.yaml").read_text())
    archive = tmp_path / manifest["spec"]["platforms"][0]["uri"].rpartition("/")[2]
    (tmp_path / "unpacked").mkdir()
    # Python before 3.11.4 has no filter for `extractall`, later ones warn without it.
    subprocess.run(("tar", "-xf", archive, "-C", tmp_path / "unpacked"), check=True)
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == manifest["spec"]["platforms"][0]["sha256"]
    return manifest, tmp_path / "unpacked"


def test_manifest_is_valid_for_krew(plugin: tuple[dict[str, Any], pathlib.Path]) -> None:
    manifest, folder = plugin
    [platform] = manifest["spec"]["platforms"]

    assert (manifest["apiVersion"], manifest["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert manifest["spec"]["version"] == f"v{__version__}"
    assert platform["uri"] == f"{HOMEPAGE}/releases/download/v{__version__}/kubectl-agentmemory-{__version__}.tar.gz"
    # Checks of krew: at most 50 characters, no "kubectl", no final full stop.
    short = manifest["spec"]["shortDescription"]
    assert len(short) <= 50
    assert "kubectl" not in short.lower()
    assert not short.endswith(".")
    assert platform["bin"] == "kubectl-agentmemory"
    assert sorted(file["from"] for file in platform["files"]) == sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("runner", ["uvx --from", "pipx run --spec"])
def test_plugin_starts_its_version(
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

    expected = [
        *runner.split()[1:],
        f"agentmemory-operator=={__version__}",
        "kubectl-agentmemory",
        "status",
        "two words",
    ]
    assert done.stdout.split("|")[1:-1] == expected


def test_missing_runner_is_reported(plugin: tuple[dict[str, Any], pathlib.Path]) -> None:
    done = subprocess.run(
        [plugin[1] / "kubectl-agentmemory"], env={"PATH": ""}, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 1
    assert done.stderr.startswith("kubectl agentmemory needs uv or pipx on the PATH")
