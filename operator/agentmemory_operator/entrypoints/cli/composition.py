"""Types of the dependencies that `main` composes. Types only, so that printing help imports none of them."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentmemory_operator.entrypoints.cli.stacks import Stacks
from agentmemory_operator.settings import DefaultEmbedding, SecretHosts

if TYPE_CHECKING:
    from agentmemory_client import AsyncClient
    from agentmemory_operator.connections.link import Endpoint
    from agentmemory_operator.controllers.uninstall import InstallationApi
    from agentmemory_operator.ports.collections import CollectionCatalogue, CollectionStore
    from agentmemory_operator.ports.kubernetes import JobObjects
    from agentmemory_operator.ports.objects import Bucket, ObjectStore
    from agentmemory_operator.ports.points import PointStore
    from agentmemory_operator.ports.snapshots import SnapshotStore

    class Store(CollectionStore, CollectionCatalogue, Protocol):
        """A server's collections: reads and changes of one, and lists of all."""


OpenJobs = Callable[[str | None, Path | None], "AbstractAsyncContextManager[tuple[JobObjects, str]]"]
"""Opens the objects of a manifest folder, else of a kubeconfig context; yields them and the default namespace.

Without a folder, None as the context is the current one.
"""
OpenInstalled = Callable[[str | None], "AbstractAsyncContextManager[InstallationApi]"]
"""Opens the installation in the cluster of a kubeconfig context; None is the current one."""


class AgentSource(StrEnum):
    """Source of the AgentMemory objects of an API."""

    KUBERNETES = "kubernetes"
    FILES = "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """Options of the operator.

    Attributes:
        namespaces: Namespaces to watch; empty watches all.
        lease_namespace: Namespace of the lease and the claims. None uses the pod's, outside a cluster `default`.
        api_namespace: Namespace of the retrieval API. None uses the pod's, outside a cluster `default`.
        health_port: Port of probes and metrics. None uses 8081 in a cluster, and serves none outside.
    """

    namespaces: tuple[str, ...] = ()
    lease_namespace: str | None = None
    api_namespace: str | None = None
    health_port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """Options of the retrieval API.

    Attributes:
        host: Listen address. None uses all interfaces in a cluster, else loopback.
        port: Listen port; 0 picks a free one.
        namespaces: Namespaces to watch; empty watches all.
        lease_namespace: Namespace of the operator's lease and claims. None uses the pod's, outside a cluster `default`.
        api_namespace: Namespace of the Secrets that the operator copies for the API. None as for `lease_namespace`.
        tls: Files of the certificate and its key for https; None serves http.
    """

    host: str | None
    port: int
    namespaces: tuple[str, ...] = ()
    lease_namespace: str | None = None
    api_namespace: str | None = None
    tls: tuple[Path, Path] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DevOptions:
    """Options of the development stack.

    Attributes:
        manifests: Folder of manifests. None uses a subfolder of `data`.
        data: Folder of all data. None uses `.agentmemory` if `manifests` is set, else the user's data directory.
        port: Port of the API; 0 picks a free one.
        qdrant: URL of a server to use instead of the dev Qdrant; None starts the dev Qdrant.
        is_verbose: True to log INFO messages too.
    """

    manifests: Path | None = None
    data: Path | None = None
    port: int = 0
    qdrant: str | None = None
    is_verbose: bool = False


@dataclass(frozen=True, slots=True)
class ServerCommands:
    """Functions that run the servers, each until it is stopped.

    Attributes:
        api_files: Receives options, folder of manifests and data folder.
        devserver: Receives data folder, port and Qdrant version.
        default_source: Default of `api --source`: KUBERNETES in a pod or if a kubeconfig exists, else FILES.
    """

    operator: Callable[[OperatorOptions], Awaitable[None]]
    api_kubernetes: Callable[[ApiOptions], Awaitable[None]]
    api_files: Callable[[ApiOptions, Path, Path], Awaitable[None]]
    dev: Callable[[DevOptions], Awaitable[None]]
    devserver: Callable[[Path, int, str], Awaitable[None]]
    default_source: AgentSource


@dataclass(frozen=True, slots=True)
class QdrantAccess:
    """Dependencies of commands that read from a Qdrant server.

    Attributes:
        open_store: Opens a client for the collections of a server.
        open_points: Opens a client for the points of a server.
        open_objects: Opens access to the objects of a cluster or a folder.
        qdrant_url: Value of QDRANT_URL; None if unset.
        qdrant_api_key: Value of QDRANT_API_KEY. Not sent to servers that connections name.
        secret_hosts: "Require" rejects a Secret that does not list the host its value is sent to. None allows it.
        default_embedding: Embedding of new collections whose object names none.
    """

    open_store: "Callable[[Endpoint], AbstractAsyncContextManager[Store]]"
    open_points: "Callable[[Endpoint], AbstractAsyncContextManager[PointStore]]"
    open_objects: OpenJobs
    qdrant_url: str | None
    qdrant_api_key: str | None
    secret_hosts: SecretHosts | None = None
    default_embedding: DefaultEmbedding = "wordllama"


@dataclass(frozen=True, slots=True)
class SnapshotAccess:
    """Dependencies of `snapshot download`.

    Attributes:
        open_snapshots: Opens the snapshots of a server.
        open_objects: Opens a bucket.
        qdrant_url: Value of QDRANT_URL; None if unset.
        qdrant_api_key: Value of QDRANT_API_KEY. Not sent to servers that connections name.
        secret_hosts: "Require" rejects a Secret that does not list the host its value is sent to. None allows it.
    """

    open_snapshots: "Callable[[Endpoint], AbstractAsyncContextManager[SnapshotStore]]"
    open_objects: "Callable[[Bucket], ObjectStore]"
    qdrant_url: str | None = None
    qdrant_api_key: str | None = None
    secret_hosts: SecretHosts | None = None


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Dependencies of commands that call the retrieval API.

    Attributes:
        open_client: Opens a client for a URL and an optional token.
        url: Value of AGENTMEMORY_URL; None if unset.
        token: Value of AGENTMEMORY_TOKEN; None if unset.
    """

    open_client: "Callable[[str, str | None], AbstractAsyncContextManager[AsyncClient]]"
    url: str | None
    token: str | None


@dataclass(frozen=True, slots=True)
class CommandDependencies:
    """Dependencies of all commands.

    Attributes:
        prepare: Checks settings and configures logging. Called before each command except `completion` and `version`.
        stacks: Development stacks that a command may refer to.
    """

    prepare: Callable[[], None]
    servers: ServerCommands
    inspection: QdrantAccess
    open_jobs: OpenJobs
    downloads: SnapshotAccess
    api_access: ApiAccess
    open_installed: OpenInstalled
    stacks: Stacks
