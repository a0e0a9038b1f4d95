"""CrewAI's memory on records of the agent `numbers`, which takes vectors of 8 numbers."""

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import MagicMock
from uuid import uuid4

import pytest
from crewai.memory.storage.backend import StorageBackend
from crewai.memory.storage.factory import set_memory_storage_factory
from crewai.memory.types import MemoryRecord
from crewai.memory.unified_memory import Memory

from agentmemory_client import ApiError, ApiUnreachable, Client, PreconditionFailed, User
from agentmemory_client.adapters.crewai import AgentMemoryStorage

EAST, NORTH = [1.0, *[0.0] * 7], [0.0, 1.0, *[0.0] * 6]
NORTH_EAST = [0.8, 0.6, *[0.0] * 6]


@pytest.fixture(scope="module", autouse=True)
def _no_telemetry() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CREWAI_DISABLE_TELEMETRY", "true")
        patch.setenv("OTEL_SDK_DISABLED", "true")
        yield


@pytest.fixture
def storage(client: Client) -> AgentMemoryStorage:
    return AgentMemoryStorage(client.agent("numbers"), f"crew-{uuid4().hex[:8]}")


def record(content: str = "a fact", embedding: list[float] | None = None, **fields: Any) -> MemoryRecord:
    return MemoryRecord(content=content, embedding=embedding or EAST, **fields)


def contents(records: list[MemoryRecord]) -> set[str]:
    return {record.content for record in records}


def test_storage_implements_the_protocol(storage: AgentMemoryStorage) -> None:
    assert isinstance(storage, StorageBackend)


def test_record_round_trip(storage: AgentMemoryStorage) -> None:
    fields = {"scope": "/crew/sales", "categories": ["näme, \U0001f600"], "metadata": {"n": 1, "deep": {"er": [None]}}}
    stored = record("Zoë 喝茶", importance=0.8, source="ada", private=True, **fields)
    storage.save([stored])

    assert storage.get_record(stored.id) == stored.model_copy(update={"embedding": None})
    assert storage.get_record("none") is None


def test_search_orders_by_similarity(storage: AgentMemoryStorage) -> None:
    storage.save(
        [record("north", NORTH, importance=1.0), record("east", EAST, importance=0.0), record("both", NORTH_EAST)]
    )

    found = storage.search(EAST, limit=2)
    assert [(record.content, round(score, 3)) for record, score in found] == [("east", 1.0), ("both", 0.8)]
    assert [record.content for record, _ in storage.search(EAST, min_score=0.9)] == ["east"]
    assert storage.search(EAST, limit=0) == []


def test_scope_includes_the_scopes_below_it_only(storage: AgentMemoryStorage) -> None:
    scopes = ("/", "/crew", "/crew/sales", "/crew/sales/east", "/crewless", "/x" + "/long" * 40)
    storage.save([record(scope, scope=scope) for scope in scopes])

    for prefix, expected in {
        None: set(scopes),
        "/": set(scopes),
        "/crew": {"/crew", "/crew/sales", "/crew/sales/east"},
        "crew/sales/": {"/crew/sales", "/crew/sales/east"},
        "/crew/sale": set[str](),
        "/x" + "/long" * 39: {scopes[-1]},
        "/x" + "/long" * 41: set[str](),
    }.items():
        assert contents(storage.list_records(prefix)) == expected
        assert {record.content for record, _ in storage.search(EAST, scope_prefix=prefix)} == expected
        assert storage.count(prefix) == len(expected)


def test_scopes_and_categories_are_listed(storage: AgentMemoryStorage) -> None:
    day = datetime(2026, 1, 1)
    storage.save(
        [
            record(scope="/", created_at=day, categories=["a"]),
            record(scope="/crew/sales/east", created_at=day + timedelta(days=2), categories=["a", "b"]),
            record(scope="/crew/ops", created_at=day + timedelta(days=1)),
        ]
    )

    assert storage.list_scopes() == ["/crew"]
    assert storage.list_scopes("/crew") == ["/crew/ops", "/crew/sales"]
    assert storage.list_categories() == {"a": 2, "b": 1}
    assert storage.list_categories("/crew") == {"a": 1, "b": 1}
    info = storage.get_scope_info("/crew")
    assert (info.record_count, info.categories, info.child_scopes) == (2, ["a", "b"], ["/crew/ops", "/crew/sales"])
    assert (info.oldest_record, info.newest_record) == (day + timedelta(days=1), day + timedelta(days=2))
    assert storage.get_scope_info("/none").record_count == 0


