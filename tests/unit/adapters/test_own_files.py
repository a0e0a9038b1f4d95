"""Safe writes next to manifests of other users: no links followed, no partial files."""

import asyncio
import json
import os
import pathlib
from contextlib import suppress

import pytest

from agentmemory_operator.adapters.folder import atomic_files
from agentmemory_operator.adapters.folder.atomic_files import (
    create_file,
    ensure_folder,
    ignore_in_git,
    open_replacement,
    write_file,
)
from agentmemory_operator.adapters.folder.manifest_files import ManifestFiles
from agentmemory_operator.adapters.folder.manifest_folder import ManifestFolder
from agentmemory_operator.errors import AgentMemoryError
from tests.support.spec.documents import agent_document

THEIRS = "of somebody else"


@pytest.fixture
def victim(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "victim"
    path.write_text(THEIRS)
    return path


async def first_scan(folder: pathlib.Path) -> None:
    async for _ in ManifestFolder(folder, identify=lambda: "cluster").follow():
        return


@pytest.mark.parametrize("name", [".gitignore", "cluster-id", ".cluster-id.new", ".agents.bot.agentmemory.json.new"])
def test_link_in_status_folder_is_not_followed(tmp_path: pathlib.Path, victim: pathlib.Path, name: str) -> None:
    manifests = tmp_path / "manifests"
    (manifests / ".status").mkdir(parents=True)
    (manifests / "bot.yaml").write_text(json.dumps(agent_document("bot")))
    (manifests / ".status" / name).symlink_to(victim)

    asyncio.run(first_scan(manifests))

    assert victim.read_text() == THEIRS
    assert (manifests / ".status" / "agents.bot.agentmemory.json").is_file()


def test_link_as_status_folder_is_rejected(tmp_path: pathlib.Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / ".status").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(AgentMemoryError, match=r"\.status is a link.*remove the link"):
        asyncio.run(first_scan(tmp_path / "manifests"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_command_follows_no_link(tmp_path: pathlib.Path, victim: pathlib.Path) -> None:
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / ".agents.one.memorysnapshot.yaml.new").symlink_to(victim)
    document = agent_document("bot") | {"kind": "MemorySnapshot"}
    document["metadata"] = {"name": "one", "namespace": "agents"}

    assert asyncio.run(ManifestFiles(tmp_path / "manifests").create_object(document))
    assert victim.read_text() == THEIRS


def test_pipe_does_not_block_the_scan(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "bot.yaml").write_text(json.dumps(agent_document("bot")))

    events = ManifestFolder(tmp_path, keeps_status=False).scan()

    assert "bot" in {document["metadata"]["name"] for _, document in events}


def test_gitignore_is_created_but_not_replaced(tmp_path: pathlib.Path) -> None:
    ignore_in_git(tmp_path)
    assert (tmp_path / ".gitignore").read_text() == "*\n"
    (tmp_path / ".gitignore").write_text("mine\n")
    ignore_in_git(tmp_path)

    assert (tmp_path / ".gitignore").read_text() == "mine\n"


def test_only_write_file_replaces_a_file(tmp_path: pathlib.Path) -> None:
    write_file(tmp_path / "a", "first")
    write_file(tmp_path / "a", "second")
    ensure_folder(tmp_path)

    with pytest.raises(FileExistsError):
        create_file(tmp_path / "a", "third")
    assert (tmp_path / "a").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_draft_replaces_the_file_once_complete(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a"
    path.write_text("before")

    with suppress(KeyboardInterrupt), open_replacement(path) as draft:
        draft.write(b"half")
        raise KeyboardInterrupt
    assert [each.read_text() for each in tmp_path.iterdir()] == ["before"]

    with open_replacement(path) as draft:
        draft.write(b"after")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["after"]


def test_full_disk_leaves_no_partial_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.touch()
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(atomic_files.os, "open", lambda *_: full)

    with pytest.raises(OSError, match="No space"):
        create_file(path, "text")
    assert not path.exists()
