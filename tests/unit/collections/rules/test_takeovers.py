"""Permissions for takeovers, and pending takeover requests."""

from dataclasses import replace

import pytest

from agentmemory_operator.collections.rules.collection import Marker
from agentmemory_operator.collections.rules.takeovers import (
    MAX_REQUESTS,
    MAX_REQUESTS_PER_NAMESPACE,
    TakeoverRequest,
    TakeoverTerms,
    build_terms,
    limit_requests,
    may_take_over,
)
from agentmemory_operator.spec.kinds.agent_memory import TAKEOVER
from agentmemory_operator.spec.kinds.connection import Takeover
from agentmemory_operator.spec.kinds.parse import parse_connection
from tests.support.spec.documents import connection_document
from tests.support.spec.plans import desired_of

AGENT, SERVER = "probe", "infra/main"
GIVEN = Takeover(agent=AGENT, from_uid="their-uid", to_namespace="agents")
REBUILT = Takeover(from_cluster_id="cluster-0")


def own_marker() -> Marker:
    marker = desired_of().marker
    assert marker is not None
    return marker


def foreign_marker(connection: str | None = SERVER, **other: str) -> Marker:
    return replace(own_marker(), uid="their-uid", connection=connection, **other)


def terms(*granted: Takeover, annotation: str | None = "their-uid", has_key: bool = False) -> TakeoverTerms:
    return TakeoverTerms(agent=AGENT, annotation=annotation, connection=SERVER, has_key=has_key, granted=granted)


IN_ALPHA = {"namespace": "alpha"}
OLD_CLUSTER = {"cluster_id": "cluster-0"}


@pytest.mark.parametrize(
    ("live", "allowed", "is_taken"),
    [
        pytest.param(foreign_marker(name="other"), terms(), True, id="same namespace: the annotation"),
        pytest.param(
            foreign_marker(name="other"), terms(annotation="another"), False, id="same namespace: another uid"
        ),
        pytest.param(foreign_marker(**IN_ALPHA), terms(), False, id="other namespace: annotation is ignored"),
        pytest.param(foreign_marker(**IN_ALPHA), terms(GIVEN), True, id="other namespace: granted by the connection"),
        pytest.param(foreign_marker(**IN_ALPHA), terms(GIVEN, annotation=None), True, id="a grant needs no annotation"),
        pytest.param(
            foreign_marker("alpha/own", **IN_ALPHA), terms(GIVEN), False, id="the marker names another connection"
        ),
        pytest.param(foreign_marker(None, **IN_ALPHA), terms(GIVEN), False, id="old marker, server without a key"),
        pytest.param(
            foreign_marker(None, **IN_ALPHA), terms(GIVEN, has_key=True), True, id="old marker, server with a key"
        ),
        pytest.param(
            foreign_marker(**IN_ALPHA),
            terms(GIVEN.model_copy(update={"agent": "other"})),
            False,
            id="another agent's entry",
        ),
        pytest.param(
            foreign_marker(**IN_ALPHA),
            terms(GIVEN.model_copy(update={"to_namespace": "beta"})),
            False,
            id="granted to another namespace",
        ),
        pytest.param(replace(foreign_marker(**IN_ALPHA), uid="since"), terms(GIVEN), False, id="owner has changed"),
        pytest.param(foreign_marker(**OLD_CLUSTER), terms(), False, id="other cluster: annotation is ignored"),
        pytest.param(foreign_marker(**OLD_CLUSTER), terms(REBUILT), True, id="other cluster: its namesake"),
        pytest.param(
            foreign_marker(**OLD_CLUSTER, name="other"), terms(REBUILT), False, id="other cluster: another name"
        ),
        pytest.param(foreign_marker(**OLD_CLUSTER), terms(GIVEN), True, id="other cluster: by its uid"),
        pytest.param(foreign_marker(cluster_id="cluster-9"), terms(REBUILT), False, id="a third cluster"),
        pytest.param(
            foreign_marker(name="other"),
            terms(Takeover(from_cluster_id="cluster-1")),
            True,
            id="entry for our own cluster",
        ),
        pytest.param(
            foreign_marker(**IN_ALPHA),
            terms(Takeover(from_cluster_id="cluster-1")),
            False,
            id="cluster entry does not cover a namespace",
        ),
        pytest.param(
            foreign_marker(cluster_id="", namespace=""), terms(GIVEN), True, id="marker without an owner: by uid"
        ),
        pytest.param(foreign_marker(cluster_id=""), terms(), False, id="marker without a cluster: refused"),
    ],
)
def test_takeover_needs_permission(live: Marker, allowed: TakeoverTerms, is_taken: bool) -> None:
    assert may_take_over(live, own_marker(), allowed) is is_taken
    assert not may_take_over(live, own_marker(), None)


def test_entry_without_uid_permits_nothing() -> None:
    entry = Takeover.model_construct(agent=AGENT, from_uid="", to_namespace="agents", from_cluster_id=None)

    assert not may_take_over(replace(foreign_marker(**IN_ALPHA), uid=""), own_marker(), terms(entry))


def test_terms_come_from_object_and_connection() -> None:
    spec = {"takeovers": [{"fromClusterId": "cluster-0"}], "apiKeySecretRef": {"name": "key", "key": "api-key"}}
    connection = parse_connection(connection_document(namespace="infra", **spec))

    read = build_terms(AGENT, {TAKEOVER: "their-uid"}, connection)

    assert read == terms(REBUILT, has_key=True)


def request(number: int, namespace: str) -> TakeoverRequest:
    return TakeoverRequest(
        since=f"2026-01-01T00:{number:02d}:00Z",
        kind="AgentMemory",
        namespace=namespace,
        name=f"m{number}",
        agent="a",
        owner=(),
    )


def test_namespace_cannot_hide_requests_of_another() -> None:
    loud = [request(number, "loud") for number in range(50)]
    quiet = request(59, "quiet")

    listed = limit_requests([*loud, quiet])

    assert quiet in listed
    assert listed.count(loud[0]) == 1
    assert len(listed) == MAX_REQUESTS_PER_NAMESPACE + 1
    assert len(limit_requests([request(number % 60, f"n{number}") for number in range(200)])) == MAX_REQUESTS
