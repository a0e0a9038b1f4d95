"""Open stores and clusters for the time that a command runs."""

import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from agentmemory_operator.adapters.http.egress import DEFAULT_EGRESS, UNCHECKED_EGRESS, Egress
from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster, KubernetesInstallation
from agentmemory_operator.adapters.kubernetes.transport import load_context
from agentmemory_operator.adapters.qdrant.call_hooks import CallHooks, ReadRetries
from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.main.egress import build_egress
from agentmemory_operator.ports.kubernetes import JobObjects
from agentmemory_operator.ports.objects import Bucket, ObjectStore
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.ports.snapshots import SnapshotStore
from agentmemory_operator.ports.tracing import EngineMeter
from agentmemory_operator.settings import Settings

if TYPE_CHECKING:
    from agentmemory_operator.adapters.qdrant.collections import QdrantCollections
    from agentmemory_operator.adapters.qdrant.control import ControlOptions
    from agentmemory_operator.adapters.qdrant.shard_snapshots import QdrantShardSnapshots
    from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots
    from agentmemory_operator.controllers.uninstall import InstallationApi


class Stores:
    """Opens stores. Those of Qdrant are closed with the stack, those of buckets by the caller.

    Args:
        url: URL of a server that replaces those of all connections, for development; None uses theirs.
        api_key: API key of the server at `url`; None if it needs none.
        watch: Hooks around calls that manage collections and snapshots. Its checks before a write apply to the stores
            of points and buckets too. None checks and counts nothing.
        meter: Measures the calls of point stores; None measures none.
        egress: Policy for the hosts of connections and buckets. It does not apply to `url`, which no object names.
    """

    def __init__(
        self,
        stack: AsyncExitStack,
        *,
        url: str | None = None,
        api_key: str | None = None,
        watch: CallHooks | None = None,
        meter: EngineMeter | None = None,
        egress: Egress = DEFAULT_EGRESS,
    ) -> None:
        # Weak references: the owner of a store closes and drops it when its connection changes.
        self._open: WeakSet[QdrantCollections | QdrantPoints | QdrantSnapshots | QdrantShardSnapshots] = WeakSet()
        # Budgets by URL, shared by all open point stores of the server.
        self._retries: WeakValueDictionary[str, ReadRetries] = WeakValueDictionary()
        stack.push_async_callback(self._close)
        self._url = url
        self._api_key = api_key
        self._watch = watch
        self._meter = meter
        self._egress, self._qdrant_egress = egress, UNCHECKED_EGRESS if url else egress

    def collections(self, endpoint: Endpoint) -> "QdrantCollections":
        """Open a client for the collections and aliases of an endpoint's server."""
        # Import here: Qdrant's client takes 90 MiB and a second, and the API never calls this (docs/adr/0004).
        from agentmemory_operator.adapters.qdrant.collections import QdrantCollections

        target = self._place(endpoint)
        store = QdrantCollections(target.url, **_options(target, self._qdrant_egress))
        if self._watch is not None:
            store.watch_calls(self._watch)
        self._open.add(store)
        return store

    def points(self, endpoint: Endpoint) -> PointStore:
        """Open a client for the points of an endpoint's server."""
        target = self._place(endpoint)
        before_write = self._watch.before_write if self._watch else lambda: None
        store = QdrantPoints(
            target.url,
            api_key=target.api_key,
            timeout_s=target.timeout_s,
            ca_pem=target.ca_pem,
            meter=self._meter,
            before_write=before_write,
            writing=self._watch.writing if self._watch else nullcontext,
            egress=self._qdrant_egress,
            retries=self._retries.setdefault(target.url, ReadRetries()),
        )
        self._open.add(store)
        return store

    def server(self, endpoint: Endpoint) -> Server:
        """Open clients for the collections, snapshots and points of an endpoint's server."""
        target = self._place(endpoint)
        snapshots = _snapshots(target, self._qdrant_egress)
        if self._watch is not None:
            snapshots.watch_calls(self._watch)
        self._open.add(snapshots)
        return Server(target, self.collections(endpoint), snapshots, self.points(endpoint))

    def objects(self, bucket: Bucket) -> ObjectStore:
        """Open a client of a bucket. The caller closes it."""
        before_write = self._watch.before_write if self._watch else lambda: None
        return open_objects(bucket, before_write=before_write, egress=self._egress)

    async def _close(self) -> None:
        for store in list(self._open):
            await store.close()

    def _place(self, endpoint: Endpoint) -> Endpoint:
        return Endpoint(self._url, self._api_key, endpoint.timeout_s) if self._url else endpoint


