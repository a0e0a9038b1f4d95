"""The next run removes the folders and cgroups of a killed `make e2e-node`, and nothing else."""

import pathlib
import subprocess
import sys
import tempfile

import pytest

from tests.e2e import node_remains
from tests.e2e.node_remains import MARKER, PREFIX, own_folder, remove_leftovers
from tests.support.programs import ROOT

# Program that prints its folder, and waits in it.
RUN = """
import sys
from tests.e2e.node_remains import own_folder
with own_folder() as folder:
    (folder / "images").mkdir()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The folder for temporary files of this process and its children."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def killed(temporary: pathlib.Path) -> pathlib.Path:
    """Folder of a killed run."""
    with subprocess.Popen(
        [sys.executable, "-c", RUN], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        folder = pathlib.Path(run.stdout.readline().strip())
        run.kill()
    assert (folder / "images").exists()
    return folder


def test_folder_and_cgroup_of_killed_run_are_removed(killed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    cgroups = [tmp_path / controller / "home" / killed.name / "kubepods" for controller in ("cpu", "memory")]
    for cgroup in cgroups:
        cgroup.mkdir(parents=True)

    removed = remove_leftovers(tmp_path)

    assert removed == [killed.name]
    assert not killed.exists()
    assert [cgroup.parent.exists() for cgroup in cgroups] == [False, False]
    assert all(cgroup.parent.parent.exists() for cgroup in cgroups)


def test_other_folders_and_running_runs_stay(temporary: pathlib.Path) -> None:
    foreign = temporary / "of-somebody"
    foreign.mkdir()
    (foreign / MARKER).touch()
    (temporary / f"{PREFIX}linked").symlink_to(foreign)
    (temporary / f"{PREFIX}without-marker").mkdir()

    with own_folder() as folder:
        removed = remove_leftovers(temporary)

        assert removed == []
        assert (folder / MARKER).exists()
    assert not folder.exists()
    assert {path.name for path in temporary.iterdir()} == {
        "of-somebody",
        f"{PREFIX}linked",
        f"{PREFIX}without-marker",
    }


def test_mounts_in_the_folder_end_before_its_files(temporary: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner mounts end first; mounts next to the folder stay."""
    mounts, log, programs = (temporary / name for name in ("mounts", "log", "bin"))
    programs.mkdir()
    (programs / "umount").write_text(f'#!/bin/sh\n[ -d "$2/.." ] && echo "$2" >> {log}\n')
    (programs / "umount").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(node_remains, "MOUNTS", mounts)

    with own_folder() as folder:
        inner, outer = folder / "images" / "merged", folder / "images"
        inner.mkdir(parents=True)
        mounted = [outer, inner, temporary, pathlib.Path(f"{folder}-of-somebody")]
        mounts.write_text("".join(f"overlay {path} overlay rw 0 0\n" for path in mounted))

    assert log.read_text().split() == [str(inner), str(outer)]
    assert not folder.exists()
