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
    return [(one["metadata"]["namespace"], one["metadata"]["name"]) for one in implied_connections(documents)]


def test_each_connection_that_agents_name_is_meant_once() -> None:
    assert names(
        memory({"name": "main"}),
        memory({"name": "main"}),
        memory({"name": "main"}, namespace="team"),
        memory({"name": "far", "namespace": "infra"}, namespace="team"),
    ) == [("default", "main"), ("team", "main"), ("infra", "far")]


def test_what_is_implied_is_a_valid_connection_for_everybody() -> None:
    (document,) = implied_connections([memory({"name": "main"})])

    parse_connection(document)
    assert document["spec"]["namespaces"] == {"from": "All"}


def test_where_one_is_declared_another_name_stays_a_slip_of_the_pen() -> None:
    assert names(memory({"name": "mian"}), CONNECTION) == []


def test_a_connection_of_another_group_declares_none() -> None:
    assert names(memory({"name": "main"}), CONNECTION | {"apiVersion": "example.com/v1"}) == [("default", "main")]


@pytest.mark.parametrize("reference", [None, "main", [], {}, {"name": ""}, {"name": 5}, {"name": "a", "namespace": 5}])
def test_what_names_no_connection_implies_none(reference: Any) -> None:
    assert names(memory(reference)) == []


@pytest.mark.parametrize("spec", [None, "text", []])
def test_a_spec_may_be_anything(spec: Any) -> None:
    assert names(memory({}) | {"spec": spec}) == []
