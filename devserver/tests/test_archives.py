"""A snapshot's archive may only contain files and folders below its own folder: any client may upload one."""

import io
import pathlib
import tarfile

import pytest

from qdrant_devserver.snapshots.archives import InvalidArchive, unpack_archive


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
