"""Collections that no object owns any more: found from what Qdrant and Kubernetes say now, from no list of ours."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentmemory_operator.domain.collection import Marker
from agentmemory_operator.domain.naming import ALIAS_PREFIX, alias_of


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
        names: aliases by slug, and the physical names that statuses report, those of rebuilds and restores too.
    """

    cluster_id: str
    objects: frozenset[tuple[str, str]]
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Orphan:
    """A collection without an owner."""

    kind: OrphanKind
    holding: Holding


def owners_of(
    documents: Iterable[Mapping[str, Any]], *, cluster_id: str, restores: Iterable[Mapping[str, Any]] = ()
) -> Owners:
    """Return who owns collections; an AgentMemory counts whatever its connection and its state.

    Args:
        restores: MemoryRestores, which look after what they make and what they replace.
    """
    objects: set[tuple[str, str]] = set()
    names: set[str] = set()
    for document in documents:
        metadata, spec = document["metadata"], document.get("spec") or {}
        objects.add((metadata["namespace"], metadata["name"]))
        names.add(alias_of(str(spec.get("agent") or metadata["name"])))
        status = document.get("status") or {}
        names.add(str((status.get("collection") or {}).get("physical") or ""))
        names |= {str((status.get("rebuild") or {}).get(end) or "") for end in ("source", "target")}
    for document in restores:
        status = document.get("status") or {}
        names |= {str(told.get("physical") or "") for told in (status, status.get("previousCollection") or {})}
    return Owners(cluster_id, frozenset(objects), frozenset(names - {""}))


def orphans_of(holdings: Iterable[Holding], owners: Owners) -> Iterator[Orphan]:
    """Yield the collections that nothing of this cluster owns; those of other clusters are not ours to judge."""
    for holding in holdings:
        kind = _kind_of(holding, owners)
        if kind is not None:
            yield Orphan(kind, holding)


def foreign_count(holdings: Iterable[Holding], owners: Owners) -> int:
    """Return how many collections carry another cluster's marker."""
    return sum(1 for holding in holdings if holding.marker and holding.marker.cluster_id != owners.cluster_id)


def _kind_of(holding: Holding, owners: Owners) -> OrphanKind | None:
    marker, is_claimed = holding.marker, not owners.names.isdisjoint((holding.physical, *holding.aliases))
    if marker is None:
        return None if is_claimed else OrphanKind.UNMARKED
    if marker.cluster_id != owners.cluster_id:
        return None
    if (marker.namespace, marker.name) not in owners.objects:
        return OrphanKind.OBJECT_GONE
    # Its object lives: what neither an alias nor a status points to, and no sweep removes, was left behind.
    return None if is_claimed or holding.aliases or holding.is_kept else OrphanKind.UNREFERENCED


def slug_behind(holding: Holding) -> str:
    """Return the agent that a collection was for, by its alias, else by its own name."""
    name = next((alias for alias in holding.aliases if alias.startswith(ALIAS_PREFIX)), holding.physical)
    return name.removeprefix(ALIAS_PREFIX).partition("__")[0]
