"""Orphaned collections, found from markers, aliases and existing objects."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.controllers.rules.orphans import (
    CollectionSummary,
    build_claims,
    count_foreign,
    find_orphans_in,
    slug_of_collection,
)
from tests.support.spec.documents import memory_document
from tests.support.spec.plans import ALIAS, desired_of

PHYSICAL = f"{ALIAS}__1"


def summary(physical: str = PHYSICAL, *, aliases: tuple[str, ...] = (ALIAS,), **marker: Any) -> CollectionSummary:
    """Return the collection of agents/probe of cluster-1; `marker=None` removes its marker."""
    default = desired_of().marker
    assert default is not None
    owner = None if marker.get("marker", default) is None else replace(default, **marker)
    return CollectionSummary(physical=physical, aliases=aliases, points=3, size=8, distance="Cosine", marker=owner)


def orphan_kinds(collection: CollectionSummary, *documents: dict[str, Any]) -> list[str]:
    owners = build_claims(documents, cluster_id="cluster-1")
    return [str(orphan.kind) for orphan in find_orphans_in([collection], owners)]


def restore_document(status: object, *, namespace: str = "agents") -> dict[str, Any]:
    return {"kind": "MemoryRestore", "metadata": {"name": "undo", "namespace": namespace}, "status": status}


OBJECT = memory_document()


@pytest.mark.parametrize(
    ("collection", "documents", "kinds"),
    [
        pytest.param(summary(), [OBJECT], [], id="object exists"),
        pytest.param(summary(), [], ["ObjectGone"], id="object deleted"),
        pytest.param(
            summary(), [memory_document("other", agent="probe")], ["ObjectGone"], id="another object has its slug"
        ),
        pytest.param(summary(aliases=()), [], ["ObjectGone"], id="object and alias deleted"),
        pytest.param(summary(cluster_id="elsewhere"), [], [], id="of another cluster"),
        pytest.param(summary(marker=None), [], ["Unmarked"], id="unmarked"),
        pytest.param(summary(marker=None), [OBJECT], [], id="unmarked, requested by an object"),
        pytest.param(summary(f"{ALIAS}__2", aliases=()), [OBJECT], ["Unreferenced"], id="replaced"),
        pytest.param(replace(summary(f"{ALIAS}__2", aliases=()), is_kept=True), [OBJECT], [], id="kept for a rollback"),
        pytest.param(replace(summary(aliases=()), is_kept=True), [], ["ObjectGone"], id="kept, object deleted"),
    ],
)
def test_orphan_kind(collection: CollectionSummary, documents: list[dict[str, Any]], kinds: list[str]) -> None:
    assert orphan_kinds(collection, *documents) == kinds


def test_collection_in_status_needs_no_alias() -> None:
    document = memory_document() | {"status": {"collection": {"physical": PHYSICAL}}}

    assert orphan_kinds(summary(aliases=()), document) == []


def test_invalid_object_still_owns() -> None:
    assert orphan_kinds(summary(), memory_document() | {"spec": None}) == []


def test_foreign_collections_are_counted() -> None:
    owners = build_claims([], cluster_id="cluster-1")

    assert count_foreign([summary(), summary(cluster_id="elsewhere"), summary(marker=None)], owners) == 1


@pytest.mark.parametrize(
    ("physical", "aliases"), [(PHYSICAL, (ALIAS,)), (PHYSICAL, ()), (ALIAS, ()), ("plain", ("b", ALIAS))]
)
def test_agent_is_read_from_alias_or_name(physical: str, aliases: tuple[str, ...]) -> None:
    assert slug_of_collection(summary(physical, aliases=aliases)) == "probe"


@pytest.mark.parametrize(
    "status", [{"physical": f"{ALIAS}__2"}, {"previousCollection": {"physical": f"{ALIAS}__2"}}, None]
)
def test_restore_collections_are_no_orphans(status: dict[str, Any] | None) -> None:
    owners = build_claims([OBJECT], cluster_id="cluster-1", restores=[restore_document(status)])

    orphans = list(find_orphans_in([summary(f"{ALIAS}__2", aliases=())], owners))

    assert bool(orphans) == (status is None)


@pytest.mark.parametrize("marker", [{}, {"marker": None}])
def test_foreign_status_hides_no_orphan(marker: dict[str, Any]) -> None:
    forged = {"collection": {"physical": f"{ALIAS}__2"}, "rebuild": {"source": f"{ALIAS}__2"}}
    thief = memory_document("thief", metadata={"namespace": "beta"}) | {"status": forged}
    restore = restore_document({"physical": f"{ALIAS}__2"}, namespace="beta")
    owners = build_claims([OBJECT, thief], cluster_id="cluster-1", restores=[restore])

    (orphan,) = find_orphans_in([summary(f"{ALIAS}__2", aliases=(), **marker)], owners)

    assert str(orphan.kind) == ("Unmarked" if marker else "Unreferenced")
