"""What each verb runs: the only place that builds adapters and joins them to services."""

import asyncio
import contextlib
import importlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from uuid import uuid4

from agentmemory_operator.adapters.asgi_server import serving
from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.embedders import build_embedder
from agentmemory_operator.adapters.kubeconfig import load_context
from agentmemory_operator.adapters.kubernetes_cluster import KubernetesCluster
from agentmemory_operator.adapters.kubernetes_lease import KubernetesLease, own_namespace
from agentmemory_operator.adapters.kubernetes_tokens import KubernetesTokenReviews
from agentmemory_operator.adapters.kubernetes_transport import load_configuration
from agentmemory_operator.adapters.manifest_folder import ManifestFolder
from agentmemory_operator.adapters.qdrant_calls import CallWatch
from agentmemory_operator.adapters.qdrant_collections import QdrantCollections
from agentmemory_operator.domain.collection import EmbeddingSource
from agentmemory_operator.domain.effective import AgentSettings
from agentmemory_operator.entrypoints.api.app import create_app
from agentmemory_operator.entrypoints.api.auth import build_guard
from agentmemory_operator.entrypoints.api.pressure import MIB, Limits
from agentmemory_operator.entrypoints.api.routes import Services
from agentmemory_operator.entrypoints.cli import OperatorOptions
from agentmemory_operator.entrypoints.following import follow, follow_folder, pass_on
from agentmemory_operator.entrypoints.health import Probes, create_health_app
from agentmemory_operator.entrypoints.operating import KINDS, cancel, operate
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.main.stores import Stores
from agentmemory_operator.ports import (
    AgentMemories,
    Cluster,
    ClusterReader,
    CollectionStore,
    Embedder,
    PointStore,
    Secrets,
    TokenReviews,
    Tracer,
)
from agentmemory_operator.services.access_counts import AccessCounts
from agentmemory_operator.services.api_metering import ApiMeter
from agentmemory_operator.services.callers import Callers
from agentmemory_operator.services.chains import Chains
from agentmemory_operator.services.connections import Connections
from agentmemory_operator.services.directory import AgentDirectory
from agentmemory_operator.services.embedding_cache import CachedEmbedder
from agentmemory_operator.services.feeds import ApiFeed, OperatorFeed
from agentmemory_operator.services.leadership import Leadership
from agentmemory_operator.services.links import Endpoint
from agentmemory_operator.services.memories import Memories
from agentmemory_operator.services.metered_embedder import MeteredEmbedder
from agentmemory_operator.services.metering import OperatorMeter, call_counter
from agentmemory_operator.services.metrics import render
from agentmemory_operator.services.objects import Key, ObjectTable
from agentmemory_operator.services.passes import Passes, Periods
from agentmemory_operator.services.point_stores import PointStores
from agentmemory_operator.services.recall import Recall
from agentmemory_operator.services.remember import Remember
from agentmemory_operator.services.standing import Standing
from agentmemory_operator.services.sweeper import Sweeper
from agentmemory_operator.services.tracing import NO_TRACES
from agentmemory_operator.services.windows import Windows
from agentmemory_operator.services.workqueue import WorkQueue
from agentmemory_operator.settings import Settings

log = logging.getLogger(__name__)

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"
HEALTH_PORT = 8081
API_SERVICE = "agentmemory-api"


class Operator:
    """The reconcile half: table, queue and passes over one cluster.

    Args:
        cluster: where status, finalizers and events are written.
        secrets: where API keys are read.
        open_store: makes the store of an endpoint.
        periods: when what is looked at again.
        tracer: traces passes.
    """

    def __init__(
        self,
        cluster: Cluster,
        secrets: Secrets,
        open_store: Callable[[Endpoint], CollectionStore],
        *,
        periods: Periods | None = None,
        tracer: Tracer = NO_TRACES,
    ) -> None:
        self.periods = periods or Periods()
        self.table = ObjectTable()
        self.meter = OperatorMeter(self.table, tracer=tracer)
        self.connections = Connections(self.table, secrets, open_store, namespaces=cluster)
        self.queue: WorkQueue[Key] = WorkQueue(self._pass, lane_of=self.table.lane_of)
        self.feed = OperatorFeed(self.table, self.queue, self.connections.forget)
        self._passes = Passes(
            self.table, self.connections, cluster, SystemClock(), self.queue.request, periods=self.periods
        )

    async def _pass(self, key: Key) -> float | None:
        return await self.meter.measure(key, self._passes.run)


