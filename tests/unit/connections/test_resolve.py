"""Namespace labels, read only if needed and cached for a while."""

import pytest

from agentmemory_operator.connections import resolve as sharing
from agentmemory_operator.connections.resolve import Sharing
from agentmemory_operator.errors import SpecInvalid, TransientError
from agentmemory_operator.spec.kinds.parse import parse_connection
from tests.support.engine.fakes import FakeCluster
from tests.support.spec.documents import allowed_namespaces, connection_document

GOLD = {"tier": "gold"}
CONNECTION = parse_connection(connection_document(namespace="infra", **allowed_namespaces({"matchLabels": GOLD})))


async def test_fresh_labels_are_read_once() -> None:
    cluster = FakeCluster(namespaces={"agents": GOLD})
    gate = Sharing(cluster)

    await gate.check(CONNECTION, "agents")
    await gate.check(CONNECTION, "agents")
    await gate.check(CONNECTION, "infra")

    assert cluster.label_reads == 1


async def test_expired_labels_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LABELS_TTL_S", 0.0)
    cluster = FakeCluster(namespaces={"agents": GOLD})
    gate = Sharing(cluster)
    await gate.check(CONNECTION, "agents")
    cluster.namespaces = {}

    with pytest.raises(SpecInvalid):
        await gate.check(CONNECTION, "agents")


async def test_expired_labels_are_used_if_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LABELS_TTL_S", 0.0)
    cluster = FakeCluster(namespaces={"agents": GOLD})
    gate = Sharing(cluster)
    await gate.check(CONNECTION, "agents")
    cluster.error = TransientError("Kubernetes is away")

    await gate.check(CONNECTION, "agents")


async def test_unread_labels_allow_nothing() -> None:
    with pytest.raises(TransientError):
        await Sharing(FakeCluster(error=TransientError("Kubernetes is away"))).check(CONNECTION, "agents")


async def test_namespaces_have_no_labels_without_a_cluster() -> None:
    with pytest.raises(SpecInvalid):
        await Sharing(None).check(CONNECTION, "agents")
