"""Passes over objects, with real components over fakes. The queues of other components do not run."""

from typing import Any

from agentmemory_operator.adapters.http.egress import UNCHECKED_EGRESS
from agentmemory_operator.adapters.http.webhook_sender import HttpWebhookSender
from agentmemory_operator.collections.announce import AliasLocks
from agentmemory_operator.collections.claim_registry import ClaimRegistry
from agentmemory_operator.collections.takeover_requests import TakeoverRequests
from agentmemory_operator.connections.agent_secrets import AgentSecrets
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.connections.resolve import Server, Servers
from agentmemory_operator.consolidation.consolidation_schedule import ConsolidationSchedule
from agentmemory_operator.controllers.agent_memory_pass import Passes
from agentmemory_operator.controllers.periods import Periods
from agentmemory_operator.lifecycle.cleanup import Cleanup
from agentmemory_operator.lifecycle.cleanup_schedule import CleanupSchedule
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Cluster
from agentmemory_operator.rebuilds.controller import Rebuilds
from agentmemory_operator.rebuilds.reports import RebuildReports
from agentmemory_operator.runtime.object_table import ObjectTable
from agentmemory_operator.snapshots.schedule import SnapshotSchedule
from agentmemory_operator.webhooks.deliver import WebhookDelivery
from agentmemory_operator.zones.key_checks import KeyChecks
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.engine.fakes import FakeClaimStore, FakeSecrets
from tests.support.job.schedule_world import NothingToRemove


class NoFiles:
    """Implements ports.SnapshotStore for deletions; no collection has a snapshot."""

    def __init__(self, store: FakeCollectionStore) -> None:
        self._store = store

    async def close(self) -> None:
        """Do nothing."""

    async def collections(self) -> list[str]:
        return [*self._store.collections]

    async def metadata(self, physical: str) -> Json | None:
        return {} if physical in self._store.collections else None

    async def files(self, physical: str) -> list[Any]:
        return []

    async def create_placeholder(self, physical: str, owner: object = None) -> None:
        """Do nothing."""


def servers_over(table: ObjectTable, cluster: Cluster, store: FakeCollectionStore | None = None) -> Servers:
    """Return servers over the store. Without a store no server may be opened."""

    def open_server(endpoint: Endpoint) -> Server:
        assert store is not None, "nothing here asks a whole server"
        snapshots: Any = NoFiles(store)
        points: Any = None
        return Server(endpoint, store, snapshots, points)

    return Servers(table, FakeSecrets(), open_server, cluster_id=cluster.cluster_id)


def passes_over(
    table: ObjectTable,
    connections: Connections,
    cluster: Cluster,
    clock: Clock,
    request: Any,
    *,
    periods: Periods,
    handover: AgentSecrets | None = None,
    servers: Servers | None = None,
) -> Passes:
    """Build the passes of an operator."""
    servers, locks = servers or servers_over(table, cluster), AliasLocks()
    claims, reports = (
        ClaimRegistry(FakeClaimStore(), table, connections, cluster.cluster_id, request),
        RebuildReports(table, cluster, clock),
    )

    async def never(*_: Any) -> Any:
        raise AssertionError("nothing here works on a queue of its own")

    return Passes(
        *(table, connections, cluster, clock, request),
        periods=periods,
        servers=servers,
        claims=claims,
        locks=locks,
        takeover_requests=TakeoverRequests(table),
        hosts=UNCHECKED_EGRESS,
        handover=handover,
        cleanup_schedule=CleanupSchedule(*(table, never, cluster, clock), cleanup=Cleanup(clock), request=request),
        webhooks=WebhookDelivery(
            *(table, never, FakeSecrets(), HttpWebhookSender(UNCHECKED_EGRESS), clock), request=request
        ),
        consolidation_schedule=ConsolidationSchedule(*(table, never, never, cluster, clock), request=request),
        snapshots=SnapshotSchedule(table, cluster, clock, request, NothingToRemove()),
        key_checks=KeyChecks(*(table, cluster, clock, request, FakeSecrets()), shards=None, handover=handover),
        rebuilds=Rebuilds(
            table=table,
            servers=servers,
            cluster=cluster,
            clock=clock,
            request=request,
            locks=locks,
            open_embedder=never,
            steps={},
            abandon=never,
            reports=reports,
            claims=claims,
        ),
    )
