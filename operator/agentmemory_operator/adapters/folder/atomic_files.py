"""Replace files atomically, and create files, never through a symbolic link.

Links are not followed because another user may have put a link into the folder, to redirect writes to another place.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from agentmemory_operator.errors import AgentMemoryError

_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def ensure_folder(path: Path) -> None:
    """Create a folder, or accept an existing one.

    Raises:
        AgentMemoryError: If the path is a symbolic link.
        OSError: If the path is a file, or the folder cannot be created.
    """
    if path.is_symlink():
        raise AgentMemoryError(f"{path} is a link, and files are not written to another folder: remove the link")
    path.mkdir(parents=True, exist_ok=True)


def write_file(path: Path, text: str) -> None:
    """Replace a file atomically, through the hidden draft `.NAME.new`, which readers of manifests ignore.

    Raises:
        OSError: If the draft cannot be written or renamed. The file is unchanged.
    """
    draft = path.with_name(f".{path.name}.new")
    # Remove an existing draft: a killed process left it, or it is a malicious link.
    draft.unlink(missing_ok=True)
    create_file(draft, text)
    draft.replace(path)


@contextmanager
def open_replacement(path: Path) -> Iterator[IO[bytes]]:
    """Open a draft that replaces a file when the context ends, after a sync to disk. An error removes the draft."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as draft:
        try:
            yield draft
            draft.flush()
            os.fsync(draft.fileno())
            os.replace(draft.name, path)
        except BaseException:
            os.unlink(draft.name)
            raise


def create_file(path: Path, text: str) -> None:
    """Create a new file; remove it again if writing fails.

    Raises:
        FileExistsError: If the path exists, also as a symbolic link.
    """
    with open(os.open(path, _MAKE, 0o644), "w", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            # Remove the file, because a full disk must not leave a truncated one.
            path.unlink(missing_ok=True)
            raise


def ignore_in_git(folder: Path) -> None:
    """Create a `.gitignore` that ignores everything in a folder; keep an existing one."""
    with suppress(FileExistsError):
        create_file(folder / ".gitignore", "*\n")
