"""What stands for the cluster in development: a random id in a file beside the memories, made once."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.settings import is_cluster_id

FILE = "cluster-id"
# Longer than any id; whatever else lies there is not read whole.
_MOST_BYTES = 256


def keep_cluster_id(data: Path) -> str:
    """The id that a data folder has; one that has none gets one, whole or not at all.

    Raises:
        AgentMemoryError: it cannot be read or written, or is none; says the way out.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
        with _alone_in(data):
            if (found := _read(data)) is not None:
                return found
            return _write(data, str(uuid4()))
    except OSError as exc:
        raise AgentMemoryError(
            f"{data / FILE}, which names this data folder in markers of collections, cannot be kept:"
            f" {exc.strerror or exc}: mend that, name another --data, or set AGENTMEMORY_CLUSTER_ID"
        ) from exc


def find_cluster_id(data: Path) -> str:
    """The id that a data folder has; nothing is written.

    Raises:
        TransientError: there is none yet, or it cannot be read.
    """
    try:
        found = _read(data)
    except OSError as exc:
        raise TransientError(f"{data / FILE} cannot be read: {exc.strerror or exc}") from exc
    if found is None:
        raise TransientError(
            f"{data / FILE} is not there, which tells whose collections are ours: name with --data the folder of the"
            " `agentmemory dev` that keeps them, or set AGENTMEMORY_CLUSTER_ID to the clusterId of their markers"
        )
    return found


def _read(data: Path) -> str | None:
    """What the file says, None where there is none."""
    path = data / FILE
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None
    found = content.decode("ascii", errors="replace").strip()
    if not is_cluster_id(found):
        raise AgentMemoryError(
            f"{path} holds no id: write the one back that the markers of this folder's collections name (metadata"
            " agentmemory.clusterId). Without the file a new id is made, and collections of the old one are another"
            " owner's: they stay, and are neither served nor changed"
        )
    return found


def _write(data: Path, cluster_id: str) -> str:
    new = data / f"{FILE}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(f"{cluster_id}\n".encode())
        file.flush()
        os.fsync(descriptor)
    new.replace(data / FILE)
    _flush(data)
    return cluster_id


def _flush(data: Path) -> None:
    """Make the new name last: markers are about to be written with the id."""
    with _opened(data) as descriptor:
        os.fsync(descriptor)


@contextlib.contextmanager
def _alone_in(data: Path) -> Iterator[None]:
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
