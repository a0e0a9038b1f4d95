"""Files that we write whole, or leave as they were.

In a folder that somebody else may have laid out, no link leads what we write elsewhere.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from agentmemory_operator.errors import AgentMemoryError

_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def make_folder(path: Path) -> None:
    """Make a folder, or take the one that is there.

    Raises:
        AgentMemoryError: a link is there.
    """
    if path.is_symlink():
        raise AgentMemoryError(f"{path} is a link, and files are not written to another folder: remove the link")
    path.mkdir(parents=True, exist_ok=True)


def write_file(path: Path, text: str) -> None:
    """Write a file whole, or leave what was there; whoever watches its folder for manifests sees no half of it."""
    draft = path.with_name(f".{path.name}.new")
    # A kill left it, or somebody wants us to follow it.
    draft.unlink(missing_ok=True)
    make_file(draft, text)
    draft.replace(path)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a draft beside a file, which takes its place once it is written and synced."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as draft:
        try:
            yield draft
            draft.flush()
            os.fsync(draft.fileno())
            os.replace(draft.name, path)
        except BaseException:
            os.unlink(draft.name)
            raise


def make_file(path: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        FileExistsError: it is, or a link in its place.
    """
    with open(os.open(path, _MAKE, 0o644), "w", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            # A full disk leaves no half of a file.
            path.unlink(missing_ok=True)
            raise


def keep_from_git(folder: Path) -> None:
    """Have git ignore a folder of ours; a `.gitignore` that is there stays."""
    with suppress(FileExistsError):
        make_file(folder / ".gitignore", "*\n")
