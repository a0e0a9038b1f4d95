"""Small files in a data folder that are made once, whole or not at all."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def write_whole(data: Path, name: str, content: str) -> None:
    """Write a file that only this user reads; once it is there it lasts."""
    new = data / f"{name}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(f"{content}\n".encode())
        file.flush()
        os.fsync(descriptor)
    new.replace(data / name)
    with _opened(data) as folder:
        os.fsync(folder)


@contextlib.contextmanager
def alone_in(data: Path) -> Iterator[None]:
    """Hold the folder against another process that is at its first start too."""
    with _opened(data) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _opened(data: Path) -> Iterator[int]:
    descriptor = os.open(data, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
