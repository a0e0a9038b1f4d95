"""Which collections nothing owns: from the markers, the aliases and the objects that exist."""

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


def holding(physical: str = PHYSICAL, *, aliases: tuple[str, ...] = (ALIAS,), **marker: Any) -> CollectionSummary:
    """Return the collection of agents/probe of cluster-1; `marker=None` is one without."""
    made = desired_of().marker
    assert made is not None
    owner = None if marker.get("marker", made) is None else replace(made, **marker)
    return CollectionSummary(physical=physical, aliases=aliases, points=3, size=8, distance="Cosine", marker=owner)


def found(held: CollectionSummary, *documents: dict[str, Any]) -> list[str]:
    owners = build_claims(documents, cluster_id="cluster-1")
    return [str(orphan.kind) for orphan in find_orphans_in([held], owners)]


def restore_document(status: object, *, namespace: str = "agents") -> dict[str, Any]:
    return {"kind": "MemoryRestore", "metadata": {"name": "undo", "namespace": namespace}, "status": status}


OBJECT = memory_document()


@pytest.mark.parametrize(
    ("held", "documents", "kinds"),
    [
        pytest.param(holding(), [OBJECT], [], id="its object lives"),
        pytest.param(holding(), [], ["ObjectGone"], id="its object is gone"),
        pytest.param(holding(), [memory_document("other", agent="probe")], ["ObjectGone"], id="another has its slug"),
        pytest.param(holding(aliases=()), [], ["ObjectGone"], id="its object is gone, and the alias"),
        pytest.param(holding(cluster_id="elsewhere"), [], [], id="another cluster's"),
        pytest.param(holding(marker=None), [], ["Unmarked"], id="nobody marked it"),
        pytest.param(holding(marker=None), [OBJECT], [], id="nobody marked it, and an object asks for it"),
        pytest.param(holding(f"{ALIAS}__2", aliases=()), [OBJECT], ["Unreferenced"], id="left behind"),
        pytest.param(replace(holding(f"{ALIAS}__2", aliases=()), is_kept=True), [OBJECT], [], id="kept for a way back"),
        pytest.param(replace(holding(aliases=()), is_kept=True), [], ["ObjectGone"], id="kept, and its object is gone"),
    ],
)
def test_a_collection_is_an_orphan(held: CollectionSummary, documents: list[dict[str, Any]], kinds: list[str]) -> None:
    assert found(held, *documents) == kinds


def test_a_collection_that_a_status_names_is_not_left_behind_while_its_alias_is_missing() -> None:
    document = memory_document() | {"status": {"collection": {"physical": PHYSICAL}}}

    assert found(holding(aliases=()), document) == []


def test_an_object_that_cannot_be_read_still_owns() -> None:
    assert found(holding(), memory_document() | {"spec": None}) == []


def test_other_clusters_collections_are_counted() -> None:
    owners = build_claims([], cluster_id="cluster-1")

    assert count_foreign([holding(), holding(cluster_id="elsewhere"), holding(marker=None)], owners) == 1


@pytest.mark.parametrize(
    ("physical", "aliases"), [(PHYSICAL, (ALIAS,)), (PHYSICAL, ()), (ALIAS, ()), ("plain", ("b", ALIAS))]
)
def test_the_agent_is_read_from_alias_or_name(physical: str, aliases: tuple[str, ...]) -> None:
    assert slug_of_collection(holding(physical, aliases=aliases)) == "probe"


@pytest.mark.parametrize(
    "status", [{"physical": f"{ALIAS}__2"}, {"previousCollection": {"physical": f"{ALIAS}__2"}}, None]
)
def test_what_a_restore_makes_or_replaces_is_not_left_behind(status: dict[str, Any] | None) -> None:
    owners = build_claims([OBJECT], cluster_id="cluster-1", restores=[restore_document(status)])

    orphans = list(find_orphans_in([holding(f"{ALIAS}__2", aliases=())], owners))

    assert bool(orphans) == (status is None)


@pytest.mark.parametrize("marker", [{}, {"marker": None}])
def test_what_another_namespaces_status_says_hides_no_collection(marker: dict[str, Any]) -> None:
    forged = {"collection": {"physical": f"{ALIAS}__2"}, "rebuild": {"source": f"{ALIAS}__2"}}
    thief = memory_document("thief", metadata={"namespace": "beta"}) | {"status": forged}
    restore = restore_document({"physical": f"{ALIAS}__2"}, namespace="beta")
    owners = build_claims([OBJECT, thief], cluster_id="cluster-1", restores=[restore])

    (orphan,) = find_orphans_in([holding(f"{ALIAS}__2", aliases=(), **marker)], owners)

    assert str(orphan.kind) == ("Unmarked" if marker else "Unreferenced")
