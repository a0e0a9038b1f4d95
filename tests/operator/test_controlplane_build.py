"""Where the binaries come from: the named folder, then the cache, and never a half-built one."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.controlplane import build
from tests.controlplane.build import CONTROL_PLANE, TOOLSETS, BuildError, Toolset
from tests.support.pages import DOCS

SCRIPT = pathlib.Path(build.__file__)


def fill(folder: pathlib.Path, *names: str, tools: Toolset = CONTROL_PLANE) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or [binary.name for binary in tools.binaries]:
        (folder / name).touch(mode=0o755)
    return folder


def run_script(**environ: str) -> subprocess.CompletedProcess[str]:
    """Run the script on a machine that has no Go and reaches no package index."""
    bare = {"HOME": os.environ.get("HOME", "/"), "PATH": "/nowhere", "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    return subprocess.run([sys.executable, str(SCRIPT)], env=bare | environ, capture_output=True, text=True)


def test_named_folders_are_used_and_that_of_the_control_plane_is_printed_alone(tmp_path: pathlib.Path) -> None:
    named = {tools.variable: str(fill(tmp_path / tools.variable, tools=tools)) for tools in TOOLSETS}
    done = run_script(**named)
    assert (done.returncode, done.stdout.splitlines()) == (0, [str(tmp_path / "KUBEBUILDER_ASSETS")])


def test_each_variable_that_names_a_folder_is_told() -> None:
    pages = [(SCRIPT.parent / "README.md").read_text(), (DOCS / "settings.md").read_text()]
    assert [tools.variable for page in pages for tools in TOOLSETS if f"`{tools.variable}`" not in page] == []


def test_control_plane_is_printed_where_the_object_storage_cannot_be_built(tmp_path: pathlib.Path) -> None:
    named = str(fill(tmp_path / "assets"))
    done = run_script(KUBEBUILDER_ASSETS=named, AGENTMEMORY_CACHE=str(tmp_path))
    assert (done.returncode, done.stdout.splitlines()) == (1, [named])
    assert "set VERSITYGW_ASSETS to a folder that holds versitygw" in done.stderr


def test_named_folder_without_a_binary_is_an_error_that_names_it(tmp_path: pathlib.Path) -> None:
    fill(tmp_path, "etcd", "kubectl")
    with pytest.raises(BuildError, match="lacks kube-apiserver"):
        build.find_assets({"KUBEBUILDER_ASSETS": str(tmp_path)})


@pytest.mark.parametrize(
    ("environ", "under"),
    [
        ({"AGENTMEMORY_CACHE": "{}/a", "XDG_CACHE_HOME": "{}/x"}, "a"),
        ({"XDG_CACHE_HOME": "{}/x"}, "x"),
    ],
)
def test_cache_folder_follows_the_environment(tmp_path: pathlib.Path, environ: dict[str, str], under: str) -> None:
    named = {name: value.format(tmp_path) for name, value in environ.items()}
    folder = fill(tmp_path / under / "agentmemory-operator" / "controlplane" / build.cache_key())
    assert build.find_assets(named) == folder


def test_build_that_fails_leaves_nothing_that_looks_finished(tmp_path: pathlib.Path) -> None:
    def fail_midway() -> None:
        with build.staging(tmp_path / "v1") as folder:
            fill(folder)
            raise BuildError("midway")

    with pytest.raises(BuildError, match="midway"):
        fail_midway()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_build_left_is_removed_by_the_next(tmp_path: pathlib.Path) -> None:
    fill(tmp_path / "v1.partial-killed")
    with build.staging(tmp_path / "v1") as folder:
        fill(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]


def test_second_build_waits_and_uses_the_result_of_the_first(tmp_path: pathlib.Path) -> None:
    environ = {"AGENTMEMORY_CACHE": str(tmp_path), **{tools.variable: "" for tools in TOOLSETS}}
    root = build.cache_root(environ)
    for tools in TOOLSETS[1:]:
        fill(root / build.cache_key(tools), tools=tools)
    with build.exclusive(root):
        command = [sys.executable, str(SCRIPT)]
        second = subprocess.Popen(command, env=os.environ | environ, stdout=-1, stderr=-1, text=True)
        assert second.stderr is not None
        assert "waiting" in second.stderr.readline()
        folder = fill(root / build.cache_key())
    printed, _ = second.communicate(timeout=30)
    assert printed.strip() == str(folder)


def test_no_go_and_no_package_index_says_what_to_do(tmp_path: pathlib.Path) -> None:
    done = run_script(AGENTMEMORY_CACHE=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "set KUBEBUILDER_ASSETS" in done.stderr


def test_go_that_is_too_old_is_not_used(tmp_path: pathlib.Path) -> None:
    (tmp_path / "go").write_text("#!/bin/sh\necho go version go1.25.9 linux/amd64\n")
    (tmp_path / "go").chmod(0o755)
    assert build.find_go({"PATH": f"{tmp_path}:/bin"}) is None
