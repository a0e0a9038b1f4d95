"""What main composes for the verbs. Types alone: a command line that only prints its help loads nothing of them."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentmemory_operator.entrypoints.cli.stacks import Stacks
from agentmemory_operator.settings import SecretHosts

if TYPE_CHECKING:
    from agentmemory_client import AsyncClient
    from agentmemory_operator.connections.link import Endpoint
    from agentmemory_operator.controllers.uninstall import Installed
    from agentmemory_operator.ports.collections import CollectionCatalogue, CollectionStore
    from agentmemory_operator.ports.kubernetes import JobObjects
    from agentmemory_operator.ports.objects import Bucket, ObjectStore
    from agentmemory_operator.ports.points import PointStore
    from agentmemory_operator.ports.snapshots import SnapshotStore

    class Store(CollectionStore, CollectionCatalogue, Protocol):
        """The collections of a server, one by one and as a whole."""


OpenJobs = Callable[[str | None, Path | None], "AbstractAsyncContextManager[tuple[JobObjects, str]]"]
"""Opens a context of the kubeconfig, None is the current one, or a folder of manifests; gives its namespace too."""
OpenInstalled = Callable[[str | None], "AbstractAsyncContextManager[Installed]"]


class AgentSource(StrEnum):
    """Where the API learns of agents."""

    KUBERNETES = "kubernetes"
    FILES = "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """Options of the operator.

    Attributes:
        namespaces: those to watch; none is all.
        lease_namespace: None is the pod's own.
        api_namespace: where the retrieval API runs; None is the pod's own.
        health_port: of probes and metrics; None is 8081 in a cluster, and none outside.
    """

    namespaces: tuple[str, ...] = ()
    lease_namespace: str | None = None
    api_namespace: str | None = None
    health_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """Options of the retrieval API.

    Attributes:
        host: None is loopback, in a cluster every address.
        namespaces: those to watch; none is all.
        api_namespace: where the operator puts what is needed of Secrets; None is the pod's own.
        lease_namespace: where the operator keeps its lease and the claims; None is the pod's own.
    """

    host: str | None
    port: int
    namespaces: tuple[str, ...] = ()
    lease_namespace: str | None = None
    api_namespace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DevOptions:
    """Options of the development stack.

    Attributes:
        manifests: folder; None is one below `data`.
        data: folder; None is `.agentmemory` beside manifests that are named, else one for this person's data.
        port: 0 is any free one.
        qdrant: URL of a server in the dev Qdrant's place.
    """

    manifests: Path | None = None
    data: Path | None = None
    port: int = 0
    qdrant: str | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """The verbs that serve: each runs until it is stopped."""

    operator: Callable[[OperatorOptions], Awaitable[None]]
    api_kubernetes: Callable[[ApiOptions], Awaitable[None]]
    api_files: Callable[[ApiOptions, Path, Path], Awaitable[None]]
    dev: Callable[[DevOptions], Awaitable[None]]
    devserver: Callable[[Path, int, str], Awaitable[None]]
    default_source: AgentSource


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the verbs need that look at a Qdrant.

    Attributes:
        open_store: opens the collections of a server.
        open_points: opens the points of a server.
        open_objects: where the objects are.
        qdrant_url, qdrant_api_key: the server that the environment names.
        secret_hosts: what becomes of a Secret that does not list where its value goes; None lets it go there.
    """

    open_store: "Callable[[Endpoint], AbstractAsyncContextManager[Store]]"
    open_points: "Callable[[Endpoint], AbstractAsyncContextManager[PointStore]]"
    open_objects: OpenJobs
    qdrant_url: str | None
    qdrant_api_key: str | None
    secret_hosts: SecretHosts | None = None


@dataclass(frozen=True, slots=True)
class Downloads:
    """What `snapshot download` needs.

    Attributes:
        open_snapshots: opens the snapshots of a server.
        open_objects: opens a bucket.
        qdrant_url, qdrant_api_key: the server that the environment names.
        secret_hosts: what becomes of a Secret that does not list where its value goes; None lets it go there.
    """

    open_snapshots: "Callable[[Endpoint], AbstractAsyncContextManager[SnapshotStore]]"
    open_objects: "Callable[[Bucket], ObjectStore]"
    qdrant_url: str | None = None
    qdrant_api_key: str | None = None
    secret_hosts: SecretHosts | None = None


@dataclass(frozen=True, slots=True)
class Asking:
    """What the verbs need that ask the API.

    Attributes:
        open_client: opens the API at a URL, with a token or None.
        url, token: those that the environment names.
    """

    open_client: "Callable[[str, str | None], AbstractAsyncContextManager[AsyncClient]]"
    url: str | None
    token: str | None


@dataclass(frozen=True, slots=True)
class Verbs:
    """What main composes.

    Attributes:
        prepare: called before a verb runs: sets up what all of them need.
        stacks: development stacks that a verb may mean.
    """

    prepare: Callable[[], None]
    servers: Serving
    inspection: Inspection
    open_jobs: OpenJobs
    downloads: Downloads
    asking: Asking
    open_installed: OpenInstalled
    stacks: Stacks
