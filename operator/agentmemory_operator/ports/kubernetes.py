"""Kubernetes, or the folder of manifests that replaces it in development.

Every method except `post_event` raises TransientError if the API server is unavailable or rejects the call. `Raises`
lists the other errors, and special cases of this one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentmemory_operator.collections.rules.claims import ClaimSet
from agentmemory_operator.connections.rules.agent_secret_slots import AgentSecret
from agentmemory_operator.connections.rules.host_lists import AnnotatedSecret, Destination
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.printable import printable_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """State of the leader lease: which of several operators may write.

    Attributes:
        holder: Identity of a process; empty after a release.
        duration_s: Seconds after the last renewal during which no other process may take the lease.
        acquired_at, renewed_at: Wall clock of the holder, RFC 3339. No decision compares them with another clock.
        transitions: Number of changes of the holder.
        version: Resource version; changes with every write. Empty before the first write.
    """

    holder: str = ""
    duration_s: int = 0
    acquired_at: str = ""
    renewed_at: str = ""
    transitions: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event.

    Attributes:
        type: Normal or Warning.
        reason: One CamelCase word.
        message: Text for users; `__post_init__` makes it printable.
    """

    type: str
    reason: str
    message: str

    def __post_init__(self) -> None:
        """Escape unprintable characters in the message: kubectl prints messages as they are stored."""
        object.__setattr__(self, "message", printable_lines(self.message))


class SecretSource(Protocol):
    """Reads whole Kubernetes Secrets.

    Only `connections/guarded_secrets.py` may use it. Other code reads single values through `Secrets`, and names their
    destination.
    """

    async def read_secret(self, namespace: str, name: str) -> AnnotatedSecret | None:
        """Return a Secret with its decoded text values, or None if it does not exist."""
        ...


class Secrets(Protocol):
    """Values of Kubernetes Secrets, released only for destinations that the Secret permits."""

    async def read(self, namespace: str, name: str, key: str, *, to: Destination) -> str:
        """Return a decoded value.

        Args:
            to: All destinations that the value will be sent to.

        Raises:
            SecretMissing: If the Secret or the key does not exist.
            SecretNotUsable: If the Secret does not permit one of the destinations, or the value cannot be sent in a
                header.
        """
        ...


class AgentSecretStore(Protocol):
    """Credentials that the operator passes to the retrieval API, one record per agent, in the API's own namespace."""

    async def read(self, slug: str) -> AgentSecret | None:
        """Return the record of an agent, or None if there is none."""
        ...

    async def write(self, agent_secret: AgentSecret) -> None:
        """Write a record by compare-and-set on its version.

        Raises:
            TransientError: If the stored version differs (nothing was written), or the write failed. Read again.
        """
        ...

    async def delete(self, agent_secret: AgentSecret) -> None:
        """Delete a record if it still has the given version. A record that is absent or has changed is no error."""
        ...

    async def list_all(self) -> list[AgentSecret]:
        """Return the records of all agents."""
        ...


