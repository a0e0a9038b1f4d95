"""Collections that no object owns any more: found from what Qdrant and Kubernetes say now, from no list of ours."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentmemory_operator.collections.rules.collection import Marker
from agentmemory_operator.spec.naming import ALIAS_PREFIX, alias_of, slug_in


class OrphanKind(StrEnum):
    """Why nothing owns a collection."""

    OBJECT_GONE = "ObjectGone"
    UNMARKED = "Unmarked"
    UNREFERENCED = "Unreferenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One collection whose name or alias is one that agents' collections have, as far as ownership goes.

    Attributes:
        points: approximately, tombstones included.
        is_kept: it was replaced, and goes when its time is over.
    """

    physical: str
    aliases: tuple[str, ...]
    points: int
    size: int
    distance: str
    marker: Marker | None
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class Owners:
    """The AgentMemories that exist in a cluster, and the collections that they claim.

    Attributes:
        objects: (namespace, name).
        slugs: the namespace that has each: of two, the older object's.
        reported: (namespace, physical name) of what statuses report, those of rebuilds and restores too; what one says
            of another namespace's collection hides nothing.
    """

    cluster_id: str
    objects: frozenset[tuple[str, str]]
    slugs: Mapping[str, str]
    reported: frozenset[tuple[str, str]]

    def claim(self, holding: Holding) -> bool:
        """Whether an object claims a collection: by its slug's alias, or by what its status reports."""
        slugs = {name: slug_in(name) or "" for name in (holding.physical, *holding.aliases)}
        if any(slug in self.slugs and alias_of(slug) == name for name, slug in slugs.items()):
            return True
        marker = holding.marker
        namespace = marker.namespace if marker else self.slugs.get(slugs[holding.physical])
        return (namespace, holding.physical) in self.reported


@dataclass(frozen=True, slots=True)
class Orphan:
    """A collection without an owner."""

    kind: OrphanKind
    holding: Holding


def owners_of(
    documents: Iterable[Mapping[str, Any]], *, cluster_id: str, restores: Iterable[Mapping[str, Any]] = ()
) -> Owners:
    """Who owns collections; an AgentMemory counts whatever its connection and its state.

    Args:
        restores: MemoryRestores, which look after what they make and what they replace.
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
        told = (status, status.get("previousCollection") or {})
        reported |= {(namespace, str(one.get("physical"))) for one in told}
    return Owners(cluster_id, frozenset(objects), slugs, frozenset(reported))


def _age(document: Mapping[str, Any]) -> tuple[str, str]:
    metadata = document["metadata"]
    return metadata.get("creationTimestamp") or "", metadata.get("uid") or ""


def orphans_of(holdings: Iterable[Holding], owners: Owners) -> Iterator[Orphan]:
    """Yield the collections that nothing of this cluster owns; those of other clusters are not ours to judge."""
    for holding in holdings:
        kind = _kind_of(holding, owners)
        if kind is not None:
            yield Orphan(kind, holding)


def foreign_count(holdings: Iterable[Holding], owners: Owners) -> int:
    """How many collections carry another cluster's marker."""
    return sum(1 for holding in holdings if holding.marker and holding.marker.cluster_id != owners.cluster_id)


def _kind_of(holding: Holding, owners: Owners) -> OrphanKind | None:
    marker, is_claimed = holding.marker, owners.claim(holding)
    if marker is None:
        return None if is_claimed else OrphanKind.UNMARKED
    if marker.cluster_id != owners.cluster_id:
        return None
    if (marker.namespace, marker.name) not in owners.objects:
        return OrphanKind.OBJECT_GONE
    # Its object lives: what neither an alias nor a status points to, and no sweep removes, was left behind.
    return None if is_claimed or holding.aliases or holding.is_kept else OrphanKind.UNREFERENCED


def slug_behind(holding: Holding) -> str:
    """The agent that a collection was for, by its alias, else by its own name."""
    name = next((alias for alias in holding.aliases if alias.startswith(ALIAS_PREFIX)), holding.physical)
    return name.removeprefix(ALIAS_PREFIX).partition("__")[0]
