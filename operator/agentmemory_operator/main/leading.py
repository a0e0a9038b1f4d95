"""What `agentmemory operator` opens of its cluster: it writes only while it leads."""

import socket
from contextlib import AsyncExitStack
from uuid import uuid4

from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.adapters.kubernetes.lease import KubernetesLease, own_namespace
from agentmemory_operator.adapters.kubernetes.transport import Configuration, KubernetesTransport
from agentmemory_operator.adapters.qdrant.calls import CallWatch
from agentmemory_operator.entrypoints.cli.composition import OperatorOptions
from agentmemory_operator.ports.tracing import Tracer
from agentmemory_operator.runtime.leadership import Leadership
from agentmemory_operator.runtime.metrics import Counter
from agentmemory_operator.settings import Settings


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
        count_call=calls.add,
        tracer=tracer,
        writing=leadership.writing,
        after_move=leadership.confirm,
        doubt=leadership.give_up,
    )
