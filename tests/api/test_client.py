"""The Python client against the API itself."""

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from agentmemory_client import (
    ApiError,
    ApiUnreachable,
    AsyncClient,
    Client,
    FieldProblem,
    Found,
    Memory,
    SearchResult,
    Stored,
)
from tests.support.web.api_stack import Stack

VECTOR = [0.5] * 8
SLOW_OR_UNUSED = ("kopf", "kubernetes", "fastapi", "openai", "aiohttp", "pydantic", "yaml")


@pytest.fixture
def api(stack: Stack) -> Any:
    with Client(stack.api_url) as client:
        yield client


def test_memory_is_stored_found_read_and_deleted(api: Client, user: str) -> None:
    at = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
    stored = (
        api.agent("probe")
        .user(user)
        .add("c", vector=VECTOR, tags=("x", "y"), created_at=at, namespace=["a", "b"], metadata={"n": 1})
    )

    found = api.agent("probe").user(user).search(vector=VECTOR, tags=["x"], filters={"metadata.n": 1}, explain=True)
    memory = api.agent("probe").user(user).get(stored.id)
    api.agent("probe").user(user).delete(stored.id)

    assert (stored.event, stored.recorded) == ("ADD", True)
    assert isinstance(found, SearchResult)
    assert [result.id for result in found.results] == [stored.id]
    assert isinstance(found.results[0], Found)
    assert found.results[0].explain is not None
    assert "metadata.n" in found.warnings[0]
    assert isinstance(memory, Memory)
    assert (memory.created_at, memory.tags, memory.namespace, memory.metadata) == (at, ("x", "y"), ("a", "b"), {"n": 1})
    assert list(api.agent("probe").user(user).memories()) == []


def test_compact_format_and_fields_shrink_responses(api: Client, user: str) -> None:
    vector = [0.5, 0.25, *[0.125] * 6]
    stored = api.agent("probe").user(user).add("c", vector=vector, importance=0.123456, metadata={"n": 0.123456})

    (whole,) = api.agent("probe").user(user).search(vector=VECTOR).results
    (small,) = api.agent("probe").user(user).search(vector=VECTOR, format="compact").results
    (listed,) = api.agent("probe").user(user).memories(format="compact")
    named = api.agent("probe").user(user).search_fields(["id", "content"], vector=VECTOR, format="compact")
    timed = api.agent("probe").user(user).search_fields(["created_at"], vector=VECTOR, terms=True)["results"][0]

    assert (small.importance, small.metadata, small.score) == (0.1235, {"n": 0.123456}, round(whole.score, 4))
    assert replace(small, importance=0.123456, score=whole.score) == whole
    assert listed.importance == 0.1235
    assert named["results"] == [{"id": stored.id, "content": "c", "score": small.score}]
    assert named["generation"] >= 1
    assert timed.keys() == {"created_at", "score", "similarity", "recency", "utility"}
    assert datetime.fromisoformat(timed["created_at"]) == whole.created_at


async def test_async_client_has_the_same_methods(stack: Stack, user: str) -> None:
    async with AsyncClient(stack.api_url) as api:
        stored = await api.agent("probe").user(user).add("c", vector=VECTOR)
        found = await api.agent("probe").user(user).search(vector=VECTOR)
        memory = await api.agent("probe").user(user).get(stored.id)
        listed = [item async for item in api.agent("probe").user(user).memories(limit=1)]
        await api.agent("probe").user(user).delete(stored.id)
        page = await api.agent("probe").user(user).page()
        kept = await api.agent("mind").user(user).keep("s", "c", vector=VECTOR)
        in_mind = await api.agent("mind").user(user).working("s")
        ended = await api.agent("mind").user(user).end("s")
        changed = (
            await api.agent("probe")
            .user(user)
            .change((await api.agent("probe").user(user).add("c", vector=VECTOR)).id, tags=["x"])
        )
        versions = await api.agent("probe").user(user).history(changed.id)
        below = [child async for child in api.agent("probe").user(user).children(changed.id)]
        tree = await api.agent("probe").user(user).tree(changed.id)
        stats = await api.agent("probe").stats(user)
        agents = await api.agents()
        settings = await api.agent("probe").info()
        batch = await api.agent("probe").add_many([{"user_id": user, "content": "b", "vector": VECTOR}])

    assert [result.id for result in found.results] == [memory.id] == [item.id for item in listed] == [stored.id]
    assert (page.results, page.next_cursor) == ((), None)
    assert "probe" in [agent.agent for agent in agents]
    assert (settings.distance, settings.embedding["dimensions"]) == ("Cosine", 8)
    assert isinstance(batch[0], Stored)
    assert ([memory.id for memory in in_mind], ended) == ([kept.id], {"working": 1})
    assert versions == (changed,)
    assert (below, tree.root.content, tree.truncated) == ([], "c", False)
    assert (stats.total, stats.types["fact"]["active"], stats.newest) == (1, 1, changed.created_at)


