"""Object table: requests for passes, slug ownership, and cached objects and statuses."""

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


def test_key_has_kind_namespace_and_name() -> None:
    document = memory_document("a")
    del document["metadata"]["namespace"]

    assert key_of(document) == Key("AgentMemory", "default", "a")
    assert str(key("a")) == "AgentMemory agents/a"


@pytest.mark.parametrize(
    ("spec", "slug"), [({"agent": "bot"}, "bot"), ({}, "a"), ("nonsense", "a"), (None, "a"), ({"agent": 5}, "5")]
)
def test_invalid_object_claims_a_slug(spec: object, slug: str) -> None:
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
def test_only_relevant_changes_request_a_pass(metadata: dict[str, Any], is_relevant: bool) -> None:
    table = table_of(memory_document("a"))

    assert table.put(memory_document("a", metadata=metadata)) is is_relevant


def test_objects_are_listed_by_kind() -> None:
    table = table_of(memory_document("b"), connection_document("main"), memory_document("a"))

    table.remove(key("b"))

    assert table.keys(AGENT_MEMORY) == [key("a")]
    assert [document["metadata"]["name"] for document in table.documents("QdrantConnection")] == ["main"]
    assert table.documents("MemorySnapshot") == []


def test_status_change_requests_no_pass() -> None:
    table = ObjectTable()

    assert table.put(memory_document("a")) is True
    assert table.put(memory_document("a") | {"status": {"agent": "a"}}) is False
    assert (table.get(key("a")) or {})["status"] == {"agent": "a"}


@pytest.mark.parametrize(("value", "kept"), [(1, 1), (True, 1), ("many", None)])
def test_unchanged_status_keeps_parsed_value(value: object, kept: object) -> None:
    table = table_of(memory_document("a") | {"status": {"observedGeneration": 1}})

    table.put(memory_document("a") | {"status": {"observedGeneration": value}})

    status = (table.get(key("a")) or {})["status"]
    assert (status.get("observedGeneration"), status.get("observedGeneration") is True) == (kept, False)


def test_object_is_parsed_once_per_spec() -> None:
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


def test_new_status_and_version_do_not_reparse() -> None:
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
def test_parsed_object_gets_new_metadata(metadata: dict[str, Any]) -> None:
    table = table_of(memory_document("a"))
    table.parse(table.get(key("a")) or {})

    table.put(memory_document("a", metadata=metadata))
    changed = table.parse(table.get(key("a")) or {}).metadata

    found = {name: getattr(changed, {"deletionTimestamp": "deletion_timestamp"}.get(name, name)) for name in metadata}
    assert found == metadata


def test_equal_value_of_other_type_is_parsed_again() -> None:
    table = table_of(memory_document("a", suspend=True))
    table.parse(table.get(key("a")) or {})
    table.put(memory_document("a", suspend=1))

    with pytest.raises(SpecInvalid):
        table.parse(table.get(key("a")) or {})


def test_parse_cache_is_limited() -> None:
    table = table_of(*(memory_document(f"a{number}") for number in range(MAX_PARSED_MEMORIES + 10)))

    for parsed_key in table.keys(AGENT_MEMORY):
        table.parse(table.get(parsed_key) or {})

    assert len(table._parsed) == MAX_PARSED_MEMORIES


def test_removed_object_releases_its_claim() -> None:
    table = table_of(memory_document("a"))

    table.remove(key("a"))
    table.remove(key("a"))

    assert (table.get(key("a")), table.find_owner("a"), list(table.list_claimants("a"))) == (None, None, [])


def test_keys_are_sorted_and_of_one_kind() -> None:
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
def test_oldest_object_then_smallest_uid_owns_slug(one: tuple[str, str], other: tuple[str, str], owner: str) -> None:
    documents = [
        memory_document(name, agent="bot", metadata={"creationTimestamp": created, "uid": uid})
        for name, (created, uid) in (("one", one), ("other", other))
    ]

    for order in (documents, documents[::-1]):
        assert table_of(*order).find_owner("bot") == key(owner)


def test_slug_passes_to_next_claimant() -> None:
    table = table_of(
        memory_document("old", agent="bot"),
        memory_document("new", agent="bot", metadata={"creationTimestamp": "2026-02-01T00:00:00Z"}),
    )

    table.remove(key("old"))

    assert table.find_owner("bot") == key("new")
    assert list(table.list_claimants("bot")) == [key("new")]


def test_changed_slug_releases_old_claim() -> None:
    table = table_of(memory_document("a", agent="one"))

    table.put(memory_document("a", agent="two"))

    assert (table.find_owner("one"), table.find_owner("two")) == (None, key("a"))


