"""Namespaces from which objects may use a connection."""

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
def test_own_namespace_is_always_allowed(allowed: Any) -> None:
    check(allowed, "infra")


@pytest.mark.parametrize("allowed", ["All", {"matchLabels": ONE}, {"matchLabels": BOTH}])
def test_other_namespace_is_allowed_if_selected(allowed: Any) -> None:
    check(allowed, "agents")


@pytest.mark.parametrize(
    ("allowed", "remedy"),
    [
        (None, "set spec.namespaces to from: All"),
        ("Same", "set spec.namespaces to from: All"),
        ({"matchLabels": OTHER}, "label the namespace tier=silver, or name"),
        ({"matchLabels": LABELS | {"x": "y"}}, "label the namespace team=support, tier=gold, x=y, or name"),
    ],
)
def test_refusal_names_the_remedy(allowed: Any, remedy: str) -> None:
    with pytest.raises(SpecInvalid, match=remedy) as error:
        check(allowed, "agents")

    assert error.value.reason == "ConnectionNotAllowed"
    assert "infra/main may not be used from namespace agents" in str(error.value)


@pytest.mark.parametrize(
    ("allowed", "namespace", "needed"),
    [({"matchLabels": ONE}, "agents", True), ({"matchLabels": ONE}, "infra", False), ("All", "agents", False)],
)
def test_labels_are_needed_only_if_they_decide(allowed: Any, namespace: str, needed: bool) -> None:
    assert needs_labels(connection(allowed), namespace) is needed


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
def test_expression_selects_as_in_kubernetes(
    expression: dict[str, Any], gold: bool, silver: bool, unlabelled: bool
) -> None:
    def may(**labels: str) -> bool:
        try:
            check({"matchExpressions": [expression]}, "agents", labels={"team": "support", **labels})
        except SpecInvalid:
            return False
        return True

    assert (may(tier="gold"), may(tier="silver"), may()) == (gold, silver, unlabelled)


def test_labels_and_all_expressions_must_match() -> None:
    selector = {"matchLabels": {"team": "support"}, "matchExpressions": [IN, {"key": "legacy", "operator": "Exists"}]}

    check(selector, "agents", labels=LABELS | {"legacy": ""})
    with pytest.raises(
        SpecInvalid, match=r"label the namespace so that it meets team=support, tier in \(gold, brass\), legacy, or"
    ):
        check(selector, "agents")


@pytest.mark.parametrize("expression", [NOT_IN, NOT_THERE], ids=lambda expression: str(expression["operator"]))
def test_unknown_labels_do_not_match_a_negation(expression: dict[str, Any]) -> None:
    """Labels that could not be read count neither as absent nor as different."""
    with pytest.raises(SpecInvalid, match="may not be used"):
        check({"matchExpressions": [expression]}, "agents", labels={})


def test_refusal_of_a_long_selector_is_short() -> None:
    values = [f"{number:063}" for number in range(64)]
    expressions = [{"key": "a" * 63, "operator": "In", "values": values}] * 16

    with pytest.raises(SpecInvalid) as error:
        check({"matchExpressions": expressions}, "agents")

    assert len(str(error.value)) < 1_500
