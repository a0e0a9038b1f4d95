"""The witness of the fault tests finds each fault that is planted in a clean collection."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.support.cluster.witness.audit import faults_of_rows, read_points
from tests.support.cluster.witness.journal import Journal, Unit
from tests.support.cluster.witness.witness import SPEC, Witness, unit_vector_of
from tests.support.engine.agents import vector_of
from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import create_collection, dev_qdrant, running_api

Row = dict[str, Any]
Rows = dict[str, Row]
AGENT = agent_document("witness", **SPEC, index={"keyword": {"enabled": True}})
ALIAS = "agent_memory_witness"
POINTS = f"/collections/{ALIAS}/points"


def unit_of(journal: Journal, suits: Callable[[Unit], bool]) -> Unit:
    """Return a settled unit."""
    return next(unit for unit in journal.units if unit.is_settled and suits(unit))


class Planted:
    """A witness at rest, and the engine behind it, in which points are corrupted and repaired."""

    def __init__(self, witness: Witness, engine: httpx.Client) -> None:
        self.witness, self.engine = witness, engine

    def unit(self, suits: Callable[[Unit], bool]) -> Unit:
        return unit_of(self.witness.journal, suits)

    def point(self, memory_id: str) -> Row:
        query = {"ids": [memory_id], "with_payload": True, "with_vector": True}
        [found] = self.engine.post(POINTS, json=query).json()["result"]
        return {key: found[key] for key in ("id", "payload", "vector")}

    def put(self, point: Row) -> None:
        self.engine.put(f"{POINTS}?wait=true", json={"points": [point]}).raise_for_status()

    def drop(self, memory_id: str) -> None:
        self.engine.post(f"{POINTS}/delete?wait=true", json={"points": [memory_id]}).raise_for_status()


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    """A witness that has written and read for a while, without faults."""
    folder = tmp_path_factory.mktemp("witness")
    with dev_qdrant(folder) as url, httpx.Client(base_url=url, timeout=30) as engine:
        create_collection(url, AGENT)
        with running_api(url, AGENT) as stack:
            with Witness([stack.api_url], "witness") as witness:
                witness.wait_for(60)
            witness.check(url, ALIAS)
            yield Planted(witness, engine)


def is_kept(unit: Unit) -> bool:
    return unit.kind == "plain" and unit.head is not None


def has_versions(unit: Unit) -> bool:
    return unit.kind == "keyed" and len(unit.stored) > 1


def is_deleted(unit: Unit) -> bool:
    return unit.kind == "plain" and unit.versions[0].is_deleted


def lose(planted: Planted) -> tuple[str, str]:
    head = planted.unit(is_kept).stored[-1]
    planted.drop(head.id)
    return head.id, "lost"


def resurrect(planted: Planted) -> tuple[str, str]:
    unit = planted.unit(is_deleted)
    payload = planted.point(planted.unit(is_kept).stored[-1].id)["payload"]
    version = unit.versions[0]
    payload |= {"id": version.id, "userId": unit.user, "content": version.content, "tags": [unit.name]}
    planted.put({"id": version.id, "vector": {"": unit_vector_of(version.content)}, "payload": payload})
    return version.id, f"{version.id}: 200"


def revert_change(planted: Planted) -> tuple[str, str]:
    point = planted.point(planted.unit(lambda unit: is_kept(unit) and unit.stored[-1].importance != 0.5).stored[-1].id)
    planted.put(point | {"payload": point["payload"] | {"importance": 0.5}})
    return point["id"], "of importance 0.5"


def put_into_another_space(planted: Planted) -> tuple[str, str]:
    point = planted.point(planted.unit(is_kept).stored[-1].id)
    planted.put(point | {"vector": point["vector"] | {"": vector_of("another model")}})
    return point["id"], "at similarity .* to itself"


FAULTS = (lose, resurrect, revert_change, put_into_another_space)


@pytest.mark.parametrize("plant", FAULTS, ids=[plant.__name__ for plant in FAULTS])
def test_fault_visible_in_the_api_is_found(planted: Planted, plant: Callable[[Planted], tuple[str, str]]) -> None:
    before = {point["id"]: point for point in read_points(planted.engine, ALIAS)}
    changed, message = plant(planted)
    try:
        with pytest.raises(AssertionError, match=message):
            planted.witness.check(str(planted.engine.base_url), ALIAS)
    finally:
        planted.put(before[changed]) if changed in before else planted.drop(changed)
        planted.witness.journal.faults.clear()


def missing(rows: Rows, journal: Journal) -> str:
    del rows[unit_of(journal, is_kept).stored[-1].id]
    return "lost"


def two_heads(rows: Rows, journal: Journal) -> str:
    del rows[unit_of(journal, has_versions).stored[-2].id]["supersededById"]
    return "2 heads"


def no_head(rows: Rows, journal: Journal) -> str:
    rows[unit_of(journal, has_versions).stored[-1].id]["supersededById"] = str(uuid.uuid4())
    return "does not follow"


def stored_twice(rows: Rows, journal: Journal) -> str:
    other = str(uuid.uuid4())
    rows[other] = rows[unit_of(journal, is_kept).stored[-1].id] | {"id": other}
    return "is there 2 times"


def left_pending(rows: Rows, journal: Journal) -> str:
    rows[unit_of(journal, is_kept).stored[-1].id]["pending"] = True
    return "is still pending"


def lower_revision(rows: Rows, journal: Journal) -> str:
    rows[unit_of(journal, lambda unit: is_kept(unit) and unit.stored[-1].changes > 1).stored[-1].id]["rev"] = 1
    return "rev 1 after"


def no_revision(rows: Rows, journal: Journal) -> str:
    rows[unit_of(journal, is_kept).stored[-1].id]["rev"] = None
    return "has rev None"


def resurrected(rows: Rows, journal: Journal) -> str:
    version, other = unit_of(journal, is_deleted).versions[0], rows[unit_of(journal, is_kept).stored[-1].id]
    rows[version.id] = other | {"id": version.id, "content": version.content}
    return "deleted, and back"


def forgotten_user_back(rows: Rows, journal: Journal) -> str:
    rows[unit_of(journal, is_kept).stored[-1].id]["userId"] = next(iter(journal.forgotten))
    return "forgotten users are back"


def never_stored(rows: Rows, journal: Journal) -> str:
    rows[unit_of(journal, is_kept).stored[-1].id]["content"] = "nobody said this"
    return "nobody stored it"


CORRUPTIONS = (
    missing,
    two_heads,
    no_head,
    stored_twice,
    left_pending,
    lower_revision,
    no_revision,
    resurrected,
    forgotten_user_back,
    never_stored,
)


@pytest.mark.parametrize("spoil", CORRUPTIONS, ids=[spoil.__name__ for spoil in CORRUPTIONS])
def test_fault_in_stored_points_is_found(planted: Planted, spoil: Callable[[Rows, Journal], str]) -> None:
    rows = {point["id"]: point["payload"] for point in read_points(planted.engine, ALIAS)}
    journal = planted.witness.journal
    assert faults_of_rows(rows, journal) == []

    message = spoil(rows, journal)

    assert any(message in fault for fault in faults_of_rows(rows, journal))