class Api:
    """The retrieval half: directory and use cases.

    Args:
        cluster: where API keys and labels of namespaces are read.
        open_store: makes the store of an endpoint.
        meter: what is measured of it and of its stores.
        reviews: who knows the tokens of ServiceAccounts; None without a cluster.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterReader,
        open_store: Callable[[Endpoint], PointStore],
        *,
        meter: ApiMeter,
        reviews: TokenReviews | None = None,
    ) -> None:
        self._settings = settings
        self._meter = meter
        self._secrets: Secrets = cluster
        clock, table = SystemClock(), ObjectTable()
        self._callers = Callers(reviews, clock) if reviews else None
        chains, windows = Chains(clock), Windows(clock)
        stores = PointStores(table, cluster, open_store, namespaces=cluster)
        directory = AgentDirectory(stores.store_for, self._open_embedder)
        access_counts = AccessCounts(directory.open, clock, writer=uuid4().hex[:8])
        self.feed = ApiFeed(table, directory)
        self.services = Services(
            directory=directory,
            recall=Recall(clock, access_counts),
            remember=Remember(clock, chains, windows),
            memories=Memories(clock, chains, windows),
            access_counts=access_counts,
            meter=meter,
        )
        self.standing = Standing(KINDS, directory, stores.store_for)
        self._sweeper = Sweeper(directory, chains, windows)

    async def _open_embedder(self, source: EmbeddingSource, settings: AgentSettings) -> Embedder:
        # In a cluster a manifest's baseURL must not receive a key that the object does not name.
        api_key = None if self._settings.is_in_cluster else self._settings.openai_api_key
        if source.secret_name and source.secret_key:
            api_key = await self._secrets.read(settings.namespace, source.secret_name, source.secret_key)
        embedder = build_embedder(source, settings.embedding, api_key=api_key)
        metered = MeteredEmbedder(embedder, self._meter, provider=source.provider)
        return CachedEmbedder(metered, entries=settings.embedding.cache_entries, meter=self._meter)

    @contextlib.asynccontextmanager
    async def serving(self, host: str, port: int) -> AsyncIterator[str]:
        """Serve while the context is open; yield the URL."""
        guard = build_guard(self._settings, host, callers=self._callers)
        settings = self._settings
        limits = Limits(requests=settings.max_requests, body_bytes=settings.max_body_mib * MIB)
        app = create_app(self.services, guard, standing=self.standing, limits=limits)
        beside = [asyncio.create_task(work) for work in (self._sweeper.run(), self.standing.run())]
        try:
            async with serving(app, host=host, port=port) as url:
                yield url
        finally:
            await cancel(*beside)


async def run_operator(settings: Settings, options: OperatorOptions) -> None:
    """Run the operator until it is told to stop, or loses the lease."""
    configuration = await load_configuration()
    async with AsyncExitStack() as stack:
        lease = KubernetesLease(configuration, options.lease_namespace or own_namespace())
        stack.push_async_callback(lease.close)
        leadership = Leadership(lease, f"{socket.gethostname()}_{uuid4().hex[:8]}")
        cluster = KubernetesCluster(configuration, before_write=leadership.check, namespaces=options.namespaces)
        stack.push_async_callback(cluster.close)
        calls, tracer = call_counter(), open_tracer(settings, stack, service="agentmemory-operator")
        watch = CallWatch(before_write=leadership.check, count_call=calls.add, tracer=tracer)
        collections, ready = Stores(stack, watch=watch).collections, asyncio.Event()
        operator = Operator(cluster, cluster, collections, tracer=tracer)
        metrics = [*operator.meter.metrics(operator.queue, lambda: leadership.is_leading), calls]
        probes = Probes(lambda: operator.queue.stuck_s, ready.is_set, lambda: render(metrics))
        port = HEALTH_PORT if options.health_port is None and settings.is_in_cluster else options.health_port
        if port is not None:
            app = create_health_app(probes)
            say(f"health {await stack.enter_async_context(serving(app, host=default_host(settings), port=port))}")
        names = options.namespaces
        await operate(operator, cluster, configuration, leadership=leadership, namespaces=names, ready=ready)


async def run_api_kubernetes(settings: Settings, host: str | None, port: int) -> None:
    """Run the retrieval API on the objects of a cluster."""
    configuration = await load_configuration()
    async with AsyncExitStack() as stack:
        cluster = KubernetesCluster(configuration)
        stack.push_async_callback(cluster.close)
        reviews = KubernetesTokenReviews(configuration)
        stack.push_async_callback(reviews.close)
        meter = ApiMeter(open_tracer(settings, stack, service=API_SERVICE))
        api = Api(settings, cluster, Stores(stack, meter=meter).points, meter=meter, reviews=reviews)
        following = [asyncio.create_task(follow(api, cluster, kind)) for kind in KINDS]
        stack.push_async_callback(cancel, *following)
        url = await stack.enter_async_context(api.serving(host or default_host(settings), port))
        say(f"API {url}")
        await until_stopped(*following)


async def run_api_files(settings: Settings, host: str | None, port: int, manifests: Path) -> None:
    """Run the retrieval API on a folder of manifests; their collections exist already."""
    async with AsyncExitStack() as stack:
        folder = ManifestFolder(manifests, keeps_status=False)
        meter = ApiMeter(open_tracer(settings, stack, service=API_SERVICE))
        stores = Stores(stack, url=settings.qdrant_url, api_key=settings.qdrant_api_key, meter=meter)
        api = Api(settings, folder, stores.points, meter=meter)
        following = asyncio.create_task(follow_folder(folder, api, None))
        stack.push_async_callback(cancel, following)
        url = await stack.enter_async_context(api.serving(host or default_host(settings), port))
        say(f"API {url}")
        await until_stopped(following)


async def run_dev(settings: Settings, manifests: Path, data: Path, port: int, qdrant: str | None) -> None:
    """Run dev Qdrant, reconcile of a folder and API in one process, until it is told to stop."""
    async with AsyncExitStack() as stack:
        url, key = qdrant or settings.qdrant_url, settings.qdrant_api_key
        stands_in = "a server that you run" if url else "the dev Qdrant"
        if url is None:
            app = import_devserver().create_app(data)
            url, key = await stack.enter_async_context(serving(app, host=LOOPBACK, port=0)), None
        tracer = open_tracer(settings, stack, service="agentmemory-dev")
        meter, folder = ApiMeter(tracer), ManifestFolder(manifests)
        # Nobody else writes here, and nobody asks for the counts: what is wanted are the traces.
        watch = CallWatch(before_write=lambda: None, count_call=call_counter().add, tracer=tracer)
        stores = Stores(stack, url=url, api_key=key, watch=watch, meter=meter)
        operator = Operator(folder, folder, stores.collections, tracer=tracer)
        api = Api(settings, folder, stores.points, meter=meter)
        tasks = [
            asyncio.create_task(work)
            for work in (operator.queue.run(), follow_folder(folder, api, operator), pass_on(folder, api, operator))
        ]
        stack.push_async_callback(cancel, *tasks)
        api_url = await stack.enter_async_context(api.serving(LOOPBACK, port))
        say(f"{stands_in} stands in for every QdrantConnection, whatever its url says")
        say(f"Qdrant {url}")
        say(f"API {api_url}")
        await until_stopped(*tasks)


async def run_devserver(data: Path, port: int, version: str) -> None:
    """Run only the dev Qdrant server, until it is told to stop."""
    server = asyncio.create_task(import_devserver().serve(data, port=port, qdrant_version=version))
    try:
        await until_stopped(server)
    finally:
        await cancel(server)


def open_tracer(settings: Settings, stack: AsyncExitStack, *, service: str) -> Tracer:
    """Return what makes traces, closed with the stack."""
    if not settings.exports_traces:
        return NO_TRACES
    # The SDK is imported only where traces are wanted.
    from agentmemory_operator.adapters.otlp_tracer import OtlpTracer

    tracer = OtlpTracer(service)
    stack.push_async_callback(tracer.close)
    return tracer


def import_devserver() -> ModuleType:
    """Import the dev Qdrant server: its engine is an optional extra, so only the two verbs that need it do.

    Raises:
        AgentMemoryError: the extra is not installed; says how to get it.
    """
    try:
        return importlib.import_module("agentmemory_operator.devserver")
    except ModuleNotFoundError as exc:
        if exc.name != "qdrant_edge":
            raise
        raise AgentMemoryError(
            "the dev Qdrant needs the engine qdrant-edge: install 'agentmemory-operator[devserver]' (no image has it),"
            " or run `agentmemory dev` with --qdrant URL"
        ) from exc


async def until_stopped(*tasks: asyncio.Task[None]) -> None:
    """Wait for SIGTERM or SIGINT; a task that ends before is an error and ends the process."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    waiting: asyncio.Task[object] = asyncio.create_task(stopped.wait())
    done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    await cancel(waiting)
    for task in done - {waiting}:
        task.result()


def default_host(settings: Settings) -> str:
    """Return every address in a cluster, loopback elsewhere."""
    return EVERYWHERE if settings.is_in_cluster else LOOPBACK


def say(line: str) -> None:
    """Print a line that people, and scripts that start us, wait for."""
    print(line, flush=True)


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
async def open_cluster(context: str | None) -> AsyncIterator[tuple[KubernetesCluster, str]]:
    """Open the cluster of a context, with the context's namespace."""
    configuration, namespace = await load_context(context)
    cluster = KubernetesCluster(configuration)
    try:
        yield cluster, namespace
    finally:
        await cluster.close()
