"""Find collections without an owner, from the current state of Qdrant and Kubernetes only."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentmemory_operator.collections.rules.collection import Marker
from agentmemory_operator.spec.naming import ALIAS_PREFIX, alias_of, find_slug


class OrphanKind(StrEnum):
    """Reason why a collection has no owner.

    ObjectGone: The object in its ownership marker does not exist. Unmarked: It has no marker, and no object claims it.
    Unreferenced: Its object exists, but neither an alias nor a status refers to the collection, and no sweep will
    remove it.
    """

    OBJECT_GONE = "ObjectGone"
    UNMARKED = "Unmarked"
    UNREFERENCED = "Unreferenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionSummary:
    """Facts about one collection that has a name or alias of an agent's collection.

    Attributes:
        physical: Name of the collection.
        aliases: Aliases that point to it.
        points: Approximate number of points, including tombstones.
        size: Dimensions of its vectors.
        distance: Distance function of its vectors.
        marker: Ownership marker in its metadata, or None.
        is_kept: True if a restore or rebuild has replaced it, and a sweep will remove it.
    """

    physical: str
    aliases: tuple[str, ...]
    points: int
    size: int
    distance: str
    marker: Marker | None
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class OwnershipClaims:
    """AgentMemory objects of a cluster, and the collections that they claim.

    Attributes:
        cluster_id: Id of the cluster.
        objects: (namespace, name) of each object.
        slugs: Namespace by slug. If several objects have the same slug, the oldest counts.
        reported: (namespace, physical name) of each collection in a status, including those of rebuilds and restores.
            The namespace is that of the status, so a status cannot claim another namespace's collection.
    """

    cluster_id: str
    objects: frozenset[tuple[str, str]]
    slugs: Mapping[str, str]
    reported: frozenset[tuple[str, str]]

    def has_claimed(self, collection: CollectionSummary) -> bool:
        """Return whether an object claims a collection.

        That is the case if the alias of a claimed slug is a name or alias of the collection, or if a status in the
        namespace of the collection's owner reports it. Without a marker, the owner is the namespace that has claimed
        the slug in the collection's name.
        """
        slugs = {name: find_slug(name) or "" for name in (collection.physical, *collection.aliases)}
        if any(slug in self.slugs and alias_of(slug) == name for name, slug in slugs.items()):
            return True
        marker = collection.marker
        namespace = marker.namespace if marker else self.slugs.get(slugs[collection.physical])
        return (namespace, collection.physical) in self.reported


@dataclass(frozen=True, slots=True)
class Orphan:
    """Collection without an owner, and the reason why it has none."""

    kind: OrphanKind
    collection: CollectionSummary


def build_claims(
    documents: Iterable[Mapping[str, Any]], *, cluster_id: str, restores: Iterable[Mapping[str, Any]] = ()
) -> OwnershipClaims:
    """Build the claims of all objects. An AgentMemory counts in any state and with any connection.

    Args:
        documents: AgentMemory objects.
        restores: MemoryRestore objects, which own the collections that they create or replace.
    """
    objects: set[tuple[str, str]] = set()
    slugs: dict[str, str] = {}
    reported: set[tuple[str, str]] = set()
    for document in sorted(documents, key=_age):
        metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
        namespace = metadata["namespace"]
        objects.add((namespace, metadata["name"]))
        slugs.setdefault(str(spec.get("agent") or metadata["name"]), namespace)
        reported.add((namespace, str((status.get("collection") or {}).get("physical"))))
        reported |= {(namespace, str((status.get("rebuild") or {}).get(end))) for end in ("source", "target")}
    for document in restores:
        status, namespace = document.get("status") or {}, document["metadata"]["namespace"]
        collections = (status, status.get("previousCollection") or {})
        reported |= {(namespace, str(collection.get("physical"))) for collection in collections}
    return OwnershipClaims(cluster_id, frozenset(objects), slugs, frozenset(reported))


def _age(document: Mapping[str, Any]) -> tuple[str, str]:
    metadata = document["metadata"]
    return metadata.get("creationTimestamp") or "", metadata.get("uid") or ""


def find_orphans_in(collections: Iterable[CollectionSummary], owners: OwnershipClaims) -> Iterator[Orphan]:
    """Yield the collections without an owner in this cluster, as `OrphanKind` defines.

    Collections marked by another cluster are skipped.
    """
    for summary in collections:
        kind = _kind_of(summary, owners)
        if kind is not None:
            yield Orphan(kind, summary)


def count_foreign(collections: Iterable[CollectionSummary], owners: OwnershipClaims) -> int:
    """Return the number of collections marked by another cluster."""
    return sum(1 for summary in collections if summary.marker and summary.marker.cluster_id != owners.cluster_id)


def _kind_of(summary: CollectionSummary, owners: OwnershipClaims) -> OrphanKind | None:
    marker, is_claimed = summary.marker, owners.has_claimed(summary)
    if marker is None:
        return None if is_claimed else OrphanKind.UNMARKED
    if marker.cluster_id != owners.cluster_id:
        return None
    if (marker.namespace, marker.name) not in owners.objects:
        return OrphanKind.OBJECT_GONE
    return None if is_claimed or summary.aliases or summary.is_kept else OrphanKind.UNREFERENCED


def slug_of_collection(collection: CollectionSummary) -> str:
    """Return the slug that a collection was created for, from its alias or its name."""
    name = next((alias for alias in collection.aliases if alias.startswith(ALIAS_PREFIX)), collection.physical)
    return name.removeprefix(ALIAS_PREFIX).partition("__")[0]
