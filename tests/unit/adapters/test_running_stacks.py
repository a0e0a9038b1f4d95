"""Registration of running development stacks, and tolerance of foreign files."""

import contextlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agentmemory_operator.adapters.folder.running_stacks import FOLDER, RunningStack, RunningStacks

STACK = RunningStack(
    api="http://127.0.0.1:8080",
    qdrant="http://127.0.0.1:6333",
    manifests=pathlib.Path("/stack/manifests"),
    data=pathlib.Path("/stack/data"),
    pid=7,
)
# Program that registers `STACK`, prints a line, and waits to be killed.
HOLDER = """
import sys
from dataclasses import replace
from pathlib import Path
from agentmemory_operator.adapters.folder.running_stacks import RunningStacks
from tests.unit.adapters.test_running_stacks import STACK
with RunningStacks(Path(sys.argv[1])).register(STACK):
    print("there", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def held_elsewhere(place: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLDER, str(place)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        try:
            yield process
        finally:
            process.kill()


def files(place: pathlib.Path) -> list[str]:
    return sorted(path.suffix for path in (place / FOLDER).iterdir())


def test_stack_is_found_while_it_runs(tmp_path: pathlib.Path) -> None:
    stacks = RunningStacks(tmp_path)

    assert stacks.find() == ()
    with stacks.register(STACK):
        assert stacks.find() == (STACK,)
        assert [oct(path.stat().st_mode & 0o777) for path in (tmp_path / FOLDER).iterdir()] == ["0o600"]
    assert stacks.find() == ()
    assert files(tmp_path) == []


def test_file_of_killed_stack_is_removed(tmp_path: pathlib.Path) -> None:
    with held_elsewhere(tmp_path) as process:
        assert RunningStacks(tmp_path).find() == (STACK,)
        process.kill()
        process.wait()

        assert files(tmp_path) == [".json"]
        assert RunningStacks(tmp_path).find() == ()
        assert files(tmp_path) == []


def test_several_stacks_are_found(tmp_path: pathlib.Path) -> None:
    stacks = RunningStacks(tmp_path)
    with held_elsewhere(tmp_path), stacks.register(STACK):
        assert stacks.find() == (STACK, STACK)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"api": "http://127.0.0.1:80"}', '{"api": "http://elsewhere", "qdrant": "", "pid": 1}']
)
def test_malformed_file_is_ignored(tmp_path: pathlib.Path, content: str) -> None:
    stacks = RunningStacks(tmp_path)
    with stacks.register(STACK):
        (path,) = (tmp_path / FOLDER).iterdir()
        path.write_text(content)

        assert stacks.find() == ()


def test_url_of_another_machine_is_ignored(tmp_path: pathlib.Path) -> None:
    stacks = RunningStacks(tmp_path)
    with stacks.register(STACK):
        (path,) = (tmp_path / FOLDER).iterdir()
        path.write_text(path.read_text().replace("127.0.0.1:8080", "192.0.2.1:8080"))

        assert stacks.find() == ()


def test_links_and_pipes_are_ignored(tmp_path: pathlib.Path) -> None:
    (tmp_path / FOLDER).mkdir()
    os.mkfifo(tmp_path / FOLDER / "pipe.json")
    (tmp_path / "secret").write_text("{}")
    (tmp_path / FOLDER / "link.json").symlink_to(tmp_path / "secret")

    assert RunningStacks(tmp_path).find() == ()
    assert (tmp_path / "secret").read_text() == "{}"


@pytest.mark.parametrize("place", [None, pathlib.Path(os.devnull, "agentmemory")], ids=["none", "unwritable"])
def test_unwritable_folder_is_reported(place: pathlib.Path | None) -> None:
    stacks = RunningStacks(place)

    assert stacks.find() == ()
    with pytest.raises(OSError, match=r"HOME|directory"), stacks.register(STACK):
        pass
