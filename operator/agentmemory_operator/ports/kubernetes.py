"""Kubernetes, or the folder of manifests that stands for it in development."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentmemory_operator.collections.rules.claims import ClaimSet
from agentmemory_operator.connections.rules.handover import HandedOver
from agentmemory_operator.connections.rules.secret_hosts import Destination, KeptSecret
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.printable import printable_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who of several operators may write.

    Attributes:
        holder: identity of a process; empty when it was given back.
        duration_s: how long it binds the others after its last renewal.
        acquired_at, renewed_at: the holder's wall clock, RFC 3339, for people.
        transitions: how often the holder changed.
        version: changes with every write; empty before the first.
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
        reason: one CamelCase word.
    """

    type: str
    reason: str
    message: str

    def __post_init__(self) -> None:
        """Keep out of the message what does not show: kubectl prints it as it is."""
        object.__setattr__(self, "message", printable_lines(self.message))


class SecretSource(Protocol):
    """Whoever keeps Kubernetes Secrets.

    `connections.secret_hosts` alone asks it: who wants a value goes through `Secrets`, and says where it is sent.
    """

    async def read_secret(self, namespace: str, name: str) -> KeptSecret | None:
        """A Secret with its decoded values, None where there is none."""
        ...


class Secrets(Protocol):
    """Values of Kubernetes Secrets, for those whom they are meant for."""

    async def read(self, namespace: str, name: str, key: str, *, to: Destination) -> str:
        """The decoded value.

        Args:
            to: every place that it is sent to.

        Raises:
            SecretMissing: no such Secret or key.
            SecretNotUsable: its value may not go there.
        """
        ...


class HandoverStore(Protocol):
    """Where the operator puts what the retrieval API needs: the API's own namespace."""

    async def read(self, slug: str) -> HandedOver | None:
        """What an agent was given, None where that is nothing."""
        ...

    async def write(self, handed: HandedOver) -> None:
        """Write it in the place of the version that it was read as; raise TransientError if that is not there now."""
        ...

    async def delete(self, handed: HandedOver) -> None:
        """Take back the version that was read; one that is gone, or was written since, is no error."""
        ...

    async def list_all(self) -> list[HandedOver]:
        """What every agent was given."""
        ...


class Namespaces(Protocol):
    """The namespaces of the cluster, or of the files that stand in for it."""

    async def labels(self, namespace: str) -> Mapping[str, str]:
        """A namespace's labels, none of one that does not exist."""
        ...


class ClusterReader(SecretSource, Namespaces, Protocol):
    """What the retrieval API reads of the cluster beside the objects."""

    async def cluster_id(self) -> str:
        """A value that no other cluster has, the same that the operator writes into markers.

        Raises:
            TransientError: nobody can tell for now.
        """
        ...


class ObjectReader(SecretSource, Protocol):
    """What the verbs that only look read of Kubernetes."""

    async def cluster_id(self) -> str:
        """The value that the operator writes into markers: the uid of kube-system, or what is set."""
        ...

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        """One object.

        Raises:
            NotFound: there is no such object, or no such kind.
        """
        ...

    async def list_objects(self, kind: str) -> tuple[list[Json], str]:
        """Every object of a kind, and the version of the list."""
        ...

    async def event_times(self, reason: str) -> dict[tuple[str, str], str]:
        """The time of each AgentMemory's last event by (namespace, name); empty where events may not be read."""
        ...


class Cluster(Namespaces, Protocol):
    """What the operator writes to Kubernetes, or to the files that stand in for it in development."""

    async def cluster_id(self) -> str:
        """A value that no other cluster has: the uid of kube-system, or what is set."""
        ...

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        """An object as it stands now, whatever the watch has brought.

        Raises:
            NotFound: there is none.
        """
        ...

    async def write_status(self, kind: str, metadata: Metadata, status: Json) -> str:
        """Replace the object's status; return the resourceVersion that it has with it.

        The version is empty where objects have none, and of an object that is gone, which is no error.
        """
        ...

    async def write_finalizers(self, kind: str, metadata: Metadata, finalizers: Sequence[str]) -> None:
        """Replace the object's finalizers, if it has not changed since; else raise TransientError."""
        ...

    async def create_object(self, document: Json) -> bool:
        """Create an object; tell whether it was not there before. What Kubernetes refuses is a TransientError.

        Raises:
            NamespaceEnding: nothing can be created in its namespace any more.
        """
        ...

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        """Delete the object of that uid; one that is gone is no error."""
        ...

    async def post_event(self, kind: str, metadata: Metadata, event: Event) -> None:
        """Tell people; an event that cannot be posted is dropped."""
        ...


class LeaseStore(Protocol):
    """The one lease of an installation."""

    async def read(self) -> Lease | None:
        """The lease, None before the first one."""
        ...

    async def write(self, lease: Lease) -> Lease:
        """Write the lease in the place of the version that it was read as; return it with its new version.

        Raises:
            Conflict: somebody else wrote meanwhile.
        """
        ...


class ClaimStore(Protocol):
    """Where the claims of an installation are kept; no tenant can write there."""

    async def load(self) -> ClaimSet:
        """What is stored; nothing before the first claim."""
        ...

    async def save(self, claims: ClaimSet) -> None:
        """Store the claims in the place of those that were loaded or saved last.

        Raises:
            Conflict: somebody else wrote meanwhile; nothing more may be saved before another `load`.
            TransientError: what was stored is not known.
        """
        ...


class AgentMemories(Protocol):
    """The objects as people's commands read and annotate them."""

    async def list_objects(self, kind: str) -> tuple[list[Json], str]:
        """Every object of a kind, and the version to watch from."""
        ...

    async def annotate(self, kind: str, metadata: Metadata, annotations: Mapping[str, str | None]) -> None:
        """Set annotations, or take off where None; raise TransientError if the object was made anew since."""
        ...

    async def add_takeovers(self, namespace: str, name: str, entries: Sequence[Json]) -> None:
        """Add entries to spec.takeovers of a QdrantConnection; those that are there stay as they are."""
        ...


class JobObjects(ObjectReader, AgentMemories, Namespaces, Protocol):
    """Objects of our kinds in a cluster, or in the folder of manifests that stands in for it in development."""

    async def list_in(self, kind: str, namespace: str) -> list[Json]:
        """The objects of a kind in one namespace, or in all where that is empty."""
        ...

    async def create_object(self, document: Json) -> bool:
        """Create an object; tell whether it was not there before. What is refused is a TransientError."""
        ...

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        """Delete the object of that uid; one that is gone is no error."""
        ...
