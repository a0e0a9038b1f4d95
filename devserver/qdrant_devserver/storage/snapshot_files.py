"""Snapshot files, stored by the name of their collection. They remain after its deletion.

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
# Header of a download by which a server recognises its own file, which it then need not transfer.
OWN_FILE = "x-development-file"
_CHECKSUM = ".checksum"


class SnapshotFiles:
    """All snapshot files. Those of shards are in `shards/N` below the folder of their collection."""

    def __init__(self, data_dir: pathlib.Path) -> None:
        self.root = data_dir / "snapshots"
        self._unfinished = data_dir / "snapshots-unfinished"
        self._identity = uuid.uuid4().hex

    def load(self) -> None:
        """Create the folders and remove unfinished files of a killed server."""
        shutil.rmtree(self._unfinished, ignore_errors=True)
        self._unfinished.mkdir(parents=True)
        self.root.mkdir(exist_ok=True)

    def unfinished(self) -> pathlib.Path:
        """Return an unused path for a temporary file, without creating the file."""
        return self._unfinished / uuid.uuid4().hex

    def publish(self, unfinished: pathlib.Path, subfolder: str, name: str, *, sha256: str) -> Document:
        """Move a complete temporary file to its final name, and describe it. A file of the same name is replaced."""
        folder = self.root / subfolder
        folder.mkdir(parents=True, exist_ok=True)
        checksum = self.unfinished()
        checksum.write_text(sha256, encoding="ascii")
        checksum.replace(folder / (name + _CHECKSUM))
        unfinished.replace(folder / name)
        return _describe(folder / name)

    def keep(self, received: pathlib.Path, subfolder: str, name: str | None) -> pathlib.Path:
        """Move an uploaded file to a collection's snapshots; return its new path.

        Args:
            name: File name, which replaces a file of the same name; None for a random one.
        """
        path = self.root / subfolder / (name or uuid.uuid4().hex)
        path.parent.mkdir(parents=True, exist_ok=True)
        return received.replace(path)

    def list(self, subfolder: str) -> list[Document]:
        """List the snapshots in a collection's or shard's folder, by name; empty if there is no such folder."""
        folder = self.root / subfolder
        if not folder.is_dir():
            return []
        return [_describe(path) for path in sorted(folder.iterdir()) if path.name.endswith(SUFFIX)]

    def find(self, subfolder: str, name: str) -> pathlib.Path:
        """Return the path of a snapshot.

        Raises:
            ErrorAnswer: 404 if there is none of that name.
        """
        path = self.root / subfolder / name
        if not name.endswith(SUFFIX) or not path.is_file():
            raise not_found(f"Snapshot {name} not found")
        return path

    def delete(self, subfolder: str, name: str) -> None:
        """Delete a snapshot.

        Raises:
            ErrorAnswer: 404 if there is none of that name.
        """
        path = self.find(subfolder, name)
        path.unlink()
        path.with_name(name + _CHECKSUM).unlink(missing_ok=True)

    def own_file_header(self, path: pathlib.Path) -> dict[str, str]:
        """Return the header by which this server recognises the file."""
        return {OWN_FILE: f"{self._identity}/{urllib.parse.quote(str(path.relative_to(self.root)))}"}

    def find_own(self, mark: str) -> pathlib.Path | None:
        """Return the file in a header of `own_file_header`, or None if another server sent it.

        Any server that has served one of these files knows the identity, so a path outside the folder is ignored.
        """
        identity, _, name = mark.partition("/")
        path = self.root / urllib.parse.unquote(name)
        is_own = identity == self._identity and path.resolve().is_relative_to(self.root.resolve())
        return path if is_own else None

    def find_local(self, path: pathlib.Path) -> pathlib.Path:
        """Return the file at a `file://` location.

        Raises:
            ErrorAnswer: 403 if it is outside the snapshot folder; 400 if it does not exist.
        """
        resolved = path.resolve()
        if not resolved.is_relative_to(self.root.resolve()):
            raise ErrorAnswer(
                403, f'Forbidden: Snapshot file path must be inside the snapshots directory "{self.root}"'
            )
        if not resolved.is_file():
            raise ErrorAnswer(400, f"Wrong input: Snapshot file {path} does not exist")
        return resolved


def snapshot_name(now: datetime, subject: str, peer: int) -> str:
    """Return the name of a snapshot of `subject`. Snapshots of the same second have the same name."""
    return f"{subject}-{peer}-{now:%Y-%m-%d-%H-%M-%S}{SUFFIX}"


def hash_file(path: pathlib.Path) -> str:
    """Return a file's SHA-256 as 64 hexadecimal digits."""
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