def test_connection_finds_users_in_own_namespace() -> None:
    table = table_of(
        memory_document("a"),
        memory_document("b", connectionRef={"name": "other"}),
        memory_document("c", metadata={"namespace": "elsewhere"}),
        memory_document("d") | {"spec": "nonsense"},
        memory_document("e", connectionRef=None),
    )

    assert table.find_users(key_of(connection_document())) == [key("a")]


def test_connection_finds_users_in_other_namespaces() -> None:
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
    """Returns `version` for the next write, after putting the event `concurrent_event` into the table.

    Attributes:
        delayed_versions: Versions whose responses wait for `resume`.
    """

    version: str = "2"
    table: ObjectTable | None = None
    concurrent_event: Json | None = None
    delayed_versions: set[str] = field(default_factory=set)
    resume: asyncio.Event = field(default_factory=asyncio.Event)

    async def write_status(self, kind: str, metadata: Metadata, status: Json) -> str:
        version = self.version
        await FakeCluster.write_status(self, kind, metadata, status)
        if self.table is not None and self.concurrent_event is not None:
            self.table.put(self.concurrent_event)
        if version in self.delayed_versions:
            await self.resume.wait()
        return version


class Scene:
    """Table with one object of version 1, whose first write has version 2."""

    def __init__(self) -> None:
        self.table = ObjectTable()
        self.cluster = VersionedCluster(table=self.table)
        self.statuses = Statuses(self.table, self.cluster, FakeClock())
        self.table.put(document())

    async def write(self, status: Json, *, version: int = 2, concurrent_event: Json | None = None) -> bool:
        self.cluster.version, self.cluster.concurrent_event = str(version), concurrent_event
        found = self.table.get(KEY)
        assert found is not None
        return await self.statuses.write(found, Metadata.model_validate(found["metadata"]), status)

    @property
    def status(self) -> Json:
        return (self.table.get(KEY) or {}).get("status") or {}


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_written_status_is_visible_at_once(scene: Scene) -> None:
    assert await scene.write({"step": "Create"})
    scene.table.put(document())

    assert scene.status == {"step": "Create"}
    assert not await scene.write({"step": "Create"})
    assert len(scene.cluster.statuses) == 1


async def test_late_event_keeps_newer_status(scene: Scene) -> None:
    await scene.write({"step": "Create"}, version=3)
    scene.table.put(document(2, spec={"verify": "None"}, status={}))

    found = scene.table.get(KEY) or {}

    assert (found["spec"], found["status"]) == ({"verify": "None"}, {"step": "Create"})


@pytest.mark.parametrize("version", [2, 3])
async def test_watched_status_wins_once_caught_up(scene: Scene, version: int) -> None:
    await scene.write({"step": "Create"})
    scene.table.put(document(version, status={"step": "Verify"}))
    assert scene.status == {"step": "Verify"}

    scene.table.put(document(version + 1, status={}))
    assert scene.status == {}


async def test_watch_faster_than_response_wins(scene: Scene) -> None:
    await scene.write({"step": "Create"}, concurrent_event=document(3, status={"step": "Verify"}))

    assert scene.status == {"step": "Verify"}


async def test_later_write_wins_in_any_response_order(scene: Scene) -> None:
    scene.cluster.delayed_versions.add("2")
    first = asyncio.create_task(scene.write({"step": "Create"}))
    await asyncio.sleep(0)
    await scene.write({"step": "Verify"}, version=3)
    scene.cluster.resume.set()
    await first

    assert scene.status == {"step": "Verify"}


async def test_identical_status_is_not_rewritten(scene: Scene) -> None:
    await scene.write({"known": 1, "of a later version": 2}, version=1)

    assert not await scene.write({"known": 1, "of a later version": 2})


async def test_recreated_object_has_no_status(scene: Scene) -> None:
    await scene.write({"step": "Create"}, version=9)

    scene.table.put(document(2, uid="another"))
    assert scene.status == {}

    scene.table.put_status(KEY, "u", {"step": "Create"}, "10")
    assert scene.status == {}


async def test_removed_object_leaves_no_status(scene: Scene) -> None:
    await scene.write({"step": "Create"}, version=9)
    scene.table.remove(KEY)

    scene.table.put(document(2))

    assert scene.status == {}


async def test_unversioned_write_yields_to_next_event(scene: Scene) -> None:
    scene.cluster.version = ""
    found = scene.table.get(KEY) or {}
    await scene.statuses.write(found, Metadata.model_validate(found["metadata"]), {"step": "Create"})
    assert scene.status == {"step": "Create"}

    scene.table.put(document())

    assert scene.status == {}


async def test_failed_write_is_not_visible(scene: Scene) -> None:
    scene.cluster.error = LeadershipLost("another process leads")

    with pytest.raises(LeadershipLost):
        await scene.write({"step": "Create"})

    assert scene.status == {}
