"""The table of objects: what asks for a pass, and who owns a slug."""

from typing import Any

import pytest

from agentmemory_operator.services.objects import AGENT_MEMORY, Key, ObjectTable, key_of, slug_of
from tests.support.fakes import connection_document, memory_document


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


def test_an_object_is_forgotten_with_its_claim() -> None:
    table = table_of(memory_document("a"))

    table.remove(key("a"))
    table.remove(key("a"))

    assert (table.get(key("a")), table.owner_of("a"), list(table.claimants_of("a"))) == (None, None, [])


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
        assert table_of(*order).owner_of("bot") == key(owner)


def test_the_slug_goes_to_the_next_when_its_owner_is_gone() -> None:
    table = table_of(
        memory_document("old", agent="bot"),
        memory_document("new", agent="bot", metadata={"creationTimestamp": "2026-02-01T00:00:00Z"}),
    )

    table.remove(key("old"))

    assert table.owner_of("bot") == key("new")
    assert list(table.claimants_of("bot")) == [key("new")]


def test_a_changed_slug_leaves_no_claim_behind() -> None:
    table = table_of(memory_document("a", agent="one"))

    table.put(memory_document("a", agent="two"))

    assert (table.owner_of("one"), table.owner_of("two")) == (None, key("a"))


def test_a_connection_knows_its_users_in_its_own_namespace() -> None:
    table = table_of(
        memory_document("a"),
        memory_document("b", connectionRef={"name": "other"}),
        memory_document("c", metadata={"namespace": "elsewhere"}),
        memory_document("d") | {"spec": "nonsense"},
        memory_document("e", connectionRef=None),
    )

    assert table.users_of(key_of(connection_document())) == [key("a")]


def test_a_connection_s_users_may_be_of_other_namespaces() -> None:
    table = ObjectTable()
    table.put(memory_document("a", connectionRef={"name": "main", "namespace": "infra"}))
    table.put(memory_document("b", connectionRef={"name": "main"}))

    assert table.users_of(key_of(connection_document(namespace="infra"))) == [key("a")]
    assert table.users_of(key_of(connection_document())) == [key("b")]
