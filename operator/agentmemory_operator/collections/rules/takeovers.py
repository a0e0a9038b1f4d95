"""Takeovers: which object may take over the collection of another.

Within one namespace of one cluster, an annotation of the object permits it. Otherwise the owner of the QdrantConnection
decides, so that a tenant cannot grant itself the memories of another tenant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentmemory_operator.collections.rules.collection import Marker
from agentmemory_operator.spec.kinds.agent_memory import TAKEOVER
from agentmemory_operator.spec.kinds.connection import QdrantConnection, Takeover

MAX_REQUESTS = 50
"""Maximum number of requests in a connection's status."""

MAX_REQUESTS_PER_NAMESPACE = 10
"""Maximum number of these from one namespace, so that it cannot hide the requests of other namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverTerms:
    """Permissions of an object to take over collections.

    Attributes:
        agent: Slug of the object.
        annotation: UID in the object's takeover annotation. None without one.
        connection: NAMESPACE/NAME of the connection through which the collection is reached.
        has_key: True if the connection has an API key. Without one, anyone who can reach the server has access anyway.
        granted: Entries of the connection's `spec.takeovers`.
    """

    agent: str = ""
    annotation: str | None = None
    connection: str = ""
    has_key: bool = False
    granted: Sequence[Takeover] = ()


def build_terms(
    agent: str, annotations: Mapping[str, str], connection: QdrantConnection | None = None
) -> TakeoverTerms:
    """Return the takeovers that an object's annotations and its connection permit.

    Args:
        agent: Slug of the object.
        connection: None if only the annotations count.
    """
    if connection is None:
        return TakeoverTerms(agent=agent, annotation=annotations.get(TAKEOVER))
    return TakeoverTerms(
        agent=agent,
        annotation=annotations.get(TAKEOVER),
        connection=f"{connection.metadata.namespace}/{connection.metadata.name}",
        has_key=connection.spec.api_key_secret_ref is not None,
        granted=connection.spec.takeovers or (),
    )


def is_same_tenant(live: Marker, own: Marker) -> bool:
    """Return whether both markers name the same cluster and namespace. A marker that leaves out either does not."""
    tenant = live.cluster_id, live.namespace
    return all(tenant) and tenant == (own.cluster_id, own.namespace)


def may_take_over(live: Marker, own: Marker, terms: TakeoverTerms | None) -> bool:
    """Return whether an object may take over a collection with another object's marker.

    The first matching row decides:

    | condition | permitted if |
    |---|---|
    | no terms | never |
    | both markers are of the same cluster and namespace | the annotation is the UID of the existing marker |
    | the existing marker names another connection | never |
    | the existing marker names no connection, and the object's connection has no API key | never |
    | any other | an entry of the connection's `spec.takeovers` matches |

    Args:
        live: Existing marker.
        own: Marker of the object.
        terms: Permissions of the object. None permits nothing.
    """
    if terms is None:
        return False
    if is_same_tenant(live, own):
        return bool(live.uid) and live.uid == terms.annotation
    if live.connection != terms.connection and (live.connection is not None or not terms.has_key):
        return False
    return any(_grants(grant, live, own, terms.agent) for grant in terms.granted)


def _grants(grant: Takeover, live: Marker, marker: Marker, agent: str) -> bool:
    if grant.from_cluster_id is not None:
        has_same_name = (live.namespace, live.name) == (marker.namespace, marker.name)
        return has_same_name and live.cluster_id == grant.from_cluster_id != marker.cluster_id
    return grants(grant, agent=agent, uid=live.uid, namespace=marker.namespace)


def grants(grant: Takeover, *, agent: str, uid: str, namespace: str) -> bool:
    """Return whether an entry grants the collection of an agent, owned by the object `uid`, to a namespace."""
    return bool(uid) and (grant.agent, grant.from_uid, grant.to_namespace) == (agent, uid, namespace)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TakeoverRequest:
    """Entry of a QdrantConnection's `status.takeoverRequests`: an object that was refused a collection or a slug.

    Attributes:
        since: Time of the first refusal, RFC 3339 UTC. Requests sort by it.
        kind, namespace, name: The refused object.
        agent: Slug of the refused object's agent.
        owner: Current owner of the collection or slug, as pairs of field and value: clusterId, namespace, name and uid,
            as far as known.
    """

    since: str
    kind: str
    namespace: str
    name: str
    agent: str
    owner: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """Render the request for a connection's status; `owner` becomes an object."""
        return asdict(self) | {"owner": dict(self.owner)}


def limit_requests(requests: Sequence[TakeoverRequest]) -> list[TakeoverRequest]:
    """Return the requests that a status lists: the oldest first, with a limit for each namespace and in total."""
    listed: list[TakeoverRequest] = []
    counts: dict[str, int] = {}
    for request in sorted(requests):
        counts[request.namespace] = counts.get(request.namespace, 0) + 1
        if counts[request.namespace] <= MAX_REQUESTS_PER_NAMESPACE:
            listed.append(request)
    return listed[:MAX_REQUESTS]
