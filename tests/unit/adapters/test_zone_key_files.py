"""Key shards in a folder, with the behaviour of those in memory."""

import stat
from pathlib import Path

import pytest

from agentmemory_operator.adapters.folder.key_shard_files import FOLDER, FileKeyShards
from agentmemory_operator.errors import TransientError
from agentmemory_operator.ports.key_shards import KeyShards
from tests.support.key_shards import BEHAVIOURS, Behaviour, new_ring, new_shard
from tests.support.zones import RING, FakeKeyShards


@pytest.fixture(params=["fake", "files"])
def shards(request: pytest.FixtureRequest, tmp_path: Path) -> KeyShards:
    return FileKeyShards(tmp_path) if request.param == "files" else FakeKeyShards()


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda found: found.__name__)
async def test_behaves_as_a_shard_store(shards: KeyShards, behaviour: Behaviour) -> None:
    await behaviour(shards, new_ring())


async def test_files_are_private(tmp_path: Path) -> None:
    await FileKeyShards(tmp_path).write(new_shard(RING))

    (file,) = tmp_path.rglob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert file.parent.parent == tmp_path / FOLDER


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"null"])
async def test_malformed_file_is_not_overwritten(tmp_path: Path, content: bytes) -> None:
    shards = FileKeyShards(tmp_path)
    await shards.write(new_shard(RING))
    (file,) = tmp_path.rglob("*.json")
    file.write_bytes(content)

    with pytest.raises(TransientError, match="backup"):
        await shards.read(RING, "0")
    assert file.read_bytes() == content


async def test_other_files_are_no_shards(tmp_path: Path) -> None:
    shards = FileKeyShards(tmp_path)
    await shards.write(new_shard(RING))
    for name in ("4.json", "0.json.new", "x.json"):
        (tmp_path / FOLDER / f"{RING.namespace}.{RING.agent}" / name).touch()

    assert await shards.list_names(RING) == ["0"]


async def test_unusable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / FOLDER).touch()

    for call in (FileKeyShards(tmp_path).write(new_shard(RING)), FileKeyShards(tmp_path).read(RING, "0")):
        with pytest.raises(TransientError, match="which stores zone keys"):
            await call
