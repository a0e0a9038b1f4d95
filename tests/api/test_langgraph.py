"""LangGraph store against the API; LangGraph's own in-memory store is the oracle."""

import asyncio
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from agentmemory_client import ApiError, Client
from agentmemory_client.langgraph_store import AgentMemoryStore
from tests.support.langgraph_suite import LEFT_OUT
from tests.support.pages import DOCS
from tests.support.patience import wait_until
from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import Stack, create_collection, running_api

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "langgraph"
BOT = agent_document(
    "langgraph-bot",
    preset="keyed",
    embedding={"provider": "wordllama", "dimensions": 64},
    scoring={"scoreThreshold": 0.2},
)
VALUES: list[dict[str, Any]] = [
    {"text": "apples are red", "kind": "fruit", "n": 1, "tags": ["a", "b"]},
    {"text": "pears are green", "kind": "fruit", "n": 2, "deep": {"er": [1, {"x": None}]}},
    {"text": "carrots are orange", "kind": "root", "n": 3.5, "done": True},
    {"text": "äöü \u2028 and more", "kind": None, "n": -1},
]


@pytest.fixture(scope="module")
def bots(qdrant_url: str) -> Iterator[Stack]:
    create_collection(qdrant_url, BOT)
    with running_api(qdrant_url, BOT) as stack:
        yield stack


@pytest.fixture
def store(bots: Stack, user: str) -> Iterator[AgentMemoryStore]:
    with AgentMemoryStore("langgraph-bot", user_id=user, url=bots.api_url, fields=["text"], threshold=-1) as store:
        yield store


@pytest.fixture
def oracle() -> InMemoryStore:
    return InMemoryStore()


def fill(store: BaseStore, user: str) -> None:
    places: list[tuple[str, ...]] = [("docs",), ("docs", "api"), ("memories", user), ("memories", user, "work")]
    for number, (place, value) in enumerate(zip(places, VALUES, strict=True)):
        store.put(place, f"k{number}", value)
        store.put((*place, "copy"), "same", value)


def sort_items(items: list[Any]) -> list[tuple[Any, ...]]:
    return sorted((item.namespace, item.key, repr(item.value)) for item in items)


def test_value_is_read_as_it_was_put(store: AgentMemoryStore, user: str) -> None:
    for place in [("docs",), ("memories", user), ("a", "b", "c")]:
        for number, value in enumerate(VALUES):
            store.put(place, str(number), value)
            item = store.get(place, str(number))
            assert item is not None
            assert (item.namespace, item.key, item.value) == (place, str(number), value)
    assert store.get(("docs",), "none") is None


def test_ttl_ends_a_value_despite_reads(store: AgentMemoryStore) -> None:
    store.put(("docs",), "k", VALUES[0], ttl=0.02)
    store.put(("docs",), "other", VALUES[1], ttl=60)
    wait_until(lambda: store.get(("docs",), "k", refresh_ttl=True) is None, seconds=10)

    assert [item.key for item in store.search(("docs",))] == ["other"]


def test_put_without_ttl_removes_the_ttl(store: AgentMemoryStore, bots: Stack, user: str) -> None:
    store.put(("memories", user), "k", VALUES[0], ttl=60)
    store.put(("memories", user), "k", VALUES[0])

    with Client(bots.api_url) as api:
        assert api.agent("langgraph-bot").get_item(["memories", user], "k").expires_at is None


def test_search_does_not_change_updated_at(store: AgentMemoryStore) -> None:
    store.put(("docs",), "k", VALUES[0])
    before = store.get(("docs",), "k")
    assert store.search(("docs",), query="apples")
    after = store.get(("docs",), "k")

    assert before is not None
    assert after is not None
    assert after.updated_at == before.updated_at


def test_delete_is_idempotent(store: AgentMemoryStore) -> None:
    store.put(("docs",), "k", VALUES[0])
    for _ in range(2):
        store.delete(("docs",), "k")

    assert store.get(("docs",), "k") is None
    assert store.search(("docs",)) == []
    assert store.list_namespaces() == []


