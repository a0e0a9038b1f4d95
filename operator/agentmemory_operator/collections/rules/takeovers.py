"""Who may take over what another object left behind.

Within one namespace of one cluster the object's author says so, by annotation. Everything else is up to the owner of
the QdrantConnection: a tenant cannot grant itself the memories of another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentmemory_operator.collections.rules.collection import Marker
from agentmemory_operator.spec.kinds.agent_memory import TAKEOVER
from agentmemory_operator.spec.kinds.connection import QdrantConnection, Takeover

MOST_REQUESTS = 50
"""Requests that a connection's status shows."""

MOST_OF_NAMESPACE = 10
"""Of these, those of one namespace: none can hide the others'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverTerms:
    """What allows an object to take over a collection.

    Attributes:
        agent: the object's slug.
        annotation: uid of an owner of the same namespace.
        connection: NAMESPACE/NAME of the connection through which the collection is reached.
        has_key: the connection has an API key: without one whoever reaches the server has no use for our refusals.
        granted: what the connection's owner allows.
    """

    agent: str = ""
    annotation: str | None = None
    connection: str = ""
    has_key: bool = False
    granted: Sequence[Takeover] = ()


def takeover_terms(
    agent: str, annotations: Mapping[str, str], connection: QdrantConnection | None = None
) -> TakeoverTerms:
    """What an object's annotations and its connection allow."""
    if connection is None:
        return TakeoverTerms(agent=agent, annotation=annotations.get(TAKEOVER))
    return TakeoverTerms(
        agent=agent,
        annotation=annotations.get(TAKEOVER),
        connection=f"{connection.metadata.namespace}/{connection.metadata.name}",
        has_key=connection.spec.api_key_secret_ref is not None,
        granted=connection.spec.takeovers or (),
    )


def is_same_tenant(live: Marker, ours: Marker) -> bool:
    """Whether both say of which namespace and cluster they are, and it is the same."""
    place = live.cluster_id, live.namespace
    return all(place) and place == (ours.cluster_id, ours.namespace)


def may_take(live: Marker, ours: Marker, terms: TakeoverTerms | None) -> bool:
    """Whether an object may take over what carries another's marker.

    Args:
        live: the marker that is there.
        ours: of the object.
    """
    if terms is None:
        return False
    if is_same_tenant(live, ours):
        return bool(live.uid) and live.uid == terms.annotation
    if live.connection != terms.connection and (live.connection is not None or not terms.has_key):
        return False
    return any(_grants(grant, live, ours, terms.agent) for grant in terms.granted)


def _grants(grant: Takeover, live: Marker, ours: Marker, agent: str) -> bool:
    if grant.from_cluster_id is not None:
        is_same_name = (live.namespace, live.name) == (ours.namespace, ours.name)
        return is_same_name and live.cluster_id == grant.from_cluster_id != ours.cluster_id
    return releases(grant, agent=agent, uid=live.uid, namespace=ours.namespace)


def releases(grant: Takeover, *, agent: str, uid: str, namespace: str) -> bool:
    """Whether an entry gives an agent of the object `uid` to a namespace."""
    return bool(uid) and (grant.agent, grant.from_uid, grant.to_namespace) == (agent, uid, namespace)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TakeoverRequest:
    """An object that is refused what another left behind, as the connection's owner sees it.

    Attributes:
        since: RFC 3339 UTC; requests sort by it.
        kind, namespace, name: the object that is refused.
        owner: clusterId, namespace, name and uid of whom it would take over; what is not known is left out.
    """

    since: str
    kind: str
    namespace: str
    name: str
    agent: str
    owner: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """The request as a connection's status says it."""
        return asdict(self) | {"owner": dict(self.owner)}


def shown(requests: Sequence[TakeoverRequest]) -> list[TakeoverRequest]:
    """The requests that a status shows: the oldest, with a bound for each namespace."""
    kept: list[TakeoverRequest] = []
    numbers: dict[str, int] = {}
    for request in sorted(requests):
        numbers[request.namespace] = numbers.get(request.namespace, 0) + 1
        if numbers[request.namespace] <= MOST_OF_NAMESPACE:
            kept.append(request)
    return kept[:MOST_REQUESTS]
