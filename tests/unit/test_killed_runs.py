"""Files of test runs in memory: those of killed runs are removed, so that the next runs have room."""

import os
import pathlib
import subprocess
from collections.abc import Callable

import pytest

from conftest import remove_killed_runs


def ended_pid() -> str:
    process = subprocess.Popen(["true"])
    process.wait()
    return str(process.pid)


@pytest.mark.parametrize(
    ("lock", "is_kept"),
    [
        pytest.param(ended_pid, False, id="killed"),
        pytest.param(lambda: str(os.getpid()), True, id="running"),
        pytest.param(lambda: "1", True, id="another user's"),
        pytest.param(lambda: "", True, id="just starting"),
        pytest.param(None, True, id="completed"),
    ],
)
def test_files_of_killed_runs_are_removed(
    tmp_path: pathlib.Path, lock: Callable[[], str] | None, is_kept: bool
) -> None:
    folder = tmp_path / "pytest-of-somebody" / "pytest-7"
    (folder / "test_one0").mkdir(parents=True)
    (folder / "test_one0" / "points").touch()
    if lock is not None:
        (folder / ".lock").write_text(lock())

    remove_killed_runs(tmp_path)

    assert folder.exists() is is_kept
