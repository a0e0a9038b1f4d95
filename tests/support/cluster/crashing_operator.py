"""The operator's components, assembled so that the process kills itself at a chosen step. Run it as a module.

There is a step before and after each call for one AgentMemory that changes something in Qdrant or Kubernetes. Payload
indexes are created one by one, with steps for each. A test can also shorten the periods and set the wall clock.

Each line of standard input is an `Order` as JSON:
1. An operator is forked for it and its process id is printed.
2. When it has ended, its exit code is printed.
3. The next line is read.

The modules are imported only once, so a start takes 0.1 s.
"""

import asyncio
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast

from agentmemory_operator.adapters.kubernetes.agent_secret_store import KubernetesAgentSecrets
from agentmemory_operator.adapters.kubernetes.claim_config_maps import KubernetesClaims
from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.adapters.kubernetes.key_shard_secrets import KubernetesKeyShards
from agentmemory_operator.adapters.kubernetes.lease import KubernetesLease, own_namespace
from agentmemory_operator.adapters.kubernetes.signing_key import KubernetesSigningKey
from agentmemory_operator.adapters.kubernetes.transport import (
    OPERATOR,
    Configuration,
    KubernetesTransport,
    load_configuration,
)
from agentmemory_operator.adapters.qdrant.call_hooks import CallHooks
from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.collections.announce import MoveAnnouncer
from agentmemory_operator.collections.rules.changes import Change, CreateIndexes
from agentmemory_operator.collections.rules.rebuild_record import REBUILD_KEY
from agentmemory_operator.connections.guarded_secrets import GuardedSecrets
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server as QdrantServer
from agentmemory_operator.connections.rules.agent_secret_slots import AgentSecret
from agentmemory_operator.controllers.periods import Periods
from agentmemory_operator.entrypoints.logs import configure_logging
from agentmemory_operator.entrypoints.operator.operator_tasks import operate
from agentmemory_operator.main.models import LanguageModels
from agentmemory_operator.main.operator import Operator
from agentmemory_operator.main.operator_ports import OperatorPorts
from agentmemory_operator.main.rebuilds import RebuildEmbedders
from agentmemory_operator.main.stores import Stores
from agentmemory_operator.ports.base import Json, WriteContext
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.key_shards import KeyShards
from agentmemory_operator.ports.kubernetes import AgentSecretStore, Event
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.ports.snapshots import SnapshotStore
from agentmemory_operator.runtime.leadership import Leadership
from agentmemory_operator.runtime.metrics import NO_TRACES
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, MEMORY_RESTORE, MEMORY_SNAPSHOT
from agentmemory_operator.settings import Settings
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.naming import alias_of
from agentmemory_operator.zones.rules.entries import Ring
from agentmemory_operator.zones.rules.shards import Shard
from tests.support.forked import ask_to_die_with_parent

