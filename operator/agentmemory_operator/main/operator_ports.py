"""Declare the external services that an operator uses, and open those whose writes require the leader lease."""

import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from uuid import uuid4

from prometheus_client import Counter

from agentmemory_operator.adapters.http.egress import DEFAULT_EGRESS, Egress
from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.adapters.kubernetes.lease import KubernetesLease, own_namespace
from agentmemory_operator.adapters.kubernetes.transport import Configuration, KubernetesTransport
from agentmemory_operator.adapters.qdrant.call_hooks import CallHooks
from agentmemory_operator.connections.guarded_secrets import GuardedSecrets
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.entrypoints.cli.composition import OperatorOptions
from agentmemory_operator.main.consolidation import OpenLanguageModel
from agentmemory_operator.ports.access import SigningKeyMaker
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.key_shards import KeyShards
from agentmemory_operator.ports.kubernetes import AgentSecretStore, ClaimStore, Cluster
from agentmemory_operator.ports.objects import Bucket, ObjectStore
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.ports.tracing import Tracer
from agentmemory_operator.rebuilds.controller import OpenEmbedder
from agentmemory_operator.runtime.leadership import Leadership
from agentmemory_operator.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPorts:
    """External services of an operator.

    Attributes:
        cluster: Reads and creates objects; writes their statuses, finalizers and events.
        secrets: Reads keys and certificates from Secrets. If the settings require it, a Secret must list the host to
            which its value is sent.
        claim_store: Stores which namespace each slug belongs to.
        handover_store: Stores the Secrets that the retrieval API needs; None if the API reads the original Secrets.
        signing_key: Creates the signing key of user tokens; None if the API creates it.
        key_shards: Stores the data keys of privacy zones; None if zones are not supported.
        collections: Opens a client for the collections and aliases of an endpoint's server.
        points: Opens a client for the points of an endpoint's server.
        server: Opens clients for the collections, snapshots and points of an endpoint's server.
        objects: Opens a client of a bucket.
        shared_buckets: Buckets that namespaces may use without a Secret, through the identity of this process. Each
            namespace has its own key prefix. None allows all buckets and keys, for development.
        embedder: Opens embedders for rebuilds and consolidations.
        language_model: Opens the language models of consolidations.
        egress: Policy for connections to hosts that objects name.
    """

    cluster: Cluster
    secrets: GuardedSecrets
    claim_store: ClaimStore
    handover_store: AgentSecretStore | None = None
    signing_key: SigningKeyMaker | None = None
    key_shards: KeyShards | None = None
    collections: Callable[[Endpoint], CollectionStore]
    points: Callable[[Endpoint], PointStore]
    server: Callable[[Endpoint], Server]
    objects: Callable[[Bucket], ObjectStore]
    shared_buckets: frozenset[str] | None = None
    embedder: OpenEmbedder
    language_model: OpenLanguageModel
    egress: Egress = DEFAULT_EGRESS


def open_leadership(configuration: Configuration, options: OperatorOptions, stack: AsyncExitStack) -> Leadership:
    """Create the leadership by the Lease, with an identity unique to this process. The stack closes its client."""
    lease = KubernetesLease(configuration, options.lease_namespace or own_namespace())
    stack.push_async_callback(lease.close)
    return Leadership(lease, f"{socket.gethostname()}_{uuid4().hex[:8]}")


def open_leader_cluster(
    configuration: Configuration,
    leadership: Leadership,
    *,
    settings: Settings,
    options: OperatorOptions,
    stack: AsyncExitStack,
) -> KubernetesCluster:
    """Open a client of the Kubernetes API. Each write requires the leader lease. The stack closes the client."""
    cluster = KubernetesCluster(
        configuration,
        before_write=leadership.check,
        writing=leadership.limit_write,
        namespaces=options.namespaces,
        cluster_id=settings.cluster_id,
    )
    stack.push_async_callback(cluster.close)
    return cluster


def open_leader_transport(
    configuration: Configuration, leadership: Leadership, stack: AsyncExitStack
) -> KubernetesTransport:
    """Open the transport that writes Secrets and claims. Each write requires the leader lease. The stack closes it."""
    transport = KubernetesTransport(configuration, before_write=leadership.check, writing=leadership.limit_write)
    stack.push_async_callback(transport.close)
    return transport


def guarded_calls(leadership: Leadership, calls: Counter, tracer: Tracer) -> CallHooks:
    """Return the hooks around calls that manage collections and snapshots: lease checks, a call counter and traces."""
    return CallHooks(
        before_write=leadership.check,
        count_call=lambda method, outcome: calls.labels(method, outcome).inc(),
        tracer=tracer,
        writing=leadership.limit_write,
        after_move=leadership.confirm,
        report_unexpected_state=leadership.give_up,
    )
