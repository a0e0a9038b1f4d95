"""Pydantic AI's memory capability on files of the agent `words`."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai_harness.memory import (
    Memory,
    MemoryConflictError,
    MemoryMutation,
    MemoryOperation,
    MemoryOperationConflictError,
    MemoryStore,
    MetadataMemoryStore,
    SearchableMemoryStore,
)

from agentmemory_client import Agent, ApiError, ApiUnreachable, Client
from agentmemory_client.adapters.files import UserFiles
from agentmemory_client.adapters.pydantic_ai import AgentMemoryStore

OPERATION = MemoryOperation(id="run-1:call-1", fingerprint="write a.md one")


@pytest.fixture
def store(agent: Agent, owner: str) -> AgentMemoryStore:
    return AgentMemoryStore(agent, owner)


async def read(store: AgentMemoryStore, path: str) -> str | None:
    file = await store.read(path, max_chars=100_000)
    return file and file.content


async def write_all(store: AgentMemoryStore, *paths: str) -> None:
    for path in paths:
        await store.write(path, path, expected_version=None)


def test_store_implements_the_protocols(store: AgentMemoryStore) -> None:
    assert isinstance(store, MemoryStore)
    assert isinstance(store, SearchableMemoryStore)
    assert isinstance(store, MetadataMemoryStore)


async def test_version_must_be_the_expected_one(store: AgentMemoryStore) -> None:
    with pytest.raises(MemoryConflictError):
        await store.write("a.md", "one", expected_version="1")
    first = await store.write("a.md", "one", expected_version=None)
    with pytest.raises(MemoryConflictError):
        await store.write("a.md", "two", expected_version=None)
    second = await store.write("a.md", "two", expected_version=first.version)
    with pytest.raises(MemoryConflictError):
        await store.delete("a.md", expected_version=first.version)
    with pytest.raises(MemoryConflictError):
        await store.delete("a.md", expected_version=None)

    assert await read(store, "a.md") == "two"
    assert await store.delete("a.md", expected_version=second.version) == MemoryMutation(None, False, True)
    assert await read(store, "a.md") is None


async def test_versions_never_repeat(store: AgentMemoryStore) -> None:
    versions = set[str | None]()
    for _ in range(3):
        created = await store.write("a.md", "same", expected_version=None)
        replaced = await store.write("a.md", "same", expected_version=created.version)
        versions |= {created.version, replaced.version}
        await store.delete("a.md", expected_version=replaced.version)

    assert len(versions) == 6


async def test_one_of_several_writers_wins(agent: Agent, owner: str, store: AgentMemoryStore) -> None:
    stores = [AgentMemoryStore(agent, owner) for _ in range(8)]
    for expected in (None, (await store.write("b.md", "first", expected_version=None)).version):
        path = "a.md" if expected is None else "b.md"
        writes = [each.write(path, str(number), expected_version=expected) for number, each in enumerate(stores)]
        results = await asyncio.gather(*writes, return_exceptions=True)

        [winner] = [number for number, result in enumerate(results) if isinstance(result, MemoryMutation)]
        assert sum(isinstance(result, MemoryConflictError) for result in results) == 7
        assert await read(store, path) == str(winner)


async def test_operation_takes_effect_once(store: AgentMemoryStore) -> None:
    assert await store.get_operation(OPERATION) is None
    first = await store.write("a.md", "one", expected_version=None, operation=OPERATION)
    assert await store.get_operation(OPERATION) == MemoryMutation(first.version, True, False)
    # Also after later writes and a deletion, and with a version that is not expected any more.
    later = await store.write("a.md", "two", expected_version=first.version)
    again = await store.write("a.md", "one", expected_version=None, operation=OPERATION)
    assert (again.version, again.replayed, await read(store, "a.md")) == (first.version, True, "two")
    await store.delete("a.md", expected_version=later.version)
    assert await store.get_operation(OPERATION) == again

    for call in (store.get_operation, lambda other: store.delete("b.md", expected_version=None, operation=other)):
        with pytest.raises(MemoryOperationConflictError):
            await call(MemoryOperation(OPERATION.id, "another"))


async def test_metadata_is_that_of_the_last_write(store: AgentMemoryStore) -> None:
    async def metadata() -> Any:
        file = await store.read("a.md", max_chars=10)
        return file and file.metadata

    first = await store.write_with_metadata("a.md", "one", expected_version=None, metadata={"by": "ada"})
    assert await metadata() == {"by": "ada"}
    options = {"expected_version": first.version, "operation": OPERATION}
    second = await store.write_with_metadata("a.md", "two", metadata={"by": "bob"}, **options)
    assert (await store.write_with_metadata("a.md", "two", metadata={"by": "eve"}, **options)).replayed
    assert await metadata() == {"by": "bob"}
    third = await store.write("a.md", "three", expected_version=second.version)
    assert await metadata() is None
    await store.write_with_metadata("a.md", "four", expected_version=third.version, metadata={})
    assert await metadata() is None


async def test_concurrent_attempts_of_an_operation(agent: Agent, owner: str, store: AgentMemoryStore) -> None:
    stores = [AgentMemoryStore(agent, owner) for _ in range(4)]
    writes = [each.write("a.md", "one", expected_version=None, operation=OPERATION) for each in stores]
    results = await asyncio.gather(*writes, return_exceptions=True)

    assert {result.version for result in results if isinstance(result, MemoryMutation)} == {
        file.version for file in [await store.read("a.md", max_chars=10)] if file
    }
    # An attempt that met a conflict finds the operation when it is repeated.
    assert (await store.write("a.md", "one", expected_version=None, operation=OPERATION)).replayed


class Crash(Exception):
    """Stands for the end of a process."""


@pytest.fixture
def crash_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that lets the calls of a method of UserFiles end in a crash, before or after it."""

    def crash(name: str, *, is_written: bool) -> None:
        method = getattr(UserFiles, name)

        def crashing(*args: Any, **options: Any) -> None:
            if is_written:
                method(*args, **options)
            monkeypatch.setattr(UserFiles, name, method)
            raise Crash

        monkeypatch.setattr(UserFiles, name, crashing)

    return crash


