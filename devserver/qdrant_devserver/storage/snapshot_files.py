"""The files of snapshots, kept by the name of their collection, and beyond its deletion.

<data>/snapshots/<collection>/<file>.snapshot           a snapshot
<data>/snapshots/<collection>/<file>.snapshot.checksum  its SHA-256
<data>/snapshots-unfinished/                            emptied at the start
"""

import hashlib
import pathlib
import shutil
import urllib.parse
import uuid
from datetime import UTC, datetime

from qdrant_devserver.error_answers import ErrorAnswer, not_found
from qdrant_devserver.fields import Document

SUFFIX = ".snapshot"
# By this header of a download a server knows a file of its own, which it need not send itself.
OWN_FILE = "x-development-file"
_CHECKSUM = ".checksum"


class SnapshotFiles:
    """Every file of a snapshot; those of shards lie in `shards/N` below their collection's."""

    def __init__(self, data_dir: pathlib.Path) -> None:
        self.root = data_dir / "snapshots"
        self._unfinished = data_dir / "snapshots-unfinished"
        self._identity = uuid.uuid4().hex

    def load(self) -> None:
        """Make the folders and sweep what a killed server left unfinished."""
        shutil.rmtree(self._unfinished, ignore_errors=True)
        self._unfinished.mkdir(parents=True)
        self.root.mkdir(exist_ok=True)

    def unfinished(self) -> pathlib.Path:
        """The name of a new file for what is not whole yet."""
        return self._unfinished / uuid.uuid4().hex

    def publish(self, unfinished: pathlib.Path, room: str, name: str, *, sha256: str) -> Document:
        """Give a whole file its name, and describe it."""
        folder = self.root / room
        folder.mkdir(parents=True, exist_ok=True)
        checksum = self.unfinished()
        checksum.write_text(sha256, encoding="ascii")
        checksum.replace(folder / (name + _CHECKSUM))
        unfinished.replace(folder / name)
        return _describe(folder / name)

    def keep(self, received: pathlib.Path, room: str, name: str | None) -> pathlib.Path:
        """Put a file that somebody sent where a collection's snapshots are; return where it lies now."""
        path = self.root / room / (name or uuid.uuid4().hex)
        path.parent.mkdir(parents=True, exist_ok=True)
        return received.replace(path)

    def list(self, room: str) -> list[Document]:
        """What lies in a collection's or shard's room."""
        folder = self.root / room
        if not folder.is_dir():
            return []
        return [_describe(path) for path in sorted(folder.iterdir()) if path.name.endswith(SUFFIX)]

    def find(self, room: str, name: str) -> pathlib.Path:
        """Where a file lies.

        Raises:
            ErrorAnswer: 404, there is none of that name.
        """
        path = self.root / room / name
        if not name.endswith(SUFFIX) or not path.is_file():
            raise not_found(f"Snapshot {name} not found")
        return path

    def delete(self, room: str, name: str) -> None:
        """Delete a file.

        Raises:
            ErrorAnswer: 404, there is none of that name.
        """
        path = self.find(room, name)
        path.unlink()
        path.with_name(name + _CHECKSUM).unlink(missing_ok=True)

    def mark(self, path: pathlib.Path) -> dict[str, str]:
        """The header by which this server knows the file again."""
        return {OWN_FILE: f"{self._identity}/{urllib.parse.quote(str(path.relative_to(self.root)))}"}

    def own(self, mark: str) -> pathlib.Path | None:
        """The file that a header of `mark` names, none of another server's."""
        identity, _, name = mark.partition("/")
        return self.root / urllib.parse.unquote(name) if identity == self._identity else None

    def local(self, path: pathlib.Path) -> pathlib.Path:
        """A file that a `file://` location names.

        Raises:
            ErrorAnswer: 403 outside the folder of snapshots, 400 where there is none.
        """
        resolved = path.resolve()
        if not resolved.is_relative_to(self.root.resolve()):
            raise ErrorAnswer(
                403, f'Forbidden: Snapshot file path must be inside the snapshots directory "{self.root}"'
            )
        if not resolved.is_file():
            raise ErrorAnswer(400, f"Wrong input: Snapshot file {path} does not exist")
        return resolved


def name_at(now: datetime, subject: str, peer: int) -> str:
    """The name of a snapshot of `subject`; two of one second have the same."""
    return f"{subject}-{peer}-{now:%Y-%m-%d-%H-%M-%S}{SUFFIX}"


def hash_file(path: pathlib.Path) -> str:
    """A file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _describe(path: pathlib.Path) -> Document:
    facts, checksum = path.stat(), path.with_name(path.name + _CHECKSUM)
    return {
        "name": path.name,
        "creation_time": f"{datetime.fromtimestamp(facts.st_mtime, UTC):%Y-%m-%dT%H:%M:%S}",
        "size": facts.st_size,
        "checksum": checksum.read_text(encoding="ascii") if checksum.exists() else None,
    }
