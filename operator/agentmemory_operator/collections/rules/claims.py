"""Which namespace a slug belongs to: the one authority, kept outside every object that a tenant can write.

Of several objects of one namespace that claim a slug, the oldest has it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentmemory_operator.collections.rules.collection import Marker
from agentmemory_operator.spec.effective.settings import AgentSettings

MOST_CONNECTIONS = 4
"""Connections kept for a claim: those that the agent used last, where its collections may still lie."""

MOST_WITHOUT_OBJECT = 1_000
"""Collections of one namespace without an object that count: a server of its own may list as many as it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlugClaim:
    """One slug's claim.

    Attributes:
        uid: of the AgentMemory that held it last.
        connections: NAMESPACE/NAME of the QdrantConnections that it used, the last one first.
        least_epoch: number of the epoch from which on what its alias leads to is read and written. It stands only while
            a snapshot is restored into the collection itself, whose metadata the server overwrites meanwhile.
    """

    namespace: str
    uid: str
    connections: tuple[str, ...] = ()
    least_epoch: int = 0

    def used_by(self, uid: str, connection: str) -> "SlugClaim":
        """The claim after an object of its namespace was seen to use a connection."""
        others = tuple(one for one in self.connections if one != connection)
        return replace(self, uid=uid, connections=(connection, *others)[:MOST_CONNECTIONS])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSet:
    """Every claim of an installation, as they are stored.

    Attributes:
        claims: by slug.
        is_complete: every slug that was in use has its claim; until then a slug belongs to its oldest object.
        unread: NAMESPACE/NAME of connections that were away when the set was made: what their collections say is
            added when they come back.
    """

    claims: Mapping[str, SlugClaim] = field(default_factory=dict)
    is_complete: bool = False
    unread: frozenset[str] = frozenset()

    def namespace_of(self, slug: str) -> str | None:
        """The namespace that a slug belongs to; None where no claim says so."""
        claim = self.claims.get(slug)
        return claim.namespace if claim and self.is_complete else None

    def least_epoch(self, slug: str) -> int:
        """The number of the epoch from which on an agent is served; 0 is any."""
        claim = self.claims.get(slug)
        return claim.least_epoch if claim else 0


NO_CLAIMS = ClaimSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """A collection whose marker says to whom a slug belonged.

    Attributes:
        created: creationTimestamp of the object that the marker names, empty where there is none of its uid.
        is_live: the slug's alias leads to it.
        connection: NAMESPACE/NAME of the connection that it was seen through.
    """

    slug: str
    marker: Marker
    connection: str
    created: str
    is_live: bool


def claims_from(witnesses: Iterable[Witness]) -> dict[str, SlugClaim]:
    """The claims that collections prove, by slug.

    Where they name several namespaces, the oldest object that exists has the slug, then the collection behind the
    alias; the rest is by name, so that every run comes to the same.
    """
    by_slug: dict[str, list[Witness]] = {}
    numbers: dict[str, int] = {}
    for witness in witnesses:
        namespace = witness.marker.namespace
        numbers[namespace] = numbers.get(namespace, 0) + (not witness.created)
        if witness.created or numbers[namespace] <= MOST_WITHOUT_OBJECT:
            by_slug.setdefault(witness.slug, []).append(witness)
    return {slug: _claim_from(sorted(found, key=_rank)) for slug, found in by_slug.items()}


def _rank(witness: Witness) -> tuple[Any, ...]:
    marker = witness.marker
    return not witness.created, witness.created, not witness.is_live, marker.namespace, marker.name, witness.connection


def _claim_from(witnesses: Sequence[Witness]) -> SlugClaim:
    first = witnesses[0].marker
    used = [one.connection for one in witnesses if one.marker.namespace == first.namespace]
    connections = tuple(dict.fromkeys(used))[:MOST_CONNECTIONS]
    return SlugClaim(namespace=first.namespace, uid=first.uid, connections=connections)


def claim_to_json(claim: SlugClaim) -> dict[str, Any]:
    """A claim as it is stored."""
    told = {"namespace": claim.namespace, "uid": claim.uid, "connections": list(claim.connections)}
    return told | ({"leastEpoch": claim.least_epoch} if claim.least_epoch else {})


def claim_from_json(document: Any) -> SlugClaim | None:
    """A stored claim, None of what is none: people can write where claims lie."""
    if not isinstance(document, Mapping) or not isinstance(document.get("namespace"), str):
        return None
    connections, least_epoch = document.get("connections"), document.get("leastEpoch")
    return SlugClaim(
        namespace=document["namespace"],
        uid=str(document.get("uid", "")),
        connections=tuple(str(one) for one in connections) if isinstance(connections, list) else (),
        least_epoch=least_epoch if isinstance(least_epoch, int) and least_epoch > 0 else 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentClaim:
    """One object that claims a slug.

    Attributes:
        created: the object's creationTimestamp, RFC 3339 UTC.
        has_collection: decides between two objects of one second, as it does for the operator.
    """

    uid: str
    created: str
    settings: AgentSettings
    has_collection: bool = False

    @property
    def seniority(self) -> tuple[str, bool, str]:
        """The smallest wins the slug."""
        return self.created, not self.has_collection, self.uid