def test_memory_is_changed_and_its_history_read(api: Client, user: str) -> None:
    first = api.agent("probe").user(user).add("first", vector=VECTOR, expires_at=datetime(2999, 1, 1, tzinfo=UTC))
    changed = api.agent("probe").user(user).change(first.id, tags=["x"], expires_at=None, pinned=True)
    api.agent("probe").user(user).add("second", vector=VECTOR, supersedes=first.id)

    versions = api.agent("probe").user(user).history(first.id)

    assert (changed.tags, changed.expires_at, changed.pinned) == (("x",), None, True)
    assert [(version.content, version.pinned) for version in versions] == [("first", True), ("second", False)]


def test_children_come_as_list_and_tree(api: Client, user: str) -> None:
    root = api.agent("probe").user(user).add("root", vector=VECTOR).id
    batch = [{"user_id": user, "content": str(n), "vector": VECTOR, "parent_id": root} for n in range(60)]
    api.agent("probe").add_many(batch)  # type: ignore[arg-type]

    below = [memory.content for memory in api.agent("probe").user(user).children(root)]
    tree = api.agent("probe").user(user).tree(root, limit=5)

    assert sorted(below) == sorted(str(n) for n in range(60))
    assert (tree.root.id, len(tree.root.children), tree.truncated) == (root, 5, True)
    assert tree.root.children[0].children == ()


def test_memories_are_counted(api: Client, user: str) -> None:
    api.agent("probe").user(user).add("first", vector=VECTOR)

    assert api.agent("probe").stats(user).total == 1
    assert api.agent("probe").stats().total >= 1


def test_session_evicts_and_ends(api: Client, user: str) -> None:
    """A session keeps four working memories; the fifth evicts the oldest."""

    kept = [
        api.agent("mind").user(user).keep("a/b c", content, vector=VECTOR, importance="high") for content in "abcde"
    ]

    in_mind = [memory.content for memory in api.agent("mind").user(user).working("a/b c")]
    dropped = [api.agent("mind").user(user).end("a/b c") for _ in range(2)]

    assert (kept[0].evicted, kept[4].evicted and kept[4].evicted.content) == (None, "a")
    assert in_mind == ["e", "d", "c", "b"]
    assert dropped == [{"working": 4}, {}]


def test_item_is_put_read_listed_and_deleted(api: Client, user: str) -> None:
    home, shared = ["memories", user], ["docs", "api"]
    stored = api.agent("probe").put_item(home, "c", key="k", metadata={"n": 1}, vector=VECTOR)
    api.agent("probe").put_item(shared, "d", user_id=user, vector=VECTOR)

    item = api.agent("probe").get_item(home, "k")
    keys = list(api.agent("probe").keys(home))
    namespaces = api.agent("probe").namespaces(user_id=user)
    api.agent("probe").delete_item(home, "k")

    assert (item.id, item.content, item.key, item.metadata) == (stored.memory_id, "c", "k", {"n": 1})
    assert (keys, len(list(api.agent("probe").keys(shared, user_id=user)))) == (["k"], 1)
    assert [(size.namespace, size.items) for size in namespaces] == [(("docs", "api"), 1), (("memories", user), 1)]
    with pytest.raises(ApiError, match="404"):
        api.agent("probe").get_item(home, "k")