@pytest.mark.parametrize(
    "filter_",
    [
        {"kind": "fruit", "n": 1},
        {"n": {"$gte": 1, "$lt": 3.5}},
        {"kind": {"$ne": "fruit"}},
        {"kind": None},
        {"tags": ["a", "b"]},
        {"deep": {"er": [1, {"x": None}]}},
    ],
    ids=str,
)
@pytest.mark.parametrize("query", [None])
def test_filters_match_langgraph(
    store: AgentMemoryStore, oracle: InMemoryStore, user: str, filter_: dict[str, Any], query: str | None
) -> None:
    for each_store in (store, oracle):
        for number, value in enumerate(VALUES):
            each_store.put(("memories", user), str(number), value)

    found = store.search(("memories", user), filter=filter_, query=query, limit=100)

    assert sort_items(found) == sort_items(oracle.search(("memories", user), filter=filter_, limit=100))
    assert all((item.score is not None) is (query is not None) for item in found)


def test_unknown_operator_is_refused(store: AgentMemoryStore) -> None:
    store.put(("docs",), "k", {"n": 1})

    with pytest.raises(ValueError, match=r"\$in is no operator"):
        store.search(("docs",), filter={"n": {"$in": [1]}})


def test_prefix_covers_namespaces_below(store: AgentMemoryStore, oracle: InMemoryStore, user: str) -> None:
    for each_store in (store, oracle):
        fill(each_store, user)

    for prefix in [(), ("docs",), ("docs", "api"), ("memories",), ("memories", user), ("doc",), ("none",)]:
        assert sort_items(store.search(prefix, limit=100)) == sort_items(oracle.search(prefix, limit=100)), prefix
        ranked = store.search(prefix, query="apples", limit=100)
        assert sort_items(ranked) == sort_items(oracle.search(prefix, limit=100)), prefix
        assert [item.score for item in ranked] == sorted((item.score or 0 for item in ranked), reverse=True)


@pytest.mark.parametrize("query", [None, "apples"])
def test_search_pages_are_disjoint_and_complete(store: AgentMemoryStore, query: str | None) -> None:
    for number in range(7):
        store.put(("docs",), str(number), {"text": f"apples {number}", "odd": number % 2})

    pages = [store.search(("docs",), query=query, limit=3, offset=offset) for offset in (0, 3, 6, 9)]
    odd = store.search(("docs",), query=query, filter={"odd": 1}, limit=2, offset=2)

    assert [len(page) for page in pages] == [3, 3, 1, 0]
    assert len({item.key for page in pages for item in page}) == 7
    assert len(odd) == 1


def test_unindexed_value_matches_no_query(store: AgentMemoryStore) -> None:
    store.put(("docs",), "hidden", VALUES[0], index=False)
    store.put(("docs",), "shown", VALUES[1])

    assert {item.key for item in store.search(("docs",))} == {"hidden", "shown"}
    assert [item.key for item in store.search(("docs",), query="apples are red")] == ["shown"]


def test_put_selects_the_embedded_fields(store: AgentMemoryStore) -> None:
    value = {"text": "about nothing", "title": "apples are red", "parts": [{"t": "pears"}, {"t": "plums"}]}
    store.put(("docs",), "title", value, index=["title"])
    store.put(("docs",), "text", value)
    store.put(("docs",), "parts", value, index=["parts[1].t"])
    store.put(("docs",), "nothing there", value, index=["absent"])

    assert store.search(("docs",), query="apples are red")[0].key == "title"
    assert store.search(("docs",), query="plums")[0].key == "parts"
    assert len(store.search(("docs",), query="anything")) == 3


def test_long_value_is_kept_whole(store: AgentMemoryStore) -> None:
    value = {"text": "long " * 5000}
    store.put(("docs",), "k", value)

    item = store.get(("docs",), "k")
    assert item is not None
    assert item.value == value


