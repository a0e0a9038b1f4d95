"""`agentmemory operator`."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from uuid import uuid4

from agentmemory_operator.adapters.asgi_server import serving
from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.embedders import CallerVectors
from agentmemory_operator.adapters.https_files import HttpsFiles
from agentmemory_operator.adapters.kubernetes_cluster import KubernetesCluster
from agentmemory_operator.adapters.kubernetes_handover import KubernetesHandover
from agentmemory_operator.adapters.kubernetes_lease import KubernetesLease, own_namespace
from agentmemory_operator.adapters.kubernetes_transport import KubernetesTransport, load_configuration
from agentmemory_operator.adapters.qdrant_calls import CallWatch
from agentmemory_operator.adapters.qdrant_tokens import QdrantTokens
from agentmemory_operator.domain.effective import AgentSettings
from agentmemory_operator.entrypoints.cli import OperatorOptions
from agentmemory_operator.entrypoints.health import Probes, create_health_app
from agentmemory_operator.entrypoints.operating import operate
from agentmemory_operator.main.embedding import RebuildEmbedders
from agentmemory_operator.main.processes import default_host, open_tracer, say
from agentmemory_operator.main.rebuilds import abandon, rebuild_steps
from agentmemory_operator.main.stores import Stores
from agentmemory_operator.ports import Cluster, CollectionStore, HandoverStore, PointStore, Secrets
from agentmemory_operator.ports.objects import Bucket, ObjectStore
from agentmemory_operator.ports.tracing import Tracer
from agentmemory_operator.services.chains import Chains
from agentmemory_operator.services.cleaning import Cleaning
from agentmemory_operator.services.cleanup import Cleanup
from agentmemory_operator.services.connections import Connections
from agentmemory_operator.services.copies import Copies
from agentmemory_operator.services.directory import Agent, open_collection
from agentmemory_operator.services.erasure_mirror import ErasureMirror
from agentmemory_operator.services.erasures import Erasures
from agentmemory_operator.services.feeds import OperatorFeed
from agentmemory_operator.services.handover import Handover
from agentmemory_operator.services.in_place import InPlace
from agentmemory_operator.services.keeping import PreviousSweeper
from agentmemory_operator.services.leadership import Leadership
from agentmemory_operator.services.links import Endpoint
from agentmemory_operator.services.metering import OperatorMeter, call_counter
from agentmemory_operator.services.metrics import render
from agentmemory_operator.services.objects import MEMORY_RESTORE, MEMORY_SNAPSHOT, Key, ObjectTable
from agentmemory_operator.services.passes import Passes, Periods
from agentmemory_operator.services.point_stores import PointStores
from agentmemory_operator.services.queues import Queues
from agentmemory_operator.services.rebuild_reports import RebuildReports
from agentmemory_operator.services.rebuilds import OpenEmbedder, Rebuilds
from agentmemory_operator.services.restore_sources import RestoreSources
from agentmemory_operator.services.restored_erasures import RestoredErasures
from agentmemory_operator.services.restores import RestorePasses
from agentmemory_operator.services.scratch import Scratch, ScratchSweeper
from agentmemory_operator.services.servers import Server, Servers
from agentmemory_operator.services.snapshot_schedule import SnapshotSchedule
from agentmemory_operator.services.snapshots import SnapshotPasses
from agentmemory_operator.services.storages import Storages
from agentmemory_operator.services.tracing import NO_TRACES
from agentmemory_operator.services.verification import Verification
from agentmemory_operator.services.windows import Windows
from agentmemory_operator.services.workqueue import WorkQueue
from agentmemory_operator.settings import REBUILDS_AT_ONCE, SNAPSHOTS_AT_ONCE, Settings

HEALTH_PORT = 8081
# Of one connection; each keeps a disk busy.
RESTORES_AT_ONCE = 4


class Operator:
    """The reconcile half: table, queue and passes over one cluster.

    Args:
        cluster: where status, finalizers and events are written.
        secrets: where API keys are read.
        open_store: makes the store of an endpoint.
        periods: when what is looked at again.
        tracer: traces passes.
        handover_store: where the retrieval API finds what it needs of Secrets; None where it reads them itself.
    """

    def __init__(
        self,
        cluster: Cluster,
        secrets: Secrets,
        open_store: Callable[[Endpoint], CollectionStore],
        *,
        periods: Periods | None = None,
        tracer: Tracer = NO_TRACES,
        handover_store: HandoverStore | None = None,
    ) -> None:
        self.periods = periods or Periods()
        self.table = ObjectTable()
        self.meter = OperatorMeter(self.table, tracer=tracer)
        self.connections = Connections(self.table, secrets, open_store, namespaces=cluster)
        self.servers: Servers | None = None
        self.verification: Verification | None = None
        self.copies: Copies | None = None
        self.snapshot_passes: SnapshotPasses | None = None
        self.mirror: ErasureMirror | None = None
        self._sweeper: ScratchSweeper | None = None
        self._keeper: PreviousSweeper | None = None
        self.queue: WorkQueue[Key] = WorkQueue(self._pass, lane_of=self.table.lane_of)
        self.queues = Queues(self.queue)
        clock = SystemClock()
        self.snapshots = SnapshotSchedule(self.table, cluster, clock, self.queues.request)
        self.feed = OperatorFeed(self.table, self.queues, self._forget_connection, self.snapshots.heard)
        self.handover = (
            Handover(handover_store, secrets, self.connections, QdrantTokens(), clock) if handover_store else None
        )
        self._passes = Passes(
            *(self.table, self.connections, cluster, clock, self.queues.request),
            periods=self.periods,
            handover=self.handover,
            snapshots=self.snapshots,
        )
        self._cluster, self._secrets, self._clock = cluster, secrets, clock

    def clean_up(self, open_points: Callable[[Endpoint], PointStore]) -> Cleaning:
        """Make cleanups too, and return what makes them.

        Args:
            open_points: makes the store of an endpoint's points.
        """
        stores = PointStores(self.table, self._secrets, open_points, namespaces=self._cluster)

        async def open_agent(settings: AgentSettings) -> Agent:
            # Nothing embeds here.
            embedder = CallerVectors(settings.embedding.dimensions)
            return await open_collection(await stores.store_for(settings), settings, embedder)

        clock = self._clock
        cleaning = Cleaning(
            *(self.table, open_agent, self._cluster, clock),
            cleanup=Cleanup(clock, Chains(clock), Windows(clock)),
            request=self.queues.request,
        )
        self._passes.cleaning = cleaning
        return cleaning

    def open_servers(
        self,
        open_server: Callable[[Endpoint], Server],
        open_objects: Callable[[Bucket], ObjectStore],
        *,
        max_scratch_gib: int = 0,
        max_rebuild_gib: int = 0,
        snapshots_at_once: int = SNAPSHOTS_AT_ONCE,
        shared_buckets: frozenset[str] | None = None,
    ) -> Servers:
        """Reach whole servers too, as snapshots and restores need them.

        Args:
            open_server: opens the server of an endpoint.
            open_objects: opens a bucket of an object storage.
            max_scratch_gib: larger snapshots are not restored to verify them; 0 restores any.
            max_rebuild_gib: of disk that one Rebuild may take; 0 is any.
            snapshots_at_once: of the agents of one connection.
            shared_buckets: that this process's own identity opens for whoever has no Secret; None is all.
        """
        self.servers = Servers(self.table, self._secrets, open_server, namespaces=self._cluster)
        self._passes.release.servers = self.servers
        self.connections.most_rebuild_bytes = max_rebuild_gib << 30 or None
        scratch = Scratch(self._cluster.cluster_id)
        self._sweeper = ScratchSweeper(self.table, self.servers, scratch)
        storages = Storages(self._secrets, open_objects, shared=shared_buckets)
        self.copies = Copies(storages)
        erasures = Erasures(self._clock)
        self.mirror = ErasureMirror(self.table, self.servers, storages, erasures, self._clock)
        self.verification = Verification(scratch, max_scratch_gib << 30 or None, self.copies.open_copy)
        self.snapshot_passes = SnapshotPasses(
            *(self.table, self.servers, self._cluster, self._clock, self.queues.request),
            prover=self.verification,
            copies=self.copies,
            scratch=scratch,
        )
        self.work_on(MEMORY_SNAPSHOT, self.snapshot_passes.run, width=snapshots_at_once)
        self.snapshots.retain_by(self.snapshot_passes.removal)
        restored = RestoredErasures(self.table, self.servers, erasures, self.mirror)
        restores = RestorePasses(
            *(self.table, self.servers, self._cluster, self._clock, self.queues.request),
            sources=RestoreSources(self.table, self.servers, self.copies, HttpsFiles()),
            locks=self._passes.locks,
            in_place=InPlace(self.table, self._cluster, scratch, self.queues.request, restored),
            erasures=restored,
        )
        self._keeper = PreviousSweeper(self.table, self.servers, self._clock, self._cluster.cluster_id, restored)
        self.work_on(MEMORY_RESTORE, restores.run, width=RESTORES_AT_ONCE)
        return self.servers

    def rebuild_with(self, open_embedder: OpenEmbedder, cleaning: Cleaning, *, at_once: int = REBUILDS_AT_ONCE) -> None:
        """Carry out rebuilds too; servers are open.

        Args:
            open_embedder: opens what embeds for them.
            cleaning: what makes cleanups: neither begins while the other runs.
            at_once: of the agents of one connection.
        """
        assert self.servers is not None
        rebuilds = Rebuilds(
            table=self.table,
            servers=self.servers,
            cluster=self._cluster,
            clock=self._clock,
            request=self.queues.request,
            locks=self._passes.locks,
            open_embedder=open_embedder,
            steps=rebuild_steps(self._passes.locks, cleaning.is_under_way),
            abandon=abandon,
            reports=RebuildReports(self.table, self._cluster, self._clock),
            width=at_once,
        )
        self._passes.rebuilds = rebuilds
        cleaning.is_rebuilding = rebuilds.reports.is_under_way

    def work_on(self, kind: str, run: Callable[[Key], Awaitable[float | None]], *, width: int) -> None:
        """Work on another kind too.

        Args:
            run: does one pass over an object of the kind; as the handler of a WorkQueue.
            width: passes at a time of the objects of one connection.
        """
        passes = partial(self.meter.measure, run=run)
        self.queues.add(kind, WorkQueue(passes, lane_of=self.table.lane_of, width=width))

    async def run(self) -> None:
        """Run passes, and cleanups where they are made, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queues.run())
            group.create_task(self.snapshots.run())
            if self._passes.cleaning is not None:
                group.create_task(self._passes.cleaning.queue.run())
            if self._passes.rebuilds is not None:
                group.create_task(self._passes.rebuilds.queue.run())
            if self._sweeper is not None:
                group.create_task(self._sweeper.run())
            if self._keeper is not None:
                group.create_task(self._keeper.run())
            if self.mirror is not None:
                group.create_task(self.mirror.run())

    def _forget_connection(self, key: Key) -> None:
        self.connections.forget(key)
        if self.servers is not None:
            self.servers.forget(key)

    async def _pass(self, key: Key) -> float | None:
        return await self.meter.measure(key, self._passes.run)


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
        stores, ready = Stores(stack, watch=watch), asyncio.Event()
        transport = KubernetesTransport(configuration, before_write=leadership.check)
        stack.push_async_callback(transport.close)
        handover_store = KubernetesHandover(transport, options.api_namespace or own_namespace())
        operator = Operator(cluster, cluster, stores.collections, tracer=tracer, handover_store=handover_store)
        cleaning, embedders = operator.clean_up(stores.points), RebuildEmbedders(settings, cluster)
        stack.push_async_callback(embedders.close)
        operator.open_servers(
            stores.server,
            stores.objects,
            max_scratch_gib=settings.max_scratch_gib,
            max_rebuild_gib=settings.max_rebuild_gib,
            snapshots_at_once=settings.snapshots_at_once,
            shared_buckets=settings.shared_buckets,
        )
        operator.rebuild_with(embedders.open, cleaning, at_once=settings.rebuilds_at_once)
        metrics = [
            *operator.meter.metrics(operator.queue, lambda: leadership.is_leading),
            *cleaning.meter.metrics,
            *operator.snapshots.metrics,
            *embedders.meter.metrics,
            *(operator.snapshot_passes.meter.metrics if operator.snapshot_passes else ()),
            calls,
        ]
        probes = Probes(lambda: operator.queue.stuck_s, ready.is_set, lambda: render(metrics))
        port = HEALTH_PORT if options.health_port is None and settings.is_in_cluster else options.health_port
        if port is not None:
            app = create_health_app(probes)
            say(f"health {await stack.enter_async_context(serving(app, host=default_host(settings), port=port))}")
        names = options.namespaces
        await operate(operator, cluster, configuration, leadership=leadership, namespaces=names, ready=ready)
