from typing import Any

import pytest

from agentmemory_operator.connections.rules.implied_connections import implied_connections
from agentmemory_operator.spec.kinds.parse import parse_connection
from tests.support.spec.documents import agent_document

CONNECTION = {
    "apiVersion": "agentmemory.dev/v1alpha1",
    "kind": "QdrantConnection",
    "metadata": {"name": "own", "namespace": "agents"},
    "spec": {"url": "http://qdrant:6333"},
}


def memory(reference: Any, **metadata: str) -> dict[str, Any]:
    return agent_document("bot") | {"metadata": {"name": "bot", **metadata}, "spec": {"connectionRef": reference}}


def names(*documents: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (connection["metadata"]["namespace"], connection["metadata"]["name"])
        for connection in implied_connections(documents)
    ]


def test_each_connection_is_implied_once() -> None:
    assert names(
        memory({"name": "main"}),
        memory({"name": "main"}),
        memory({"name": "main"}, namespace="team"),
        memory({"name": "far", "namespace": "infra"}, namespace="team"),
    ) == [("default", "main"), ("team", "main"), ("infra", "far")]


def test_implied_connection_is_valid_and_open_to_all() -> None:
    (document,) = implied_connections([memory({"name": "main"})])

    parse_connection(document)
    assert document["spec"]["namespaces"] == {"from": "All"}


def test_nothing_is_implied_beside_a_declared_one() -> None:
    """Next to a declared connection, a reference to another name is a typo."""
    assert names(memory({"name": "mian"}), CONNECTION) == []


def test_connection_of_another_group_is_ignored() -> None:
    assert names(memory({"name": "main"}), CONNECTION | {"apiVersion": "example.com/v1"}) == [("default", "main")]


@pytest.mark.parametrize("reference", [None, "main", [], {}, {"name": ""}, {"name": 5}, {"name": "a", "namespace": 5}])
def test_invalid_reference_implies_nothing(reference: Any) -> None:
    assert names(memory(reference)) == []


@pytest.mark.parametrize("spec", [None, "text", []])
def test_invalid_spec_implies_nothing(spec: Any) -> None:
    assert names(memory({}) | {"spec": spec}) == []