class Namespaces(Protocol):
    """Reads namespaces of the cluster, or of the manifests that replace it."""

    async def labels(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace; empty if it does not exist.

        In development, every namespace has the label `kubernetes.io/metadata.name`.
        """
        ...


class ClusterReader(SecretSource, Namespaces, Protocol):
    """Reads Secrets, namespace labels and the cluster id for the retrieval API, but no custom resources."""

    async def cluster_id(self) -> str:
        """Return the unique id of this cluster. The operator writes the same id into ownership markers.

        Raises:
            TransientError: If the id cannot be read now.
        """
        ...


class ObjectReader(SecretSource, Protocol):
    """Read access to Kubernetes for the commands that change nothing."""

    async def cluster_id(self) -> str:
        """Return the cluster id in ownership markers: the configured id, or else the uid of kube-system.

        In development, the id of the data folder replaces the uid.
        """
        ...

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        """Return one object.

        Raises:
            NotFound: If there is no such object.
            TransientError: If the kind is not installed.
        """
        ...

    async def list_objects(self, kind: str) -> tuple[list[Json], str]:
        """Return all objects of a kind, and the resource version of the list; '' in development."""
        ...

    async def event_times(self, reason: str) -> dict[tuple[str, str], str]:
        """Return the time of each AgentMemory's last event with a reason, by (namespace, name) of the AgentMemory.

        Times are RFC 3339, or '' for an event without one. The result is empty if events may not be read.
        """
        ...


class Cluster(Namespaces, Protocol):
    """Write access of the operator to Kubernetes, or to the manifests that replace it in development."""

    async def cluster_id(self) -> str:
        """Return the unique id of this cluster: the configured id, or else the uid of kube-system.

        In development, the id of the data folder replaces the uid.
        """
        ...

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        """Read the current state of an object, bypassing the watch cache.

        Raises:
            NotFound: If it does not exist.
        """
        ...

    async def write_status(self, kind: str, metadata: Metadata, status: Json) -> str:
        """Replace the status of an object; return its new resourceVersion.

        The result is '' if objects have no versions, as in a folder of manifests. It is also '' if the object was
        deleted, or deleted and created again, which is no error.
        """
        ...

    async def write_finalizers(self, kind: str, metadata: Metadata, finalizers: Sequence[str]) -> None:
        """Replace the finalizers of an object by compare-and-set on its resourceVersion. Do nothing if it is deleted.

        In development, only the uid is compared.

        Raises:
            TransientError: If the object has changed since it was read.
        """
        ...

    async def create_object(self, document: Json) -> bool:
        """Create an object; return False if it exists already.

        Raises:
            NamespaceTerminating: If its namespace is being deleted.
            NotFound: If its namespace does not exist.
            TransientError: If Kubernetes rejects it for another reason.
        """
        ...

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        """Delete the object if it has the uid of `metadata`. Do nothing if it is already deleted.

        In development, a manifest that its author has written stays.
        """
        ...

    async def post_event(self, kind: str, metadata: Metadata, event: Event) -> None:
        """Post an event about an object. An event that cannot be posted is dropped."""
        ...


class LeaseStore(Protocol):
    """Stores the leader lease of an installation."""

    async def read(self) -> Lease | None:
        """Return the lease, or None before the first write."""
        ...

    async def write(self, lease: Lease) -> Lease:
        """Write the lease by compare-and-set on its version; return it with its new version.

        Raises:
            Conflict: If another process has written in the meantime; nothing was written.
        """
        ...


class ClaimStore(Protocol):
    """Stores the claims of an installation where no tenant can write. A claim names the namespace that owns a slug."""

    async def load(self) -> ClaimSet:
        """Return the stored claims; an empty, incomplete set before the first `save`."""
        ...

    async def save(self, claims: ClaimSet) -> None:
        """Replace the claims by compare-and-set on the version that was loaded or saved last.

        In development, nothing is compared: only one process may use the store.

        Raises:
            Conflict: If another process has written in the meantime. Call `load` before the next `save`.
            TransientError: If the write failed or its outcome is unknown.

        After either error, some of the claims may have been written.
        """
        ...


class AgentMemories(Protocol):
    """Lists and annotates objects for commands, and adds takeovers to QdrantConnections."""

    async def list_objects(self, kind: str) -> tuple[list[Json], str]:
        """Return all objects of a kind, and the resource version to watch from; '' in development."""
        ...

    async def annotate(self, kind: str, metadata: Metadata, annotations: Mapping[str, str | None]) -> None:
        """Set annotations. The value None removes an annotation.

        In development, neither existence nor uid of the object is checked.

        Raises:
            NotFound: If the object does not exist.
            TransientError: If the object was deleted and created again since it was read.
            AgentMemoryError: In development, if another author's manifest has one of the annotations, or the
                development stack created the object.
        """
        ...

    async def add_takeovers(self, namespace: str, name: str, entries: Sequence[Json]) -> None:
        """Append entries to `spec.takeovers` of a QdrantConnection, except those that it has already.

        Raises:
            NotFound: If there is no such QdrantConnection.
            TransientError: If the QdrantConnection was changed concurrently.
            AgentMemoryError: In development, always: the author of the manifest must add them.
        """
        ...


class JobObjects(ObjectReader, AgentMemories, Namespaces, Protocol):
    """Objects of this operator's kinds in a cluster, or in the folder of manifests that replaces it in development."""

    async def list_in(self, kind: str, namespace: str) -> list[Json]:
        """Return the objects of a kind in one namespace; an empty name means all namespaces."""
        ...

    async def create_object(self, document: Json) -> bool:
        """Create an object; return False if it exists already.

        Raises:
            NamespaceTerminating: If its namespace is being deleted.
            NotFound: If its namespace does not exist.
            TransientError: If Kubernetes rejects it for another reason.
        """
        ...

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        """Delete the object if it has the uid of `metadata`. Do nothing if it is already deleted.

        Raises:
            AgentMemoryError: In development, if no command has created it, or another object has its name now.
        """
        ...