@pytest.mark.parametrize("is_written", [False, True])
async def test_write_that_a_crash_interrupted(store: AgentMemoryStore, crash_after: Any, is_written: bool) -> None:
    created = await store.write("a.md", "old", expected_version=None)
    crash_after("replace", is_written=is_written)
    with pytest.raises(Crash):
        await store.write("a.md", "new", expected_version=created.version, operation=OPERATION)

    found = await store.get_operation(OPERATION)
    assert (found is not None) == is_written
    again = await store.write("a.md", "new", expected_version=created.version, operation=OPERATION)
    assert (again.replayed, again.existed, await read(store, "a.md")) == (is_written, True, "new")
    # Later writes in between change nothing.
    await store.write("a.md", "newer", expected_version=again.version)
    assert (await store.write("a.md", "new", expected_version=None, operation=OPERATION)).version == again.version


@pytest.mark.parametrize("is_written", [False, True])
async def test_deletion_that_a_crash_interrupted(store: AgentMemoryStore, crash_after: Any, is_written: bool) -> None:
    created = await store.write("a.md", "old", expected_version=None)
    crash_after("delete", is_written=is_written)
    with pytest.raises(Crash):
        await store.delete("a.md", expected_version=created.version, operation=OPERATION)

    assert (await store.get_operation(OPERATION) is not None) == is_written
    again = await store.delete("a.md", expected_version=created.version, operation=OPERATION)
    assert again == MemoryMutation(None, is_written, True)
    assert await read(store, "a.md") is None


async def test_conflict_leaves_the_operation_open(store: AgentMemoryStore) -> None:
    created = await store.write("a.md", "old", expected_version=None)
    for call in (
        store.write("a.md", "x", expected_version="1", operation=OPERATION),
        store.delete("a.md", expected_version="1", operation=OPERATION),
    ):
        with pytest.raises(MemoryConflictError):
            await call
        assert await store.get_operation(OPERATION) is None
    assert not (await store.write("a.md", "x", expected_version=created.version, operation=OPERATION)).replayed


async def test_long_and_unusual_operation_ids(store: AgentMemoryStore) -> None:
    for number, id_ in enumerate(("x" * 10_000, "", "a\nb", "Zoë")):
        operation = MemoryOperation(id_, "f")
        await store.write(f"{number}.md", "x", expected_version=None, operation=operation)
        file = await store.read(f"{number}.md", max_chars=10)
        assert file
        assert file.operation_id == id_
        assert await store.get_operation(operation)


@pytest.mark.parametrize(
    "path", ["", "/a", "a/", "a//b", "..", "a/../b", "a..b", "a b", "ä.md", "%2e%2e/a", "a" * 201, "a/" * 14 + "b"]
)
async def test_invalid_path_is_refused(store: AgentMemoryStore, path: str) -> None:
    for call in (
        store.read(path, max_chars=1),
        store.write(path, "x", expected_version=None),
        store.delete(path, expected_version=None),
    ):
        with pytest.raises(ValueError, match=r"path|directories"):
            await call


async def test_bounds_must_be_positive(store: AgentMemoryStore) -> None:
    for call in (store.read("a.md", max_chars=0), store.list_paths(limit=0), store.list_paths(limit=-1)):
        with pytest.raises(ValueError, match="positive"):
            await call


async def test_paths_are_sorted_and_bounded(store: AgentMemoryStore) -> None:
    await write_all(store, "b.md", "a/z.md", "a.md", "ab/c.md", "a/b/c/d.md")

    assert await store.list_paths(limit=10) == ["a.md", "a/b/c/d.md", "a/z.md", "ab/c.md", "b.md"]
    assert await store.list_paths("a", limit=10) == ["a.md", "a/b/c/d.md", "a/z.md", "ab/c.md"]
    assert await store.list_paths("a/", limit=1) == ["a/b/c/d.md"]
    assert await store.list_paths("a/z", limit=10) == ["a/z.md"]
    assert await store.list_paths("none/", limit=10) == []


