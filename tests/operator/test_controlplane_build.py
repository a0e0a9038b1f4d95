"""Lookup of the control plane's binaries: the named folder first, then the cache, never a partial build."""

import hashlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import pytest

from tests.controlplane import build
from tests.controlplane.build import CONTROL_PLANE, CONTROLLERS, TOOLSETS, BuildError, Toolset
from tests.support.pages import DOCS

SCRIPT = pathlib.Path(build.__file__)
# Proxy at a port without a listener.
UNREACHABLE = {"https_proxy": "http://127.0.0.1:9"}


def fill(folder: pathlib.Path, *names: str, tools: Toolset = CONTROL_PLANE) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or [binary.name for binary in tools.binaries]:
        (folder / name).touch(mode=0o755)
    return folder


def run_script(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the script without Go, package index and archive."""
    bare = {"HOME": os.environ.get("HOME", "/"), "PATH": "/nowhere", "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=bare | UNREACHABLE | environ, capture_output=True, text=True)


def test_named_folders_are_used(tmp_path: pathlib.Path) -> None:
    named = {tools.variable: str(fill(tmp_path / tools.variable, tools=tools)) for tools in TOOLSETS}
    done = run_script("--all", **named)
    assert (done.returncode, done.stdout.splitlines()) == (0, [str(tmp_path / "KUBEBUILDER_ASSETS")])


def test_each_folder_variable_is_documented() -> None:
    pages = [(SCRIPT.parent / "README.md").read_text(), (DOCS / "settings.md").read_text()]
    assert [tools.variable for page in pages for tools in TOOLSETS if f"`{tools.variable}`" not in page] == []


def test_failed_storage_build_prints_control_plane(tmp_path: pathlib.Path) -> None:
    named = str(fill(tmp_path / "assets"))
    done = run_script("--all", KUBEBUILDER_ASSETS=named, AGENTMEMORY_CACHE=str(tmp_path))
    assert (done.returncode, done.stdout.splitlines()) == (1, [named])
    assert "set VERSITYGW_ASSETS to a folder that holds versitygw" in done.stderr


def test_default_needs_control_plane_only(tmp_path: pathlib.Path) -> None:
    named = str(fill(tmp_path / "assets"))
    done = run_script(KUBEBUILDER_ASSETS=named, AGENTMEMORY_CACHE=str(tmp_path))
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, [named], "")


def test_unknown_argument_is_an_error() -> None:
    done = run_script("--everything")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--everything" in done.stderr


@pytest.fixture
def archive(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Archive in the format of Kubernetes, with its pinned hash."""
    path = tmp_path / "envtest.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        for name in ("etcd", "kube-apiserver", "kubectl", "README", "../../outside"):
            member = tarfile.TarInfo(f"controller-tools/envtest/{name}")
            member.size = len(name)
            file.addfile(member, io.BytesIO(name.encode()))
    pinned = {build.archive_platform(): hashlib.sha512(path.read_bytes()).hexdigest()}
    monkeypatch.setattr(build, "ARCHIVE_SHA512", pinned)
    return path


def test_archive_is_unpacked_and_found(tmp_path: pathlib.Path, archive: pathlib.Path) -> None:
    environ = {"AGENTMEMORY_CACHE": str(tmp_path)}
    folder = build.download_archive(environ, archive.as_uri())

    assert folder is not None
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        name: name for name in ("etcd", "kube-apiserver", "kubectl")
    }
    assert build.find_assets(environ) == folder
    assert build.find_assets(environ, CONTROLLERS) is None


def test_archive_with_wrong_hash_is_rejected(
    tmp_path: pathlib.Path, archive: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {"AGENTMEMORY_CACHE": str(tmp_path)}
    with archive.open("ab") as file:
        file.write(b"\0")

    assert build.download_archive(environ, archive.as_uri()) is None
    assert build.find_assets(environ) is None
    assert "is pinned" in capsys.readouterr().err


@pytest.mark.parametrize("kept", [0, 40])
def test_truncated_archive_leaves_nothing(tmp_path: pathlib.Path, archive: pathlib.Path, kept: int) -> None:
    environ = {"AGENTMEMORY_CACHE": str(tmp_path)}
    archive.write_bytes(archive.read_bytes()[:kept]) if kept else archive.unlink()

    assert build.download_archive(environ, archive.as_uri()) is None
    assert [path.name for path in build.cache_root(environ).iterdir()] == ["lock"]


def test_oversized_archive_is_rejected(
    tmp_path: pathlib.Path, archive: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "ARCHIVE_MAX_BYTES", 10)
    assert build.download_archive({"AGENTMEMORY_CACHE": str(tmp_path)}, archive.as_uri()) is None


def test_named_folder_without_a_binary_is_an_error(tmp_path: pathlib.Path) -> None:
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


@pytest.mark.parametrize(
    ("changed", "rebuilt"),
    [
        ("servers/go.sum", {tools.variable for tools in TOOLSETS} - {"ARGOLUA_ASSETS"}),
        ("servers/controllers/main.go", {"CONTROLLERS_ASSETS"}),
        ("argolua/main.go", {"ARGOLUA_ASSETS"}),
    ],
)
def test_changed_sources_are_built_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, changed: str, rebuilt: set[str]
) -> None:
    before = {tools.variable: build.cache_key(tools) for tools in TOOLSETS}
    monkeypatch.setattr(build, "HERE", shutil.copytree(SCRIPT.parent, tmp_path / "copy"))
    with (tmp_path / "copy" / changed).open("a") as file:
        file.write("\n")

    assert {tools.variable for tools in TOOLSETS if build.cache_key(tools) != before[tools.variable]} == rebuilt


def test_failed_build_leaves_nothing(tmp_path: pathlib.Path) -> None:
    def fail_midway() -> None:
        with build.staging(tmp_path / "v1") as folder:
            fill(folder)
            raise BuildError("midway")

    with pytest.raises(BuildError, match="midway"):
        fail_midway()
    assert list(tmp_path.iterdir()) == []


def test_build_removes_leftovers_of_killed_build(tmp_path: pathlib.Path) -> None:
    fill(tmp_path / "v1.partial-killed")
    with build.staging(tmp_path / "v1") as folder:
        fill(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]


def test_second_build_waits_for_the_first(tmp_path: pathlib.Path) -> None:
    environ = {"AGENTMEMORY_CACHE": str(tmp_path), **{tools.variable: "" for tools in TOOLSETS}}
    root = build.cache_root(environ)
    for tools in TOOLSETS[1:]:
        fill(root / build.cache_key(tools), tools=tools)
    with build.exclusive(root):
        command = [sys.executable, str(SCRIPT), "--all"]
        second = subprocess.Popen(command, env=os.environ | UNREACHABLE | environ, stdout=-1, stderr=-1, text=True)
        assert second.stderr is not None
        assert "waiting" in second.stderr.readline()
        folder = fill(root / build.cache_key())
    printed, _ = second.communicate(timeout=30)
    assert printed.strip() == str(folder)


def test_missing_go_and_index_are_reported(tmp_path: pathlib.Path) -> None:
    done = run_script(AGENTMEMORY_CACHE=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "set KUBEBUILDER_ASSETS" in done.stderr


def test_old_go_is_rejected(tmp_path: pathlib.Path) -> None:
    (tmp_path / "go").write_text("#!/bin/sh\necho go version go1.25.9 linux/amd64\n")
    (tmp_path / "go").chmod(0o755)
    assert build.find_go({"PATH": f"{tmp_path}:/bin"}) is None
