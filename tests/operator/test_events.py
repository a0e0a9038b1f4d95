"""Kubernetes Events on a real API server: counted instead of repeated, and limited."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentmemory_operator.adapters.kubernetes.events import BURST, KubernetesEvents
from agentmemory_operator.adapters.kubernetes.transport import Configuration, KubernetesTransport
from agentmemory_operator.ports.kubernetes import Event
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from tests.support.cluster.controlplane import ControlPlane

NEWS = Event("Warning", "QdrantUnavailable", "Qdrant cannot be reached")


@pytest.fixture
async def transport(control_plane: ControlPlane) -> AsyncIterator[KubernetesTransport]:
    configuration = Configuration()
    configuration.host, configuration.ssl_ca_cert = control_plane.url, str(control_plane.ca_file)
    configuration.api_key["BearerToken"] = f"Bearer {control_plane.token}"
    made = KubernetesTransport(configuration)
    yield made
    await made.close()


@pytest.fixture
def subject(namespace: str) -> Metadata:
    return Metadata(name="memory", namespace=namespace, uid=f"uid-{namespace}", resource_version="1")


def found(control_plane: ControlPlane, namespace: str) -> list[tuple[str, int]]:
    """Return the message and count of each Event, sorted."""
    answer: dict[str, Any] = control_plane.http.get(f"/api/v1/namespaces/{namespace}/events").json()
    return sorted((item["message"], item["count"]) for item in answer["items"])


async def test_repeated_event_is_counted(
    control_plane: ControlPlane, transport: KubernetesTransport, subject: Metadata
) -> None:
    events = KubernetesEvents(transport)
    for _ in range(3):
        await events.post("AgentMemory", subject, NEWS)

    await events.post("AgentMemory", subject, Event("Warning", "QdrantUnavailable", "something else"))

    assert found(control_plane, subject.namespace) == [("Qdrant cannot be reached", 3), ("something else", 1)]


async def test_restarted_operator_continues_the_count(
    control_plane: ControlPlane, transport: KubernetesTransport, subject: Metadata
) -> None:
    await KubernetesEvents(transport).post("AgentMemory", subject, NEWS)

    await KubernetesEvents(transport).post("AgentMemory", subject, NEWS)

    assert found(control_plane, subject.namespace) == [("Qdrant cannot be reached", 2)]


async def test_expired_event_is_posted_again(
    control_plane: ControlPlane, transport: KubernetesTransport, subject: Metadata
) -> None:
    events = KubernetesEvents(transport)
    await events.post("AgentMemory", subject, NEWS)
    control_plane.http.delete(f"/api/v1/namespaces/{subject.namespace}/events").raise_for_status()

    await events.post("AgentMemory", subject, NEWS)

    assert found(control_plane, subject.namespace) == [("Qdrant cannot be reached", 1)]


async def test_flood_is_limited_without_losing_the_count(
    control_plane: ControlPlane, transport: KubernetesTransport, subject: Metadata
) -> None:
    now_s = 0.0
    events = KubernetesEvents(transport, now_s=lambda: now_s)
    for number in range(BURST - 1):
        await events.post("AgentMemory", subject, Event("Normal", "Applied", f"change {number}"))
    for _ in range(10):
        await events.post("AgentMemory", subject, NEWS)
    assert len(found(control_plane, subject.namespace)) == BURST

    now_s = 300.0
    await events.post("AgentMemory", subject, NEWS)

    assert ("Qdrant cannot be reached", 11) in found(control_plane, subject.namespace)
