"""Archives of snapshots: no member outside the folder, since any client may upload one; no zeros."""

import io
import pathlib
import tarfile

import pytest

from qdrant_devserver.snapshots.archives import InvalidArchive, unpack_archive, write_archive
from qdrant_devserver.storage.files import copy_tree


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../outside", tarfile.REGTYPE),
        ("shard-0/../../outside", tarfile.REGTYPE),
        ("/outside", tarfile.REGTYPE),
        ("shard-0/link", tarfile.SYMTYPE),
        ("shard-0/link", tarfile.LNKTYPE),
        ("shard-0/pipe", tarfile.FIFOTYPE),
    ],
)
@pytest.mark.parametrize("has_filter", [True, False])
def test_member_outside_the_folder_is_rejected(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: bytes, has_filter: bool
) -> None:
    if not has_filter:
        monkeypatch.setattr("qdrant_devserver.snapshots.archives._FILTER", {})
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, "/etc/hostname", 4 if kind == tarfile.REGTYPE else 0
    with tarfile.TarFile(tmp_path / "a.snapshot", "w") as archive:
        archive.addfile(entry, io.BytesIO(b"text"))

    with pytest.raises(InvalidArchive, match="is no file below the archive's folder"):
        unpack_archive(tmp_path / "a.snapshot", tmp_path / "folder")

    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "folder").exists()


SOME = b"written"
ZEROS = bytes(1 << 20)


@pytest.mark.parametrize(
    "content",
    [ZEROS, SOME + ZEROS, ZEROS + SOME, SOME + ZEROS + SOME + ZEROS, ZEROS + SOME + bytes(9), SOME, b""],
    ids=["zeros", "start", "end", "start and middle", "before zeros", "full", "empty"],
)
def test_written_zeros_are_left_out(tmp_path: pathlib.Path, content: bytes) -> None:
    """The engine's empty files are mostly blocks of zeros, 27 MiB for an agent's collection."""
    shard, unpacked = tmp_path / "shard", tmp_path / "unpacked"
    shard.mkdir()
    (shard / "file").write_bytes(content)

    write_archive(tmp_path / "a.snapshot", {}, shard)
    unpack_archive(tmp_path / "a.snapshot", unpacked)
    copy_tree(shard, tmp_path / "copy")

    assert (tmp_path / "a.snapshot").stat().st_size < 256 << 10
    for file in (unpacked / "shard-0" / "file", tmp_path / "copy" / "file"):
        assert file.read_bytes() == content
        assert file.stat().st_blocks * 512 < 256 << 10