CONDITIONS: list[dict[str, Any]] = [
    {},
    {"prefix": ("docs",)},
    {"prefix": ("memories",)},
    {"prefix": ("*", "api")},
    {"prefix": ("memories", "*", "work")},
    {"suffix": ("copy",)},
    {"suffix": ("*", "copy")},
    {"prefix": ("docs",), "suffix": ("copy",)},
    {"prefix": ("docs", "api", "copy", "too", "long")},
    {"max_depth": 1},
    {"max_depth": 2},
    {"prefix": ("docs",), "max_depth": 2},
    {"limit": 2},
    {"limit": 2, "offset": 1},
    {"offset": 100},
]


@pytest.mark.parametrize("conditions", CONDITIONS, ids=str)
def test_namespaces_are_listed_as_in_langgraph(
    store: AgentMemoryStore, oracle: InMemoryStore, user: str, conditions: dict[str, Any]
) -> None:
    for each_store in (store, oracle):
        fill(each_store, user)

    assert store.list_namespaces(**conditions) == oracle.list_namespaces(**conditions)


def test_batch_reads_first_and_keeps_last_write(store: AgentMemoryStore, oracle: InMemoryStore) -> None:
    ops = [
        PutOp(("docs",), "a", {"text": "first"}),
        GetOp(("docs",), "a"),
        PutOp(("docs",), "a", {"text": "last"}),
        PutOp(("docs",), "gone", None),
        SearchOp(("docs",)),
    ]

    for _ in range(2):
        ours, expected = (each_store.batch(ops) for each_store in (store, oracle))
        assert [repr(_stripped(result)) for result in ours] == [repr(_stripped(result)) for result in expected]
    assert store.batch([]) == []


class _LosingResult(httpx.HTTPTransport):
    """Replaces the first result of the first response by a 504, after another client has written.

    Attributes:
        act: Writes of the other client; None once they are done.
    """

    act: Callable[[], object] | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        act, self.act = self.act, None
        if act is None:
            return answer
        act()
        unknown = {"status": 504, "title": "Outcome unknown", "detail": "read before retrying"}
        results = json.loads(answer.read())["results"]
        return httpx.Response(answer.status_code, json={"results": [{"error": unknown}, *results[1:]]})


def test_put_with_unknown_outcome_replaces_no_later_put(store: AgentMemoryStore, bots: Stack, user: str) -> None:
    """It was stored although its result is a 504. The store repeats it under the same idempotency key."""
    transport = _LosingResult()
    with AgentMemoryStore("langgraph-bot", user_id=user, url=bots.api_url) as other:
        transport.act = lambda: other.put(("docs",), "a", {"text": "later"})
        store._client.http = httpx.Client(base_url=bots.api_url, transport=transport)
        store.batch([PutOp(("docs",), key, {"text": "first"}) for key in ("a", "b")])

    assert [item.value["text"] for key in ("a", "b") if (item := store.get(("docs",), key))] == ["later", "first"]


def _stripped(result: Any) -> Any:
    items = result if isinstance(result, list) else [result]
    return [getattr(item, "value", item) for item in items]


async def test_async_store_has_the_same_methods(bots: Stack, user: str) -> None:
    async with AgentMemoryStore("langgraph-bot", user_id=user, url=bots.api_url, threshold=-1) as store:
        await store.aput(("docs",), "k", VALUES[0])
        item = await store.aget(("docs",), "k")
        found = await store.asearch(("docs",), query="apples", filter={"n": 1})
        namespaces = await store.alist_namespaces()
        await store.adelete(("docs",), "k")
        results = await store.abatch([GetOp(("docs",), "k"), PutOp(("docs",), "a", {}), PutOp(("docs",), "b", {})])
        listed = await store.asearch(("docs",))

    assert item is not None
    assert [item.value, found[0].value] == [VALUES[0]] * 2
    assert (namespaces, results) == ([("docs",)], [None] * 3)
    assert {item.key for item in listed} == {"a", "b"}


def test_users_are_isolated(store: AgentMemoryStore, bots: Stack, user: str) -> None:
    store.put(("docs",), "k", {"text": "secret"})
    store.put(("memories", user), "k", {"text": "secret"})

    with AgentMemoryStore("langgraph-bot", user_id=f"not-{user}", url=bots.api_url, threshold=-1) as other:
        assert other.get(("docs",), "k") is None
        for prefix in [(), ("docs",), ("memories",)]:
            assert other.search(prefix) == other.search(prefix, query="secret") == []
        assert other.list_namespaces() == []