def test_records_are_listed_by_their_own_time(storage: AgentMemoryStorage) -> None:
    day = datetime(2026, 1, 1)
    storage.save([record(str(number), created_at=day + timedelta(days=number)) for number in (2, 0, 3, 1)])

    assert [record.content for record in storage.list_records(limit=2)] == ["3", "2"]
    assert [record.content for record in storage.list_records(limit=2, offset=3)] == ["0"]
    assert storage.list_records(limit=0) == []


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"categories": ["b", "c"]}, {"second"}),
        ({"metadata_filter": {"env": "prod"}}, {"first"}),
        ({"metadata_filter": {"n": 1}}, {"second"}),
        ({"metadata_filter": {"env": "prod", "n": 1}}, set()),
        ({"metadata_filter": {"a.b c": "x"}}, {"second"}),
        ({"metadata_filter": {"missing": None}}, {"first", "second"}),
    ],
)
def test_conditions_of_search_and_delete(
    storage: AgentMemoryStorage, conditions: dict[str, Any], expected: set[str]
) -> None:
    storage.save(
        [
            record("first", categories=["a"], metadata={"env": "prod"}),
            record("second", categories=["b"], metadata={"env": ["prod"], "n": 1, "a.b c": "x"}),
        ]
    )

    assert {record.content for record, _ in storage.search(EAST, **conditions)} == expected
    assert storage.delete(**conditions) == len(expected)
    assert contents(storage.list_records()) == {"first", "second"} - expected


def test_search_reads_on_until_enough_records_match(storage: AgentMemoryStorage) -> None:
    storage.save([record(str(number), metadata={"n": number}) for number in range(30)])
    storage.save([record("far", NORTH_EAST, metadata={"n": 99})])

    assert [record.content for record, _ in storage.search(EAST, metadata_filter={"n": 99}, limit=1)] == ["far"]


def test_no_ids_delete_nothing(storage: AgentMemoryStorage) -> None:
    old, new = record("old", created_at=datetime(2026, 1, 1)), record("new")
    storage.save([old, new])

    assert storage.delete(record_ids=[]) == 0
    assert storage.delete(record_ids=["none", old.id], older_than=datetime(2025, 1, 1)) == 0
    assert storage.delete(record_ids=["none", old.id, old.id]) == 1
    assert contents(storage.list_records()) == {"new"}
    assert storage.delete() == 1


def test_reset_of_a_scope_keeps_the_others(storage: AgentMemoryStorage, client: Client) -> None:
    other = AgentMemoryStorage(client.agent("numbers"), f"other-{uuid4().hex[:8]}")
    other.save([record("of another user")])
    storage.save([record("a", scope="/a"), record("b", scope="/b")])

    storage.reset("/a")
    assert contents(storage.list_records()) == {"b"}
    storage.reset()
    assert (storage.count(), other.count()) == (0, 1)


def test_update_replaces_the_record(storage: AgentMemoryStorage) -> None:
    stored = record("before", EAST, scope="/a")
    storage.save([stored])

    storage.update(stored.model_copy(update={"content": "after", "embedding": NORTH, "scope": "/b"}))
    assert [(record.content, record.scope) for record, _ in storage.search(NORTH, min_score=0.9)] == [("after", "/b")]
    assert storage.list_records("/a") == []
    assert storage.count() == 1