def load_control_stores() -> None:
    """Import Qdrant's client. This takes a second or more, so call this in a thread, not in the event loop.

    The client imports fastembed if that is installed, and so onnxruntime: 40 MiB that no control call needs. Therefore
    fastembed cannot be imported during this call; no other thread may need it then.
    """
    is_hidden = sys.modules.setdefault("fastembed", None) is None  # type: ignore[arg-type]
    try:
        for store in ("collections", "shard_snapshots"):
            import_module(f"agentmemory_operator.adapters.qdrant.{store}")
    finally:
        if is_hidden:
            del sys.modules["fastembed"]


def _snapshots(endpoint: Endpoint, egress: Egress) -> "QdrantSnapshots | QdrantShardSnapshots":
    from agentmemory_operator.adapters.qdrant.shard_snapshots import QdrantShardSnapshots
    from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots

    if endpoint.nodes:
        return QdrantShardSnapshots(endpoint.url, endpoint.nodes, **_options(endpoint, egress))
    return QdrantSnapshots(endpoint.url, **_options(endpoint, egress))


def _options(endpoint: Endpoint, egress: Egress) -> "ControlOptions":
    return {"api_key": endpoint.api_key, "timeout_s": endpoint.timeout_s, "ca_pem": endpoint.ca_pem, "egress": egress}


def _stores_of(settings: Settings, endpoint: Endpoint, stack: AsyncExitStack) -> Stores:
    """Create the stores of a command. Egress is not checked if the endpoint is the server in QDRANT_URL."""
    return Stores(stack, egress=UNCHECKED_EGRESS if endpoint.url == settings.qdrant_url else build_egress(settings))


@contextlib.asynccontextmanager
async def open_collections(settings: Settings, endpoint: Endpoint) -> AsyncIterator["QdrantCollections"]:
    """Open a client for the collections of a server; close the client at the end of the context."""
    async with AsyncExitStack() as stack:
        yield _stores_of(settings, endpoint, stack).collections(endpoint)


@contextlib.asynccontextmanager
async def open_points(settings: Settings, endpoint: Endpoint) -> AsyncIterator[PointStore]:
    """Open a client for the points of a server; close the client at the end of the context."""
    async with AsyncExitStack() as stack:
        yield _stores_of(settings, endpoint, stack).points(endpoint)


@contextlib.asynccontextmanager
async def open_snapshots(settings: Settings, endpoint: Endpoint) -> AsyncIterator[SnapshotStore]:
    """Open a client for the snapshots of a server; close the client at the end of the context."""
    async with AsyncExitStack() as stack:
        yield _stores_of(settings, endpoint, stack).server(endpoint).snapshots


def open_bucket(settings: Settings, bucket: Bucket) -> ObjectStore:
    """Open a client of a bucket for a command. The caller closes it."""
    return open_objects(bucket, egress=build_egress(settings))


def open_objects(
    bucket: Bucket, *, before_write: Callable[[], None] = lambda: None, egress: Egress = DEFAULT_EGRESS
) -> ObjectStore:
    """Open a client of a bucket. The caller closes it."""
    # Import here: the client takes 10 MiB of memory, and most processes use no bucket.
    from agentmemory_operator.adapters.s3.bucket_objects import S3Objects

    return S3Objects(bucket, before_write=before_write, egress=egress)


@contextlib.asynccontextmanager
async def open_cluster(
    context: str | None, cluster_id: str | None = None
) -> AsyncIterator[tuple[KubernetesCluster, str]]:
    """Open the cluster of a context (None: the current one); yield the cluster and the context's namespace.

    Args:
        cluster_id: Id that replaces the uid of kube-system; None uses that uid.

    Raises:
        AgentMemoryError: If there is no usable context.
    """
    configuration, namespace = await load_context(context)
    cluster = KubernetesCluster(configuration, cluster_id=cluster_id)
    try:
        yield cluster, namespace
    finally:
        await cluster.close()


@contextlib.asynccontextmanager
async def open_installed(context: str | None) -> "AsyncIterator[InstallationApi]":
    """Open the installation in the cluster of a context, for `uninstall`. None is the current context.

    Raises:
        AgentMemoryError: If there is no usable context.
    """
    configuration, _ = await load_context(context)
    installed = KubernetesInstallation(configuration)
    try:
        yield installed
    finally:
        await installed.close()


@contextlib.asynccontextmanager
async def open_jobs(
    context: str | None, manifests: Path | None, cluster_id: str | None = None
) -> AsyncIterator[tuple[JobObjects, str]]:
    """Open the objects of a folder, else of a kubeconfig context; yield them and the default namespace.

    Args:
        context: Name of the kubeconfig context; None is the current one. Not used with a folder.
        manifests: Folder of manifests; None opens a cluster.

    Raises:
        AgentMemoryError: If there is no usable context.
    """
    if manifests is not None:
        # Import here: processes that serve in a cluster read no folder.
        from agentmemory_operator.adapters.folder.manifest_files import ManifestFiles

        files = ManifestFiles(manifests)
        yield files, files.default_namespace
        return
    async with open_cluster(context, cluster_id) as opened:
        yield opened