def test_global_items_are_separate_from_users(store: AgentMemoryStore, bots: Stack) -> None:
    with AgentMemoryStore("langgraph-bot", user_id="global", url=bots.api_url, threshold=-1) as shared:
        shared.put(("docs",), "k", {"text": "for all"})

        assert [item.key for item in shared.search((), query="for all")] == ["k"]
        assert store.search((), query="for all") == []


def test_store_sees_items_but_not_plain_memories(store: AgentMemoryStore, bots: Stack, user: str) -> None:
    """The store also returns an item that another client has put."""

    with Client(bots.api_url) as api:
        api.agent("langgraph-bot").put_item(["memories", user], "from a tool", key="k", metadata={"n": 1})
        api.agent("langgraph-bot").user(user).add("a plain memory", namespace=["memories", user])

    value = {"content": "from a tool", "metadata": {"n": 1}}
    for items in (
        store.search(("memories", user)),
        store.search(("memories", user), query="tool"),
        [store.get(("memories", user), "k")],
    ):
        assert [item and item.value for item in items] == [value]


BAD: list[tuple[Callable[[AgentMemoryStore], object], type[Exception]]] = [
    (lambda store: store.put((), "k", {}), InvalidNamespaceError),
    (lambda store: store.put(("langgraph", "x"), "k", {}), InvalidNamespaceError),
    (lambda store: store.put(("a.b",), "k", {}), InvalidNamespaceError),
    (lambda store: store.put(("docs",), "k", {}, ttl=0), ValueError),
    (lambda store: store.put(("docs",), "k", {}, ttl=float("inf")), ValueError),
    (lambda store: store.batch([PutOp(("docs",), "k", {}, ttl=-5)]), ValueError),
    (lambda store: store.put(("docs",), "a\x00b", {}), ApiError),
    (lambda store: store.get(("docs",), ""), ApiError),
]


