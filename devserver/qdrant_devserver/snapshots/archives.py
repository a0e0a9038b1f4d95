"""Archive of a snapshot: an uncompressed tar of the engine's files and a manifest of the collection.

Holes in files are left out (GNU sparse format 1.0), because write-ahead logs are mostly holes. File contents are not
decoded.
"""

import io
import os
import pathlib
import tarfile
from collections.abc import Iterator
from typing import IO, Any

import orjson

from qdrant_devserver.fields import Document
from qdrant_devserver.storage.files import data_ranges, read_json
from qdrant_devserver.storage.shards import SUMMARY

MANIFEST = "manifest.json"
SHARD = "shard-0"
_BLOCK_BYTES = 1 << 20
# Block size of a tar. A header or a sparse map fills whole blocks.
_RECORD_BYTES = 512
# Exists from Python 3.11.4 on; from 3.12 on it should be given explicitly.
_FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


class InvalidArchive(Exception):
    """The file is truncated, or is not an archive."""


def write_archive(path: pathlib.Path, manifest: Document, shard: pathlib.Path | None) -> None:
    """Write an archive.

    Args:
        path: Target file.
        manifest: Description of the collection without its points.
        shard: The engine's folder, which must not change during the call; None for a collection that never had points.

    Raises:
        OSError: If the disk is full.
    """
    files = _files(shard) if shard else []
    # Copies use buffers of this size instead of tarfile's 16 KiB.
    with tarfile.TarFile(path, "w", format=tarfile.PAX_FORMAT, copybufsize=_BLOCK_BYTES) as archive:
        content = orjson.dumps(manifest | {"files": len(files)})
        archive.addfile(_entry(MANIFEST, len(content)), io.BytesIO(content))
        for file in files:
            _add(archive, file, f"{SHARD}/{file.relative_to(shard or file)}")


def unpack_archive(path: pathlib.Path, folder: pathlib.Path) -> Document:
    """Unpack an archive into a folder; return its manifest, which is removed from the folder.

    Raises:
        InvalidArchive: If the file is truncated, or is not an archive.
        OSError: If the disk is full.
    """
    try:
        with tarfile.TarFile(path, "r", copybufsize=_BLOCK_BYTES) as archive:
            _check_members(archive)
            archive.extractall(folder, **_FILTER)
        manifest: Document = read_json(folder / MANIFEST)
        (folder / MANIFEST).unlink()
    except (tarfile.TarError, EOFError, FileNotFoundError, ValueError) as error:
        raise InvalidArchive(f"Failed to unpack snapshot archive {path.name}: {error}") from error
    found = len(_files(folder / SHARD))
    if found != manifest.get("files"):
        # A tar that is truncated between two entries reads like a complete one.
        raise InvalidArchive(f"Failed to unpack snapshot archive {path.name}: {found} files in it")
    return manifest


def _check_members(archive: tarfile.TarFile) -> None:
    """Raise unless all members are files or folders below the archive's own folder."""
    for member in archive.getmembers():
        path = pathlib.PurePosixPath(member.name)
        if not (member.isreg() or member.isdir()) or path.is_absolute() or ".." in path.parts:
            raise tarfile.TarError(f"{member.name[:200]!r} is no file below the archive's folder")


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMMARY)


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry


def _add(archive: tarfile.TarFile, path: pathlib.Path, name: str) -> None:
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        ranges = list(data_ranges(file.fileno(), size))
        if ranges == [(0, size)] or size == 0:
            file.seek(0)
            archive.addfile(_entry(name, size), file)
            return
        index = _sparse_map(ranges)
        entry = _entry(name, len(index) + sum(end - start for start, end in ranges))
        entry.pax_headers = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": name,
            "GNU.sparse.realsize": str(size),
        }
        archive.addfile(entry, _Packed(index, file, ranges))


def _sparse_map(ranges: list[tuple[int, int]]) -> bytes:
    numbers = [len(ranges), *(number for start, end in ranges for number in (start, end - start))]
    text = "".join(f"{number}\n" for number in numbers).encode()
    return text + bytes(-len(text) % _RECORD_BYTES)


class _Packed(io.RawIOBase):
    """Stream of a file's sparse map, followed by its data."""

    def __init__(self, index: bytes, file: IO[bytes], ranges: list[tuple[int, int]]) -> None:
        self._chunks = _chunks(index, file, ranges)
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes; fewer only at the end."""
        parts, remaining = [], size
        while remaining:
            if not self._rest:
                self._rest = next(self._chunks, b"")
            if not self._rest:
                break
            parts.append(self._rest[:remaining])
            self._rest = self._rest[remaining:]
            remaining -= len(parts[-1])
        return b"".join(parts)


def _chunks(index: bytes, file: IO[bytes], ranges: list[tuple[int, int]]) -> Iterator[bytes]:
    yield index
    for start, end in ranges:
        file.seek(start)
        while start < end:
            part = file.read(min(_BLOCK_BYTES, end - start))
            start += len(part)
            yield part