DAY_S = 86_400
# The wait may be short: no API process relies on a lease here. A restore announces again after each kill.
MoveAnnouncer.__init__.__kwdefaults__["announce_s"] = 0.1
# Steps of one-off jobs are counted with those of the agent.
VICTIMS = (AGENT_MEMORY, MEMORY_SNAPSHOT, MEMORY_RESTORE)
OF_SNAPSHOTS = frozenset({"create", "delete_file", "create_placeholder", "recover", "upload", "write_metadata"})
OF_POINTS = frozenset({"upsert", "set_payload", "batch", "delete"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One run of the operator.

    Attributes:
        victim: Slug, and also namespace, of the AgentMemory for which steps are counted.
        crash_at: Number of the step at which the process kills itself; 0 for never.
        crash_in: Step of a rebuild from which on steps are counted; empty to count from the start.
        lease_namespace: Namespace of the lease; empty to run without one.
        zone_keys_namespace: Namespace for data keys of privacy zones; empty for none.
        periods: Fields of `Periods`.
    """

    victim: str = ""
    crash_at: int = 0
    crash_in: str = ""
    lease_namespace: str = ""
    zone_keys_namespace: str = ""
    periods: dict[str, float] = field(default_factory=dict)


class Steps:
    """Counts the steps of one AgentMemory, and kills the process at one of them."""

    def __init__(self, order: "Order") -> None:
        self._alias = alias_of(order.victim)
        self._victim = order.victim
        self._crash_at = order.crash_at
        self._passed = 0
        self._waits_for = order.crash_in

    def observe_metadata(self, metadata: Any) -> None:
        """Start to count once the metadata written to a collection records the rebuild step `crash_in`."""
        record = metadata.get(REBUILD_KEY) if isinstance(metadata, Mapping) else None
        if record and record.get("step") == self._waits_for:
            self._waits_for = ""

    def count(self) -> None:
        """Count a step, unless `crash_in` has not begun yet. Kill the process at step `crash_at`."""
        self._passed += not self._waits_for
        if self._passed == self._crash_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def for_collection(self, physical: str) -> Callable[[], None]:
        """Return the callback to run before and after each call for a collection."""
        return self.count if physical.partition("__")[0] == self._alias else _pass

    def for_object(self, kind: str, metadata: Metadata) -> Callable[[], None]:
        """Return the callback to run before and after each call for an object."""
        return self.count if kind in VICTIMS and metadata.namespace == self._victim else _pass


class CrashingCollections:
    """Forwards the calls of ports.CollectionStore, with steps around changes."""

    def __init__(self, store: CollectionStore, steps: Steps) -> None:
        self._store = store
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        """Forward calls that change nothing."""
        return getattr(self._store, name)

    async def apply(self, physical: str, change: Change) -> None:
        parts: Sequence[Change] = (change,)
        if isinstance(change, CreateIndexes):
            parts = [CreateIndexes((index,)) for index in change.indexes]
        step = self._steps.for_collection(physical)
        for part in parts:
            step()
            await self._store.apply(physical, part)
            step()

    async def delete(self, physical: str) -> None:
        step = self._steps.for_collection(physical)
        step()
        await self._store.delete(physical)
        step()


class CrashingCalls:
    """Forwards the calls of a port. Calls that change the collection in the first argument have steps."""

    def __init__(self, store: object, steps: Steps, changes: frozenset[str]) -> None:
        self._store = store
        self._steps = steps
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name not in self._changes:
            return call

        async def change(physical: str, *args: Any, **more: Any) -> Any:
            step = self._steps.for_collection(physical)
            if name == "write_metadata" and args:
                self._steps.observe_metadata(args[0])
            step()
            answer = await call(physical, *args, **more)
            step()
            return answer

        return change


class CrashingCluster:
    """Implements ports.Cluster, with steps around changes."""

    def __init__(self, cluster: KubernetesCluster, steps: Steps) -> None:
        self._cluster = cluster
        self._steps = steps

    async def cluster_id(self) -> str:
        return await self._cluster.cluster_id()

    async def labels(self, namespace: str) -> Mapping[str, str]:
        return await self._cluster.labels(namespace)

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        return await self._cluster.read_object(kind, namespace, name)

    async def write_status(self, kind: str, metadata: Metadata, status: Json) -> str:
        step = self._steps.for_object(kind, metadata)
        step()
        version = await self._cluster.write_status(kind, metadata, status)
        step()
        return version

    async def write_finalizers(self, kind: str, metadata: Metadata, finalizers: Sequence[str]) -> None:
        step = self._steps.for_object(kind, metadata)
        step()
        await self._cluster.write_finalizers(kind, metadata, finalizers)
        step()

    async def create_object(self, document: Json) -> bool:
        step = self._steps.for_object(document["kind"], Metadata.model_validate(document["metadata"]))
        step()
        is_new = await self._cluster.create_object(document)
        step()
        return is_new

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        step = self._steps.for_object(kind, metadata)
        step()
        await self._cluster.delete_object(kind, metadata)
        step()

    async def post_event(self, kind: str, metadata: Metadata, event: Event) -> None:
        step = self._steps.for_object(kind, metadata)
        step()
        await self._cluster.post_event(kind, metadata, event)
        step()


class CrashingHandover:
    """Implements ports.HandoverStore, with steps around changes."""

    def __init__(self, store: AgentSecretStore, steps: Steps) -> None:
        self._store = store
        self._steps = steps

    async def read(self, slug: str) -> AgentSecret | None:
        return await self._store.read(slug)

    async def write(self, agent_secret: AgentSecret) -> None:
        step = self._steps.for_collection(alias_of(agent_secret.slug))
        step()
        await self._store.write(agent_secret)
        step()

    async def delete(self, agent_secret: AgentSecret) -> None:
        step = self._steps.for_collection(alias_of(agent_secret.slug))
        step()
        await self._store.delete(agent_secret)
        step()

    async def list_all(self) -> list[AgentSecret]:
        return await self._store.list_all()


class CrashingKeyShards:
    """Forwards the calls of ports.KeyShards, with steps around a write and a deletion."""

    def __init__(self, shards: KeyShards, steps: Steps) -> None:
        self._shards = shards
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        """Forward calls that change nothing."""
        return getattr(self._shards, name)

    async def write(self, shard: Shard) -> str:
        step = self._steps.for_collection(alias_of(shard.ring.agent))
        step()
        version = await self._shards.write(shard)
        step()
        return version

    async def delete(self, ring: Ring) -> None:
        step = self._steps.for_collection(alias_of(ring.agent))
        step()
        await self._shards.delete(ring)
        step()


def _pass() -> None:
    """Do nothing: the call belongs to another object, or there is no lease to check."""


def open_shards(transport: KubernetesTransport, order: Order, steps: Steps) -> KeyShards | None:
    """Open the store of data keys; None if the order has no namespace for them."""
    if not order.zone_keys_namespace:
        return None
    return cast(KeyShards, CrashingKeyShards(KubernetesKeyShards(transport, order.zone_keys_namespace), steps))


class WallClock:
    """Wall clock of this process. SIGUSR1 sets it a day ahead, SIGUSR2 a day back."""

    def __init__(self) -> None:
        self._real_s, self._real_ns = time.time, time.time_ns
        self._ahead_s = 0

    def install(self) -> None:
        """Replace the clock functions of the `time` module."""
        time.time = lambda: self._real_s() + self._ahead_s
        time.time_ns = lambda: self._real_ns() + self._ahead_s * 1_000_000_000
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._jump, DAY_S)
        loop.add_signal_handler(signal.SIGUSR2, self._jump, -DAY_S)

    def _jump(self, seconds: int) -> None:
        self._ahead_s += seconds


async def main(order: Order) -> None:
    """Run the operator like `main.run_operator`."""
    WallClock().install()
    steps, settings = Steps(order), Settings.from_env(os.environ)
    configuration = await load_configuration(OPERATOR)
    async with AsyncExitStack() as stack:
        leadership = await open_leadership(order, configuration, stack)
        before_write = leadership.check if leadership else _pass
        writing: WriteContext = leadership.limit_write if leadership else nullcontext
        cluster = KubernetesCluster(configuration, before_write=before_write, writing=writing)
        stack.push_async_callback(cluster.close)
        watch = CallHooks(
            before_write=before_write, count_call=lambda method, outcome: None, tracer=NO_TRACES, writing=writing
        )
        if leadership:
            watch = replace(watch, after_move=leadership.confirm, report_unexpected_state=leadership.give_up)
        stores = Stores(stack, watch=watch)

        def open_store(endpoint: Endpoint) -> CollectionStore:
            return cast(CollectionStore, CrashingCollections(stores.collections(endpoint), steps))

        periods = Periods(**order.periods)
        transport = KubernetesTransport(configuration)
        stack.push_async_callback(transport.close)
        secrets = GuardedSecrets(cluster, settings.secret_hosts)
        # Claims have no steps: tests/unit/collections/test_claim_registry.py covers interruptions of claims.
        claims = KubernetesTransport(configuration, before_write=before_write)
        stack.push_async_callback(claims.close)
        ports = OperatorPorts(
            cluster=CrashingCluster(cluster, steps),
            secrets=secrets,
            claim_store=KubernetesClaims(claims, order.lease_namespace or own_namespace()),
            handover_store=CrashingHandover(KubernetesAgentSecrets(transport, own_namespace()), steps),
            signing_key=KubernetesSigningKey(transport, own_namespace()),
            key_shards=open_shards(transport, order, steps),
            collections=open_store,
            points=stores.points,
            server=lambda endpoint: crashing_server(stores.server(endpoint), steps),
            objects=S3Objects,
            embedder=RebuildEmbedders(settings, secrets).open,
            language_model=LanguageModels(settings).open,
        )
        operator = Operator(ports, settings, periods=periods)
        await operate(operator, cluster, configuration, leadership=leadership)


def crashing_server(server: QdrantServer, steps: Steps) -> QdrantServer:
    """Return the server with steps around the victim's changes."""
    snapshots = cast(SnapshotStore, CrashingCalls(server.snapshots, steps, OF_SNAPSHOTS))
    points = cast(PointStore, CrashingCalls(server.points, steps, OF_POINTS))
    collections = cast(CollectionStore, CrashingCollections(server.collections, steps))
    return replace(server, collections=collections, snapshots=snapshots, points=points)


async def open_leadership(order: Order, configuration: Configuration, stack: AsyncExitStack) -> Leadership | None:
    """Open the leadership on the lease of the order; None if it names no namespace."""
    if not order.lease_namespace:
        return None
    lease = KubernetesLease(configuration, order.lease_namespace)
    stack.push_async_callback(lease.close)
    return Leadership(lease, f"test_{os.getpid()}")


def serve_orders() -> None:
    """Fork an operator for each order, one at a time."""
    # `operate` imports this module, and with it kopf, late. Importing it here saves the time in each fork.
    importlib.import_module("agentmemory_operator.entrypoints.operator.handlers")
    for line in sys.stdin:
        order = Order(**json.loads(line))
        pid = os.fork()
        if pid == 0:
            ask_to_die_with_parent()
            asyncio.run(main(order))
            os._exit(0)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    configure_logging("info", "text")
    serve_orders()
