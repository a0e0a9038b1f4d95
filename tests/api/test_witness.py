"""The witness of the fault tests finds each fault that is planted in a clean collection."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.support.cluster.traffic.audit import audit, read_points
from tests.support.cluster.traffic.journal import Entry, Journal, Unit
from tests.support.cluster.traffic.model import Kind
from tests.support.cluster.traffic.witness import SPEC, Witness, unit_vector_of
from tests.support.engine.agents import vector_of
from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import create_collection, running_api
from tests.support.web.dev_qdrant import dev_qdrant

Row = dict[str, Any]
Points = dict[str, Row]
AGENT = agent_document("witness", **SPEC, index={"keyword": {"enabled": True}})
ALIAS = "agent_memory_witness"
POINTS = f"/collections/{ALIAS}/points"


def head_id(journal: Journal, suits: Callable[[Unit], bool]) -> str:
    """Return the id of the newest version of a unit."""
    return next(unit for unit in journal.units if not unit.in_doubt and suits(unit)).stored[-1].id


class Planted:
    """A witness at rest, and the engine behind it, in which points are corrupted and repaired."""

    def __init__(self, witness: Witness, engine: httpx.Client) -> None:
        self.journal, self.witness, self.engine = witness.journal, witness, engine

    def put(self, point: Row) -> None:
        self.engine.put(f"{POINTS}?wait=true", json={"points": [point]}).raise_for_status()

    def drop(self, memory_id: str) -> None:
        self.engine.post(f"{POINTS}/delete?wait=true", json={"points": [memory_id]}).raise_for_status()

    def points(self) -> Points:
        """Return all points by id."""
        found = read_points(self.engine, ALIAS)
        return {point["id"]: {key: point[key] for key in ("id", "payload", "vector")} for point in found}


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


def edited(journal: Journal) -> str:
    """Return the id of an edited memory."""
    changed = {target for entry in journal.entries for target in entry.operation.targets if is_edit(entry)}
    return head_id(journal, lambda unit: is_kept(unit) and unit.stored[-1].content in changed)


def is_edit(entry: Entry) -> bool:
    return entry.operation.kind is Kind.EDIT


def back(journal: Journal, points: Points, user: str, content: str) -> None:
    """Add a point for a memory, as the API would store it."""
    other, made = points[head_id(journal, is_kept)], str(uuid.uuid4())
    payload = {key: value for key, value in other["payload"].items() if key not in ("supersedesId", "key")}
    payload |= {"id": made, "userId": user, "content": content}
    points[made] = {"id": made, "payload": payload, "vector": {"": unit_vector_of(content)}}


def missing(journal: Journal, points: Points) -> str:
    del points[head_id(journal, is_kept)]
    return "misses what has to be there"


def resurrected(journal: Journal, points: Points) -> str:
    unit = next(unit for unit in journal.units if unit.kind == "plain" and unit.versions[0].is_deleted)
    del points[unit.versions[0].id]
    back(journal, points, unit.user, unit.versions[0].content)
    return "finds what cannot be there"


def forgotten_user_back(journal: Journal, points: Points) -> str:
    user = min(journal.forgotten)
    stored = [entry.operation.content for entry in journal.entries if entry.operation.user == user]
    back(journal, points, user, stored[0])
    return "finds what cannot be there"


def change_reverted(journal: Journal, points: Points) -> str:
    points[edited(journal)]["payload"]["importance"] = 0.5
    return "its importance is 0.5, not"


def in_another_space(journal: Journal, points: Points) -> str:
    points[head_id(journal, is_kept)]["vector"][""] = vector_of("another model")
    return "at similarity .* to itself"


VISIBLE = (missing, resurrected, forgotten_user_back, change_reverted, in_another_space)


@pytest.mark.parametrize("spoil", VISIBLE, ids=lambda spoil: spoil.__name__)
def test_fault_visible_in_the_api_is_found(planted: Planted, spoil: Callable[[Journal, Points], str]) -> None:
    before, points = planted.points(), planted.points()
    message = spoil(planted.journal, points)
    try:
        apply(planted, before, points)
        with pytest.raises(AssertionError, match=message):
            planted.witness.check(str(planted.engine.base_url), ALIAS)
    finally:
        apply(planted, points, before)


def apply(planted: Planted, before: Points, after: Points) -> None:
    """Change the points in the engine from `before` to `after`."""
    for key in before.keys() - after.keys():
        planted.drop(key)
    for key, point in after.items():
        if point != before.get(key):
            planted.put(point)


def two_heads(journal: Journal, points: Points) -> str:
    [before] = [points[head_id(journal, has_versions)]["payload"]["supersedesId"]]
    del points[before]["payload"]["supersededById"]
    return "what it follows is still a head"


def heads_of_one_identity(journal: Journal, points: Points) -> str:
    two_heads(journal, points)
    return "an identity has several heads"


def replaced_found(journal: Journal, points: Points) -> str:
    two_heads(journal, points)
    return "a search finds what cannot be there"


def no_head(journal: Journal, points: Points) -> str:
    points[head_id(journal, has_versions)]["payload"]["supersededById"] = str(uuid.uuid4())
    return "it is replaced by what is not there"


def broken_link(journal: Journal, points: Points) -> str:
    other = head_id(journal, is_kept)
    points[head_id(journal, has_versions)]["payload"]["supersededById"] = other
    return "it is replaced by what does not follow it"


def predecessor_gone(journal: Journal, points: Points) -> str:
    del points[points[head_id(journal, has_versions)]["payload"]["supersedesId"]]
    return "what it follows is still a head"


def stored_twice(journal: Journal, points: Points) -> str:
    content = points[head_id(journal, is_kept)]["payload"]["content"]
    back(journal, points, "user-0", content)
    return "it is stored more than once"


def never_stored(journal: Journal, points: Points) -> str:
    points[head_id(journal, is_kept)]["payload"]["content"] = "nobody said this"
    return "nobody stored it"


def lower_revision(journal: Journal, points: Points) -> str:
    points[edited(journal)]["payload"]["rev"] = 1
    return "its rev is too low"


def tombstone_with_vector(journal: Journal, points: Points) -> str:
    gone = next(point for point in points.values() if "content" not in point["payload"])
    gone["vector"] = {"": unit_vector_of("anything")}
    return "a tombstone has a vector"


def other_vector(journal: Journal, points: Points) -> str:
    points[head_id(journal, is_kept)]["vector"][""] = vector_of("another model")
    return "it has another text's or model's vector"


def no_vector(journal: Journal, points: Points) -> str:
    points[head_id(journal, is_kept)]["vector"] = {}
    return "it has no vector"


FIELDS: dict[str, tuple[str, Any]] = {
    "it is still pending": ("pending", True),
    "it has an invalid rev": ("rev", None),
    "it has an invalid updatedAt": ("updatedAt", 1 << 60),
    "a point has another id": ("id", str(uuid.uuid4())),
}
CORRUPTIONS = (
    *(missing, resurrected, forgotten_user_back, never_stored, stored_twice, lower_revision, replaced_found),
    *(two_heads, heads_of_one_identity, no_head, broken_link, predecessor_gone),
    *(tombstone_with_vector, other_vector, no_vector),
)


def test_clean_points_are_accepted(planted: Planted) -> None:
    assert audit(planted.journal, planted.points().values(), vector_of=unit_vector_of) == []


@pytest.mark.parametrize("spoil", CORRUPTIONS, ids=lambda spoil: spoil.__name__)
def test_fault_in_stored_points_is_found(planted: Planted, spoil: Callable[[Journal, Points], str]) -> None:
    points = planted.points()

    message = spoil(planted.journal, points)

    assert_found(message, planted.journal, points)


@pytest.mark.parametrize("message", FIELDS)
def test_invalid_field_is_found(planted: Planted, message: str) -> None:
    points, (name, value) = planted.points(), FIELDS[message]

    points[head_id(planted.journal, is_kept)]["payload"][name] = value

    assert_found(message, planted.journal, points)


def assert_found(message: str, journal: Journal, points: Points) -> None:
    assert any(message in each.what for each in audit(journal, points.values(), vector_of=unit_vector_of))
