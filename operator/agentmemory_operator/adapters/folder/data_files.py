"""Small files in the data folder of the development stack: cluster id, claims, and the signing key of user tokens.

The files are written atomically. The cluster id is a random id, created once.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from agentmemory_operator.adapters.folder.atomic_files import write_file
from agentmemory_operator.adapters.user_tokens import new_key, parse_key
from agentmemory_operator.collections.rules.claims import NO_CLAIMS, ClaimSet, claim_from_json, claim_to_json
from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.ports.access import SigningKey
from agentmemory_operator.settings import is_cluster_id

SIGNING_KEY_FILE = "user-token-key"
# Limit of a read, more than any key, in case another program has written the file.
_MAX_KEY_BYTES = 1024

FILE = "cluster-id"
# Limit of a read, more than any id, in case another program has written the file.
_MAX_BYTES = 256


def replace_private_file(data: Path, name: str, content: str) -> None:
    """Replace a file that only this user can read, atomically and synced to disk; append a newline to `content`.

    Raises:
        OSError: If the file cannot be written, replaced or synced to disk. It may have been replaced.
    """
    new = data / f"{name}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(f"{content}\n".encode())
        file.flush()
        os.fsync(descriptor)
    new.replace(data / name)
    with _open_folder(data) as folder:
        os.fsync(folder)


@contextlib.contextmanager
def lock_folder(data: Path) -> Iterator[None]:
    """Hold an exclusive lock on the folder while the context is open; wait for it if another process has it.

    Waiting blocks the event loop.

    Raises:
        OSError: If the folder does not exist or cannot be opened.
    """
    with _open_folder(data) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _open_folder(data: Path) -> Iterator[int]:
    descriptor = os.open(data, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class FileClaims:
    """Implements ports.ClaimStore; only one process at a time may use the file.

    Args:
        file: Path; created by the first `save`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    async def load(self) -> ClaimSet:
        """Return the stored claims. A missing or damaged file yields an empty, incomplete set, to be rebuilt.

        A claim that names no namespace is left out.

        Raises:
            TransientError: If the file cannot be read.
        """
        try:
            document = json.loads(self._file.read_text(encoding="utf-8"))
            stored = {slug: claim_from_json(stored_claim) for slug, stored_claim in document["claims"].items()}
            unread = frozenset(map(str, document["unread"]))
        except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
            return NO_CLAIMS
        except OSError as exc:
            raise TransientError(f"{self._file} cannot be read: {exc.strerror}") from exc
        claims = {slug: claim for slug, claim in stored.items() if claim is not None}
        return ClaimSet(claims=claims, is_complete=True, unread=unread)

    async def save(self, claims: ClaimSet) -> None:
        """Replace the whole file atomically; create its folder if needed.

        Raises:
            TransientError: If the file cannot be written.
        """
        stored_claims = {slug: claim_to_json(claim) for slug, claim in sorted(claims.claims.items())}
        text = json.dumps({"claims": stored_claims, "unread": sorted(claims.unread)}, indent=2)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_file(self._file, text + "\n")
        except OSError as exc:
            raise TransientError(f"{self._file} cannot be written: {exc.strerror}") from exc


class FileSigningKey:
    """Implements ports.SigningKeys; creates the key at the first read.

    Args:
        data: Data folder of the development stack.
    """

    def __init__(self, data: Path) -> None:
        self._data = data

    async def read(self) -> SigningKey:
        """Return the key; create it if there is none.

        Raises:
            TransientError: If the file contains no key, or cannot be read or written.
        """
        path = self._data / SIGNING_KEY_FILE
        try:
            self._data.mkdir(parents=True, exist_ok=True)
            with lock_folder(self._data):
                if not path.exists():
                    replace_private_file(self._data, SIGNING_KEY_FILE, new_key())
                with path.open("rb") as file:
                    key = parse_key(file.read(_MAX_KEY_BYTES).decode("ascii", errors="replace"))
        except OSError as exc:
            raise TransientError(f"{path}, which signs user tokens, cannot be written: {exc.strerror or exc}") from exc
        if key is None:
            raise TransientError(f"{path} contains no key for user tokens: delete it, and a new one is created")
        return key


def ensure_cluster_id(data: Path) -> str:
    """Return the id of a data folder; create it atomically if there is none.

    Raises:
        AgentMemoryError: If the file cannot be read or written, or contains no id. The message names the remedy.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
        with lock_folder(data):
            if (cluster_id := _read(data)) is None:
                # Store the id before any ownership marker contains it.
                replace_private_file(data, FILE, cluster_id := str(uuid4()))
            return cluster_id
    except OSError as exc:
        raise AgentMemoryError(
            f"{data / FILE}, which identifies this data folder in collection markers, cannot be written:"
            f" {exc.strerror or exc}: fix that, use another --data, or set AGENTMEMORY_CLUSTER_ID"
        ) from exc


def read_cluster_id(data: Path) -> str:
    """Return the id of a data folder; write nothing.

    Raises:
        TransientError: If there is no id yet, or the file cannot be read.
        AgentMemoryError: If the file contains no id.
    """
    try:
        cluster_id = _read(data)
    except OSError as exc:
        raise TransientError(f"{data / FILE} cannot be read: {exc.strerror or exc}") from exc
    if cluster_id is None:
        raise TransientError(
            f"{data / FILE} is missing. It identifies the collections of this stack: set --data to the folder of the"
            " `agentmemory dev` that created them, or set AGENTMEMORY_CLUSTER_ID to the clusterId in their markers"
        )
    return cluster_id


def _read(data: Path) -> str | None:
    """Return the id in the file, or None if there is no file.

    Raises:
        AgentMemoryError: If the file contains no id.
        OSError: If the file cannot be read.
    """
    path = data / FILE
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES)
    except FileNotFoundError:
        return None
    cluster_id = content.decode("ascii", errors="replace").strip()
    if not is_cluster_id(cluster_id):
        raise AgentMemoryError(
            f"{path} contains no ID: restore the one in the markers of this folder's collections (metadata"
            " agentmemory.clusterId). Without the file a new ID is created, and collections with the old one belong "
            "to another owner: they stay, but are neither served nor changed"
        )
    return cluster_id
