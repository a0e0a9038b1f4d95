"""Write small files so that a crash leaves the old content or the new, never half of one."""

import os
import pathlib

import orjson

from agentmemory_operator.devserver.fields import Json


def write_json(path: pathlib.Path, document: Json) -> None:
    """Replace a file's content atomically and durably (temporary file, fsync, rename, fsync of the folder)."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        file.flush()
        os.fsync(file.fileno())
    rename(temporary, path)


def read_json(path: pathlib.Path) -> Json:
    """Return a file's JSON."""
    return orjson.loads(path.read_bytes())


def rename(source: pathlib.Path, target: pathlib.Path) -> None:
    """Rename durably."""
    source.rename(target)
    sync_folder(target.parent)


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
    for entry in os.scandir(source):
        if entry.is_dir():
            copy_tree(pathlib.Path(entry.path), target / entry.name)
        else:
            copy_sparse(pathlib.Path(entry.path), target / entry.name)


def copy_sparse(source: pathlib.Path, target: pathlib.Path, *, block_size: int = 1 << 18) -> None:
    """Copy a file, leaving out blocks of zeros."""
    empty = bytes(block_size)
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while block := reader.read(block_size):
            if block == empty[: len(block)]:
                writer.seek(len(block), os.SEEK_CUR)
            else:
                writer.write(block)
        writer.truncate(source.stat().st_size)
