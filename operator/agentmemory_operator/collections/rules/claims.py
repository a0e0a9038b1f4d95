"""Claims: records of the namespace that owns each slug. Tenants cannot write them, unlike collection metadata.

If several objects of the namespace have the same slug, the oldest gets it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentmemory_operator.collections.rules.collection import Marker
from agentmemory_operator.spec.effective.settings import AgentSettings

MAX_CONNECTIONS = 4
"""Maximum number of connections in a claim: those that the agent used last, which may still have its collections."""

MAX_WITHOUT_OBJECT = 1_000
"""Maximum number of one namespace's collections without an object that count as evidence: a tenant's own server may
list any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlugClaim:
    """Claim of a namespace on a slug.

    Attributes:
        uid: UID of the AgentMemory that had the slug last.
        connections: NAMESPACE/NAME of the QdrantConnections that it used, the latest first.
        min_epoch: Lowest epoch number of the alias's target that is read and written. Set only during an in-place
            restore, in which the server overwrites the collection's metadata.
    """

    namespace: str
    uid: str
    connections: tuple[str, ...] = ()
    min_epoch: int = 0

    def used_by(self, uid: str, connection: str) -> "SlugClaim":
        """Return the claim after an object of its namespace has used a connection."""
        previous = tuple(name for name in self.connections if name != connection)
        return replace(self, uid=uid, connections=(connection, *previous)[:MAX_CONNECTIONS])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSet:
    """All claims of an installation.

    Attributes:
        claims: Claims by slug.
        is_complete: True once the first set was stored, with the slugs of all valid objects and of all collections on
            available connections. Until then, a slug belongs to its oldest object.
        unread: NAMESPACE/NAME of the connections that were unavailable for the first set. Their claims are added later.
    """

    claims: Mapping[str, SlugClaim] = field(default_factory=dict)
    is_complete: bool = False
    unread: frozenset[str] = frozenset()

    def namespace_of(self, slug: str) -> str | None:
        """Return the namespace that owns a slug, or None without a claim or while the set is incomplete."""
        claim = self.claims.get(slug)
        return claim.namespace if claim and self.is_complete else None

    def min_epoch_of(self, slug: str) -> int:
        """Return the lowest epoch number with which an agent is served; 0 accepts any."""
        claim = self.claims.get(slug)
        return claim.min_epoch if claim else 0


NO_CLAIMS = ClaimSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEvidence:
    """A collection whose marker is evidence of the owner of a slug.

    Attributes:
        created: creationTimestamp of the marker's object. "" if no object has its name, UID and the slug.
        is_live: True if the collection has the slug's alias, or its name.
        connection: NAMESPACE/NAME of the connection through which it was read.
    """

    slug: str
    marker: Marker
    connection: str
    created: str
    is_live: bool


def derive_claims(evidence: Iterable[ClaimEvidence]) -> dict[str, SlugClaim]:
    """Return the claims that collections prove, by slug. Evidence beyond `MAX_WITHOUT_OBJECT` is ignored.

    If collections name several namespaces, the order is: existing objects first, the oldest of them; then the
    collection behind the alias; then by name, so that the result is deterministic.
    """
    by_slug: dict[str, list[ClaimEvidence]] = {}
    numbers: dict[str, int] = {}
    for witness in evidence:
        namespace = witness.marker.namespace
        numbers[namespace] = numbers.get(namespace, 0) + (not witness.created)
        if witness.created or numbers[namespace] <= MAX_WITHOUT_OBJECT:
            by_slug.setdefault(witness.slug, []).append(witness)
    return {slug: _claim_from(sorted(found, key=_rank)) for slug, found in by_slug.items()}


def _rank(witness: ClaimEvidence) -> tuple[Any, ...]:
    marker = witness.marker
    return not witness.created, witness.created, not witness.is_live, marker.namespace, marker.name, witness.connection


def _claim_from(witnesses: Sequence[ClaimEvidence]) -> SlugClaim:
    marker = witnesses[0].marker
    names = [witness.connection for witness in witnesses if witness.marker.namespace == marker.namespace]
    connections = tuple(dict.fromkeys(names))[:MAX_CONNECTIONS]
    return SlugClaim(namespace=marker.namespace, uid=marker.uid, connections=connections)


def claim_to_json(claim: SlugClaim) -> dict[str, Any]:
    """Render a claim as it is stored; `leastEpoch` is left out if it is 0."""
    document = {"namespace": claim.namespace, "uid": claim.uid, "connections": list(claim.connections)}
    return document | ({"leastEpoch": claim.min_epoch} if claim.min_epoch else {})


def claim_from_json(document: Any) -> SlugClaim | None:
    """Parse a stored claim. None without a namespace; other invalid fields get their defaults."""
    if not isinstance(document, Mapping) or not isinstance(document.get("namespace"), str):
        return None
    connections, min_epoch = document.get("connections"), document.get("leastEpoch")
    return SlugClaim(
        namespace=document["namespace"],
        uid=str(document.get("uid", "")),
        connections=tuple(str(name) for name in connections) if isinstance(connections, list) else (),
        min_epoch=min_epoch if isinstance(min_epoch, int) and min_epoch > 0 else 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentClaim:
    """An object that claims a slug.

    Attributes:
        created: creationTimestamp of the object, RFC 3339 UTC. "" if it has none, which makes it the oldest.
        has_collection: True if the object's status names a collection. Of objects created in the same second, one with
            a collection comes first, as in the operator's order.
    """

    uid: str
    created: str
    settings: AgentSettings
    has_collection: bool = False

    @property
    def seniority(self) -> tuple[str, bool, str]:
        """Sort key: creation time, then objects with a collection first, then UID. The lowest key gets the slug."""
        return self.created, not self.has_collection, self.uid
