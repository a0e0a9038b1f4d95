"""The table of objects: what asks for a pass, and who owns a slug."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentmemory_operator.errors import LeadershipLost, SpecInvalid
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import (
    AGENT_MEMORY,
    MAX_PARSED_MEMORIES,
    Key,
    ObjectTable,
    Statuses,
    key_of,
    slug_of,
)
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from tests.support.engine.fakes import FakeClock, FakeCluster
from tests.support.spec.documents import connection_document, memory_document

KEY = Key("MemorySnapshot", "agents", "one")


def key(name: str, kind: str = AGENT_MEMORY) -> Key:
    return Key(kind, "agents", name)


def table_of(*documents: dict[str, Any]) -> ObjectTable:
    table = ObjectTable()
    for document in documents:
        table.put(document)
    return table


def test_a_key_names_kind_namespace_and_name() -> None:
    document = memory_document("a")
    del document["metadata"]["namespace"]

    assert key_of(document) == Key("AgentMemory", "default", "a")
    assert str(key("a")) == "AgentMemory agents/a"


@pytest.mark.parametrize(
    ("spec", "slug"), [({"agent": "bot"}, "bot"), ({}, "a"), ("nonsense", "a"), (None, "a"), ({"agent": 5}, "5")]
)
def test_an_object_claims_a_slug_valid_or_not(spec: object, slug: str) -> None:
    assert slug_of(memory_document("a") | {"spec": spec}) == slug


@pytest.mark.parametrize(
    ("metadata", "is_relevant"),
    [
        ({}, False),
        ({"generation": 2}, True),
        ({"uid": "another"}, True),
        ({"deletionTimestamp": "2026-01-02T00:00:00Z"}, True),
        ({"annotations": {"agentmemory.dev/confirm-delete": "x"}}, True),
        ({"annotations": {"agentmemory.dev/reconcile-requested-at": "now"}}, True),
        ({"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}, False),
        ({"annotations": None}, False),
        ({"resourceVersion": "8"}, False),
        ({"finalizers": ["a/b"]}, False),
        ({"labels": {"a": "b"}}, False),
    ],
)
def test_only_what_a_pass_acts_on_asks_for_one(metadata: dict[str, Any], is_relevant: bool) -> None:
    table = table_of(memory_document("a"))

    assert table.put(memory_document("a", metadata=metadata)) is is_relevant


def test_objects_are_listed_by_their_kind() -> None:
    table = table_of(memory_document("b"), connection_document("main"), memory_document("a"))

    table.remove(key("b"))

    assert table.keys(AGENT_MEMORY) == [key("a")]
    assert [document["metadata"]["name"] for document in table.documents("QdrantConnection")] == ["main"]
    assert table.documents("MemorySnapshot") == []


def test_a_new_object_asks_for_a_pass_and_its_status_does_not() -> None:
    table = ObjectTable()

    assert table.put(memory_document("a")) is True
    assert table.put(memory_document("a") | {"status": {"agent": "a"}}) is False
    assert (table.get(key("a")) or {})["status"] == {"agent": "a"}


@pytest.mark.parametrize(("told", "kept"), [(1, 1), (True, 1), ("many", None)])
def test_a_status_that_comes_back_as_it_was_read_is_kept_as_it_was_read(told: object, kept: object) -> None:
    table = table_of(memory_document("a") | {"status": {"observedGeneration": 1}})

    table.put(memory_document("a") | {"status": {"observedGeneration": told}})

    status = (table.get(key("a")) or {})["status"]
    assert (status.get("observedGeneration"), status.get("observedGeneration") is True) == (kept, False)


def test_an_object_is_judged_once_and_again_when_anything_of_it_is_new() -> None:
    table = table_of(memory_document("a"))
    document = table.get(key("a"))
    assert document is not None

    first = table.parse(document)
    again = table.parse(document)
    document["status"] = {"agent": "a"}
    written = table.parse(document)
    table.put(memory_document("a", agent="other"))
    changed = table.parse(table.get(key("a")) or {})

    assert again is first
    assert (written.spec is first.spec, written.status) == (True, {"agent": "a"})
    assert changed.slug == "other"


def test_an_object_that_comes_with_another_status_and_version_is_not_judged_again() -> None:
    table = table_of(memory_document("a", metadata={"resourceVersion": "1"}))
    first = table.parse(table.get(key("a")) or {})

    table.put(memory_document("a", metadata={"resourceVersion": "2"}) | {"status": {"agent": "a"}})
    second = table.parse(table.get(key("a")) or {})

    assert second.spec is first.spec
    assert (second.metadata.resource_version, second.status) == ("2", {"agent": "a"})
    assert (first.metadata.resource_version, first.status) == ("1", {})


@pytest.mark.parametrize(
    "metadata",
    [{"annotations": {"agentmemory.dev/a": "b"}}, {"uid": "another"}, {"deletionTimestamp": "2026-11-18T00:00:00Z"}],
)
def test_what_came_in_its_metadata_is_known_of_an_object_that_was_judged(metadata: dict[str, Any]) -> None:
    table = table_of(memory_document("a"))
    table.parse(table.get(key("a")) or {})

    table.put(memory_document("a", metadata=metadata))
    changed = table.parse(table.get(key("a")) or {}).metadata

    found = {name: getattr(changed, {"deletionTimestamp": "deletion_timestamp"}.get(name, name)) for name in metadata}
    assert found == metadata


def test_what_python_takes_for_equal_is_judged_again() -> None:
    table = table_of(memory_document("a", suspend=True))
    table.parse(table.get(key("a")) or {})
    table.put(memory_document("a", suspend=1))

    with pytest.raises(SpecInvalid):
        table.parse(table.get(key("a")) or {})


def test_few_objects_are_kept_as_they_were_judged() -> None:
    table = table_of(*(memory_document(f"a{number}") for number in range(MAX_PARSED_MEMORIES + 10)))

    for one in table.keys(AGENT_MEMORY):
        table.parse(table.get(one) or {})

    assert len(table._parsed) == MAX_PARSED_MEMORIES


def test_an_object_is_forgotten_with_its_claim() -> None:
    table = table_of(memory_document("a"))

    table.remove(key("a"))
    table.remove(key("a"))

    assert (table.get(key("a")), table.find_owner("a"), list(table.list_claimants("a"))) == (None, None, [])


def test_keys_come_sorted_and_of_one_kind() -> None:
    table = table_of(memory_document("b"), memory_document("a"), connection_document())

    assert table.keys(AGENT_MEMORY) == [key("a"), key("b")]


@pytest.mark.parametrize(
    ("one", "other", "owner"),
    [
        (("2026-01-01T00:00:00Z", "u2"), ("2026-01-02T00:00:00Z", "u1"), "one"),
        (("2026-01-01T00:00:00Z", "u2"), ("2026-01-01T00:00:00Z", "u1"), "other"),
        (("", "u2"), ("2026-01-01T00:00:00Z", "u1"), "one"),
    ],
)
def test_the_oldest_object_owns_the_slug_then_the_smallest_uid(
    one: tuple[str, str], other: tuple[str, str], owner: str
) -> None:
    documents = [
        memory_document(name, agent="bot", metadata={"creationTimestamp": created, "uid": uid})
        for name, (created, uid) in (("one", one), ("other", other))
    ]

    for order in (documents, documents[::-1]):
        assert table_of(*order).find_owner("bot") == key(owner)


def test_the_slug_goes_to_the_next_when_its_owner_is_gone() -> None:
    table = table_of(
        memory_document("old", agent="bot"),
        memory_document("new", agent="bot", metadata={"creationTimestamp": "2026-02-01T00:00:00Z"}),
    )

    table.remove(key("old"))

    assert table.find_owner("bot") == key("new")
    assert list(table.list_claimants("bot")) == [key("new")]


def test_a_changed_slug_leaves_no_claim_behind() -> None:
    table = table_of(memory_document("a", agent="one"))

    table.put(memory_document("a", agent="two"))

    assert (table.find_owner("one"), table.find_owner("two")) == (None, key("a"))


def test_a_connection_knows_its_users_in_its_own_namespace() -> None:
    table = table_of(
        memory_document("a"),
        memory_document("b", connectionRef={"name": "other"}),
        memory_document("c", metadata={"namespace": "elsewhere"}),
        memory_document("d") | {"spec": "nonsense"},
        memory_document("e", connectionRef=None),
    )

    assert table.find_users(key_of(connection_document())) == [key("a")]


def test_a_connection_s_users_may_be_of_other_namespaces() -> None:
    table = ObjectTable()
    table.put(memory_document("a", connectionRef={"name": "main", "namespace": "infra"}))
    table.put(memory_document("b", connectionRef={"name": "main"}))

    assert table.find_users(key_of(connection_document(namespace="infra"))) == [key("a")]
    assert table.find_users(key_of(connection_document())) == [key("b")]


def document(version: int = 1, uid: str = "u", **more: Any) -> Json:
    metadata = {"name": "one", "namespace": "agents", "uid": uid, "resourceVersion": str(version)}
    return {"kind": KEY.kind, "metadata": metadata} | more


@dataclass(slots=True)
class VersionedCluster(FakeCluster):
    """Gives the next write this version; by then the table has what came `meanwhile`.

    Attributes:
        answers_late: versions that are told only once it goes on.
    """

    version: str = "2"
    table: ObjectTable | None = None
    meanwhile: Json | None = None
    answers_late: set[str] = field(default_factory=set)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def write_status(self, kind: str, metadata: Metadata, status: Json) -> str:
        version = self.version
        await FakeCluster.write_status(self, kind, metadata, status)
        if self.table is not None and self.meanwhile is not None:
            self.table.put(self.meanwhile)
        if version in self.answers_late:
            await self.goes_on.wait()
        return version


class Scene:
    """A table with one object of version 1, whose first write has version 2."""

    def __init__(self) -> None:
        self.table = ObjectTable()
        self.cluster = VersionedCluster(table=self.table)
        self.statuses = Statuses(self.table, self.cluster, FakeClock())
        self.table.put(document())

    async def write(self, status: Json, *, version: int = 2, meanwhile: Json | None = None) -> bool:
        self.cluster.version, self.cluster.meanwhile = str(version), meanwhile
        found = self.table.get(KEY)
        assert found is not None
        return await self.statuses.write(found, Metadata.model_validate(found["metadata"]), status)

    @property
    def status(self) -> Json:
        return (self.table.get(KEY) or {}).get("status") or {}


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_what_was_written_is_known_at_once_and_not_written_twice(scene: Scene) -> None:
    assert await scene.write({"step": "Create"})
    scene.table.put(document())

    assert scene.status == {"step": "Create"}
    assert not await scene.write({"step": "Create"})
    assert len(scene.cluster.statuses) == 1


async def test_a_change_that_comes_late_keeps_the_status_that_was_written_after_it(scene: Scene) -> None:
    await scene.write({"step": "Create"}, version=3)
    scene.table.put(document(2, spec={"verify": "None"}, status={}))

    found = scene.table.get(KEY) or {}

    assert (found["spec"], found["status"]) == ({"verify": "None"}, {"step": "Create"})


@pytest.mark.parametrize("version", [2, 3])
async def test_once_it_has_come_or_was_passed_over_what_came_counts(scene: Scene, version: int) -> None:
    await scene.write({"step": "Create"})
    scene.table.put(document(version, status={"step": "Verify"}))
    assert scene.status == {"step": "Verify"}

    scene.table.put(document(version + 1, status={}))
    assert scene.status == {}


async def test_what_another_wrote_after_it_is_not_lost_where_the_watch_is_faster_than_the_answer(scene: Scene) -> None:
    await scene.write({"step": "Create"}, meanwhile=document(3, status={"step": "Verify"}))

    assert scene.status == {"step": "Verify"}


async def test_of_two_writes_the_later_one_stands_whichever_is_answered_first(scene: Scene) -> None:
    scene.cluster.answers_late.add("2")
    first = asyncio.create_task(scene.write({"step": "Create"}))
    await asyncio.sleep(0)
    await scene.write({"step": "Verify"}, version=3)
    scene.cluster.goes_on.set()
    await first

    assert scene.status == {"step": "Verify"}


async def test_what_the_server_holds_already_is_not_written_by_every_pass(scene: Scene) -> None:
    await scene.write({"known": 1, "of a later version": 2}, version=1)

    assert not await scene.write({"known": 1, "of a later version": 2})


async def test_another_object_of_the_name_begins_with_nothing(scene: Scene) -> None:
    await scene.write({"step": "Create"}, version=9)

    scene.table.put(document(2, uid="another"))
    assert scene.status == {}

    scene.table.put_status(KEY, "u", {"step": "Create"}, "10")
    assert scene.status == {}


async def test_an_object_that_went_leaves_nothing_to_one_of_its_name(scene: Scene) -> None:
    await scene.write({"step": "Create"}, version=9)
    scene.table.remove(KEY)

    scene.table.put(document(2))

    assert scene.status == {}


async def test_without_versions_whatever_comes_next_counts(scene: Scene) -> None:
    scene.cluster.version = ""
    found = scene.table.get(KEY) or {}
    await scene.statuses.write(found, Metadata.model_validate(found["metadata"]), {"step": "Create"})
    assert scene.status == {"step": "Create"}

    scene.table.put(document())

    assert scene.status == {}


async def test_what_was_not_written_is_not_known(scene: Scene) -> None:
    scene.cluster.error = LeadershipLost("another process leads")

    with pytest.raises(LeadershipLost):
        await scene.write({"step": "Create"})

    assert scene.status == {}
