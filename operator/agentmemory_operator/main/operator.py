"""Compose the operator from its parts, and run it for `agentmemory operator`.

The start raises AgentMemoryError without a usable Kubernetes configuration, or if traces need a package that is
missing; SettingInvalid if this process cannot open the default embedding; OSError if the port of the probes is in use.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

from prometheus_client.registry import Collector

from agentmemory_operator.adapters.clock import SystemClock
from agentmemory_operator.adapters.embedding.embedder_factory import CallerVectors
from agentmemory_operator.adapters.http.asgi_server import serving
from agentmemory_operator.adapters.http.https_files import HttpsFiles
from agentmemory_operator.adapters.http.webhook_sender import HttpWebhookSender
from agentmemory_operator.adapters.kubernetes.agent_secret_store import KubernetesAgentSecrets
from agentmemory_operator.adapters.kubernetes.claim_config_maps import KubernetesClaims
from agentmemory_operator.adapters.kubernetes.lease import own_namespace
from agentmemory_operator.adapters.kubernetes.signing_key import KubernetesSigningKey
from agentmemory_operator.adapters.kubernetes.transport import OPERATOR, load_configuration
from agentmemory_operator.adapters.qdrant.access_tokens import QdrantTokens
from agentmemory_operator.agents.directory import Agent, open_collection
from agentmemory_operator.agents.fence import DEFAULT_TIMING
from agentmemory_operator.collections.announce import AliasLocks
from agentmemory_operator.collections.claim_registry import ClaimRegistry
from agentmemory_operator.collections.rules.claims import ClaimSet
from agentmemory_operator.collections.scratch import ScratchCollections, ScratchSweeper
from agentmemory_operator.collections.takeover_requests import TakeoverRequests
from agentmemory_operator.connections.agent_secrets import AgentSecrets
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.guarded_secrets import GuardedSecrets, SecretNotices
from agentmemory_operator.connections.point_stores import PointStores, ScopedPointStores
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.connections.resolve import Servers
from agentmemory_operator.consolidation.consolidation_schedule import ConsolidationSchedule
from agentmemory_operator.controllers.agent_memory_pass import Passes
from agentmemory_operator.controllers.periods import Periods
from agentmemory_operator.entrypoints.cli.composition import OperatorOptions
from agentmemory_operator.entrypoints.operator.health import Probes, create_health_app
from agentmemory_operator.entrypoints.operator.operator_tasks import Startup, operate
from agentmemory_operator.lifecycle.cleanup import Cleanup
from agentmemory_operator.lifecycle.cleanup_schedule import CleanupSchedule
from agentmemory_operator.lifecycle.erasure_mirror import ErasureMirror
from agentmemory_operator.lifecycle.erasure_replay import ErasureReplay
from agentmemory_operator.lifecycle.erasure_restore import RestoredErasureReplay
from agentmemory_operator.main.consolidation import ConsolidationParts, open_models
from agentmemory_operator.main.egress import build_egress, with_api_server
from agentmemory_operator.main.key_stores import open_key_shards
from agentmemory_operator.main.models import check_default_embedding
from agentmemory_operator.main.operator_ports import (
    OperatorPorts,
    guarded_calls,
    open_leader_cluster,
    open_leader_transport,
    open_leadership,
)
from agentmemory_operator.main.processes import default_host, open_tracer, print_line
from agentmemory_operator.main.rebuilds import RebuildEmbedders, abandon, rebuild_steps
from agentmemory_operator.main.stores import Stores, load_control_stores
from agentmemory_operator.ports.kubernetes import AgentSecretStore
from agentmemory_operator.ports.tracing import Tracer
from agentmemory_operator.rebuilds.controller import Rebuilds
from agentmemory_operator.rebuilds.reports import RebuildReports
from agentmemory_operator.restores.controller import RestorePasses
from agentmemory_operator.restores.in_place import InPlaceRestore
from agentmemory_operator.restores.previous_sweeper import PreviousSweeper
from agentmemory_operator.restores.sources import RestoreSources
from agentmemory_operator.runtime.feed import OperatorFeed
from agentmemory_operator.runtime.metrics import NO_TRACES, OperatorMeter, call_counter, exported_metrics, render
from agentmemory_operator.runtime.object_table import MEMORY_RESTORE, MEMORY_SNAPSHOT, Key, ObjectTable
from agentmemory_operator.runtime.work_queue import Queues, WorkQueue
from agentmemory_operator.settings import Settings
from agentmemory_operator.snapshots.controller import SnapshotPasses
from agentmemory_operator.snapshots.copies import Copies
from agentmemory_operator.snapshots.schedule import SnapshotSchedule
from agentmemory_operator.snapshots.verify import Verification
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.webhooks.deliver import WebhookDelivery
from agentmemory_operator.zones.key_checks import KeyChecks

HEALTH_PORT = 8081
# Maximum number of restores for one namespace on one connection. Each keeps a disk busy.
MAX_CONCURRENT_RESTORES = 4


def _make_table(settings: Settings) -> ObjectTable:
    """Build the table of objects; raise SettingInvalid if this process cannot open the default embedding."""
    check_default_embedding(settings)
    return ObjectTable(default_embedding=settings.default_embedding)


class Operator:
    """The reconciling part of a process: object table, work queues and passes for one cluster.

    Args:
        settings: Limits on concurrency and sizes.
        periods: Intervals between passes and probes; None uses the defaults of `Periods`.
        tracer: Traces the passes.
        publish: Called with all claims (the namespace of each slug) after each change.
    """

    def __init__(
        self,
        ports: OperatorPorts,
        settings: Settings,
        *,
        periods: Periods | None = None,
        tracer: Tracer = NO_TRACES,
        publish: Callable[[ClaimSet], None] = lambda claims: None,
    ) -> None:
        cluster, secrets = ports.cluster, ports.secrets
        self._ports, self._settings, self._cluster = ports, settings, cluster
        self._clock, self._locks = SystemClock(), AliasLocks()
        self._scratch = ScratchCollections(cluster.cluster_id)
        self.periods = periods or Periods()
        self.table = _make_table(settings)
        self.connections, self.servers = self._connect()
        self.meter = OperatorMeter(self.table, tracer=tracer)
        self.queue: WorkQueue[Key] = WorkQueue(self._pass, tenant_lane_of=self.table.tenant_lane_of)
        self.queues = Queues(self.queue, WorkQueue(self._pass, tenant_lane_of=self.table.tenant_lane_of))
        self.handover = self._make_handover(ports.handover_store) if ports.handover_store else None
        self.signing_key = ports.signing_key
        self._claims = self._make_claims(publish)
        self._asking = TakeoverRequests(self.table)
        storages = Storages(secrets, ports.objects, shared=ports.shared_buckets, namespace_of=self.table.find_namespace)
        self.snapshot_passes, self.snapshots = self._make_snapshots(copies := Copies(storages))
        self._mirror, restored = self._make_mirror(storages)
        self._make_restores(copies, restored)
        self._sweepers = self._make_sweepers(restored)
        reports = RebuildReports(self.table, cluster, self._clock)
        self._stores = PointStores(self.table, secrets, ports.points, namespaces=cluster)
        self.cleaning = self._make_cleaning(reports)
        self.webhooks = self._make_webhooks()
        self.upkeep, self.consolidating = self._make_upkeep(), self._make_consolidation(reports)
        self._rebuilds = self._make_rebuilds(reports)
        self._passes = self._make_passes()
        self.feed = OperatorFeed(
            *(self.table, self.queues, self._forget_connection),
            on_job_event=self.snapshots.request_check,
            on_deleted=self._claims.note_deletion,
        )

    def _connect(self) -> tuple[Connections, Servers]:
        """Build `Connections`, which passes use, and `Servers`, which opens all stores of a server together."""
        connections = Connections(self.table, self._ports.secrets, self._ports.collections, namespaces=self._cluster)
        connections.capacity.read_ttl_s = self.periods.capacity_s
        connections.max_rebuild_bytes = self._settings.max_rebuild_gib << 30 or None
        servers = Servers(
            *(self.table, self._ports.secrets, self._ports.server),
            cluster_id=self._cluster.cluster_id,
            namespaces=self._cluster,
            capacity=connections.capacity,
        )
        return connections, servers

    def _make_handover(self, store: AgentSecretStore) -> AgentSecrets:
        return AgentSecrets(
            *(store, self._ports.secrets, self.connections, QdrantTokens(), self._clock),
            notices=SecretNotices(self.table, self._cluster),
        )

    def _make_claims(self, publish: Callable[[ClaimSet], None]) -> ClaimRegistry:
        return ClaimRegistry(
            *(self._ports.claim_store, self.table, self.connections, self._cluster.cluster_id, self.queues.request),
            publish=publish,
        )

    def _make_snapshots(self, copies: Copies) -> tuple[SnapshotPasses, SnapshotSchedule]:
        """Build snapshot passes, and the schedule with its retention rules."""
        passes = SnapshotPasses(
            *(self.table, self.servers, self._cluster, self._clock, self.queues.request),
            prover=Verification(self._scratch, self._settings.max_scratch_gib << 30 or None, copies.open_copy),
            copies=copies,
            scratch=self._scratch,
            takeover_requests=self._asking,
        )
        self._add_queue(MEMORY_SNAPSHOT, passes.run, width=self._settings.max_concurrent_snapshots)
        schedule = SnapshotSchedule(self.table, self._cluster, self._clock, self.queues.request, passes.removal)
        return passes, schedule

    def _make_sweepers(self, restored: RestoredErasureReplay) -> tuple[ScratchSweeper, PreviousSweeper]:
        """Build the sweepers of scratch collections and of collections that restores have replaced."""
        return (
            ScratchSweeper(self.table, self.servers, self._scratch),
            PreviousSweeper(self.table, self.servers, self._clock, self._cluster.cluster_id, restored.erasures),
        )

    def _make_mirror(self, storages: Storages) -> tuple[ErasureMirror, RestoredErasureReplay]:
        """Build the mirror, which copies each erasure to object storage, and its replay after restores."""
        erasures = ErasureReplay(self._clock)
        mirror = ErasureMirror(
            *(self.table, self.servers, storages, erasures, self._clock), cluster_id=self._cluster.cluster_id
        )
        return mirror, RestoredErasureReplay(self.table, self.servers, erasures, mirror)

    def _make_restores(self, copies: Copies, restored: RestoredErasureReplay) -> None:
        restores = RestorePasses(
            *(self.table, self.servers, self._cluster, self._clock, self.queues.request),
            sources=RestoreSources(self.table, self.servers, copies, HttpsFiles(self._ports.egress)),
            locks=self._locks,
            in_place=InPlaceRestore(
                *(self.table, self._cluster, self._scratch, self.queues.request, restored), claims=self._claims
            ),
            erasures=restored,
            takeover_requests=self._asking,
        )
        self._add_queue(MEMORY_RESTORE, restores.run, width=MAX_CONCURRENT_RESTORES)

    async def _open_agent(self, settings: AgentSettings) -> Agent:
        """Open an agent to read and write its points. Its embedder only accepts vectors and is not used."""
        embedder = CallerVectors(settings.embedding.dimensions)
        store = await self._stores.store_for(settings)
        min_epoch = self.table.claims.min_epoch_of(settings.slug)
        agent = await open_collection(
            store, settings, embedder, self._clock, cluster_id=self._cluster.cluster_id, min_epoch=min_epoch
        )
        # Set how long a write of the API may take, because the change log is complete only up to that time ago.
        return replace(agent, write_s=self._stores.timeout_of(settings) + DEFAULT_TIMING.max_wait_s)

    def _make_cleaning(self, reports: RebuildReports) -> CleanupSchedule:
        """Build the schedule of cleanups. It starts no cleanup of an object that is being rebuilt."""
        return CleanupSchedule(
            *(self.table, self._open_agent, self._cluster, self._clock),
            cleanup=Cleanup(self._clock),
            request=self.queues.request,
            is_rebuilding=reports.is_in_progress,
        )

    def _make_consolidation(self, reports: RebuildReports) -> ConsolidationSchedule:
        """Build the schedule of consolidations. It starts no consolidation of an object that is being rebuilt."""
        ports, clock = self._ports, self._clock
        parts = ConsolidationParts(
            points=ScopedPointStores(self.connections, ports.points, QdrantTokens(), clock),
            table=self.table,
            clock=clock,
            cluster_id=self._cluster.cluster_id,
            embedder=ports.embedder,
            language_model=ports.language_model,
            secrets=ports.secrets,
        )
        return ConsolidationSchedule(
            *(self.table, parts.open_store, parts.open_model, self._cluster, clock, self.queues.request),
            is_rebuilding=reports.is_in_progress,
        )

    def _make_webhooks(self) -> WebhookDelivery:
        return WebhookDelivery(
            *(self.table, self._open_agent, self._ports.secrets, HttpWebhookSender(self._ports.egress), self._clock),
            request=self.queues.request,
        )

    def _make_upkeep(self) -> KeyChecks:
        """Build the upkeep of zone keys, which checks them and rewraps them for a new wrapping key."""
        return KeyChecks(
            *(self.table, self._cluster, self._clock, self.queues.request, self._ports.secrets),
            shards=self._ports.key_shards,
            handover=self.handover,
            settled_s=self.periods.keys_settle_s,
        )

    def _make_rebuilds(self, reports: RebuildReports) -> Rebuilds:
        """Build the controller of rebuilds. It moves no alias while a cleanup or consolidation changes the memories."""
        return Rebuilds(
            table=self.table,
            servers=self.servers,
            cluster=self._cluster,
            clock=self._clock,
            request=self.queues.request,
            locks=self._locks,
            open_embedder=self._ports.embedder,
            steps=rebuild_steps(
                self._locks, *(runner.schedule.is_changing for runner in (self.cleaning, self.consolidating))
            ),
            abandon=abandon,
            reports=reports,
            concurrency=self._settings.max_concurrent_rebuilds,
            claims=self._claims,
        )

    def _make_passes(self) -> Passes:
        return Passes(
            *(self.table, self.connections, self._cluster, self._clock, self.queues.request),
            periods=self.periods,
            servers=self.servers,
            claims=self._claims,
            locks=self._locks,
            takeover_requests=self._asking,
            hosts=self._ports.egress,
            handover=self.handover,
            cleanup_schedule=self.cleaning,
            webhooks=self.webhooks,
            consolidation_schedule=self.consolidating,
            snapshots=self.snapshots,
            key_checks=self.upkeep,
            rebuilds=self._rebuilds,
        )

    def _add_queue(self, kind: str, run: Callable[[Key], Awaitable[float | None]], *, width: int) -> None:
        """Register the passes of a kind, in a queue of their own.

        Args:
            run: Runs one pass over an object of the kind, as the handler of a WorkQueue.
            width: Maximum number of concurrent passes of one namespace on one connection.
        """
        passes = partial(self.meter.measure, run=run)
        self.queues.add(kind, WorkQueue(passes, tenant_lane_of=self.table.tenant_lane_of, width=width))

    @property
    def metrics(self) -> list[Collector]:
        """All Prometheus collectors of the operator."""
        return [
            *self.meter.metrics(self.queue),
            *self.cleaning.meter.metrics,
            *self.consolidating.meter.metrics,
            *self.webhooks.meter.metrics,
            *self.upkeep.metrics,
            *self.snapshots.metrics,
            *self.connections.capacity.metrics,
            *self.snapshot_passes.meter.metrics,
        ]

    async def run(self) -> None:
        """Load the claims, then run all queues and sweepers until cancelled."""
        await self._claims.load()
        queues = self.cleaning.schedule.queue, self.consolidating.schedule.queue, self.webhooks.queue, self.upkeep.queue
        async with asyncio.TaskGroup() as group:
            for part in (self.queues, self.snapshots, self._claims, *queues, self._rebuilds.queue):
                group.create_task(part.run())
            for sweep in (*self._sweepers, self._mirror):
                group.create_task(sweep.run())

    def _forget_connection(self, key: Key) -> None:
        self.connections.forget(key)
        self.servers.forget(key)

    async def _pass(self, key: Key) -> float | None:
        return await self.meter.measure(key, self._passes.run)


async def run_operator(settings: Settings, options: OperatorOptions) -> None:
    """Run the operator until SIGTERM or SIGINT. Raises: As `operate`, and as the module's docstring has it."""
    configuration = await load_configuration(OPERATOR)
    settings = with_api_server(settings, configuration.host)
    async with AsyncExitStack() as stack:
        leadership = open_leadership(configuration, options, stack)
        cluster = open_leader_cluster(configuration, leadership, settings=settings, options=options, stack=stack)
        calls, tracer = call_counter(), open_tracer(settings, stack, service="agentmemory-operator")
        stores = Stores(stack, watch=guarded_calls(leadership, calls, tracer), egress=build_egress(settings))
        transport = open_leader_transport(configuration, leadership, stack)
        api_namespace = options.api_namespace or own_namespace()
        secrets = GuardedSecrets(cluster, settings.secret_hosts)
        embedders = RebuildEmbedders(settings, secrets)
        stack.push_async_callback(embedders.close)
        ports = OperatorPorts(
            cluster=cluster,
            secrets=secrets,
            claim_store=KubernetesClaims(transport, options.lease_namespace or own_namespace()),
            handover_store=KubernetesAgentSecrets(transport, api_namespace),
            signing_key=KubernetesSigningKey(transport, api_namespace),
            key_shards=open_key_shards(transport, settings),
            collections=stores.collections,
            points=stores.points,
            server=stores.server,
            objects=stores.objects,
            shared_buckets=settings.shared_buckets,
            embedder=embedders.open,
            language_model=open_models(settings, stack),
            egress=build_egress(settings),
        )
        operator, startup = Operator(ports, settings, tracer=tracer), Startup()
        metrics = [*operator.metrics, *embedders.meter.metrics, calls]
        probes = Probes(
            *(lambda: operator.queue.stuck_s, startup.find_obstacle),
            lambda: render(exported_metrics(metrics, is_leading=leadership.is_leading)),
        )
        await _serve_health(probes, settings, options, stack)
        names = options.namespaces
        await asyncio.to_thread(load_control_stores)
        await operate(operator, cluster, configuration, leadership=leadership, namespaces=names, startup=startup)


async def _serve_health(probes: Probes, settings: Settings, options: OperatorOptions, stack: AsyncExitStack) -> None:
    """Serve probes and metrics if the options set a port, or the process runs in a cluster (on port 8081)."""
    port = HEALTH_PORT if options.health_port is None and settings.is_in_cluster else options.health_port
    if port is not None:
        app = create_health_app(probes)
        print_line(f"health {await stack.enter_async_context(serving(app, host=default_host(settings), port=port))}")
