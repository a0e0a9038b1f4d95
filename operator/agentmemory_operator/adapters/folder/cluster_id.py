"""Cluster id of the development stack: a random id in a file of the data folder, created once."""

from pathlib import Path
from uuid import uuid4

from agentmemory_operator.adapters.folder.data_files import lock_folder, replace_private_file
from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.settings import is_cluster_id

FILE = "cluster-id"
# More than the length of any id. Limits the read if another program has written the file.
_MAX_BYTES = 256


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
    """Return the id in the file, or None if there is no file."""
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