async def test_search_is_bounded(store: AgentMemoryStore) -> None:
    for path, text in {
        "t/tea.md": "Ada drinks",
        "t/b.md": "TEA and tea " * 4,
        "t/c.md": "x" * 50 + " tea",
        "u/d.md": "tea",
    }.items():
        await store.write(path, text, expected_version=None)
    bounds = {"limit": 10, "max_files": 10, "max_chars": 60, "max_file_chars": 1_000}

    found = await store.search("t/", "tea", **bounds)
    assert [(match.path, match.score) for match in found.matches] == [("t/b.md", 8), ("t/tea.md", 2)]
    assert (found.scanned, found.truncated) == (3, True)
    assert sum(len(match.path) - 2 + len(match.snippet) for match in found.matches) <= 60
    found = await store.search("t/", "tea", **bounds | {"max_chars": 1_000})
    assert [match.path for match in found.matches] == ["t/b.md", "t/tea.md", "t/c.md"]
    assert not found.truncated
    for bound, expected in {"limit": 1, "max_files": 1, "max_file_chars": 3}.items():
        found = await store.search("t/", "tea", **bounds | {"max_chars": 1_000, bound: expected})
        assert found.truncated
    assert (await store.search("t/", " ", **bounds)).matches == []
    assert (await store.search("none/", "tea", **bounds)).scanned == 0


async def test_snippet_has_the_word_after_longer_lower_cases(store: AgentMemoryStore) -> None:
    """The lower case of `İ` has two characters."""
    await store.write("a.md", "İ" * 500 + " needle " + "x" * 2000, expected_version=None)

    [match] = (await store.search("", "Needle", limit=1, max_files=1, max_chars=200, max_file_chars=5000)).matches

    assert "needle" in match.snippet


async def test_unknown_agent_is_no_conflict(client: Client) -> None:
    with pytest.raises(ApiError, match="there is no agent"):
        await AgentMemoryStore(client.agent("unknown"), "ada").write("a.md", "x", expected_version=None)


async def test_users_and_folders_are_apart(agent: Agent, owner: str, store: AgentMemoryStore) -> None:
    await store.write("a.md", "x", expected_version=None, operation=OPERATION)

    for other in (AgentMemoryStore(agent, owner, folder="notes"), AgentMemoryStore(agent, f"{owner}x")):
        assert await read(other, "a.md") is None
        assert await other.get_operation(OPERATION) is None
        assert await other.list_paths(limit=10) == []


async def test_file_that_another_client_wrote(agent: Agent, owner: str, store: AgentMemoryStore) -> None:
    namespace = ("memories", owner, "files")
    agent.put_item(namespace, "by another client", key="a.md")
    file = await store.read("a.md", max_chars=2)
    assert file
    assert (file.content, file.truncated) == ("by", True)

    agent.put_item(namespace, "again", key="a.md")
    with pytest.raises(MemoryConflictError):
        await store.write("a.md", "x", expected_version=file.version)


def model_that_calls(name: str, **arguments: Any) -> FunctionModel:
    """Return a model that calls a tool once, then ends with all it has seen."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse([ToolCallPart(name, arguments)])
        return ModelResponse([TextPart(repr(messages))])

    return FunctionModel(respond)


async def test_agent_remembers_in_the_next_run(store: AgentMemoryStore) -> None:
    for content, expected in (("Ada drinks tea", "created"), ("Ada lives in Oslo", "appended")):
        memory = Memory[None](store, injection_errors="raise")
        result = await ModelAgent(model_that_calls("write_memory", content=content), capabilities=[memory]).run("hi")
        assert f"'status': '{expected}'" in result.output

    assert await read(store, "main/MEMORY.md") == "Ada drinks tea\nAda lives in Oslo\n"
    search = model_that_calls("search_memory", query="oslo")
    result = await ModelAgent(search, capabilities=[Memory[None](store)]).run("hi")
    assert "Ada lives in Oslo" in result.output


@pytest.fixture
def away() -> Iterator[AgentMemoryStore]:
    with Client("http://127.0.0.1:9", retries=0) as client:
        yield AgentMemoryStore(client.agent("words"), "ada")


async def test_outage_ends_only_runs_that_use_a_tool(away: AgentMemoryStore) -> None:
    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse([TextPart("hello")])

    result = await ModelAgent(FunctionModel(respond), capabilities=[Memory[None](away)]).run("hi")
    assert result.output == "hello"
    with pytest.raises(ApiUnreachable):
        await ModelAgent(model_that_calls("read_memory", file="a"), capabilities=[Memory[None](away)]).run("hi")
