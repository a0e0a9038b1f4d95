"""Data keys of privacy zones in development: one file per shard, in the data folder."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from agentmemory_operator.adapters.folder.data_files import lock_folder, replace_private_file
from agentmemory_operator.errors import Conflict, KeysDamaged, TransientError
from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.rules.shards import MAX_SHARD_BYTES, Shard, is_shard_name, parse_shard, render_shard

FOLDER = "zone-keys"
# Limit of a read, in case another program has written the file.
_MAX_BYTES = 2 * MAX_SHARD_BYTES


class FileKeyShards:
    """Implements ports.KeyShards. A lock on the agent's folder makes each write a compare-and-set.

    Every method raises TransientError if the file system fails.

    Args:
        data: Data folder; its subfolder `zone-keys` has one folder per agent.
    """

    def __init__(self, data: Path) -> None:
        self._folder = data / FOLDER

    async def read(self, ring: Ring, name: str) -> Shard:
        """Return a shard, or an empty shard if it has no file.

        Raises:
            KeysDamaged: If the file contains no keys in this version's format.
        """
        with _mapped_errors():
            content = self._content(ring, name)
        if content is None:
            return Shard(ring=ring, name=name)
        try:
            return parse_shard(content.decode("ascii"), ring=ring, name=name, version=_version_of(content))
        except ValueError as exc:
            raise KeysDamaged(
                f"{self._path(ring, name)} contains no keys in this version's format: restore it from a backup"
            ) from exc

    async def version(self, ring: Ring, name: str) -> str:
        """Return a hash of the file's content: 32 hex digits; empty if there is no file."""
        with _mapped_errors():
            content = self._content(ring, name)
        return "" if content is None else _version_of(content)

    async def write(self, shard: Shard) -> str:
        """Write the file by compare-and-set on its version; return the new version.

        Raises:
            Conflict: If the stored version differs, or the file was created or deleted in the meantime; nothing was
                written.
        """
        path, text = self._path(shard.ring, shard.name), render_shard(shard)
        with _mapped_errors():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with lock_folder(path.parent):
                content = self._content(shard.ring, shard.name)
                if shard.version != ("" if content is None else _version_of(content)):
                    raise Conflict(f"{path} was changed concurrently")
                replace_private_file(path.parent, path.name, text)
        return _version_of(f"{text}\n".encode())

    async def list_names(self, ring: Ring) -> list[str]:
        """Return the names of an agent's shards, sorted."""
        with _mapped_errors():
            return sorted(name for file in self._agent_folder(ring).glob("*.json") if is_shard_name(name := file.stem))

    async def delete(self, ring: Ring) -> None:
        """Delete all files of an agent, and their folder; an absent folder is no error."""
        folder = self._agent_folder(ring)
        with _mapped_errors(), contextlib.suppress(FileNotFoundError), lock_folder(folder):
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()

    def _content(self, ring: Ring, name: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError), self._path(ring, name).open("rb") as file:
            return file.read(_MAX_BYTES)
        return None

    def _path(self, ring: Ring, name: str) -> Path:
        return self._agent_folder(ring) / f"{name}.json"

    def _agent_folder(self, ring: Ring) -> Path:
        return self._folder / f"{ring.namespace}.{ring.agent}"


def _version_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


@contextlib.contextmanager
def _mapped_errors() -> Iterator[None]:
    """Convert OSError into TransientError."""
    try:
        yield
    except OSError as exc:
        raise TransientError(f"{exc.filename}, which stores zone keys: {exc.strerror or exc}") from exc