@pytest.mark.parametrize(("call", "error"), BAD)
def test_invalid_namespace_ttl_or_key_is_refused(
    store: AgentMemoryStore, call: Callable[[AgentMemoryStore], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(store)


def run_example(name: str, bots: Stack, user: str) -> list[str]:
    """Return the output lines of an example."""
    environment = os.environ | {"AGENTMEMORY_URL": bots.api_url, "EXAMPLE_USER": user, "NO_PROXY": "127.0.0.1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / name)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_chat_example_remembers_across_threads(bots: Stack, user: str) -> None:
    assert run_example("chat.py", bots, user) == [
        "> I pay by invoice within 30 days",
        "Tell me more.",
        "> How do I pay?",
        "You said:",
        "- I pay by invoice within 30 days",
    ]


def test_tool_example_stores_by_tool_calls(bots: Stack, user: str) -> None:
    assert run_example("tool_calls.py", bots, user) == [
        "> I pay by invoice within 30 days",
        "Noted: stored.",
        "> I pay by card within 10 days",
        "Noted: replaced the item under this key.",
        "> How do I pay?",
        "You said:",
        "- I pay by card within 10 days",
    ]
    with Client(bots.api_url) as api:
        assert api.agent("langgraph-bot").get_item(["memories", user], "payment").metadata == {"from": "chat"}


@pytest.mark.parametrize("fields", [["a", "b"], "parts[*].t", ["*"], ["deep.{x,y}"]], ids=str)
def test_several_texts_are_embedded_together(bots: Stack, user: str, fields: list[str]) -> None:
    value = {"a": "apples", "b": "violins", "parts": [{"t": "apples"}, {"t": "violins"}]}
    value |= {"deep": {"x": "apples", "y": "violins"}}
    with AgentMemoryStore("langgraph-bot", user_id=user, url=bots.api_url, fields=fields, threshold=-1) as store:
        store.put(("docs",), "both", value)
        store.put(("docs",), "index", {"c": "apples", "d": "violins"}, index=["c", "d"])
        store.put(
            ("docs",), "other", {"a": "trains", "b": "trains", "parts": [{"t": "trains"}], "deep": {"x": "trains"}}
        )
        found = [[item.key for item in store.search(("docs",), query=query)] for query in ("apples", "violins")]

    assert [keys[-1] for keys in found] == ["other", "other"]


LABELS = [" ", "x" * 257, "a\nb", "\u0085"]


@pytest.mark.parametrize("label", LABELS, ids=ascii)
def test_invalid_label_is_a_langgraph_error(store: AgentMemoryStore, label: str) -> None:
    namespace, good = ("docs", label), [PutOp(("docs",), str(number), {"n": number}) for number in range(3)]

    for call in (
        lambda: store.put(namespace, "k", {}),
        lambda: store.get(namespace, "k"),
        lambda: store.delete(namespace, "k"),
        lambda: store.search(namespace),
        lambda: store.search(namespace, query="q"),
        lambda: store.batch([good[0], PutOp(namespace, "k", {}), *good[1:]]),
    ):
        with pytest.raises(InvalidNamespaceError):
            call()
    assert {item.key for item in store.search(("docs",))} == {"0", "1", "2"}


@pytest.mark.parametrize("query", ["", " ", "\u200b\n", "\u3164"], ids=ascii)
def test_blank_query_lists(store: AgentMemoryStore, query: str) -> None:
    store.put(("docs",), "k", VALUES[0])

    assert [(item.key, item.score) for item in store.search(("docs",), query=query)] == [("k", None)]


def test_text_without_a_visible_character_is_stored(store: AgentMemoryStore) -> None:
    store.put(("docs",), "k", {"text": "\u3164"}, index=["text"])

    item = store.get(("docs",), "k")
    assert item is not None
    assert item.value == {"text": "\u3164"}


def test_long_query_is_truncated(store: AgentMemoryStore) -> None:
    store.put(("docs",), "k", VALUES[0])

    assert [item.key for item in store.search(("docs",), query="apples " * 20_000)] == ["k"]


async def test_batch_of_1001_puts_is_stored(bots: Stack, user: str) -> None:
    ops = [PutOp(("docs",), str(number), {"text": f"item {number}"}) for number in range(1001)]

    async with AgentMemoryStore("langgraph-bot", user_id=user, url=bots.api_url, threshold=-1) as store:
        await store.abatch([*ops, PutOp(("docs",), "3", {"text": "last"})])
        kept = await store.asearch(("docs",), limit=2000)

    assert {item.key for item in kept} == {str(number) for number in range(1001)}
    assert [item.value for item in kept if item.key == "3"] == [{"text": "last"}]


@pytest.mark.faults
async def test_sixty_thousand_concurrent_operations(bots: Stack, user: str) -> None:
    """Like the test of LangGraph's Postgres store: puts, reads, lists, searches and deletions run concurrently."""
    rounds, keys = 10, 1000
    async with AgentMemoryStore("langgraph-bot", user_id=user, url=bots.api_url, threshold=-1) as store:
        calls = []
        for turn in range(rounds):
            place = ("test", "foo", "bar", "baz", str(turn % 2))
            for number in range(keys):
                calls += [
                    store.aput(place, f"key{number}", {"foo": f"bar{number}"}),
                    store.aget(place, f"key{number}"),
                    store.alist_namespaces(prefix=None, max_depth=turn + 1),
                    store.asearch(("test",)),
                    store.aput(place, f"key{number}", {"foo": f"bar{number}"}),
                    store.adelete(place, f"key{number}") if number % 2 else store.aput(place, f"key{number}", {"n": 1}),
                ]
        results = await asyncio.gather(*calls)
        remaining = await store.asearch(("test",), limit=5000)

    assert len(results) == 60_000
    assert {item.key for item in remaining} == {f"key{number}" for number in range(0, keys, 2)}
    assert all(item.value == {"n": 1} for item in remaining)
    assert len(remaining) == keys


def test_page_lists_the_failing_tests_of_langgraph() -> None:
    page = (DOCS / "keyed.md").read_text()

    assert set(re.findall(r"`(test_\w+)`", page)) == LEFT_OUT
