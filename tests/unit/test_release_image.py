"""Release image: base with a digest, consistent locks."""

import pathlib
import re
import subprocess

import pytest

from tests.support.programs import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
REQUIREMENTS = ROOT / "requirements"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
PINNED = re.compile(r"^ARG BASE=(\S+)$", re.M)


def resolve(*arguments: str, docker: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Run the script with a fake `docker` that runs this shell command."""
    (folder / "docker").write_text(f'#!/bin/sh\necho "$@" >&2\n{docker}\n')
    (folder / "docker").chmod(0o755)
    command = [str(ROOT / "image" / "base.sh"), *arguments]
    return subprocess.run(command, env={"PATH": f"{folder}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=30)


def test_base_gets_digest_of_registry(tmp_path: pathlib.Path) -> None:
    (base,) = PINNED.findall(DOCKERFILE)

    done = resolve(docker=f"echo {DIGEST}", folder=tmp_path)

    assert (done.returncode, done.stdout) == (0, f"{base}@{DIGEST}\n")
    assert f"imagetools inspect {base} " in done.stderr


@pytest.mark.parametrize(
    ("base", "docker"),
    [
        ("python:3", "exit 1"),
        ("python:3", f"echo {DIGEST}; exit 1"),
        ("python:3", "true"),
        ("python:3", "echo '<no value>'"),
        ("python:3", f"echo {DIGEST[:-1]}"),
        ("python:3", f"echo {DIGEST[:-1]}G"),
        ("python:3", f"echo {DIGEST[:-2]}; echo a"),
        ("python:3@sha256:short", f"echo {DIGEST}"),
        (f"python:3@{DIGEST.upper()}", f"echo {DIGEST}"),
    ],
)
def test_base_without_digest_is_refused(tmp_path: pathlib.Path, base: str, docker: str) -> None:
    done = resolve(base, docker=docker, folder=tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert f"{base} has no digest" in done.stderr


def locked(name: str) -> set[str]:
    """Return the packages of a lock, each with version and environment marker."""
    return set(re.findall(r"^(\S+==.*?) \\$", (REQUIREMENTS / name).read_text(), re.M))


def test_extra_changes_no_version() -> None:
    assert locked("image.txt") < locked("image-fastembed.txt")


def test_wordllama_is_installed_for_its_data_only() -> None:
    """wordllama has no wheel for arm64."""
    for lock in ("image.txt", "image-fastembed.txt"):
        assert not [package for package in locked(lock) if package.startswith("wordllama==")]
    assert {package.partition("==")[0] for package in locked("weights.txt")} == {"wordllama"}
    assert locked("weights.txt") <= locked("run.txt")


def test_build_context_has_files_of_install_script() -> None:
    script = (ROOT / "image" / "install.sh").read_text()
    read = re.findall(r"requirements/[\w.]+txt|image/\w+\.py", script) + re.findall(r"(?<= \./)\w+", script)
    sent = (ROOT / ".dockerignore").read_text().splitlines()

    assert {"client", "image/fetch_model.py"} <= set(read)
    assert [name for name in read if f"!{name}" not in sent] == []
