"""Who may refer to a connection."""

from typing import Any

import pytest

from agentmemory_operator.connections.rules.allowed_namespaces import check_allowed, needs_labels
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.connection import QdrantConnection
from agentmemory_operator.spec.kinds.parse import parse_connection
from tests.support.spec.documents import allowed_namespaces, connection_document

LABELS = {"tier": "gold", "team": "support"}
ONE, BOTH, OTHER = {"tier": "gold"}, LABELS, {"tier": "silver"}
IN, NOT_IN = ({"key": "tier", "operator": operator, "values": ["gold", "brass"]} for operator in ("In", "NotIn"))
THERE, NOT_THERE = ({"key": "tier", "operator": operator} for operator in ("Exists", "DoesNotExist"))


def connection(allowed: Any) -> QdrantConnection:
    return parse_connection(connection_document(namespace="infra", **allowed_namespaces(allowed)))


def check(allowed: Any, namespace: str, labels: dict[str, str] | None = None) -> None:
    known = LABELS if labels is None else labels
    check_allowed(connection(allowed), namespace, known if namespace == "agents" else {})


@pytest.mark.parametrize("allowed", [None, "Same", "All", {"matchLabels": OTHER}])
def test_the_connection_s_own_namespace_always_may(allowed: Any) -> None:
    check(allowed, "infra")


@pytest.mark.parametrize("allowed", ["All", {"matchLabels": ONE}, {"matchLabels": BOTH}])
def test_another_namespace_may_where_it_is_allowed(allowed: Any) -> None:
    check(allowed, "agents")


@pytest.mark.parametrize(
    ("allowed", "way_out"),
    [
        (None, "set spec.namespaces to from: All"),
        ("Same", "set spec.namespaces to from: All"),
        ({"matchLabels": OTHER}, "label the namespace tier=silver, or name"),
        ({"matchLabels": LABELS | {"x": "y"}}, "label the namespace team=support, tier=gold, x=y, or name"),
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
    assert needs_labels(connection(allowed), namespace) is asks


@pytest.mark.parametrize(
    ("expression", "gold", "silver", "unlabelled"),
    [
        (IN, True, False, False),
        (NOT_IN, False, True, True),
        (THERE, True, True, False),
        (NOT_THERE, False, False, True),
    ],
    ids=lambda value: value["operator"] if isinstance(value, dict) else None,
)
def test_an_expression_selects_as_kubernetes_does(
    expression: dict[str, Any], gold: bool, silver: bool, unlabelled: bool
) -> None:
    def may(**labels: str) -> bool:
        try:
            check({"matchExpressions": [expression]}, "agents", labels={"team": "support", **labels})
        except SpecInvalid:
            return False
        return True

    assert (may(tier="gold"), may(tier="silver"), may()) == (gold, silver, unlabelled)


def test_labels_and_every_expression_must_be_met() -> None:
    selector = {"matchLabels": {"team": "support"}, "matchExpressions": [IN, {"key": "legacy", "operator": "Exists"}]}

    check(selector, "agents", labels=LABELS | {"legacy": ""})
    with pytest.raises(
        SpecInvalid, match=r"label the namespace so that it meets team=support, tier in \(gold, brass\), legacy, or"
    ):
        check(selector, "agents")


@pytest.mark.parametrize("expression", [NOT_IN, NOT_THERE], ids=lambda one: str(one["operator"]))
def test_a_namespace_whose_labels_nobody_knows_is_not_selected_for_lacking_one(expression: dict[str, Any]) -> None:
    with pytest.raises(SpecInvalid, match="may not be used"):
        check({"matchExpressions": [expression]}, "agents", labels={})


def test_the_way_out_is_short_however_much_a_selector_asks() -> None:
    values = [f"{number:063}" for number in range(64)]
    expressions = [{"key": "a" * 63, "operator": "In", "values": values}] * 16

    with pytest.raises(SpecInvalid) as refused:
        check({"matchExpressions": expressions}, "agents")

    assert len(str(refused.value)) < 1_500