async def test_async_client_keeps_items(stack: Stack, user: str) -> None:
    home = ["memories", user]
    async with AsyncClient(stack.api_url) as api:
        stored = await api.agent("probe").put_item(home, "c", key="k", vector=VECTOR)
        item = await api.agent("probe").get_item(home, "k")
        keys = [key async for key in api.agent("probe").keys(home)]
        namespaces = await api.agent("probe").namespaces(home)
        await api.agent("probe").delete_item(home, "k")

    assert (item.id, keys, namespaces[0].items) == (stored.memory_id, ["k"], 1)


def test_lists_are_read_page_by_page(api: Client, user: str) -> None:
    contents = [str(number) for number in range(7)]
    results = api.agent("probe").add_many([{"user_id": user, "content": text, "vector": VECTOR} for text in contents])

    read = [memory.content for memory in api.agent("probe").user(user).memories(limit=3, type=["fact", "task"])]
    page = api.agent("probe").user(user).page(limit=3)

    assert all(isinstance(result, Stored) for result in results)
    assert sorted(read) == contents
    assert (len(page.results), page.next_cursor is not None) == (3, True)


def test_bad_batch_item_is_an_error_in_its_place(api: Client, user: str) -> None:
    good, bad = api.agent("probe").add_many(
        [{"user_id": user, "content": "c", "vector": VECTOR}, {"user_id": user, "content": " ", "vector": VECTOR}],
    )

    assert isinstance(good, Stored)
    assert isinstance(bad, ApiError)
    assert (bad.status, bad.errors[0].field) == (422, "content")


def test_idempotency_key_returns_the_same_memory(api: Client, user: str) -> None:
    first, again = (api.agent("probe").user(user).add("c", vector=VECTOR, idempotency_key="k") for _ in range(2))

    assert first.id == again.id
    with pytest.raises(ApiError) as raised:
        api.agent("probe").user(user).add("other", vector=VECTOR, idempotency_key="k")
    assert raised.value.type == "/problems/conflict"


def test_problem_is_an_error_with_its_fields(api: Client, user: str) -> None:
    with pytest.raises(ApiError, match="422 The request has invalid fields") as raised:
        api.agent("probe").user(user).search(vector=VECTOR, filters={"colour": "red"})

    problem = raised.value
    assert (problem.status, problem.type) == (422, "/problems/invalid-request")
    assert isinstance(problem.errors[0], FieldProblem)
    assert problem.errors[0].field == "filters.colour"
    assert problem.request_id


@pytest.mark.parametrize("name", ["no such agent", "../agents", "a/b?c#d"])
def test_agent_name_is_one_path_segment(api: Client, name: str) -> None:
    with pytest.raises(ApiError) as raised:
        api.agent(name).info()

    assert raised.value.status == 404


def test_agents_are_listed_with_readiness(api: Client) -> None:
    ready = {agent.agent: agent.ready for agent in api.agents()}

    assert (ready["probe"], ready["missing"]) == (True, False)


def test_unreachable_api_is_named() -> None:
    with Client("http://127.0.0.1:9", retries=0) as api, pytest.raises(ApiUnreachable, match=r"127\.0\.0\.1:9"):
        api.agent("probe").user(str(uuid4())).search("q")


def test_import_loads_no_slow_module() -> None:
    code = f"import sys, agentmemory_client; print([n for n in {SLOW_OR_UNUSED!r} if n in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.strip() == "[]"


def test_search_many_keeps_the_order(api: Client, user: str) -> None:
    words = api.agent("words").user(user)
    for text in ("pays by invoice", "lives in Ghent"):
        words.add(text)

    found = words.search_many(["where does she live", "how does she pay"], top_k=1)

    assert [result.results[0].content for result in found] == ["lives in Ghent", "pays by invoice"]
    with pytest.raises(ApiError):
        words.search_many(["a", ""])
