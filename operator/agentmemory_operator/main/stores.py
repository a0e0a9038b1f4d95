"""Stores and clusters, opened for as long as a verb runs."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from weakref import WeakSet

from agentmemory_operator.adapters.kubeconfig import load_context
from agentmemory_operator.adapters.kubernetes_cluster import KubernetesCluster
from agentmemory_operator.adapters.kubernetes_transport import load_configuration
from agentmemory_operator.adapters.manifest_files import ManifestFiles
from agentmemory_operator.adapters.qdrant_calls import CallWatch
from agentmemory_operator.adapters.qdrant_collections import QdrantCollections
from agentmemory_operator.adapters.qdrant_points import QdrantPoints
from agentmemory_operator.adapters.qdrant_shard_snapshots import QdrantShardSnapshots
from agentmemory_operator.adapters.qdrant_snapshots import QdrantSnapshots
from agentmemory_operator.ports import AgentMemories, PointStore
from agentmemory_operator.ports.jobs import JobObjects
from agentmemory_operator.ports.objects import Bucket, ObjectStore
from agentmemory_operator.ports.snapshots import SnapshotStore
from agentmemory_operator.ports.tracing import EngineMeter
from agentmemory_operator.services.links import Endpoint
from agentmemory_operator.services.servers import Server


class Stores:
    """Opens stores and closes them all at the end.

    Args:
        url, api_key: a server in the place of every connection's, for development.
        watch: what is done around each control call; what it does before a write, it does for points too.
        meter: told of each call for points.
    """

    def __init__(
        self,
        stack: AsyncExitStack,
        *,
        url: str | None = None,
        api_key: str | None = None,
        watch: CallWatch | None = None,
        meter: EngineMeter | None = None,
    ) -> None:
        # Those whose connection has changed are closed by whoever used them, and are no more.
        self._open: WeakSet[QdrantCollections | QdrantPoints | QdrantSnapshots | QdrantShardSnapshots] = WeakSet()
        stack.push_async_callback(self._close)
        self._url = url
        self._api_key = api_key
        self._watch = watch
        self._meter = meter

    def collections(self, endpoint: Endpoint) -> QdrantCollections:
        """Return the control store of an endpoint."""
        place = self._place(endpoint)
        store = QdrantCollections(place.url, api_key=place.api_key, timeout_s=place.timeout_s, ca_pem=place.ca_pem)
        if self._watch is not None:
            store.watch_calls(self._watch)
        self._open.add(store)
        return store

    def points(self, endpoint: Endpoint) -> PointStore:
        """Return the point store of an endpoint."""
        place = self._place(endpoint)
        before_write = self._watch.before_write if self._watch else lambda: None
        store = QdrantPoints(
            place.url,
            api_key=place.api_key,
            timeout_s=place.timeout_s,
            ca_pem=place.ca_pem,
            meter=self._meter,
            before_write=before_write,
        )
        self._open.add(store)
        return store

    def server(self, endpoint: Endpoint) -> Server:
        """Return everything of an endpoint's server."""
        place = self._place(endpoint)
        snapshots = _snapshots(place)
        if self._watch is not None:
            snapshots.watch_calls(self._watch)
        self._open.add(snapshots)
        return Server(place, self.collections(endpoint), snapshots, self.points(endpoint))

    def objects(self, bucket: Bucket) -> ObjectStore:
        """Return a bucket, which whoever opened it closes."""
        return open_objects(bucket, before_write=self._watch.before_write if self._watch else lambda: None)

    async def _close(self) -> None:
        for store in list(self._open):
            await store.close()

    def _place(self, endpoint: Endpoint) -> Endpoint:
        return Endpoint(self._url, self._api_key, endpoint.timeout_s) if self._url else endpoint


def _snapshots(place: Endpoint) -> QdrantSnapshots | QdrantShardSnapshots:
    if place.nodes:
        return QdrantShardSnapshots(
            place.url, place.nodes, api_key=place.api_key, timeout_s=place.timeout_s, ca_pem=place.ca_pem
        )
    return QdrantSnapshots(place.url, api_key=place.api_key, timeout_s=place.timeout_s, ca_pem=place.ca_pem)


@contextlib.asynccontextmanager
async def objects_of_cluster() -> AsyncIterator[AgentMemories]:
    """Open the objects of the cluster that the kubeconfig names."""
    cluster = KubernetesCluster(await load_configuration())
    try:
        yield cluster
    finally:
        await cluster.close()


@contextlib.asynccontextmanager
async def open_collections(endpoint: Endpoint) -> AsyncIterator[QdrantCollections]:
    """Open the collections of one server."""
    async with AsyncExitStack() as stack:
        yield Stores(stack).collections(endpoint)


@contextlib.asynccontextmanager
async def open_points(endpoint: Endpoint) -> AsyncIterator[PointStore]:
    """Open the points of one server."""
    async with AsyncExitStack() as stack:
        yield Stores(stack).points(endpoint)


@contextlib.asynccontextmanager
async def open_snapshots(endpoint: Endpoint) -> AsyncIterator[SnapshotStore]:
    """Open the snapshots of one server."""
    async with AsyncExitStack() as stack:
        yield Stores(stack).server(endpoint).snapshots


def open_objects(bucket: Bucket, *, before_write: Callable[[], None] = lambda: None) -> ObjectStore:
    """Open a bucket, which whoever opens it closes."""
    # 10 MiB of memory that most have no use for.
    from agentmemory_operator.adapters.s3_objects import S3Objects

    return S3Objects(bucket, before_write=before_write)


@contextlib.asynccontextmanager
async def open_cluster(context: str | None) -> AsyncIterator[tuple[KubernetesCluster, str]]:
    """Open the cluster of a context, with the context's namespace."""
    configuration, namespace = await load_context(context)
    cluster = KubernetesCluster(configuration)
    try:
        yield cluster, namespace
    finally:
        await cluster.close()


@contextlib.asynccontextmanager
async def open_jobs(context: str | None, manifests: Path | None) -> AsyncIterator[tuple[JobObjects, str]]:
    """Open the objects of a folder, else of a context, with the namespace that is meant where none is named."""
    if manifests is not None:
        files = ManifestFiles(manifests)
        yield files, files.default_namespace
        return
    async with open_cluster(context) as opened:
        yield opened