def test_update_without_embedding_keeps_the_vector(storage: AgentMemoryStorage) -> None:
    storage.save([record("a fact")])
    [stored] = storage.list_records()

    storage.update(stored.model_copy(update={"importance": 0.9, "scope": "/b", "metadata": {"k": "v"}}))
    [(found, score)] = storage.search(EAST, scope_prefix="/b")
    assert (found.importance, found.metadata, round(score, 3)) == (0.9, {"k": "v"}, 1.0)
    with pytest.raises(ValueError, match="embedding is required"):
        storage.update(stored.model_copy(update={"content": "another fact"}))


def test_update_keeps_a_concurrent_change(storage: AgentMemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer replaces the content after it was compared."""
    stored = record("a fact")
    storage.save([stored])
    read = storage._read

    def read_then_replace(record_id: str) -> Any:
        found = read(record_id)
        storage.save([stored.model_copy(update={"content": "another fact", "embedding": NORTH})])
        return found

    monkeypatch.setattr(storage, "_read", read_then_replace)
    with pytest.raises(PreconditionFailed):
        storage.update(stored.model_copy(update={"importance": 0.9, "embedding": None}))
    [kept] = storage.list_records()
    assert (kept.content, kept.importance) == ("another fact", stored.importance)


def test_long_and_blank_contents_round_trip(storage: AgentMemoryStorage) -> None:
    texts = {"ä" * 20_000, " \n"}
    storage.save([record(text) for text in texts])

    assert contents(storage.list_records()) == texts


def test_many_records_in_one_save(storage: AgentMemoryStorage) -> None:
    storage.save([record(str(number)) for number in range(250)])

    assert storage.count() == 250
    assert storage.delete() == 250


def test_vector_of_another_length_is_refused(storage: AgentMemoryStorage) -> None:
    for call in (lambda: storage.save([record("x", [1.0, 2.0])]), lambda: storage.search([1.0, 2.0])):
        with pytest.raises(ApiError, match="vector"):
            call()
    with pytest.raises(ApiError, match="vector"):
        storage.save([MemoryRecord(content="without a vector")])


def test_asynchronous_calls(storage: AgentMemoryStorage) -> None:
    async def use() -> tuple[int, int]:
        await storage.asave([record("a"), record("b", scope="/b")])
        found = await storage.asearch(EAST, scope_prefix="/b")
        return len(found), await storage.adelete(scope_prefix="/b")

    assert asyncio.run(use()) == (1, 1)
    assert storage.count() == 1


@pytest.fixture
def default_storage(storage: AgentMemoryStorage) -> Iterator[AgentMemoryStorage]:
    set_memory_storage_factory(lambda spec: storage if spec == "agentmemory" else None)
    yield storage
    set_memory_storage_factory(None)


def embed(texts: list[str]) -> list[list[float]]:
    return [NORTH if "north" in text else EAST for text in texts]


def test_memory_of_a_crew_uses_the_storage(default_storage: AgentMemoryStorage) -> None:
    with_fields = {"scope": "/project", "categories": ["decision"], "importance": 0.7}
    for _ in range(2):
        memory = Memory(storage="agentmemory", llm=MagicMock(), embedder=embed)
        memory.remember(f"we go north {uuid4()}", **with_fields)
        memory.remember_many([f"we go east {uuid4()}"], **with_fields)
        memory.close()

    # A closed memory of another crew does not close the storage.
    memory = Memory(storage="agentmemory", llm=MagicMock(), embedder=embed)
    found = memory.recall("north?", scope="/project", limit=5, depth="shallow")
    assert "north" in found[0].record.content
    assert memory.forget(scope="/project") == 4
    assert default_storage.count() == 0
    memory.close()


def test_outage_ends_no_background_save(unreachable: User) -> None:
    with Client("http://127.0.0.1:9", retries=0) as client:
        memory = Memory(storage=AgentMemoryStorage(client.agent("numbers"), "ada"), llm=MagicMock(), embedder=embed)
        memory.remember_many(["we go north"], scope="/a", categories=["c"], importance=0.5)
        memory.drain_writes()
        with pytest.raises(ApiUnreachable):
            memory.recall("north?", depth="shallow")
        memory.close()
