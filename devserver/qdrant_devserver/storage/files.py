"""Write small files so that a crash leaves the old content or the new, never half of one."""

import errno
import os
import pathlib
import shutil
import time
from collections.abc import Iterator

import orjson

from qdrant_devserver.fields import Json

_BLOCK_BYTES = 1 << 20
_LEFT_ALONE_WITHIN_S = 10.0
_LOOK_AGAIN_S = 0.02


def write_json(path: pathlib.Path, document: Json) -> None:
    """Replace a file's content atomically: temporary file, fsync, rename.

    The rename itself is not waited for: a power cut may bring back the old content, a killed process never does.
    """
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_json(path: pathlib.Path) -> Json:
    """A file's JSON."""
    return orjson.loads(path.read_bytes())


def rename(source: pathlib.Path, target: pathlib.Path) -> None:
    """Rename a folder and wait until the new name is on disk."""
    source.rename(target)
    sync_folder(target.parent)


def remove_left(folder: pathlib.Path) -> None:
    """Remove what a killed server left; a process that ends with it may write there for a moment longer.

    Raises:
        OSError: it cannot be removed.
    """
    until = time.monotonic() + _LEFT_ALONE_WITHIN_S
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or time.monotonic() > until:
                raise
            time.sleep(_LOOK_AGAIN_S)


def sync_folder(path: pathlib.Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_tree(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy a folder; holes in files stay holes (write-ahead logs are mostly holes)."""
    target.mkdir()
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir():
                copy_tree(pathlib.Path(entry.path), target / entry.name)
            else:
                copy_sparse(pathlib.Path(entry.path), target / entry.name)


def copy_sparse(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copy a file's data and leave its holes out."""
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        size = os.fstat(reader.fileno()).st_size
        for start, end in data_ranges(reader.fileno(), size):
            writer.seek(start)
            reader.seek(start)
            while start < end:
                start += writer.write(reader.read(min(_BLOCK_BYTES, end - start)))
        writer.truncate(size)


def data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where a file has data, from and to; what lies between is a hole."""
    position = 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        position = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, position
