"""Stores and clusters, opened for as long as a verb runs."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from agentmemory_operator.adapters.http.egress import UNCHECKED, USUAL, Egress
from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster, KubernetesInstallation
from agentmemory_operator.adapters.kubernetes.transport import load_context
from agentmemory_operator.adapters.qdrant.calls import CallWatch, ReadRetries
from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.main.egress import egress_of
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


class Stores:
    """Opens stores and closes them all at the end.

    Args:
        url, api_key: a server in the place of every connection's, for development.
        watch: what is done around each control call; what it does before a write, it does for points too.
        meter: told of each call for points.
        egress: says what connections and buckets may name; the server in their place is not of an object.
    """

    def __init__(
        self,
        stack: AsyncExitStack,
        *,
        url: str | None = None,
        api_key: str | None = None,
        watch: CallWatch | None = None,
        meter: EngineMeter | None = None,
        egress: Egress = USUAL,
    ) -> None:
        # Those whose connection has changed are closed by whoever used them, and are no more.
        self._open: WeakSet[QdrantCollections | QdrantPoints | QdrantSnapshots | QdrantShardSnapshots] = WeakSet()
        # By URL, for as long as a store of it is open.
        self._retries: WeakValueDictionary[str, ReadRetries] = WeakValueDictionary()
        stack.push_async_callback(self._close)
        self._url = url
        self._api_key = api_key
        self._watch = watch
        self._meter = meter
        self._egress, self._qdrant_egress = egress, UNCHECKED if url else egress

    def collections(self, endpoint: Endpoint) -> "QdrantCollections":
        """The control store of an endpoint."""
        # Qdrant's client takes 90 MiB and a second: the API, which has no use for it, does without (docs/adr/0004).
        from agentmemory_operator.adapters.qdrant.collections import QdrantCollections

        place = self._place(endpoint)
        store = QdrantCollections(place.url, **_options(place, self._qdrant_egress))
        if self._watch is not None:
            store.watch_calls(self._watch)
        self._open.add(store)
        return store

    def points(self, endpoint: Endpoint) -> PointStore:
        """The point store of an endpoint."""
        place = self._place(endpoint)
        before_write = self._watch.before_write if self._watch else lambda: None
        store = QdrantPoints(
            place.url,
            api_key=place.api_key,
            timeout_s=place.timeout_s,
            ca_pem=place.ca_pem,
            meter=self._meter,
            before_write=before_write,
            writing=self._watch.writing if self._watch else nullcontext,
            egress=self._qdrant_egress,
            retries=self._retries.setdefault(place.url, ReadRetries()),
        )
        self._open.add(store)
        return store

    def server(self, endpoint: Endpoint) -> Server:
        """Everything of an endpoint's server."""
        place = self._place(endpoint)
        snapshots = _snapshots(place, self._qdrant_egress)
        if self._watch is not None:
            snapshots.watch_calls(self._watch)
        self._open.add(snapshots)
        return Server(place, self.collections(endpoint), snapshots, self.points(endpoint))

    def objects(self, bucket: Bucket) -> ObjectStore:
        """A bucket, which whoever opened it closes."""
        before_write = self._watch.before_write if self._watch else lambda: None
        return open_objects(bucket, before_write=before_write, egress=self._egress)

    async def _close(self) -> None:
        for store in list(self._open):
            await store.close()

    def _place(self, endpoint: Endpoint) -> Endpoint:
        return Endpoint(self._url, self._api_key, endpoint.timeout_s) if self._url else endpoint


def load_control_stores() -> None:
    """Import Qdrant's client, for a thread: it takes seconds, in which a leader's lease would not be renewed."""
    for store in ("collections", "shard_snapshots"):
        import_module(f"agentmemory_operator.adapters.qdrant.{store}")


def _snapshots(place: Endpoint, egress: Egress) -> "QdrantSnapshots | QdrantShardSnapshots":
    from agentmemory_operator.adapters.qdrant.shard_snapshots import QdrantShardSnapshots
    from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots

    if place.nodes:
        return QdrantShardSnapshots(place.url, place.nodes, **_options(place, egress))
    return QdrantSnapshots(place.url, **_options(place, egress))


def _options(place: Endpoint, egress: Egress) -> "ControlOptions":
    return {"api_key": place.api_key, "timeout_s": place.timeout_s, "ca_pem": place.ca_pem, "egress": egress}


def _stores_of(settings: Settings, endpoint: Endpoint, stack: AsyncExitStack) -> Stores:
    """What opens the stores of a verb: of an object's server, or of the one that the environment names."""
    return Stores(stack, egress=UNCHECKED if endpoint.url == settings.qdrant_url else egress_of(settings))


@contextlib.asynccontextmanager
async def open_collections(settings: Settings, endpoint: Endpoint) -> AsyncIterator["QdrantCollections"]:
    """Open the collections of one server."""
    async with AsyncExitStack() as stack:
        yield _stores_of(settings, endpoint, stack).collections(endpoint)


@contextlib.asynccontextmanager
async def open_points(settings: Settings, endpoint: Endpoint) -> AsyncIterator[PointStore]:
    """Open the points of one server."""
    async with AsyncExitStack() as stack:
        yield _stores_of(settings, endpoint, stack).points(endpoint)


@contextlib.asynccontextmanager
async def open_snapshots(settings: Settings, endpoint: Endpoint) -> AsyncIterator[SnapshotStore]:
    """Open the snapshots of one server."""
    async with AsyncExitStack() as stack:
        yield _stores_of(settings, endpoint, stack).server(endpoint).snapshots


def open_bucket(settings: Settings, bucket: Bucket) -> ObjectStore:
    """Open a bucket for a verb, which closes it."""
    return open_objects(bucket, egress=egress_of(settings))


def open_objects(
    bucket: Bucket, *, before_write: Callable[[], None] = lambda: None, egress: Egress = USUAL
) -> ObjectStore:
    """Open a bucket, which whoever opens it closes."""
    # 10 MiB of memory that most have no use for.
    from agentmemory_operator.adapters.s3.objects import S3Objects

    return S3Objects(bucket, before_write=before_write, egress=egress)


@contextlib.asynccontextmanager
async def open_cluster(
    context: str | None, cluster_id: str | None = None
) -> AsyncIterator[tuple[KubernetesCluster, str]]:
    """Open the cluster of a context, with the context's namespace; `cluster_id` stands for kube-system's uid."""
    configuration, namespace = await load_context(context)
    cluster = KubernetesCluster(configuration, cluster_id=cluster_id)
    try:
        yield cluster, namespace
    finally:
        await cluster.close()


@contextlib.asynccontextmanager
async def open_installed(context: str | None) -> AsyncIterator[KubernetesInstallation]:
    """Open what is installed in the cluster of a context."""
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
    """Open the objects of a folder, else of a context, with the namespace that is meant where none is named."""
    if manifests is not None:
        # What serves in a cluster reads no folder.
        from agentmemory_operator.adapters.folder.edits import ManifestFiles

        files = ManifestFiles(manifests)
        yield files, files.default_namespace
        return
    async with open_cluster(context, cluster_id) as opened:
        yield opened
