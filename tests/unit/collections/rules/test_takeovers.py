"""Who may take over what another object left, and who sees that it is asked for."""

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


def ours() -> Marker:
    marker = desired_of().marker
    assert marker is not None
    return marker


def theirs(connection: str | None = SERVER, **other: str) -> Marker:
    return replace(ours(), uid="their-uid", connection=connection, **other)


def terms(*granted: Takeover, annotation: str | None = "their-uid", has_key: bool = False) -> TakeoverTerms:
    return TakeoverTerms(agent=AGENT, annotation=annotation, connection=SERVER, has_key=has_key, granted=granted)


IN_ALPHA = {"namespace": "alpha"}
OLD_CLUSTER = {"cluster_id": "cluster-0"}


@pytest.mark.parametrize(
    ("live", "allowed", "is_taken"),
    [
        pytest.param(theirs(name="other"), terms(), True, id="same namespace: the annotation"),
        pytest.param(theirs(name="other"), terms(annotation="another"), False, id="same namespace: another uid"),
        pytest.param(theirs(**IN_ALPHA), terms(), False, id="other namespace: an annotation is nothing"),
        pytest.param(theirs(**IN_ALPHA), terms(GIVEN), True, id="other namespace: the connection's owner gives it"),
        pytest.param(theirs(**IN_ALPHA), terms(GIVEN, annotation=None), True, id="then no annotation is needed"),
        pytest.param(theirs("alpha/own", **IN_ALPHA), terms(GIVEN), False, id="the marker names another connection"),
        pytest.param(theirs(None, **IN_ALPHA), terms(GIVEN), False, id="an old marker, a server without a key"),
        pytest.param(theirs(None, **IN_ALPHA), terms(GIVEN, has_key=True), True, id="an old marker, one with a key"),
        pytest.param(
            theirs(**IN_ALPHA), terms(GIVEN.model_copy(update={"agent": "other"})), False, id="another agent's entry"
        ),
        pytest.param(
            theirs(**IN_ALPHA), terms(GIVEN.model_copy(update={"to_namespace": "beta"})), False, id="given to another"
        ),
        pytest.param(replace(theirs(**IN_ALPHA), uid="since"), terms(GIVEN), False, id="it has another owner since"),
        pytest.param(theirs(**OLD_CLUSTER), terms(), False, id="other cluster: an annotation is nothing"),
        pytest.param(theirs(**OLD_CLUSTER), terms(REBUILT), True, id="other cluster: its namesake"),
        pytest.param(theirs(**OLD_CLUSTER, name="other"), terms(REBUILT), False, id="other cluster: another name"),
        pytest.param(theirs(**OLD_CLUSTER), terms(GIVEN), True, id="other cluster: by its uid"),
        pytest.param(theirs(cluster_id="cluster-9"), terms(REBUILT), False, id="a third cluster"),
        pytest.param(
            theirs(name="other"), terms(Takeover(from_cluster_id="cluster-1")), True, id="our own cluster is no other"
        ),
        pytest.param(theirs(**IN_ALPHA), terms(Takeover(from_cluster_id="cluster-1")), False, id="nor for a namespace"),
        pytest.param(theirs(cluster_id="", namespace=""), terms(GIVEN), True, id="a marker that names nobody: by uid"),
        pytest.param(theirs(cluster_id=""), terms(), False, id="a marker without a cluster is no namesake's"),
    ],
)
def test_a_takeover_is_allowed_where_its_owner_says_so(live: Marker, allowed: TakeoverTerms, is_taken: bool) -> None:
    assert may_take_over(live, ours(), allowed) is is_taken
    assert not may_take_over(live, ours(), None)


def test_an_entry_without_a_uid_gives_nothing_away() -> None:
    nobody = Takeover.model_construct(agent=AGENT, from_uid="", to_namespace="agents", from_cluster_id=None)

    assert not may_take_over(replace(theirs(**IN_ALPHA), uid=""), ours(), terms(nobody))


def test_terms_are_read_of_the_object_and_its_connection() -> None:
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


def test_one_namespace_cannot_hide_the_requests_of_another() -> None:
    loud = [request(number, "loud") for number in range(50)]
    quiet = request(59, "quiet")

    told = limit_requests([*loud, quiet])

    assert quiet in told
    assert told.count(loud[0]) == 1
    assert len(told) == MAX_REQUESTS_PER_NAMESPACE + 1
    assert len(limit_requests([request(number % 60, f"n{number}") for number in range(200)])) == MAX_REQUESTS
