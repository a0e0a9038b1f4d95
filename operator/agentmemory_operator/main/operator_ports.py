"""What an operator has of the outside, and what it opens of its cluster: it writes only while it leads."""

import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from uuid import uuid4

from prometheus_client import Counter

from agentmemory_operator.adapters.http.egress import USUAL, Egress
from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.adapters.kubernetes.lease import KubernetesLease, own_namespace
from agentmemory_operator.adapters.kubernetes.transport import Configuration, KubernetesTransport
from agentmemory_operator.adapters.qdrant.calls import CallWatch
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.connections.secret_hosts import GuardedSecrets
from agentmemory_operator.entrypoints.cli.composition import OperatorOptions
from agentmemory_operator.main.consolidation import OpenLanguageModel
from agentmemory_operator.ports.access import SigningKeyMaker
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.kubernetes import ClaimStore, Cluster, HandoverStore
from agentmemory_operator.ports.objects import Bucket, ObjectStore
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.ports.tracing import Tracer
from agentmemory_operator.ports.zone_keys import KeyShards
from agentmemory_operator.rebuilds.controller import OpenEmbedder
from agentmemory_operator.runtime.leadership import Leadership
from agentmemory_operator.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPorts:
    """What an operator has of the outside.

    Attributes:
        cluster: where status, finalizers and events are written.
        secrets: where API keys are read.
        claim_store: where it is written down which namespace a slug belongs to.
        handover_store: where the retrieval API finds what it needs of Secrets; None where it reads them itself.
        signing_key: what makes the key of user tokens; None where the API makes it itself.
        key_shards: where the data keys of privacy zones are; None where nobody keeps any.
        collections: makes the store of an endpoint.
        points: makes the store of an endpoint's points.
        server: opens the server of an endpoint.
        objects: opens a bucket of an object storage.
        shared_buckets: that this process's own identity opens for whoever has no Secret, each namespace its own keys;
            None is all of them, and every key.
        embedder: opens what embeds for rebuilds and consolidations.
        language_model: opens what reads memories.
        egress: what objects may name that is connected to.
    """

    cluster: Cluster
    secrets: GuardedSecrets
    claim_store: ClaimStore
    handover_store: HandoverStore | None = None
    signing_key: SigningKeyMaker | None = None
    key_shards: KeyShards | None = None
    collections: Callable[[Endpoint], CollectionStore]
    points: Callable[[Endpoint], PointStore]
    server: Callable[[Endpoint], Server]
    objects: Callable[[Bucket], ObjectStore]
    shared_buckets: frozenset[str] | None = None
    embedder: OpenEmbedder
    language_model: OpenLanguageModel
    egress: Egress = USUAL


def open_leadership(configuration: Configuration, options: OperatorOptions, stack: AsyncExitStack) -> Leadership:
    """The leadership by the lease, under a name that no other process has."""
    lease = KubernetesLease(configuration, options.lease_namespace or own_namespace())
    stack.push_async_callback(lease.close)
    return Leadership(lease, f"{socket.gethostname()}_{uuid4().hex[:8]}")


def open_led_cluster(
    configuration: Configuration,
    leadership: Leadership,
    *,
    settings: Settings,
    options: OperatorOptions,
    stack: AsyncExitStack,
) -> KubernetesCluster:
    """The cluster's objects."""
    cluster = KubernetesCluster(
        configuration,
        before_write=leadership.check,
        writing=leadership.writing,
        namespaces=options.namespaces,
        cluster_id=settings.cluster_id,
    )
    stack.push_async_callback(cluster.close)
    return cluster


def open_led_transport(
    configuration: Configuration, leadership: Leadership, stack: AsyncExitStack
) -> KubernetesTransport:
    """What Secrets and claims are written through."""
    transport = KubernetesTransport(configuration, before_write=leadership.check, writing=leadership.writing)
    stack.push_async_callback(transport.close)
    return transport


def led_calls(leadership: Leadership, calls: Counter, tracer: Tracer) -> CallWatch:
    """What is done around each control call to Qdrant."""
    return CallWatch(
        before_write=leadership.check,
        count_call=lambda method, outcome: calls.labels(method, outcome).inc(),
        tracer=tracer,
        writing=leadership.writing,
        after_move=leadership.confirm,
        doubt=leadership.give_up,
    )
