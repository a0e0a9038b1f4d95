"""Write small files atomically, and copy and remove folders."""

import errno
import os
import pathlib
import shutil
import time
from collections.abc import Iterator

import orjson

from qdrant_devserver.fields import Json

_BLOCK_BYTES = 1 << 20
_ZEROS = bytes(1 << 16)
_REMOVE_TIMEOUT_S = 10.0
_RETRY_PAUSE_S = 0.02


def write_json(path: pathlib.Path, document: Json) -> None:
    """Replace a file's content atomically: temporary file, fsync, rename.

    The rename itself is not synced. After a power failure the old content may be back; after a killed process it never
    is.
    """
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_json(path: pathlib.Path) -> Json:
    """Read a JSON file. Raises OSError if that fails, ValueError if the content is not JSON."""
    return orjson.loads(path.read_bytes())


def rename(source: pathlib.Path, target: pathlib.Path) -> None:
    """Rename a folder and sync the new name to disk."""
    source.rename(target)
    sync_folder(target.parent)


def remove_leftovers(folder: pathlib.Path) -> None:
    """Remove a folder that a killed server has left behind.

    One of its processes may still write there for a moment, so the removal is retried for up to 10 s.

    Raises:
        OSError: If the folder cannot be removed.
    """
    until = time.monotonic() + _REMOVE_TIMEOUT_S
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or time.monotonic() > until:
                raise
            time.sleep(_RETRY_PAUSE_S)


def sync_folder(path: pathlib.Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_tree(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy a folder and preserve holes in its files: write-ahead logs are mostly holes."""
    target.mkdir()
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir():
                copy_tree(pathlib.Path(entry.path), target / entry.name)
            else:
                copy_sparse(pathlib.Path(entry.path), target / entry.name)


def copy_sparse(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy a file's data and preserve its holes."""
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        size = os.fstat(reader.fileno()).st_size
        for start, end in data_ranges(reader.fileno(), size):
            writer.seek(start)
            reader.seek(start)
            while start < end:
                start += writer.write(reader.read(min(_BLOCK_BYTES, end - start)))
        writer.truncate(size)


def data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each data range of a file. Everything between is a hole, or blocks of zeros.

    The engine maps most of its files. In a file system in memory, a hole becomes blocks of zeros when it is read so.
    """
    position = 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # Only a hole remains.
                return
            raise
        position = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield from _ranges_without_zeros(descriptor, start, position)


def _ranges_without_zeros(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    first: int | None = None
    for position in range(start, end, len(_ZEROS)):
        block = os.pread(descriptor, min(len(_ZEROS), end - position), position)
        is_empty = block == _ZEROS[: len(block)]
        if not is_empty and first is None:
            first = position
        elif is_empty and first is not None:
            yield first, position
            first = None
    if first is not None:
        yield first, end
