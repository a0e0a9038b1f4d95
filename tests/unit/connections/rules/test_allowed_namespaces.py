"""Who may refer to a connection."""

from typing import Any

import pytest

from agentmemory_operator.connections.rules.allowed_namespaces import asks_labels, check_allowed
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.parse import parse_connection
from tests.support.spec.documents import connection_document

LABELS = {"tier": "gold", "team": "support"}
ONE, BOTH, OTHER = {"tier": "gold"}, LABELS, {"tier": "silver"}


def check(allowed: Any, namespace: str) -> None:
    connection = parse_connection(connection_document(namespace="infra", allowedNamespaces=allowed))
    check_allowed(connection, namespace, LABELS if namespace == "agents" else {})


@pytest.mark.parametrize("allowed", [None, "Same", "All", {"matchLabels": OTHER}])
def test_the_connection_s_own_namespace_always_may(allowed: Any) -> None:
    check(allowed, "infra")


@pytest.mark.parametrize("allowed", ["All", {"matchLabels": ONE}, {"matchLabels": BOTH}])
def test_another_namespace_may_where_it_is_allowed(allowed: Any) -> None:
    check(allowed, "agents")


@pytest.mark.parametrize(
    ("allowed", "way_out"),
    [
        (None, "set spec.allowedNamespaces"),
        ("Same", "set spec.allowedNamespaces"),
        ({"matchLabels": OTHER}, "label the namespace tier=silver"),
        ({"matchLabels": LABELS | {"x": "y"}}, "label the namespace team=support, tier=gold, x=y"),
    ],
)
def test_another_namespace_may_not_otherwise_and_is_told_the_way_out(allowed: Any, way_out: str) -> None:
    with pytest.raises(SpecInvalid, match=way_out) as refused:
        check(allowed, "agents")

    assert refused.value.reason == "ConnectionNotAllowed"
    assert "infra/main may not be used from namespace agents" in str(refused.value)


@pytest.mark.parametrize(
    ("allowed", "namespace", "asks"),
    [({"matchLabels": ONE}, "agents", True), ({"matchLabels": ONE}, "infra", False), ("All", "agents", False)],
)
def test_labels_are_asked_only_where_they_decide(allowed: Any, namespace: str, asks: bool) -> None:
    connection = parse_connection(connection_document(namespace="infra", allowedNamespaces=allowed))

    assert asks_labels(connection, namespace) is asks
